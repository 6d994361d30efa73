"""What the coordinators of chapter 06 will need of this chapter's partitions: batches of their own, rules in the place
of others, batches that wait, an offset before which nothing is undecided, and lists of what was aborted."""

from collections.abc import Sequence
from typing import Any

import pytest
from partitions_house import NOW_MS, House, batch, fetch_request, produce_request

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
    """A log whose last record is always undecided; it remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def last_stable_offset(self, high_watermark: int) -> int:
        return max(high_watermark - 1, 0)

    def aborted(self, offset: int, upto_offset: int) -> Sequence[Aborted]:
        self.asked.append((offset, upto_offset))
        return [Aborted(7, offset)]


class Coordinated(House):
    """A house whose partitions are given a list of rules and a port for transactions, as chapter 06 will do."""

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
            """The same list, with another rule in the place of one; and one before all others."""
            usual = [self.is_verified if it is is_in_no_transaction else it for it in rules_of(config, producers)]
            return [is_no_client, *usual] if name.topic.startswith("__") else usual

        return LocalPartition(name, log, producers, config, replica, rules=rules, transactions=self.transactions)

    def is_verified(self, it: Incoming) -> None:
        producer_id = it.header.producer_id
        if it.header.is_transactional and it.origin is Origin.CLIENT and producer_id not in self.verified:
            raise Held(("verified", producer_id), ErrorCode.CONCURRENT_TRANSACTIONS, "it is not known yet")

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
def house() -> Coordinated:
    return Coordinated()


# The origin of a batch ------------------------------------------------------------------------------------------------


def test_a_coordinators_batch_has_no_sequence_that_is_checked_or_known_again() -> None:
    house = House()
    house.create("orders")
    partition = house.store.partition("orders", 0)
    sent = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    for offset in (0, 1):
        appended = partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        assert appended.base_offset == offset
    # The same batch of a client is the one that was written last.
    assert partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS).base_offset in (0, 1)
    assert partition.log_end_offset == 2


def test_a_coordinator_may_write_control_batches_and_a_client_may_not() -> None:
    house = House()
    house.create("orders")
    partition = house.store.partition("orders", 0)
    marker = batch(b"commit", producer_id=7, producer_epoch=0, is_control=True)
    with pytest.raises(Refused) as refused:
        partition.append(memoryview(bytearray(marker)), acks=-1, now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    appended = partition.append(memoryview(bytearray(marker)), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert appended.base_offset == 0
    assert read_header(partition.log.read(0, bytes_max=100).read()).is_control


def test_a_rule_keeps_clients_out_of_an_internal_topic(house: Coordinated) -> None:
    assert house.produce("__consumer_offsets", batch(b"a")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = house.store.partition("__consumer_offsets", 0)
    appended = partition.append(memoryview(batch(b"a")), acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert appended.base_offset == 0


# Rules in the place of others, and batches that wait ------------------------------------------------------------------


def test_a_transactional_batch_is_refused_by_a_rule_that_can_be_another(house: Coordinated) -> None:
    plain = House()
    plain.create("orders")
    assert plain.produce("orders", transactional()).error_code == ErrorCode.INVALID_TXN_STATE
    house.verified.add(7)
    assert house.produce("orders", transactional()).base_offset == 0


def test_a_batch_that_is_held_is_appended_when_its_key_is_woken(house: Coordinated) -> None:
    answers = house.wait_for(produce_request("orders", transactional()))
    assert (answers, house.end("orders")) == ([], 0)
    # News of another kind lets it try again, and it waits on.
    house.produce("orders", batch(b"other"))
    assert answers == []
    house.verify(7)
    (answer,) = (it.responses[0].partition_responses[0] for it in answers)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)


def test_a_batch_that_is_held_for_too_long_is_refused_with_the_rules_code(house: Coordinated) -> None:
    answers = house.wait_for(produce_request("orders", transactional()))
    house.waiting.end()
    (answer,) = (it.responses[0].partition_responses[0] for it in answers)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1)
    assert house.end("orders") == 0


# Undecided and aborted ------------------------------------------------------------------------------------------------


def test_a_reader_of_committed_records_stops_at_the_last_stable_offset(house: Coordinated) -> None:
    for value in (b"a", b"b"):
        house.produce("orders", batch(value))
    everything, committed = house.fetch("orders"), house.fetch("orders", isolation_level=1)
    assert (committed.last_stable_offset, committed.high_watermark) == (1, 2)
    assert len(committed.records) * 2 == len(everything.records)


def test_a_reader_that_waits_is_woken_when_the_last_stable_offset_moves(house: Coordinated) -> None:
    house.produce("orders", batch(b"a"))
    answers = house.wait_for(fetch_request("orders", min_bytes=1, max_wait_ms=500, isolation_level=1), 12)
    assert answers == []
    house.produce("orders", batch(b"b"))
    assert len(answers) == 1


def test_what_was_aborted_is_asked_for_up_to_the_end_of_the_slice(house: Coordinated) -> None:
    """Not up to the last stable offset: the list would grow with all that the reader has not fetched yet."""
    for value in (b"a", b"b", b"c", b"d"):
        house.produce("orders", batch(value, value))
    size = len(batch(b"a", b"a"))
    answer = house.fetch("orders", 1, partition_max_bytes=2 * size, isolation_level=1)
    assert house.transactions.asked == [(1, 4)]
    assert [(it.producer_id, it.first_offset) for it in answer.aborted_transactions] == [(7, 1)]
    # A batch that is cut off counts as a whole; in an empty slice there is nothing.
    house.fetch("orders", 0, partition_max_bytes=2 * size + 70, isolation_level=1)
    house.fetch("orders", 8, isolation_level=1)
    assert house.transactions.asked[1:] == [(0, 6), (8, 0)]
