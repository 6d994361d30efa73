"""Fetch through the registry, as frames: which batches, how many bytes, and when."""

import pytest
from partitions_house import House, batch, fetch_request

from minibroker.log.batch import batches, read_header
from minibroker.log.errors import LogError
from minibroker.partitions.partition import SoleReplica
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic

VERSIONS = range(APIS[ApiKey.FETCH].min_version, APIS[ApiKey.FETCH].max_version + 1)
BATCH_BYTES = len(batch(b"x" * 100))


@pytest.fixture
def house() -> House:
    house = House()
    house.create("orders", 2)
    for number in range(5):
        house.produce("orders", batch(bytes([number]) * 100))
    return house


def base_offsets(answer: object) -> list[int]:
    return [it.header.base_offset for it in batches(answer.records)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_come_with_the_bounds_of_the_log(house: House, version: int) -> None:
    request = fetch_request("orders", 1)
    request.topics[0].topic_id = house.authority.image.topics["orders"].topic_id
    if version >= 13:
        request.topics[0].topic = ""
    else:
        request.topics[0].topic_id = bytes(16)
    (topic,) = house.ask(request, version).responses
    (answer,) = topic.partitions
    assert answer.error_code == ErrorCode.NONE
    assert base_offsets(answer) == [1, 2, 3, 4]
    assert (answer.high_watermark, answer.last_stable_offset) == (5, 5)
    assert answer.log_start_offset == (0 if version >= 5 else -1)


def test_an_offset_inside_a_batch_gives_the_batch_that_contains_it(house: House) -> None:
    house.produce("orders", batch(b"a", b"b", b"c"))
    assert base_offsets(house.fetch("orders", 6)) == [5]
    assert base_offsets(house.fetch("orders", 7)) == [5]


def test_the_end_of_the_log_gives_nothing_and_beyond_it_is_out_of_range(house: House) -> None:
    at_end = house.fetch("orders", 5)
    assert (at_end.error_code, len(at_end.records)) == (ErrorCode.NONE, 0)
    assert house.fetch("orders", 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert house.fetch("orders", -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_was_deleted_is_out_of_range(house: House) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsTopic(name="orders", partitions=[wanted])
    answer = house.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=100)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 3)
    assert house.fetch("orders", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert house.fetch("orders", 3).log_start_offset == 3


def test_the_first_batch_is_given_whole_even_above_both_limits(house: House) -> None:
    answer = house.fetch("orders", 0, max_bytes=1, partition_max_bytes=1)
    assert len(answer.records) == BATCH_BYTES


def test_the_last_batch_may_be_cut_off(house: House) -> None:
    answer = house.fetch("orders", 0, partition_max_bytes=BATCH_BYTES + 10)
    assert len(answer.records) == BATCH_BYTES + 10
    assert base_offsets(answer) == [0]


def test_only_the_first_partition_may_exceed_the_limits(house: House) -> None:
    house.produce("orders", batch(b"y" * 100), partition=1)
    request = fetch_request("orders", max_bytes=10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = house.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (BATCH_BYTES, 0)
    assert second.error_code == ErrorCode.NONE


def test_an_empty_partition_does_not_take_the_first_place(house: House) -> None:
    house.create("other", 2)
    house.produce("other", batch(b"y" * 1000), partition=1)
    request = fetch_request("other", max_bytes=10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=10))
    first, second = house.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (0, len(batch(b"y" * 1000)))


def test_max_bytes_counts_over_all_partitions(house: House) -> None:
    house.produce("orders", batch(b"y" * 100), partition=1)
    house.produce("orders", batch(b"z" * 100), partition=1)
    request = fetch_request("orders", 3, max_bytes=3 * BATCH_BYTES + 10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = house.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (2 * BATCH_BYTES, BATCH_BYTES + 10)


def test_a_batch_that_does_not_fit_behind_another_partitions_is_left_out_and_not_cut(house: House) -> None:
    # Kafka's Java consumer takes a piece of a first batch for one that never fits, and stops for good.
    house.produce("orders", batch(b"y" * 100), partition=1)
    request = fetch_request("orders", 3, max_bytes=2 * BATCH_BYTES + 10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = house.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (2 * BATCH_BYTES, 0)
    assert second.high_watermark == 1


def test_the_broker_has_a_limit_of_its_own() -> None:
    house = House(fetch_bytes_max=BATCH_BYTES)
    house.create("orders")
    for number in range(3):
        house.produce("orders", batch(bytes([number]) * 100))
    assert len(house.fetch("orders").records) == BATCH_BYTES


def test_an_unknown_partition_or_topic_is_an_error_of_its_own(house: House) -> None:
    assert house.fetch("orders", partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert house.fetch("nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic_id=b"x" * 16,
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)],
            )
        ],
    )
    (topic,) = house.ask(request, 13).responses
    assert topic.topic_id == b"x" * 16
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_leader_epoch_of_a_request_must_be_the_partitions(house: House) -> None:
    epoch = house.store.partition("orders", 0).leader_epoch
    assert house.fetch("orders", current_leader_epoch=epoch).error_code == ErrorCode.NONE
    future = house.fetch("orders", current_leader_epoch=epoch + 1)
    assert future.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    replica = house.store.partition("orders", 0).replica
    assert isinstance(replica, SoleReplica)
    replica.leader_epoch = 3
    past = house.fetch("orders", current_leader_epoch=2)
    assert past.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert past.current_leader.leader_id == 1


def test_a_node_that_is_no_replica_gets_nothing(house: House) -> None:
    assert house.fetch("orders", replica_id=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Waiting --------------------------------------------------------------------------------------------------------------


def values(response: object) -> list[bytes]:
    topics = response.responses  # type: ignore[attr-defined]
    found = [it for topic in topics for partition in topic.partitions for it in batches(partition.records)]
    return [record.value or b"" for it in found for record in it.records()]


def test_a_fetch_at_the_end_waits_for_the_next_batch(house: House) -> None:
    responses = house.wait_for(fetch_request("orders", 5, min_bytes=1, max_wait_ms=500), 12)
    house.produce("orders", batch(b"else"), partition=1)
    assert responses == []
    house.produce("orders", batch(b"new"))
    assert values(responses[0]) == [b"new"]
    assert len(house.waiting) == 0


def test_min_bytes_waits_for_as_many(house: House) -> None:
    responses = house.wait_for(fetch_request("orders", 5, min_bytes=2 * BATCH_BYTES, max_wait_ms=500), 12)
    house.produce("orders", batch(b"1" * 100))
    assert responses == []
    house.produce("orders", batch(b"2" * 100))
    assert len(values(responses[0])) == 2


def test_when_the_time_is_over_there_is_an_answer_with_what_there_is(house: House) -> None:
    responses = house.wait_for(fetch_request("orders", 5, min_bytes=1000, max_wait_ms=500), 12)
    house.produce("orders", batch(b"one"))
    house.waiting.expire(499)
    assert responses == []
    house.waiting.expire(500)
    assert values(responses[0]) == [b"one"]


def test_an_error_does_not_wait(house: House) -> None:
    request = fetch_request("orders", 99, min_bytes=1, max_wait_ms=500)
    answer = house.ask(request, 12).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_who_wants_more_bytes_than_the_limit_does_not_wait_for_them(house: House) -> None:
    request = fetch_request("orders", 0, min_bytes=10**6, max_bytes=BATCH_BYTES, max_wait_ms=500)
    assert len(house.ask(request, 12).responses[0].partitions[0].records) == BATCH_BYTES


def test_a_partition_that_is_named_twice_is_answered_once(house: House) -> None:
    request = fetch_request("orders", 0)
    request.topics[0].partitions.append(FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1000))
    (answer,) = house.ask(request, 12).responses[0].partitions
    assert base_offsets(answer) == [3, 4]


def test_after_a_failed_flush_nobody_reads_what_may_be_gone(house: House) -> None:
    house.files.fsync_error = OSError(5, "Input/output error")
    house.store.partition("orders", 0)
    with pytest.raises(LogError):
        house.store.partition("orders", 0).log.flush()
    assert house.fetch("orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert house.produce("orders", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_fetch_of_nothing_does_not_wait(house: House) -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
    assert house.ask(request, 12).responses == []


def test_a_topic_that_is_deleted_answers_those_who_wait_for_it(house: House) -> None:
    responses = house.wait_for(fetch_request("orders", 5, min_bytes=1, max_wait_ms=500), 12)
    house.delete("orders")
    house.waiting.settle()
    assert responses[0].responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Sessions -------------------------------------------------------------------------------------------------------------


def test_every_answer_says_that_there_is_no_session(house: House) -> None:
    assert house.ask(fetch_request("orders", session_epoch=0), 12).session_id == 0
    assert house.ask(fetch_request("orders", session_epoch=-1), 12).session_id == 0


def test_a_session_that_nobody_gave_is_not_found(house: House) -> None:
    answer = house.ask(fetch_request("orders", session_id=77, session_epoch=1), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    answer = house.ask(fetch_request("orders", session_id=0, session_epoch=5), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_closing_a_session_that_nobody_gave_is_no_error(house: House) -> None:
    answer = house.ask(fetch_request("orders", session_id=77, session_epoch=-1), 12)
    assert answer.error_code == ErrorCode.NONE


def test_a_fetched_batch_carries_the_leader_epoch(house: House) -> None:
    assert read_header(house.fetch("orders").records).leader_epoch == 0
