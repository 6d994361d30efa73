"""Fetch through the registry, as frames: which batches are returned, how many bytes, and after which wait."""

import pytest
from partitions_broker import MemoryBroker, batch, fetch_request

from minibroker.log.batch import batches, read_header
from minibroker.log.errors import LogError
from minibroker.partitions.partition import SoleReplica
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic

BATCH_BYTES = len(batch(b"x" * 100))


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("orders", 2)
    for number in range(5):
        broker.produce("orders", batch(bytes([number]) * 100))
    return broker


def base_offsets(answer: object) -> list[int]:
    return [it.header.base_offset for it in batches(answer.records)]  # type: ignore[attr-defined]


def test_records_come_with_the_bounds_of_the_log(broker: MemoryBroker) -> None:
    topic_id = broker.authority.image.topics["orders"].topic_id
    for version in range(APIS[ApiKey.FETCH].min_version, APIS[ApiKey.FETCH].max_version + 1):
        request = fetch_request("orders", 1)
        if version >= 13:
            request.topics[0].topic, request.topics[0].topic_id = "", topic_id
        (topic,) = broker.ask(request, version).responses
        (answer,) = topic.partitions
        assert answer.error_code == ErrorCode.NONE, version
        assert base_offsets(answer) == [1, 2, 3, 4], version
        assert (answer.high_watermark, answer.last_stable_offset) == (5, 5), version
        assert answer.log_start_offset == (0 if version >= 5 else -1), version


def test_an_offset_inside_a_batch_gives_the_batch_that_contains_it(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a", b"b", b"c"))
    assert base_offsets(broker.fetch("orders", 6)) == [5]
    assert base_offsets(broker.fetch("orders", 7)) == [5]


def test_the_end_of_the_log_gives_nothing_and_beyond_it_is_out_of_range(broker: MemoryBroker) -> None:
    at_end = broker.fetch("orders", 5)
    assert (at_end.error_code, len(at_end.records)) == (ErrorCode.NONE, 0)
    assert broker.fetch("orders", 5, min_bytes=1).error_code == ErrorCode.NONE  # without a time there is no wait
    assert broker.fetch("orders", 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert broker.fetch("orders", -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_deleted_offset_is_out_of_range(broker: MemoryBroker) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsTopic(name="orders", partitions=[wanted])
    answer = broker.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=100)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 3)
    assert broker.fetch("orders", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert broker.fetch("orders", 3).log_start_offset == 3


def test_the_first_batch_is_given_whole_even_above_both_limits(broker: MemoryBroker) -> None:
    answer = broker.fetch("orders", 0, max_bytes=1, partition_max_bytes=1)
    assert len(answer.records) == BATCH_BYTES


def test_the_last_batch_may_be_cut_off(broker: MemoryBroker) -> None:
    answer = broker.fetch("orders", 0, partition_max_bytes=BATCH_BYTES + 10)
    assert len(answer.records) == BATCH_BYTES + 10
    assert base_offsets(answer) == [0]


def test_only_the_first_partition_may_exceed_the_limits(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"y" * 100), partition=1)
    request = fetch_request("orders", max_bytes=10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = broker.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (BATCH_BYTES, 0)
    assert second.error_code == ErrorCode.NONE


def test_the_first_partition_with_records_may_exceed_the_limits_after_an_empty_one(broker: MemoryBroker) -> None:
    broker.create("other", 2)
    broker.produce("other", batch(b"y" * 1000), partition=1)
    request = fetch_request("other", max_bytes=10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=10))
    first, second = broker.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (0, len(batch(b"y" * 1000)))


def test_max_bytes_counts_over_all_partitions(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"y" * 100), partition=1)
    broker.produce("orders", batch(b"z" * 100), partition=1)
    request = fetch_request("orders", 3, max_bytes=3 * BATCH_BYTES + 10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = broker.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (2 * BATCH_BYTES, BATCH_BYTES + 10)


def test_a_batch_that_does_not_fit_after_another_partitions_is_left_out_and_not_cut(broker: MemoryBroker) -> None:
    # Kafka's Java consumer takes a cut first batch for one that never fits, and stops for good.
    broker.produce("orders", batch(b"y" * 100), partition=1)
    request = fetch_request("orders", 3, max_bytes=2 * BATCH_BYTES + 10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000))
    first, second = broker.ask(request, 12).responses[0].partitions
    assert (len(first.records), len(second.records)) == (2 * BATCH_BYTES, 0)
    assert second.high_watermark == 1


def test_the_broker_has_a_limit_of_its_own() -> None:
    broker = MemoryBroker(fetch_bytes_max=BATCH_BYTES)
    broker.create("orders")
    for number in range(3):
        broker.produce("orders", batch(bytes([number]) * 100))
    assert len(broker.fetch("orders").records) == BATCH_BYTES


