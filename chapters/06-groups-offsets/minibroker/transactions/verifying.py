"""The rule for transactional batches: who may write in which transaction (KIP-98, KIP-890). A pure module.

    a plain batch of a producer whose transaction is open     INVALID_TXN_STATE
    a transactional batch without a transactional id          TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    the producer's transaction is open in this epoch          may pass
    version 2, unknown producer, sequence > 0                 OUT_OF_ORDER_SEQUENCE_NUMBER: a batch before it is missing
    otherwise the batch would open a transaction              the coordinator is asked, and the batch is held (`guards`)

The rule comes after the check of epoch and sequence. A zombie's batch is refused for its old epoch, which lets the
client abort its transaction; INVALID_TXN_STATE would end the client.

A producer with Produce 12 or newer does not send AddPartitionsToTxn. Its batch adds the partition to the transaction,
by the same question to the coordinator. For an older producer, the coordinator only says whether the partition was
added.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from minibroker.log.batch import NO_OFFSET, NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Claim, Incoming, Origin, Rule, Rules, is_in_no_transaction, rules_of
from minibroker.partitions.errors import Held, Refused
from minibroker.partitions.producers import ProducerStates
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.guards import Guard
from minibroker.transactions.state import TransactionLog
from minibroker.wire.codes import ErrorCode

ADDING_FROM_VERSION = 12
ABORTABLE_FROM_VERSION = 11

UNANSWERED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""With these codes the coordinator has decided nothing. The producer gets NOT_ENOUGH_REPLICAS, and tries again."""


class Verifier(Protocol):
    """Asks the coordinators of transactions."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        names: Sequence[TopicPartition],
        *,
        is_add: bool,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Ask whether partitions are in the producer's open transaction. With `is_add`, add them to it.

        `done` is called once, with a code for each partition. The caller of `done` then settles the waiting requests.
        """


def rules_for_transactions(
    name: TopicPartition,
    transactions: TransactionLog,
    verifier: Verifier,
    is_verifying: Callable[[], bool] = lambda: True,
) -> Rules:
    """The admission rules of a partition that takes part in transactions.

    `is_verifying` is transaction.partition.verification.enable. Without verification, the batch of an older producer
    may open a transaction that no coordinator knows.
    """

    def rules(config: TopicConfig, producers: ProducerStates) -> list[Rule]:
        usual = [it for it in rules_of(config, producers) if it is not is_in_no_transaction]
        verification = Verification(name, transactions, producers, verifier, is_verifying)
        return [*usual, belongs_to_a_transaction(name, transactions.open_transactions, verification)]

    return rules


def belongs_to_a_transaction(
    name: TopicPartition, open_transactions: Mapping[int, int], verification: "Verification"
) -> Rule:
    """A client's transactional batch is part of a transaction that its coordinator knows."""

    def rule(it: Incoming) -> None:
        # This runs for every batch. A plain batch needs only this test.
        if it.header.attributes & TRANSACTIONAL_BIT:
            if it.origin is Origin.CLIENT:
                verification.check(it.header, it.claim)
        elif it.header.producer_id in open_transactions and it.origin is Origin.CLIENT:
            message = f"producer {it.header.producer_id} has an open transaction in {name.directory}"
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"{message}, but its batch is not transactional")

    return rule


class Verification:
    """The check of transactional batches for one partition."""

    def __init__(
        self,
        name: TopicPartition,
        transactions: TransactionLog,
        producers: ProducerStates,
        verifier: Verifier,
        is_verifying: Callable[[], bool],
    ) -> None:
        self._name = name
        self._transactions = transactions
        self._producers = producers
        self._verifier = verifier
        self._is_verifying = is_verifying

    def check(self, header: BatchHeader, claim: Claim | None) -> None:
        """Return if the batch may be appended, otherwise raise `Refused` or `Held`."""
        if claim is None:
            message = "the batch is transactional, but the request names no transactional id"
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
        if header.producer_id == NO_PRODUCER_ID:
            raise Refused(ErrorCode.INVALID_RECORD, "the batch is transactional, but has no producer id")
        if self._is_open(header, claim) or not (claim.version >= ADDING_FROM_VERSION or self._is_verifying()):
            return
        self._check_guard(header, claim, self._guard(header, claim))

    def _is_open(self, header: BatchHeader, claim: Claim) -> bool:
        """Whether the producer's transaction is open here, in the epoch of the batch."""
        state = self._producers.producers.get(header.producer_id)
        if state is None:
            if header.base_sequence and claim.version >= ADDING_FROM_VERSION:
                self._refuse_gap(header)
            return False
        is_open = state.current_txn_first_offset != NO_OFFSET and state.epoch == header.producer_epoch
        return is_open and self._transactions.is_owned_by(header.producer_id, claim.transactional_id)

    def _guard(self, header: BatchHeader, claim: Claim) -> Guard:
        """The guard of the batch. If there is none yet, the coordinator is asked."""
        guard = claim.guards.get(self._name)
        if isinstance(guard, Guard):
            return guard
        guards, sequence = self._transactions.guards, header.base_sequence
        guard = guards.find(header.producer_id, claim.transactional_id, header.producer_epoch)
        if guard is None or guard.code in UNANSWERED:
            if guard is not None:
                guards.remove(header.producer_id, guard)
                sequence = min(sequence, guard.lowest_sequence)
            is_add = claim.version >= ADDING_FROM_VERSION
            guard = Guard(claim.transactional_id, header.producer_epoch, sequence, is_add)
            guards.add(header.producer_id, guard)
            self._ask(header, claim, guard)
        guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        claim.guards[self._name] = guard
        return guard

    def _ask(self, header: BatchHeader, claim: Claim, guard: Guard) -> None:
        guards, name, producer_id = self._transactions.guards, self._name, header.producer_id

        def done(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            code = codes.get(name, ErrorCode.NOT_ENOUGH_REPLICAS)
            if code is not ErrorCode.NONE and code not in UNANSWERED:
                guards.remove(producer_id, guard)
            guards.answer(guard, code)

        self._verifier.verify(
            claim.transactional_id, producer_id, header.producer_epoch, [name], is_add=guard.is_add, done=done
        )

    def _check_guard(self, header: BatchHeader, claim: Claim, guard: Guard) -> None:
        what = f"the transaction of {claim.transactional_id!r} in {self._name.directory}"
        if guard.is_over:
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"{what} has ended since the batch was sent")
        if guard.code is None:
            message = f"the coordinator has not said yet whether it knows {what}: send the batch again"
            raise Held(guard, ErrorCode.NOT_ENOUGH_REPLICAS, message)
        if guard.code is not ErrorCode.NONE:
            code = _code_for_producer(guard.code, claim.version)
            raise Refused(code, f"the coordinator did not confirm {what}: {guard.code.name}")
        if header.producer_id not in self._producers.producers and header.base_sequence > guard.lowest_sequence:
            self._refuse_gap(header)
        self._transactions.set_owner(header.producer_id, claim.transactional_id)

    def _refuse_gap(self, header: BatchHeader) -> NoReturn:
        message = (
            f"producer {header.producer_id} in epoch {header.producer_epoch} begins with sequence "
            f"{header.base_sequence} in {self._name.directory}: a batch before it is missing"
        )
        raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)


def _code_for_producer(code: ErrorCode, version: int) -> ErrorCode:
    """The coordinator's code as Produce answers it."""
    if code in UNANSWERED:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return code
