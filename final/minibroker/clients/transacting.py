"""The requests of a transactional producer to its coordinators. A pure module.

There are two ways to run a transaction, and the brokers choose one by the feature `transaction.version`:

| | version 1 | version 2 (KIP-890) |
|---|---|---|
| a partition joins the transaction | by AddPartitionsToTxn, before its first batch | with its first batch |
| the offsets of a group join it | by AddOffsetsToTxn, before TxnOffsetCommit | with TxnOffsetCommit |
| the producer's epoch rises | when a producer starts | with each transaction |

So with version 2 a late request of one transaction has an old epoch, and cannot change the next transaction.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from minibroker.client.errors import BrokerError, ClientError
from minibroker.clients.batching import Identity
from minibroker.clients.coordination import Coordinator, GroupCoordinator, Reaction, Signature, by_topic, reaction_to
from minibroker.clients.core import Dialogue
from minibroker.clients.errors import CommitRefused, Fenced
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker.transactions.tables.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from minibroker.transactions.tables.end_txn import EndTxnRequest
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest

FEATURE = "transaction.version"
EPOCH_PER_TRANSACTION = 2
"""The transaction version in which each transaction has its own epoch."""

# The last versions of these requests for transaction version 1, without an epoch for each transaction.
_ADD_PARTITIONS, _ADD_OFFSETS, _OFFSETS, _END, _PRODUCE = 3, 3, 4, 4, 11

FENCING = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class Session:
    """The transactional id of one producer, the transaction version, and the producer id and epoch."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.version = 0
        self.identity = Identity(producer_id=-1, producer_epoch=-1)

    @property
    def has_own_epochs(self) -> bool:
        """Whether each transaction has its own epoch, and brokers add partitions by themselves."""
        return self.version >= EPOCH_PER_TRANSACTION

    @property
    def produce_version_max(self) -> int | None:
        """The highest version of Produce that fits the transaction version."""
        return self._version_max(_PRODUCE)

    def _version_max(self, without_epochs: int) -> int | None:
        return None if self.has_own_epochs else without_epochs

    def refusal(self, code: int) -> BrokerError:
        """The error for a code."""
        if code in FENCING:
            return Fenced(code, self.transactional_id, self.timeout_ms)
        return BrokerError(code, about=f"transactional id {self.transactional_id}")

    def _check(self, code: int) -> None:
        if code:
            raise self.refusal(code)

    def _take(self, response: Any) -> None:
        self.identity = Identity(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

    # Dialogues --------------------------------------------------------------------------------------------------------

    def init(self, coordinator: Coordinator, *, is_first: bool, timeout_ms: float) -> Dialogue[None]:
        """Get a producer id and an epoch, which fences other producers and aborts their open transaction.

        A later call raises the epoch only if no other producer has done so.
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=-1 if is_first else self.identity.producer_id,
            producer_epoch=-1 if is_first else self.identity.producer_epoch,
        )
        response = yield from coordinator.ask_until_answered(request, _code, timeout_ms=timeout_ms)
        self._check(response.error_code)
        self._take(response)

    def add_partitions(self, coordinator: Coordinator, partitions: Iterable[TopicPartition]) -> Dialogue[None]:
        """Add partitions to the transaction, in one attempt."""
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=[it.partition for it in them])
            for topic, them in by_topic(partitions).items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=topics,
        )
        response = yield from coordinator.ask(request, version_max=_ADD_PARTITIONS)
        results = response.results_by_topic_v3_and_below
        codes = [it.partition_error_code for topic in results for it in topic.results_by_partition]
        # OPERATION_NOT_ATTEMPTED says only that another partition was refused, so the other codes come first.
        refused = sorted((it for it in codes if it), key=lambda it: it == ErrorCode.OPERATION_NOT_ATTEMPTED)
        if refused and reaction_to(refused[0]) is Reaction.SEARCH:
            coordinator.node_id = None
        self._check(refused[0] if refused else 0)

    def send_offsets(
        self,
        coordinator: Coordinator,
        group: GroupCoordinator,
        offsets: Mapping[TopicPartition, int],
        signature: Signature,
        *,
        timeout_ms: float,
        metadata: str | None = None,
    ) -> Dialogue[None]:
        """Make the offsets of a group part of the transaction; `metadata` is a text to keep with each of them."""
        if not self.has_own_epochs:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                group_id=group.group_id,
            )
            added = yield from coordinator.ask_until_answered(
                request, _code, version_max=_ADD_OFFSETS, timeout_ms=timeout_ms
            )
            self._check(added.error_code)
        response = yield from group.ask_until_answered(
            self._offsets_request(group.group_id, offsets, signature, metadata),
            lambda it: [code for _partition, code in _offset_codes(it)],
            version_max=self._version_max(_OFFSETS),
            timeout_ms=timeout_ms,
        )
        refused = {partition: code for partition, code in _offset_codes(response) if code}
        for code in refused.values():
            if code in FENCING:
                raise self.refusal(code)
            raise CommitRefused(code, group.group_id, sorted(refused))

    def _offsets_request(
        self, group_id: str, offsets: Mapping[TopicPartition, int], signature: Signature, metadata: str | None
    ) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            generation_id=signature.epoch,
            member_id=signature.member_id,
            group_instance_id=signature.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=it.partition, committed_offset=offsets[it], committed_metadata=metadata
                        )
                        for it in them
                    ],
                )
                for topic, them in by_topic(offsets).items()
            ],
        )

    def end(self, coordinator: Coordinator, *, is_commit: bool, timeout_ms: float) -> Dialogue[None]:
        """Commit or abort the transaction. The outcome is decided when this returns, and never changes."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=is_commit,
        )
        response = yield from coordinator.ask_until_answered(
            request, _code, version_max=self._version_max(_END), timeout_ms=timeout_ms
        )
        self._check(response.error_code)
        if self.has_own_epochs:
            self._take(response)


def is_passing(error: ClientError) -> bool:
    """Whether an attempt that failed with this error may succeed later."""
    return not isinstance(error, BrokerError) or reaction_to(error.code) in (Reaction.RETRY, Reaction.SEARCH)


def _code(response: Any) -> list[int]:
    return [response.error_code]


def _offset_codes(response: Any) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic.name, it.partition_index), it.error_code)
        for topic in response.topics
        for it in topic.partitions
    ]
