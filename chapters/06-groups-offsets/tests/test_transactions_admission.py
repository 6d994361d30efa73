"""Which transactional batches a partition accepts, and when it asks the coordinator first (KIP-890, part 1)."""

from typing import Any

from cases import case
from partitions_broker import NOW_MS, batch
from transactions_broker import ID, PRODUCER, TransactionBroker, batch_of

from minibroker.partitions.admission import Origin
from minibroker.partitions.errors import Refused
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

NAME = TopicPartition("orders", 0)
OK = ErrorCode.NONE


def asking(*, is_verifying: bool = True) -> TransactionBroker:
    """A broker whose coordinators answer when the test says so."""
    broker = TransactionBroker(is_verifying=is_verifying)
    broker.coordinators.code = None
    return broker


# What needs no question -----------------------------------------------------------------------------------------------


def test_a_producers_later_batches_of_a_transaction_ask_nobody() -> None:
    broker = TransactionBroker()
    assert [broker.send(sequence=number) for number in range(3)] == [OK] * 3
    assert len(broker.coordinators.questions) == 1
    # A truncation reads the state from the log, which does not tell whose transaction is open.
    broker.produce("orders", batch(b"plain"))
    broker.partition.log.truncate(3)
    assert broker.send(sequence=3) is OK
    assert len(broker.coordinators.questions) == 1


def test_a_partition_remembers_the_owners_of_open_transactions_only() -> None:
    broker = TransactionBroker()
    broker.send()
    transactions = broker.logs._logs[NAME]
    assert transactions._owners == {PRODUCER: ID}
    broker.mark(is_commit=True)
    assert transactions._owners == {}
    broker.send(sequence=1)
    broker.partition.log.truncate(1)
    assert transactions._owners == {}


def test_a_duplicate_asks_nobody() -> None:
    """Its transaction may be over: the answer to the first batch was lost."""
    broker = TransactionBroker()
    broker.send()
    broker.mark(is_commit=True)
    broker.coordinators.code = ErrorCode.TRANSACTION_ABORTABLE
    assert broker.send() is OK
    assert broker.end("orders") == 2


def test_a_plain_batch_of_a_producer_with_an_open_transaction_is_refused() -> None:
    broker = TransactionBroker()
    broker.send()
    plain: dict[str, Any] = {"is_transactional": False, "transactional_id": None}
    assert broker.send(sequence=1, **plain) is ErrorCode.INVALID_TXN_STATE
    assert broker.send(epoch=1, **plain) is ErrorCode.INVALID_TXN_STATE
    assert broker.send(producer_id=8, **plain) is OK
    assert broker.produce("orders", batch(b"no producer")).error_code == 0
    broker.mark(is_commit=False)
    assert broker.send(sequence=1, **plain) is OK


def test_a_client_writes_no_control_batch_even_in_its_own_transaction() -> None:
    broker = TransactionBroker()
    broker.send()
    forged = batch(b"commit", producer_id=PRODUCER, producer_epoch=0, is_control=True)
    forged[22] |= 0b1_0000
    for sent in (batch(b"x", producer_id=PRODUCER, producer_epoch=0, is_control=True), forged):
        assert broker.produce("orders", sent).error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert broker.partition.last_stable_offset == 0