def test_an_unknown_partition_or_topic_is_an_error_of_its_own(broker: MemoryBroker) -> None:
    assert broker.fetch("orders", partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.fetch("nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic_ids = [b"x" * 16, b"y" * 16, broker.authority.image.topics["orders"].topic_id]
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    topics = [FetchTopic(topic_id=topic_id, partitions=[wanted]) for topic_id in topic_ids]
    answers = broker.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 13).responses
    assert [topic.topic_id for topic in answers] == topic_ids
    codes = [it.error_code for topic in answers for it in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]


def test_the_leader_epoch_of_a_request_must_be_the_partitions(broker: MemoryBroker) -> None:
    epoch = broker.store.partition("orders", 0).leader_epoch
    assert broker.fetch("orders", current_leader_epoch=epoch).error_code == ErrorCode.NONE
    future = broker.fetch("orders", current_leader_epoch=epoch + 1)
    assert future.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    replica = broker.store.partition("orders", 0).replica
    assert isinstance(replica, SoleReplica)
    replica.leader_epoch = 3
    past = broker.fetch("orders", current_leader_epoch=2)
    assert past.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert not past.records
    assert past.current_leader.leader_id == 1


def test_a_node_that_is_no_replica_gets_nothing(broker: MemoryBroker) -> None:
    assert broker.fetch("orders", replica_id=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_read_committed_consumer_gets_a_list_of_aborted_transactions_and_another_one_gets_none(
    broker: MemoryBroker,
) -> None:
    assert broker.fetch("orders", isolation_level=1).aborted_transactions == []
    assert broker.fetch("orders", isolation_level=0).aborted_transactions is None


# Waiting --------------------------------------------------------------------------------------------------------------


def values(response: object) -> list[bytes]:
    topics = response.responses  # type: ignore[attr-defined]
    found = [it for topic in topics for partition in topic.partitions for it in batches(partition.records)]
    return [record.value or b"" for it in found for record in it.records()]


def test_a_fetch_at_the_end_waits_for_the_next_batch(broker: MemoryBroker) -> None:
    responses = broker.wait_for(fetch_request("orders", 5, min_bytes=1, max_wait_ms=500), 12)
    broker.produce("orders", batch(b"else"), partition=1)
    assert responses == []
    broker.produce("orders", batch(b"new"))
    assert values(responses[0]) == [b"new"]
    assert len(broker.waiting) == 0


def test_min_bytes_waits_for_as_many(broker: MemoryBroker) -> None:
    responses = broker.wait_for(fetch_request("orders", 5, min_bytes=2 * BATCH_BYTES, max_wait_ms=500), 12)
    broker.produce("orders", batch(b"1" * 100))
    assert responses == []
    broker.produce("orders", batch(b"2" * 100))
    assert len(values(responses[0])) == 2


def test_a_fetch_whose_time_is_over_is_answered_with_the_records_there_are(broker: MemoryBroker) -> None:
    responses = broker.wait_for(fetch_request("orders", 5, min_bytes=1000, max_wait_ms=500), 12)
    broker.produce("orders", batch(b"one"))
    broker.waiting.expire(499)
    assert responses == []
    broker.waiting.expire(500)
    assert values(responses[0]) == [b"one"]


def test_an_error_does_not_wait(broker: MemoryBroker) -> None:
    request = fetch_request("orders", 99, min_bytes=1, max_wait_ms=500)
    answer = broker.ask(request, 12).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_for_more_bytes_than_the_limit_does_not_wait_for_them(broker: MemoryBroker) -> None:
    request = fetch_request("orders", 0, min_bytes=10**6, max_bytes=BATCH_BYTES, max_wait_ms=500)
    assert len(broker.ask(request, 12).responses[0].partitions[0].records) == BATCH_BYTES


def test_a_partition_that_is_named_twice_is_answered_once(broker: MemoryBroker) -> None:
    request = fetch_request("orders", 0)
    request.topics[0].partitions.append(FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1000))
    (answer,) = broker.ask(request, 12).responses[0].partitions
    assert base_offsets(answer) == [3, 4]


def test_after_a_failed_flush_records_that_may_be_lost_are_not_read(broker: MemoryBroker) -> None:
    broker.files.fsync_error = OSError(5, "Input/output error")
    broker.store.partition("orders", 0)
    with pytest.raises(LogError):
        broker.store.partition("orders", 0).log.flush()
    assert broker.fetch("orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.produce("orders", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_fetch_of_nothing_does_not_wait(broker: MemoryBroker) -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
    assert broker.ask(request, 12).responses == []


def test_a_deleted_topic_answers_the_fetches_that_wait_for_it(broker: MemoryBroker) -> None:
    responses = broker.wait_for(fetch_request("orders", 5, min_bytes=1, max_wait_ms=500), 12)
    broker.delete("orders")
    broker.waiting.settle()
    assert responses[0].responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Very many partitions -------------------------------------------------------------------------------------------------


def test_the_limits_of_a_fetch_hold_over_all_its_slices(broker: MemoryBroker) -> None:
    broker.create("many", 600)
    for index in (0, 599):
        broker.produce("many", batch(b"x" * 100), partition=index)
    request = fetch_request("many", max_bytes=BATCH_BYTES + 10)
    request.topics[0].partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(600)
    ]
    responses = broker.wait_for(request, 12)
    broker.take_turns(3)
    found = [it for topic in responses[0].responses for it in topic.partitions]
    assert [(it.partition_index, len(it.records)) for it in found if it.records] == [(0, BATCH_BYTES)]


# Sessions -------------------------------------------------------------------------------------------------------------


def test_every_answer_says_that_there_is_no_session(broker: MemoryBroker) -> None:
    assert broker.ask(fetch_request("orders", session_epoch=0), 12).session_id == 0
    assert broker.ask(fetch_request("orders", session_epoch=-1), 12).session_id == 0


def test_a_session_that_was_never_given_is_not_found(broker: MemoryBroker) -> None:
    answer = broker.ask(fetch_request("orders", session_id=77, session_epoch=1), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    answer = broker.ask(fetch_request("orders", session_id=0, session_epoch=5), 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_closing_a_session_that_was_never_given_is_no_error(broker: MemoryBroker) -> None:
    answer = broker.ask(fetch_request("orders", session_id=77, session_epoch=-1), 12)
    assert answer.error_code == ErrorCode.NONE


def test_a_fetched_batch_carries_the_leader_epoch(broker: MemoryBroker) -> None:
    assert read_header(broker.fetch("orders").records).leader_epoch == 0
