"""WriteTxnMarkers, and what readers see of open, committed and aborted transactions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cases import case
from partitions_broker import batch
from transactions_broker import CLIENT, PRODUCER, TransactionBroker

from minibroker.log.batch import batches
from minibroker.log.control import coordinator_epoch
from minibroker.metadata.image import PartitionImage
from minibroker.replication.answering import DescribeProducers
from minibroker.replication.tables.describe_producers import DescribeProducersRequest, TopicRequest
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
OK = ErrorCode.NONE


# Readers --------------------------------------------------------------------------------------------------------------


def test_readers_see_a_transaction_as_their_isolation_says() -> None:
    """Aborted records are not hidden from read_uncommitted (trap 12), and open ones are from read_committed (14)."""
    broker = TransactionBroker()
    broker.produce("orders", batch(b"plain"))
    broker.send(b"aborted", producer_id=1)
    broker.send(b"committed", producer_id=2)
    broker.mark(is_commit=False, producer_id=1)
    broker.mark(is_commit=True, producer_id=2)
    broker.send(b"open", producer_id=3)
    broker.produce("orders", batch(b"later"))
    assert broker.read(is_committed=False) == ([b"plain", b"aborted", b"committed", b"open", b"later"], [])
    assert broker.read(is_committed=True) == ([b"plain", b"aborted", b"committed"], [(1, 1)])
    assert broker.read(2, is_committed=True) == ([b"committed"], [(1, 1)])
    assert broker.read(4, is_committed=True) == ([], [])


def test_list_offsets_knows_the_last_stable_offset() -> None:
    broker = TransactionBroker()
    broker.produce("orders", batch(b"plain", timestamp=1))
    broker.send(b"open")
    for is_committed, latest, youngest in ((True, 1, -1), (False, 2, 1)):
        with case(is_committed):
            assert broker.listed(LATEST, is_committed=is_committed) == latest
            assert broker.listed(EARLIEST, is_committed=is_committed) == 0
            assert broker.listed(MAX_TIMESTAMP, is_committed=is_committed) == youngest
            assert broker.listed(2, is_committed=is_committed) == youngest


def test_a_waiting_read_committed_fetch_is_woken_by_the_marker_when_it_is_replicated() -> None:
    broker = TransactionBroker(is_followed=True)
    broker.send(b"a")
    broker.follow()
    committed, everything = broker.wait_for_records(is_committed=True), broker.wait_for_records(is_committed=False)
    marked = broker.mark(is_commit=True)
    assert (committed, everything, marked) == ([], [], [])
    broker.follow()
    assert (len(committed), len(everything), marked) == (1, 1, [[OK]])
    assert committed[0].responses[0].partitions[0].last_stable_offset == 2


def test_delete_records_may_remove_the_beginning_of_an_open_transaction() -> None:
    broker = TransactionBroker()
    broker.send(b"a", b"b")
    broker.partition.delete_records(1)
    assert broker.partition.log_start_offset == broker.partition.last_stable_offset == 1


def test_describe_producers_shows_the_open_transaction_and_the_coordinators_epoch() -> None:
    """`kafka-transactions find-hanging` begins with it."""
    broker = TransactionBroker()
    broker.registry.add(ApiKey.DESCRIBE_PRODUCERS, DescribeProducers(broker.store))
    broker.send(b"a")
    broker.mark(is_commit=True, coordinator_epoch=5)
    broker.send(b"b", b"c", sequence=1)
    topic = TopicRequest(name="orders", partition_indexes=[0])
    (partition,) = broker.ask(DescribeProducersRequest(topics=[topic])).topics[0].partitions
    (producer,) = partition.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (PRODUCER, 0, 2)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (5, 2)


# Markers of a coordinator ---------------------------------------------------------------------------------------------


def test_a_marker_is_answered_when_it_is_replicated() -> None:
    broker = TransactionBroker(is_followed=True)
    broker.send()
    codes = broker.mark(is_commit=True)
    assert (codes, broker.end("orders")) == ([], 2)
    broker.follow(1)
    assert codes == []
    broker.follow()
    assert codes == [[OK]]


def test_each_partition_of_a_marker_has_its_own_answer() -> None:
    broker = TransactionBroker()
    broker.send()
    codes = broker.mark(is_commit=True, topics={"orders": [0, 1, 5], "unknown": [0]})
    assert codes == [OK, OK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    # A partition that was added to the transaction, but never written to, gets the marker as well.
    assert (broker.end("orders", 0), broker.end("orders", 1)) == (2, 1)


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    broker = TransactionBroker()
    broker.send()
    assert broker.mark(is_commit=True, coordinator_epoch=5) == [OK]
    broker.send(sequence=1)
    assert broker.mark(is_commit=False, coordinator_epoch=4) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert broker.partition.last_stable_offset == 2
    assert broker.mark(is_commit=False, coordinator_epoch=5) == [OK]


def test_only_a_leader_with_enough_replicas_in_sync_writes_a_marker() -> None:
    """An old leader must not judge the epoch: INVALID_PRODUCER_EPOCH tells the coordinator that all is done."""
    broker = TransactionBroker(min_insync_replicas="2")
    broker.send(epoch=1)
    image = PartitionImage(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1)
    for leader, epoch, code in ((1, 1, ErrorCode.NOT_ENOUGH_REPLICAS), (2, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        with case(leader, epoch):
            changed = replace(image, leader=leader, leader_epoch=leader, partition_epoch=leader)
            broker.replicas[TopicPartition("orders", 0)].on_partition(changed, {1: 1, 2: 2}, 0)
            assert broker.mark(is_commit=True, epoch=epoch) == [code]
            assert broker.end("orders") == 1


def test_which_producer_epochs_a_marker_may_have() -> None:
    """Trap 27: with version 2 a marker that was written, but whose answer was lost, is sent again with its epoch."""
    cases = [
        (0, 0, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 1, True, OK),
        (0, 2, True, OK),
        (2, 0, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 1, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 2, True, OK),
        (2, 1, False, OK),
        (2, 0, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 1, False, OK),
    ]
    for version, epoch, is_open, expected in cases:
        with case(version, epoch, is_open):
            broker = TransactionBroker()
            broker.send(epoch=1)
            if not is_open:
                broker.mark(is_commit=True, epoch=1)
            assert broker.mark(is_commit=True, epoch=epoch, transaction_version=version) == [expected]


def test_a_marker_of_version_2_raises_the_epoch_and_begins_the_sequences_anew() -> None:
    broker = TransactionBroker()
    broker.send(sequence=0)
    broker.mark(is_commit=True, epoch=1, transaction_version=2)
    assert broker.mark(is_commit=True, epoch=1, transaction_version=2) == [OK]
    assert broker.send(sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.send(sequence=1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.send(sequence=0, epoch=1) is OK


def test_a_marker_in_a_topic_that_was_created_again_holds_up_and_hides_nothing() -> None:
    """Trap 23: the coordinator knows a topic by its name, and the new one has no such transaction."""
    broker = TransactionBroker()
    broker.send(b"old")
    broker.delete("orders")
    broker.create("orders")
    broker.produce("orders", batch(b"new"))
    assert broker.mark(is_commit=False) == [OK]
    broker.send(b"next", transactional_id="copier")
    broker.mark(is_commit=True)
    assert broker.read(is_committed=True) == ([b"new", b"next"], [])


def test_markers_of_committed_offsets_are_the_group_coordinators() -> None:
    broker = TransactionBroker()
    codes = broker.mark(is_commit=True, coordinator_epoch=3, topics={"__consumer_offsets": [4], "orders": [0]})
    ((name, marker, done),) = broker.coordinators.offsets
    assert (name, marker.producer_id, marker.is_commit, marker.coordinator_epoch) == (
        TopicPartition("__consumer_offsets", 4),
        PRODUCER,
        True,
        3,
    )
    assert codes == []
    done(OK)
    broker.waiting.settle()
    assert codes == [[OK, OK]]


def test_very_many_markers_are_written_in_several_turns() -> None:
    broker = TransactionBroker()
    codes = broker.mark(is_commit=True, topics={"orders": [0] * 501})
    assert codes == []
    assert broker.end("orders") == 200
    (parked,) = broker.waiting._by_key[TopicPartition("orders", 0)]
    turn = parked.wait.turn
    assert turn is not None
    for _ in range(2):
        turn.is_due = True
        broker.waiting.wake(turn)
        broker.waiting.settle()
    assert codes == [[OK] * 501]


def test_a_marker_is_never_compressed() -> None:
    broker = TransactionBroker(compression_type="gzip")
    broker.send(b"a" * 100)
    broker.mark(is_commit=True)
    log = broker.partition.log
    found = list(batches(log.read(0, bytes_max=1000).read()))
    assert [it.header.compression for it in found] == [1, 0]


def test_a_marker_that_is_not_replicated_in_time_is_sent_again() -> None:
    broker = TransactionBroker(is_followed=True)
    broker.send()
    codes = broker.mark(is_commit=True)
    broker.waiting.end()
    assert codes == [[ErrorCode.REQUEST_TIMED_OUT]]


# Markers of a client --------------------------------------------------------------------------------------------------


def test_a_client_ends_a_transaction_that_no_coordinator_knows() -> None:
    """That is how `kafka-transactions abort` works (KIP-664)."""
    broker = TransactionBroker()
    broker.send(b"hanging")
    assert broker.mark(is_commit=False, session=CLIENT) == [OK]
    assert broker.coordinators.asked == [(TopicPartition("orders", 0), PRODUCER)]
    assert broker.read(is_committed=True) == ([b"hanging"], [(PRODUCER, 0)])


def test_what_a_client_may_not_write() -> None:
    cases: list[tuple[str, dict[str, Any], bool | None, ErrorCode]] = [
        ("commit", {"is_commit": True}, False, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("ongoing", {"is_commit": False}, True, ErrorCode.INVALID_TXN_STATE),
        ("unanswered", {"is_commit": False}, None, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("older epoch", {"is_commit": False, "epoch": 0}, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        ("future epoch", {"is_commit": False, "epoch": 2}, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        ("no transaction", {"is_commit": False, "producer_id": 99}, False, ErrorCode.INVALID_TXN_STATE),
    ]
    for what, marker, is_listed, expected in cases:
        with case(what):
            broker = TransactionBroker()
            broker.send(epoch=1)
            broker.coordinators.is_listed = is_listed
            assert broker.mark(**{"epoch": 1, **marker}, session=CLIENT) == [expected]
            assert broker.end("orders") == 1


def test_a_clients_marker_does_not_fence_the_coordinator() -> None:
    broker = TransactionBroker()
    broker.send()
    assert broker.mark(is_commit=False, coordinator_epoch=2**31 - 1, session=CLIENT) == [OK]
    last = list(batches(broker.partition.log.read(0, bytes_max=1000).read()))[-1]
    assert coordinator_epoch(next(last.records())) == 0
    broker.send(sequence=1)
    assert broker.mark(is_commit=True, coordinator_epoch=0) == [OK]


def test_a_client_ends_only_the_transaction_that_it_asked_for() -> None:
    """The coordinators answer later. Meanwhile the transaction ended, and the next one began."""
    broker = TransactionBroker()
    broker.send()
    later: list[Callable[[bool | None], None]] = []
    broker.coordinators.is_ongoing = lambda name, producer_id, done: later.append(done)  # type: ignore[method-assign]
    codes = broker.mark(is_commit=False, session=CLIENT)
    broker.mark(is_commit=True)
    broker.send(sequence=1)
    later[0](False)
    broker.waiting.settle()
    assert codes == [[ErrorCode.INVALID_TXN_STATE]]
    assert broker.partition.last_stable_offset == 2
