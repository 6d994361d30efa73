"""What the coordinators of chapter 06 need of partitions: batches of their own, replaced rules, batches that are held,
the last stable offset, and lists of aborted transactions."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from partitions_broker import NOW_MS, MemoryBroker, batch, fetch_request, produce_request

from minibroker.log.batch import BatchBuilder, read_header
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.admission import Incoming, Origin, Rule, is_in_no_transaction, rules_of
from minibroker.partitions.errors import Held, Refused
from minibroker.partitions.partition import Aborted, LocalPartition, SoleReplica
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.store import Store
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode


class Undecided:
    """A log whose last record is always in an open transaction. It records the ranges it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def last_stable_offset(self, high_watermark: int) -> int:
        return max(high_watermark - 1, 0)

    def aborted(self, offset: int, upto_offset: Callable[[], int]) -> Sequence[Aborted]:
        self.asked.append((offset, upto_offset()))
        return [Aborted(7, offset)]

    def all_aborted(self) -> Sequence[tuple[int, int, int]]:
        return ()


class Coordinated(MemoryBroker):
    """A broker whose partitions have other rules and a port for transactions, as in chapter 06."""

    def __init__(self) -> None:
        self.transactions = Undecided()
        self.verified: set[int] = set()
        super().__init__()
        self.create("orders")
        self.create("__consumer_offsets")

    def make_store(self, **more: Any) -> Store:
        return super().make_store(open_partition=self.open_partition, **more)

    def open_partition(
        self, name: TopicPartition, _topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        producers = ProducerStates(self.files, self.data.directory_of(name))
        log = self.data.open_log(name, config.log_config, companions=[producers])
        replica = SoleReplica(name, log, leader_epoch=image.leader_epoch, wake=self.waiting.wake)

        def rules(config: TopicConfig, producers: ProducerStates) -> list[Rule]:
            """The usual rules with one replaced, and for internal topics one more before them."""
            usual = [self.is_verified if it is is_in_no_transaction else it for it in rules_of(config, producers)]
            return [is_no_client, *usual] if name.topic.startswith("__") else usual

        return LocalPartition(name, log, producers, config, replica, rules=rules, transactions=self.transactions)

    def is_verified(self, it: Incoming) -> None:
        producer_id = it.header.producer_id
        if it.header.is_transactional and it.origin is Origin.CLIENT and producer_id not in self.verified:
            raise Held(("verified", producer_id), ErrorCode.CONCURRENT_TRANSACTIONS, "not verified yet")

    def verify(self, producer_id: int) -> None:
        self.verified.add(producer_id)
        self.waiting.wake(("verified", producer_id))
        self.waiting.settle()


def is_no_client(it: Incoming) -> None:
    if it.origin is Origin.CLIENT:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "only coordinators write here")


def transactional(producer_id: int = 7, sequence: int = 0) -> bytearray:
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
    builder.append(timestamp=NOW_MS, key=None, value=b"t")
    return builder.build()


@pytest.fixture
def broker() -> Coordinated:
    return Coordinated()


# The origin of a batch ------------------------------------------------------------------------------------------------


def test_the_sequence_of_a_coordinators_batch_is_not_checked() -> None:
    broker = MemoryBroker()
    broker.create("orders")
    partition = broker.store.partition("orders", 0)
    sent = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    for offset in (0, 1):
        appended = partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        assert appended.base_offset == offset
    # The same batch of a client is a duplicate.
    assert partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS).base_offset in (0, 1)
    assert partition.log_end_offset == 2


def test_a_coordinator_may_write_control_batches_and_a_client_may_not() -> None:
    broker = MemoryBroker()
    broker.create("orders")
    partition = broker.store.partition("orders", 0)
    marker = batch(b"commit", producer_id=7, producer_epoch=0, is_control=True)
    with pytest.raises(Refused) as refused:
        partition.append(memoryview(bytearray(marker)), acks=-1, now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    appended = partition.append(memoryview(bytearray(marker)), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert appended.base_offset == 0
    assert read_header(partition.log.read(0, bytes_max=100).read()).is_control


def test_a_rule_keeps_clients_out_of_an_internal_topic(broker: Coordinated) -> None:
    assert broker.produce("__consumer_offsets", batch(b"a")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = broker.store.partition("__consumer_offsets", 0)
    appended = partition.append(memoryview(batch(b"a")), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert appended.base_offset == 0


# Replaced rules, and batches that are held ----------------------------------------------------------------------------


def test_the_rule_that_refuses_transactional_batches_can_be_replaced(broker: Coordinated) -> None:
    plain = MemoryBroker()
    plain.create("orders")
    assert plain.produce("orders", transactional()).error_code == ErrorCode.INVALID_TXN_STATE
    broker.verified.add(7)
    assert broker.produce("orders", transactional()).base_offset == 0


def test_a_batch_that_is_held_is_appended_when_its_key_is_woken(broker: Coordinated) -> None:
    answers = broker.wait_for(produce_request("orders", transactional()))
    assert (answers, broker.end("orders")) == ([], 0)
    # Another batch wakes it, but it is still held.
    broker.produce("orders", batch(b"other"))
    assert answers == []
    broker.verify(7)
    (answer,) = (it.responses[0].partition_responses[0] for it in answers)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)


def test_a_batch_that_is_held_until_the_timeout_is_refused_with_the_rules_code(broker: Coordinated) -> None:
    answers = broker.wait_for(produce_request("orders", transactional()))
    broker.waiting.end()
    (answer,) = (it.responses[0].partition_responses[0] for it in answers)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1)
    assert broker.end("orders") == 0


# Open and aborted transactions ----------------------------------------------------------------------------------------


def test_a_read_committed_consumer_stops_at_the_last_stable_offset(broker: Coordinated) -> None:
    for value in (b"a", b"b"):
        broker.produce("orders", batch(value))
    everything, committed = broker.fetch("orders"), broker.fetch("orders", isolation_level=1)
    assert (committed.last_stable_offset, committed.high_watermark) == (1, 2)
    assert len(committed.records) * 2 == len(everything.records)


def test_a_waiting_fetch_is_woken_when_the_last_stable_offset_moves(broker: Coordinated) -> None:
    broker.produce("orders", batch(b"a"))
    answers = broker.wait_for(fetch_request("orders", min_bytes=1, max_wait_ms=500, isolation_level=1), 12)
    assert answers == []
    broker.produce("orders", batch(b"b"))
    assert len(answers) == 1


def test_aborted_transactions_are_listed_up_to_the_end_of_the_slice(broker: Coordinated) -> None:
    """Not up to the last stable offset: the list would grow with the distance of the reader from the end."""
    for value in (b"a", b"b", b"c", b"d"):
        broker.produce("orders", batch(value, value))
    size = len(batch(b"a", b"a"))
    answer = broker.fetch("orders", 1, partition_max_bytes=2 * size, isolation_level=1)
    assert broker.transactions.asked == [(1, 4)]
    assert [(it.producer_id, it.first_offset) for it in answer.aborted_transactions] == [(7, 1)]
    # A batch that is cut off counts as a whole. An empty slice has no end.
    broker.fetch("orders", 0, partition_max_bytes=2 * size + 70, isolation_level=1)
    broker.fetch("orders", 8, isolation_level=1)
    assert broker.transactions.asked[1:] == [(0, 6), (8, 0)]
