"""Produce through the registry, as frames: which batches are appended or refused, and what is answered when."""

from typing import Any

import lz4.frame
import pytest
from cases import case
from crc32c import crc32c
from partitions_broker import NOW_MS, MemoryBroker, batch, produce_request

from minibroker.log.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, Batch, encode_batch, read_header
from minibroker.log.compression import Compression
from minibroker.partitions.admission import Origin
from minibroker.partitions.errors import Disconnect, Held
from minibroker.partitions.produce import Produce
from minibroker.partitions.registry import Call, Deferred, Session
from minibroker.partitions.waiting import Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("orders", 2)
    return broker


def sealed(sent: bytearray, *, codec: int) -> bytearray:
    """The batch with more bits in its attributes, and the right checksum."""
    sent[ATTRIBUTES_AT + 1] |= codec
    sent[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(sent[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return sent


def test_a_batch_is_appended_and_its_offset_is_answered(broker: MemoryBroker) -> None:
    for version in range(APIS[ApiKey.PRODUCE].min_version, APIS[ApiKey.PRODUCE].max_version + 1):
        end = broker.end("orders")
        broker.produce("orders", batch(b"a", b"b"), version=version)
        answer = broker.produce("orders", batch(b"c"), version=version)
        assert (answer.error_code, answer.base_offset, answer.index) == (ErrorCode.NONE, end + 2, 0), version
        assert answer.log_append_time_ms == -1, version
        records = list(Batch(broker.fetch("orders", end + 2).records).records())
        assert [record.value for record in records] == [b"c"], version


def test_the_stored_bytes_are_the_sent_ones_after_the_offset_and_the_epoch(broker: MemoryBroker) -> None:
    sent = batch(b"a", compression=Compression.GZIP)
    broker.produce("orders", batch(b"first"))
    broker.produce("orders", sent)
    stored = broker.fetch("orders", 1).records
    assert bytes(stored[CRC_AT:]) == bytes(sent[CRC_AT:])
    assert read_header(stored).base_offset == 1


def test_log_append_time_is_the_brokers_clock(broker: MemoryBroker) -> None:
    broker.create("stamped", message_timestamp_type="LogAppendTime")
    answer = broker.produce("stamped", batch(b"a", timestamp=1), now_ms=NOW_MS + 5)
    assert answer.log_append_time_ms == NOW_MS + 5
    (record,) = Batch(broker.fetch("stamped").records).records()
    assert record.timestamp == NOW_MS + 5
    # The producer's own time may be anything.
    ahead = batch(b"a", timestamp=NOW_MS + 10**9)
    assert broker.produce("stamped", ahead).log_append_time_ms == NOW_MS


def test_acks_0_is_not_answered(broker: MemoryBroker) -> None:
    assert broker.produce("orders", batch(), acks=0) is None
    assert broker.end("orders") == 1


def test_an_error_with_acks_0_ends_the_connection_and_names_the_partition(broker: MemoryBroker) -> None:
    with pytest.raises(Disconnect, match="nowhere-0 refused a batch with UNKNOWN_TOPIC_OR_PARTITION"):
        broker.produce("nowhere", batch(), acks=0)


def test_only_three_values_of_acks_have_a_meaning(broker: MemoryBroker) -> None:
    for acks in (7, 2, -2):
        assert broker.produce("orders", batch(), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert broker.end("orders") == 0


def test_an_answer_has_the_first_offset_of_the_log(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a", b"b"))
    broker.store.partition("orders", 0).delete_records(2)
    assert broker.produce("orders", batch(b"c")).log_start_offset == 2


def test_partitions_of_one_request_fail_one_by_one(broker: MemoryBroker) -> None:
    request = produce_request("orders", batch(b"good"))
    bad = produce_request("orders", batch(), partition=9).topic_data[0].partition_data
    request.topic_data[0].partition_data += bad
    answers = broker.ask(request).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.end("orders") == 1


# Refused batches ------------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_a_corrupt_message(broker: MemoryBroker) -> None:
    sent = batch(b"a")
    sent[-1] ^= 1
    answer = broker.produce("orders", sent)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert "crc" in answer.error_message
    assert broker.end("orders") == 0


def test_a_cut_off_batch_is_a_corrupt_message(broker: MemoryBroker) -> None:
    sent = batch(b"a", b"b")
    for length in (1, HEADER_SIZE - 1, HEADER_SIZE, len(sent) - 1):
        for version in (6, 12):  # an early version is searched for zstd first
            code = broker.produce("orders", sent[:length], version=version).error_code
            assert code == ErrorCode.CORRUPT_MESSAGE, (length, version)


def test_no_batch_at_all_is_an_invalid_record(broker: MemoryBroker) -> None:
    assert broker.produce("orders", b"").error_code == ErrorCode.INVALID_RECORD
    assert broker.produce("orders", None).error_code == ErrorCode.INVALID_RECORD


def test_a_wrong_record_count_is_an_invalid_record(broker: MemoryBroker) -> None:
    sent = batch(b"a", b"b")
    header = read_header(sent)
    for lie in (
        header._replace(record_count=5),
        header._replace(last_offset_delta=7),
        header._replace(record_count=-1),
    ):
        assert broker.produce("orders", encode_batch(lie, sent[HEADER_SIZE:])).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_must_have_room_for_its_records(broker: MemoryBroker) -> None:
    """The lengths of the first 16 records are followed. Any further record has 7 bytes or more."""
    one, many = batch(b"x" * 1000), batch(*[b"x" * 100] * 20)
    packed = {it: batch(*[b"x"] * 500, compression=it) for it in Compression if it}
    cases = [
        ("5 records, and there is 1", one, 5, True),
        ("16 records, and there are 20", many, 16, True),
        ("17 records, and there are 20", many, 17, False),
        ("more than have room after 16 records", many, 1000, True),
        *((f"500 records, {it.name}", sent, 500, False) for it, sent in packed.items()),
        *((f"100 million records, {it.name}", sent, 10**8, True) for it, sent in packed.items()),
    ]
    for name, sent, count, is_refused in cases:
        with case(name):
            end = broker.end("orders")
            header = read_header(sent)._replace(record_count=count, last_offset_delta=count - 1)
            # The records are compressed already, so the header gets its codec and checksum afterwards.
            lie = sealed(encode_batch(header._replace(attributes=0), sent[HEADER_SIZE:]), codec=header.attributes)
            answer = broker.produce("orders", lie)
            assert answer.error_code == (ErrorCode.INVALID_RECORD if is_refused else ErrorCode.NONE)
            assert broker.end("orders") == (end if is_refused else end + count)
            if is_refused:
                assert f"the header says {count} records" in answer.error_message


def test_two_batches_for_one_partition_are_refused(broker: MemoryBroker) -> None:
    answer = broker.produce("orders", batch(b"a") + batch(b"b"))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "send one batch" in answer.error_message


def test_the_record_formats_before_2017_are_refused(broker: MemoryBroker) -> None:
    sent = batch(b"a")
    sent[16] = 1
    answer = broker.produce("orders", sent)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "magic 1" in answer.error_message


def test_a_producer_may_set_neither_offset_nor_append_time_nor_transaction(broker: MemoryBroker) -> None:
    sent = batch(b"a")
    sent[7] = 5
    assert broker.produce("orders", sent).error_code == ErrorCode.INVALID_RECORD
    assert broker.produce("orders", sealed(batch(b"a"), codec=0b1000)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert broker.produce("orders", sealed(batch(b"a"), codec=0b10000)).error_code == ErrorCode.INVALID_TXN_STATE
    sent[:8] = b"\xff" * 8
    assert broker.produce("orders", sent).error_code == ErrorCode.INVALID_RECORD


def test_control_batches_are_written_by_a_coordinator_only_and_their_sequence_is_not_checked(
    broker: MemoryBroker,
) -> None:
    control = batch(b"a", is_control=True, producer_id=5, producer_epoch=0, base_sequence=9)
    for attributes in (0, 0b10000):  # transactional or not
        sent = sealed(bytearray(control), codec=attributes)
        assert broker.produce("orders", sent).error_code == ErrorCode.INVALID_RECORD
        partition, view = broker.store.partition("orders", 0), memoryview(sent)
        end = partition.log_end_offset
        appended = partition.append(view, acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        assert appended.base_offset == end


def test_validate_records_makes_the_broker_check_every_record() -> None:
    broker = MemoryBroker(minibroker_validate_records="true")
    broker.create("orders")
    broker.create("table", cleanup_policy="compact")
    header = read_header(batch(b"a"))
    lie = encode_batch(header._replace(record_count=5, last_offset_delta=4), batch(b"a")[HEADER_SIZE:])
    garbage = encode_batch(header, batch(b"a")[HEADER_SIZE:] + b"and more")
    plain = sealed(batch(b"a"), codec=Compression.GZIP)
    two = batch(b"a", b"b")
    two[HEADER_SIZE + (len(two) - HEADER_SIZE) // 2 + 3] += 2  # the offset delta of the second record is 2
    gap = sealed(two, codec=Compression.NONE)
    for topic in ("orders", "table"):
        for name, sent in {"count": lie, "garbage": garbage, "not compressed": plain, "gap": gap}.items():
            with case(f"{name}, {topic}"):
                code = broker.produce(topic, sent).error_code
                assert code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert broker.produce("orders", batch(b"a")).error_code == ErrorCode.NONE


def test_an_unknown_codec_is_refused_by_name(broker: MemoryBroker) -> None:
    for codec in (5, 6, 7):
        sent = sealed(batch(b"a"), codec=codec)
        assert broker.produce("orders", sent).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, codec


def test_zstd_needs_version_7(broker: MemoryBroker) -> None:
    sent = batch(b"a", compression=Compression.ZSTD)
    assert broker.produce("orders", sent, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert broker.produce("orders", sent, version=7).error_code == ErrorCode.NONE


def test_a_batch_above_max_message_bytes_is_too_large_and_the_next_smaller_one_is_not(broker: MemoryBroker) -> None:
    sent = batch(b"x" * 100)
    broker.create("small", max_message_bytes=str(len(sent)))
    too_large = batch(b"x" * 101)
    assert broker.produce("small", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    too_large[-1] ^= 1  # the size is checked before the checksum
    assert broker.produce("small", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert broker.produce("small", sent).error_code == ErrorCode.NONE


def test_a_compacted_topic_refuses_records_without_a_key_and_names_them(broker: MemoryBroker) -> None:
    broker.create("table", cleanup_policy="compact")
    answer = broker.produce("table", batch(b"a", b"b", key=None), version=8)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert broker.produce("table", batch(b"a", key=b"k")).error_code == ErrorCode.NONE


def test_a_decompression_bomb_on_a_compacted_topic_is_too_large(broker: MemoryBroker) -> None:
    packed = lz4.frame.compress(bytes(65 * 1024**2), block_linked=False)
    bomb = sealed(encode_batch(read_header(batch(b"a")), packed), codec=Compression.LZ4)
    broker.create("roomy", cleanup_policy="compact", max_message_bytes=str(len(bomb)))
    assert broker.produce("roomy", bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_timestamp_too_far_ahead_is_refused_and_its_record_named(broker: MemoryBroker) -> None:
    hour_ms = 3_600_000  # Kafka's default of message.timestamp.after.max.ms
    answer = broker.produce("orders", batch(b"a", b"b", timestamp=NOW_MS + hour_ms), version=8)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert broker.produce("orders", batch(b"a", timestamp=NOW_MS + hour_ms)).error_code == ErrorCode.NONE


def test_a_timestamp_too_old_is_refused_where_the_topic_says_so(broker: MemoryBroker) -> None:
    broker.create("fresh", message_timestamp_before_max_ms="1000")
    answer = broker.produce("fresh", batch(b"a", b"b", timestamp=NOW_MS - 1001))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [0]
    assert broker.produce("fresh", batch(b"a", timestamp=NOW_MS - 1000)).error_code == ErrorCode.NONE
    assert broker.produce("fresh", batch(b"without a time", timestamp=-1)).error_code == ErrorCode.NONE
    assert broker.produce("orders", batch(b"a", timestamp=0)).error_code == ErrorCode.NONE


# A topic with a codec of its own --------------------------------------------------------------------------------------


def test_a_topic_with_a_codec_of_its_own_stores_every_batch_in_it(broker: MemoryBroker) -> None:
    for codec, wanted in enumerate(("uncompressed", "gzip", "snappy", "lz4", "zstd")):
        broker.create(wanted, len(Compression), compression_type=wanted)
        for partition, sent in enumerate(Compression):
            case = f"{sent.name} to a topic with {wanted}"
            records = batch(b"a" * 500, b"b" * 500, compression=sent, producer_id=5, producer_epoch=0, base_sequence=0)
            assert broker.produce(wanted, records, partition=partition).error_code == ErrorCode.NONE, case
            stored = Batch(broker.fetch(wanted, partition=partition).records)
            assert stored.header.compression == codec, case
            assert stored.header.crc == crc32c(bytes(stored.view[ATTRIBUTES_AT:])), case
            assert list(stored.records()) == list(Batch(records).records()), case
            assert stored.header[9:12] == (5, 0, 0), case


def test_records_that_cannot_be_decompressed_are_refused_where_the_topic_has_a_codec(broker: MemoryBroker) -> None:
    broker.create("packed", compression_type="lz4")
    fake = sealed(encode_batch(read_header(batch(b"a")), b"not compressed at all"), codec=Compression.ZSTD)
    assert broker.produce("packed", fake).error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


# Idempotent producers -------------------------------------------------------------------------------------------------


def sequenced(*values: bytes, sequence: int, epoch: int = 0, producer_id: int = 5) -> bytearray:
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_that_is_sent_twice_is_written_once_and_answered_the_same(broker: MemoryBroker) -> None:
    first = broker.produce("orders", sequenced(b"a", b"b", sequence=0))
    broker.produce("orders", sequenced(b"c", sequence=2))
    again = broker.produce("orders", sequenced(b"a", b"b", sequence=0))
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
    assert broker.end("orders") == 3


def test_a_gap_in_the_sequence_is_refused(broker: MemoryBroker) -> None:
    broker.produce("orders", sequenced(b"a", sequence=0))
    assert broker.produce("orders", sequenced(b"c", sequence=2)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce("orders", sequenced(b"b", sequence=1)).error_code == ErrorCode.NONE


def test_an_older_epoch_is_refused_and_a_new_one_begins_with_0(broker: MemoryBroker) -> None:
    broker.produce("orders", sequenced(b"a", sequence=0, epoch=1))
    assert broker.produce("orders", sequenced(b"b", sequence=1, epoch=0)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    late = broker.produce("orders", sequenced(b"b", sequence=1, epoch=2))
    assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.produce("orders", sequenced(b"b", sequence=0, epoch=2)).error_code == ErrorCode.NONE


def test_partitions_count_sequences_for_themselves(broker: MemoryBroker) -> None:
    assert broker.produce("orders", sequenced(b"a", sequence=0), partition=0).error_code == ErrorCode.NONE
    assert broker.produce("orders", sequenced(b"a", sequence=0), partition=1).error_code == ErrorCode.NONE


def test_a_duplicate_is_found_after_a_clean_stop_and_after_a_crash() -> None:
    for is_clean in (True, False):
        broker = MemoryBroker()
        broker.create("orders")
        first = broker.produce("orders", sequenced(b"a", sequence=0))
        if is_clean:
            broker.data.close()
        reopened = MemoryBroker(broker.files)
        again = reopened.produce("orders", sequenced(b"a", sequence=0))
        found = (again.error_code, again.base_offset, reopened.end("orders"))
        assert found == (ErrorCode.NONE, first.base_offset, 1), f"clean stop: {is_clean}"


def test_a_refused_batch_does_not_change_the_producers_state(broker: MemoryBroker) -> None:
    damaged = sequenced(b"a", sequence=0)
    damaged[-1] ^= 1
    assert broker.produce("orders", damaged).error_code == ErrorCode.CORRUPT_MESSAGE
    assert broker.produce("orders", sequenced(b"a", sequence=0)).error_code == ErrorCode.NONE
    assert broker.end("orders") == 1


# Waiting for the watermark --------------------------------------------------------------------------------------------


class SlowFollowers:
    """A partition whose followers are slow: the test sets the verdict, which chapter 04 makes real.

    It may also hold batches, as the rules of chapter 06 do.
    """

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.code: ErrorCode | None = None
        self.held: Held | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def append(self, *arguments: Any, **named: Any) -> Any:
        if self.held is not None:
            raise self.held
        return self._inner.append(*arguments, **named)  # type: ignore[attr-defined]

    def verdict(self, appended: object, *, acks: int) -> ErrorCode | None:
        return self.code if acks == -1 else ErrorCode.NONE


@pytest.fixture
def slow(broker: MemoryBroker) -> SlowFollowers:
    name = TopicPartition("orders", 0)
    slow = SlowFollowers(broker.store._partitions[name])
    broker.store._partitions[name] = slow  # type: ignore[assignment]
    return slow


def test_acks_all_waits_for_the_verdict_and_acks_1_does_not(broker: MemoryBroker, slow: SlowFollowers) -> None:
    assert broker.produce("orders", batch(b"a"), acks=1).error_code == ErrorCode.NONE
    responses = broker.wait_for(produce_request("orders", batch(b"b")))
    slow.code = ErrorCode.NONE
    broker.store._wake(("orders", 0))
    broker.waiting.settle()
    (response,) = responses
    answer = response.responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)


def test_a_verdict_that_never_comes_is_a_timeout(broker: MemoryBroker, slow: SlowFollowers) -> None:
    responses = broker.wait_for(produce_request("orders", batch(b"b")))
    broker.waiting.expire(999)
    assert responses == []
    broker.waiting.expire(1000)
    answer = responses[0].responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert "1000 ms" in answer.error_message


def test_at_its_deadline_a_request_is_tried_a_last_time(broker: MemoryBroker, slow: SlowFollowers) -> None:
    responses = broker.wait_for(produce_request("orders", batch(b"b")))
    slow.code = ErrorCode.NONE
    broker.waiting.expire(1000)
    answer = responses[0].responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


def test_a_node_may_stop_a_refusal_at_the_deadline(broker: MemoryBroker, slow: SlowFollowers) -> None:
    def leave() -> None:
        raise Disconnect("this node cannot know whether it still leads")

    handler = Produce(broker.store, on_timeout=leave)
    request = produce_request("orders", memoryview(batch()))  # type: ignore[arg-type]
    wait = handler(Call(request, 9, RequestHeader(0, 9, 1, None), NOW_MS, Session("test")))
    assert isinstance(wait, Wait)
    with pytest.raises(Disconnect):
        wait.expire()


def test_a_batch_that_is_held_blocks_its_connection_until_it_is_appended(
    broker: MemoryBroker, slow: SlowFollowers
) -> None:
    request = produce_request("orders", batch(b"a"))
    slow.held = Held("its key", ErrorCode.CONCURRENT_TRANSACTIONS, "not yet")
    with pytest.raises(Disconnect, match="CONCURRENT_TRANSACTIONS"):
        broker.produce("orders", batch(b"a"), acks=0)
    waits = [broker.dispatch(request)]
    responses = broker.wait_for(request)
    slow.held = None
    waits.append(broker.dispatch(request))
    assert [it.wait.is_blocking for it in waits if isinstance(it, Deferred)] == [True, False]
    broker.waiting.wake("its key")
    broker.waiting.settle()
    assert (responses, broker.end("orders")) == ([], 2)
    # Now it waits for the followers, as any other batch.
    slow.code = ErrorCode.NONE
    broker.waiting.wake(TopicPartition("orders", 0))
    broker.waiting.settle()
    assert [it.responses[0].partition_responses[0].base_offset for it in responses] == [1]


def test_a_batch_that_is_held_for_too_long_is_refused(broker: MemoryBroker, slow: SlowFollowers) -> None:
    slow.held = Held("its key", ErrorCode.CONCURRENT_TRANSACTIONS, "not yet")
    responses = broker.wait_for(produce_request("orders", batch(b"a")))
    broker.waiting.expire(1000)
    answer = responses[0].responses[0].partition_responses[0]
    assert (answer.error_code, answer.error_message) == (ErrorCode.CONCURRENT_TRANSACTIONS, "not yet")
    assert broker.end("orders") == 0


def many(acks: int) -> ProduceRequest:
    """A request with a batch for each of 300 partitions, so that it is handled in slices."""
    request = produce_request("many", None, acks=acks)
    request.topic_data[0].partition_data = [PartitionProduceData(index=it, records=batch()) for it in range(300)]
    return request


def test_very_many_batches_are_appended_at_once_if_there_is_no_answer_or_no_time(broker: MemoryBroker) -> None:
    broker.create("many", 300)
    assert broker.ask(many(acks=0)) is None
    assert {broker.end("many", it) for it in range(300)} == {1}
    responses = broker.wait_for(many(acks=1))
    broker.waiting.end()
    assert [it.base_offset for it in responses[0].responses[0].partition_responses] == [1] * 300


def test_very_many_batches_wait_for_their_followers(broker: MemoryBroker) -> None:
    broker.create("many", 300)
    name = TopicPartition("many", 0)
    broker.store._partitions[name] = slow = SlowFollowers(broker.store._partitions[name])  # type: ignore[assignment]
    responses = broker.wait_for(many(acks=-1))
    broker.take_turns(3)
    assert (responses, broker.end("many", 299)) == ([], 1)
    slow.code = ErrorCode.NONE
    broker.waiting.wake(name)
    broker.waiting.settle()
    assert len(responses) == 1


def test_a_bad_verdict_is_answered(broker: MemoryBroker, slow: SlowFollowers) -> None:
    responses = broker.wait_for(produce_request("orders", batch(b"b")))
    slow.code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    broker.store._wake(("orders", 0))
    broker.waiting.settle()
    answer = responses[0].responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