def test_a_transactional_batch_needs_a_transactional_id_and_a_producer_id() -> None:
    broker = TransactionBroker()
    assert broker.send(transactional_id=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert broker.send(producer_id=-1, epoch=-1, sequence=-1) is ErrorCode.INVALID_RECORD
    assert (broker.coordinators.questions, broker.end("orders")) == ([], 0)


def test_a_zombie_is_refused_for_its_epoch_before_any_question() -> None:
    """Trap 30: INVALID_TXN_STATE would end a client that could abort its transaction."""
    broker = TransactionBroker()
    broker.send()
    broker.mark(is_commit=False, epoch=1)
    broker.coordinators.code = ErrorCode.TRANSACTION_ABORTABLE
    assert broker.send(sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(broker.coordinators.questions) == 1


# The question ---------------------------------------------------------------------------------------------------------


def test_the_first_batch_waits_until_the_coordinator_knows_its_transaction() -> None:
    for version, is_add in ((11, False), (12, True)):
        with case(version):
            broker = asking()
            codes = broker.send(version=version)
            assert (codes, broker.end("orders")) == ([], 0)
            (question,) = broker.coordinators.questions
            assert question[:5] == (ID, PRODUCER, 0, [NAME], is_add)
            broker.answer()
            assert (codes, broker.end("orders")) == ([OK], 1)
            assert len(broker.logs._logs[NAME].guards) == 0


def test_the_coordinators_refusal_reaches_the_producer_in_its_own_words() -> None:
    cases = [
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (10, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (12, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ]
    for version, said, expected in cases:
        with case(version, said.name):
            broker = asking()
            codes = broker.send(version=version)
            broker.answer(said)
            assert (codes, broker.end("orders")) == ([expected], 0)
            # A later attempt asks again.
            again = broker.send(version=version)
            broker.answer(number=1)
            assert again == [OK]


def test_a_coordinator_that_does_not_answer_is_a_reason_to_try_again() -> None:
    broker = asking()
    codes = broker.send()
    broker.waiting.end()
    assert (codes, broker.end("orders")) == ([ErrorCode.NOT_ENOUGH_REPLICAS], 0)


def test_a_guard_ends_with_a_marker_so_a_late_answer_admits_nothing() -> None:
    """The answer is about a transaction that was aborted meanwhile, also if the next one has begun (KIP-890)."""
    broker = asking()
    late = broker.send()
    broker.mark(is_commit=False)
    assert late == [ErrorCode.INVALID_TXN_STATE]
    broker.answer()
    assert broker.partition.last_stable_offset == 1 == broker.end("orders")
    # The first batch of the next transaction has its own question.
    following = broker.send()
    assert len(broker.coordinators.questions) == 2
    broker.answer(number=0)
    assert following == []
    broker.answer(number=1)
    assert following == [OK]


def test_with_version_2_a_guard_outlives_the_marker_of_the_transaction_before() -> None:
    """That marker has the epoch of the next transaction, whose first batch waits until the marker is written."""
    cases = [
        (12, 1, OK),
        (12, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (11, 1, ErrorCode.INVALID_TXN_STATE),
    ]
    for version, epoch, expected in cases:
        with case(version, epoch):
            broker = asking()
            following = broker.send(epoch=1, version=version)
            broker.mark(is_commit=True, epoch=epoch, transaction_version=2)
            assert following == ([] if expected is OK else [expected])
            broker.answer()
            assert following == [expected]


def test_a_guard_ends_with_a_truncation() -> None:
    broker = asking()
    broker.produce("orders", batch(b"a"))
    late = broker.send()
    broker.partition.log.truncate(0)
    broker.waiting.settle()
    assert late == [ErrorCode.INVALID_TXN_STATE]


def test_a_batch_after_the_marker_asks_again_although_the_producer_is_known() -> None:
    """A late batch of a transaction that was aborted would begin one that nobody ends."""
    broker = TransactionBroker()
    broker.send()
    broker.mark(is_commit=False)
    broker.coordinators.code = ErrorCode.TRANSACTION_ABORTABLE
    assert broker.send(sequence=1) is ErrorCode.TRANSACTION_ABORTABLE
    assert broker.partition.last_stable_offset == 2 == broker.end("orders")


def test_a_foreign_producer_id_and_an_epoch_of_the_future_are_not_admitted() -> None:
    """Not even while the transaction of the producer is open, or is being verified."""
    claims: dict[str, Any] = {"foreign": {"transactional_id": "thief"}, "future": {"epoch": 9}}
    for what, claim in claims.items():
        with case(what):
            broker = asking()
            own = broker.send()
            other = broker.send(b"x", b"y", **claim)
            assert len(broker.coordinators.questions) == 2
            broker.answer(number=0)
            assert own == [OK]
            broker.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING, number=1)
            assert other != [OK]
            third = broker.send(sequence=0 if what == "future" else 1, **claim)
            broker.answer(ErrorCode.PRODUCER_FENCED, number=2)
            assert third == [ErrorCode.INVALID_PRODUCER_EPOCH]
            assert broker.end("orders") == 1


def test_without_any_state_a_producer_of_version_2_begins_with_sequence_0() -> None:
    """An older one may go on with any sequence, because its records may have been deleted."""
    broker = TransactionBroker()
    broker.produce("orders", batch(b"a"))
    assert broker.send(sequence=4, version=12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.coordinators.questions == []
    assert broker.send(sequence=4, version=11) is OK


def test_a_later_batch_is_not_appended_before_the_first_one_that_could_not_be_verified() -> None:
    broker = asking()
    broker.produce("orders", batch(b"a"))
    first = broker.send()
    broker.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert first == [ErrorCode.NOT_ENOUGH_REPLICAS]
    second = broker.send(sequence=1)
    broker.answer(number=1)
    assert second == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    broker.coordinators.code = OK
    assert [broker.send(), broker.send(sequence=1)] == [OK, OK]


def test_several_held_batches_of_a_producer_are_appended_in_their_order() -> None:
    broker = asking()
    broker.produce("orders", batch(b"a"))
    codes = [broker.send(sequence=number) for number in range(3)]
    assert len(broker.coordinators.questions) == 1
    broker.answer()
    assert codes == [[OK]] * 3
    assert broker.partition.producers.producers[PRODUCER].last_sequence == 2


def test_verification_can_be_switched_off_for_producers_that_add_their_partitions_themselves() -> None:
    broker = asking(is_verifying=False)
    assert broker.send() is OK
    assert broker.coordinators.questions == []
    # With version 2 the question also adds the partition, so it is needed.
    assert broker.send(producer_id=8, version=12) == []
    assert len(broker.coordinators.questions) == 1


def test_a_coordinators_own_transactional_batch_is_not_verified() -> None:
    """The group coordinator writes offsets in transactions. It has asked before."""
    broker = asking()
    sent = memoryview(batch_of([b"offset"], 9, 0, 0))
    broker.partition.append(sent, acks=1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert (broker.coordinators.questions, broker.partition.last_stable_offset) == ([], 0)


def test_a_refusal_says_what_happened() -> None:
    broker = TransactionBroker()
    broker.send()
    try:
        broker.partition.append(
            memoryview(batch_of([b"v"], PRODUCER, 0, 1, is_transactional=False)), acks=1, now_ms=NOW_MS
        )
    except Refused as refused:
        assert "producer 7 has an open transaction in orders-0" in refused.message
