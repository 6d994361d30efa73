"""Produce through the registry, as frames: what is appended, what is refused and how, what is answered and when."""

import lz4.frame
import pytest
from crc32c import crc32c
from partitions_house import NOW_MS, House, batch, produce_request

from minibroker.log.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, Batch, encode_batch, read_header
from minibroker.log.compression import Compression
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Deferred
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode

VERSIONS = range(APIS[ApiKey.PRODUCE].min_version, APIS[ApiKey.PRODUCE].max_version + 1)


@pytest.fixture
def house() -> House:
    house = House()
    house.create("orders", 2)
    return house


def sealed(sent: bytearray, *, codec: int) -> bytearray:
    """The batch with another codec in its attributes, whatever its records are, and the right checksum."""
    sent[ATTRIBUTES_AT + 1] |= codec
    sent[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(sent[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return sent


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_is_appended_and_its_place_is_answered(house: House, version: int) -> None:
    house.produce("orders", batch(b"a", b"b"), version=version)
    answer = house.produce("orders", batch(b"c"), version=version)
    assert (answer.error_code, answer.base_offset, answer.index) == (ErrorCode.NONE, 2, 0)
    assert answer.log_append_time_ms == -1
    records = list(Batch(house.fetch("orders", 2).records).records())
    assert [record.value for record in records] == [b"c"]


def test_the_stored_bytes_are_those_that_were_sent_but_for_what_the_broker_stamps(house: House) -> None:
    sent = batch(b"a", compression=Compression.GZIP)
    house.produce("orders", batch(b"first"))
    house.produce("orders", sent)
    stored = house.fetch("orders", 1).records
    assert bytes(stored[CRC_AT:]) == bytes(sent[CRC_AT:])
    assert read_header(stored).base_offset == 1


def test_log_append_time_is_the_brokers_clock(house: House) -> None:
    house.create("stamped", message_timestamp_type="LogAppendTime")
    answer = house.produce("stamped", batch(b"a", timestamp=1), now_ms=NOW_MS + 5)
    assert answer.log_append_time_ms == NOW_MS + 5
    (record,) = Batch(house.fetch("stamped").records).records()
    assert record.timestamp == NOW_MS + 5


def test_acks_0_is_not_answered(house: House) -> None:
    assert house.produce("orders", batch(), acks=0) is None
    assert house.end("orders") == 1


def test_an_error_with_acks_0_ends_the_connection_and_names_the_partition(house: House) -> None:
    with pytest.raises(Disconnect, match="nowhere-0 refused a batch with UNKNOWN_TOPIC_OR_PARTITION"):
        house.produce("nowhere", batch(), acks=0)


def test_only_three_values_of_acks_have_a_meaning(house: House) -> None:
    for acks in (7, 2, -2):
        assert house.produce("orders", batch(), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert house.end("orders") == 0


def test_partitions_of_one_request_fail_one_by_one(house: House) -> None:
    request = produce_request("orders", batch(b"good"))
    bad = produce_request("orders", batch(), partition=9).topic_data[0].partition_data
    request.topic_data[0].partition_data += bad
    answers = house.ask(request).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert house.end("orders") == 1


# What is refused ------------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_a_corrupt_message(house: House) -> None:
    sent = batch(b"a")
    sent[-1] ^= 1
    answer = house.produce("orders", sent)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert "crc" in answer.error_message
    assert house.end("orders") == 0


def test_a_cut_off_batch_is_a_corrupt_message(house: House) -> None:
    sent = batch(b"a", b"b")
    for length in (1, HEADER_SIZE - 1, HEADER_SIZE, len(sent) - 1):
        assert house.produce("orders", sent[:length]).error_code == ErrorCode.CORRUPT_MESSAGE


def test_no_batch_at_all_is_an_invalid_record(house: House) -> None:
    assert house.produce("orders", b"").error_code == ErrorCode.INVALID_RECORD
    assert house.produce("orders", None).error_code == ErrorCode.INVALID_RECORD


def test_a_count_that_lies_is_an_invalid_record(house: House) -> None:
    sent = batch(b"a", b"b")
    header = read_header(sent)
    for lie in (
        header._replace(record_count=5),
        header._replace(last_offset_delta=7),
        header._replace(record_count=-1),
    ):
        assert house.produce("orders", encode_batch(lie, sent[HEADER_SIZE:])).error_code == ErrorCode.INVALID_RECORD


def test_two_batches_for_one_partition_are_refused(house: House) -> None:
    answer = house.produce("orders", batch(b"a") + batch(b"b"))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "send one batch" in answer.error_message


def test_the_formats_before_2017_are_refused(house: House) -> None:
    sent = batch(b"a")
    sent[16] = 1
    answer = house.produce("orders", sent)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "magic 1" in answer.error_message


def test_a_client_may_not_write_control_batches(house: House) -> None:
    assert house.produce("orders", batch(b"a", is_control=True)).error_code == ErrorCode.INVALID_RECORD


def test_a_producer_counts_from_0_and_stamps_nothing(house: House) -> None:
    sent = batch(b"a")
    sent[7] = 5
    assert house.produce("orders", sent).error_code == ErrorCode.INVALID_RECORD
    assert house.produce("orders", sealed(batch(b"a"), codec=0b1000)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert house.produce("orders", sealed(batch(b"a"), codec=0b10000)).error_code == ErrorCode.INVALID_TXN_STATE


def test_a_broker_that_is_told_to_looks_at_every_record() -> None:
    house = House(minibroker_validate_records="true")
    house.create("orders")
    header = read_header(batch(b"a"))
    lie = encode_batch(header._replace(record_count=5, last_offset_delta=4), batch(b"a")[HEADER_SIZE:])
    garbage = encode_batch(header, batch(b"a")[HEADER_SIZE:] + b"and more")
    plain = sealed(batch(b"a"), codec=Compression.GZIP)
    for sent in (lie, garbage, plain):
        code = house.produce("orders", sent).error_code
        assert code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert house.produce("orders", batch(b"a")).error_code == ErrorCode.NONE


def test_an_unknown_codec_is_refused_by_name(house: House) -> None:
    sent = sealed(batch(b"a"), codec=6)
    assert house.produce("orders", sent).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_zstd_needs_version_7(house: House) -> None:
    sent = batch(b"a", compression=Compression.ZSTD)
    assert house.produce("orders", sent, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert house.produce("orders", sent, version=7).error_code == ErrorCode.NONE


def test_a_batch_above_max_message_bytes_is_too_large_and_the_next_smaller_one_is_not(house: House) -> None:
    sent = batch(b"x" * 100)
    house.create("small", max_message_bytes=str(len(sent)))
    assert house.produce("small", batch(b"x" * 101)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert house.produce("small", sent).error_code == ErrorCode.NONE


def test_a_compacted_topic_wants_keys_and_says_which_records_have_none(house: House) -> None:
    house.create("table", cleanup_policy="compact")
    answer = house.produce("table", batch(b"a", b"b", key=None), version=8)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert house.produce("table", batch(b"a", key=b"k")).error_code == ErrorCode.NONE


def test_a_bomb_on_a_compacted_topic_is_too_large(house: House) -> None:
    packed = lz4.frame.compress(bytes(65 * 1024**2), block_linked=False)
    bomb = sealed(encode_batch(read_header(batch(b"a")), packed), codec=Compression.LZ4)
    house.create("roomy", cleanup_policy="compact", max_message_bytes=str(len(bomb)))
    assert house.produce("roomy", bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_timestamp_too_far_ahead_is_refused_with_the_record(house: House) -> None:
    hour_ms = 3_600_000  # Kafka's default of message.timestamp.after.max.ms
    answer = house.produce("orders", batch(b"a", b"b", timestamp=NOW_MS + hour_ms), version=8)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert house.produce("orders", batch(b"a", timestamp=NOW_MS + hour_ms)).error_code == ErrorCode.NONE


def test_a_timestamp_too_old_is_refused_where_the_topic_says_so(house: House) -> None:
    house.create("fresh", message_timestamp_before_max_ms="1000")
    assert house.produce("fresh", batch(b"a", timestamp=NOW_MS - 1001)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert house.produce("fresh", batch(b"a", timestamp=NOW_MS - 1000)).error_code == ErrorCode.NONE
    assert house.produce("orders", batch(b"a", timestamp=0)).error_code == ErrorCode.NONE


# A topic with a codec of its own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Compression))
def test_a_topic_that_names_a_codec_stores_all_batches_in_it(house: House, wanted: str, sent: Compression) -> None:
    house.create("packed", compression_type=wanted)
    sent_batch = batch(b"a" * 500, b"b" * 500, compression=sent, producer_id=5, producer_epoch=0, base_sequence=0)
    assert house.produce("packed", sent_batch).error_code == ErrorCode.NONE
    stored = Batch(house.fetch("packed").records)
    assert stored.header.compression == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(wanted)
    stored.check_crc()
    assert list(stored.records()) == list(Batch(sent_batch).records())
    assert stored.header[9:12] == (5, 0, 0)


def test_records_that_cannot_be_unpacked_are_refused_where_they_must_be(house: House) -> None:
    house.create("packed", compression_type="lz4")
    fake = sealed(encode_batch(read_header(batch(b"a")), b"not compressed at all"), codec=Compression.ZSTD)
    assert house.produce("packed", fake).error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


# Idempotent producers -------------------------------------------------------------------------------------------------


def sequenced(*values: bytes, sequence: int, epoch: int = 0, producer_id: int = 5) -> bytearray:
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_that_is_sent_twice_is_written_once_and_answered_the_same(house: House) -> None:
    first = house.produce("orders", sequenced(b"a", b"b", sequence=0))
    house.produce("orders", sequenced(b"c", sequence=2))
    again = house.produce("orders", sequenced(b"a", b"b", sequence=0))
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
    assert house.end("orders") == 3


def test_a_gap_in_the_sequence_is_refused(house: House) -> None:
    house.produce("orders", sequenced(b"a", sequence=0))
    assert house.produce("orders", sequenced(b"c", sequence=2)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert house.produce("orders", sequenced(b"b", sequence=1)).error_code == ErrorCode.NONE


def test_an_older_epoch_is_refused_and_a_new_one_begins_with_0(house: House) -> None:
    house.produce("orders", sequenced(b"a", sequence=0, epoch=1))
    assert house.produce("orders", sequenced(b"b", sequence=1, epoch=0)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    late = house.produce("orders", sequenced(b"b", sequence=1, epoch=2))
    assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert house.produce("orders", sequenced(b"b", sequence=0, epoch=2)).error_code == ErrorCode.NONE


def test_partitions_count_sequences_for_themselves(house: House) -> None:
    assert house.produce("orders", sequenced(b"a", sequence=0), partition=0).error_code == ErrorCode.NONE
    assert house.produce("orders", sequenced(b"a", sequence=0), partition=1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_duplicate_is_known_after_a_restart(house: House, is_clean: bool) -> None:
    first = house.produce("orders", sequenced(b"a", sequence=0))
    if is_clean:
        house.data.close()
    reopened = House(house.files)
    again = reopened.produce("orders", sequenced(b"a", sequence=0))
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
    assert reopened.end("orders") == 1


def test_a_refused_batch_leaves_no_trace_in_the_producers_state(house: House) -> None:
    damaged = sequenced(b"a", sequence=0)
    damaged[-1] ^= 1
    assert house.produce("orders", damaged).error_code == ErrorCode.CORRUPT_MESSAGE
    assert house.produce("orders", sequenced(b"a", sequence=0)).error_code == ErrorCode.NONE
    assert house.end("orders") == 1


# Waiting for the watermark --------------------------------------------------------------------------------------------


class Behind:
    """A partition whose followers are slow: its watermark is where the test puts it. Chapter 04 makes it real."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.code: ErrorCode | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def verdict(self, appended: object, *, acks: int) -> ErrorCode | None:
        return self.code if acks == -1 else ErrorCode.NONE


@pytest.fixture
def behind(house: House) -> Behind:
    from minibroker.segments.checkpoint import TopicPartition

    name = TopicPartition("orders", 0)
    behind = Behind(house.store._partitions[name])
    house.store._partitions[name] = behind  # type: ignore[assignment]
    return behind


def test_acks_all_waits_for_the_verdict_and_acks_1_does_not(house: House, behind: Behind) -> None:
    assert house.produce("orders", batch(b"a"), acks=1).error_code == ErrorCode.NONE
    responses = house.wait_for(produce_request("orders", batch(b"b")))
    behind.code = ErrorCode.NONE
    house.store._wake(("orders", 0))
    house.waiting.settle()
    (response,) = responses
    answer = response.responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)


def test_a_verdict_that_never_comes_is_a_timeout(house: House, behind: Behind) -> None:
    responses = house.wait_for(produce_request("orders", batch(b"b")))
    house.waiting.expire(999)
    assert responses == []
    house.waiting.expire(1000)
    answer = responses[0].responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "1000 ms" in answer.error_message


def test_a_bad_verdict_is_answered(house: House, behind: Behind) -> None:
    responses = house.wait_for(produce_request("orders", batch(b"b")))
    behind.code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    house.store._wake(("orders", 0))
    house.waiting.settle()
    answer = responses[0].responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_waiting_produce_is_a_deferred_answer(house: House, behind: Behind) -> None:
    assert isinstance(house.dispatch(produce_request("orders", batch())), Deferred)
