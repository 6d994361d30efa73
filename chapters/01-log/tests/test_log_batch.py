"""Batches: the header, the checksum, stamping in place, damage and wrong counts (invariants 2, 3 and 6)."""

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from log_cases import each_case
from log_strategies import CODECS, INT32, INT64, build, records, small_batch

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    RECORDS_AT,
    Batch,
    BatchBuilder,
    TimestampType,
    batches,
    check_crc,
    encode_batch,
    read_header,
    stamp,
    stamp_log_append_time,
)
from minibroker.log.checks import check_counts, check_whole
from minibroker.log.compression import Compression
from minibroker.log.errors import CorruptBatch, InvalidRecord, LogError, RecordsTooLarge, UnsupportedCompressionType
from minibroker.log.record import Record


def normal(found: list[Record]) -> list[Record]:
    return [record._replace(headers=list(record.headers)) for record in found]


@given(records(), st.sampled_from(CODECS))
def test_a_batch_gives_back_its_records_with_every_codec(generated: list[Record], codec: Compression) -> None:
    batch = Batch(build(generated, compression=codec))
    batch.check_crc()
    assert normal(list(batch.records())) == generated
    assert batch.header.compression == codec


@given(records(), INT64, st.integers(-1, 2**15 - 1), INT32, st.booleans(), st.booleans())
def test_a_header_has_the_builders_values(
    generated: list[Record], producer_id: int, producer_epoch: int, sequence: int, transactional: bool, control: bool
) -> None:
    batch = build(
        generated,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=transactional,
        is_control=control,
    )
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, sequence)
    assert (header.is_transactional, header.is_control) == (transactional, control)
    assert header.size == len(batch)
    assert header.record_count == len(generated) == header.next_offset == header.last_offset + 1
    assert header.base_timestamp == generated[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in generated)
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_a_builder_knows_its_size_and_may_leave_gaps() -> None:
    builder = BatchBuilder(base_offset=10, leader_epoch=3)
    assert builder.append(timestamp=5, key=None, value=b"a") == 10
    assert builder.append(timestamp=4, key=None, value=b"b", offset=17) == 17
    assert builder.append(timestamp=4, key=None, value=b"c") == 18
    assert builder.size == len(builder.build())
    assert [record.offset for record in Batch(builder.build()).records()] == [10, 17, 18]
    header = read_header(builder.build())
    assert (header.last_offset, header.next_offset, header.leader_epoch) == (18, 19, 3)


def test_a_batch_of_ten_thousand_records_comes_back() -> None:
    builder = BatchBuilder()
    for n in range(10_000):
        builder.append(timestamp=n, key=None, value=b"%d" % n)
    found = list(Batch(builder.build()).records())
    assert [(record.offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(10_000)]


def test_a_builder_refuses_an_offset_that_falls() -> None:
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=b"a", offset=5)
    with pytest.raises(AssertionError, match="offset 5 is before the next free offset, 6"):
        builder.append(timestamp=0, key=None, value=b"b", offset=5)


def test_records_are_bounded_by_what_the_caller_allows() -> None:
    batch = Batch(small_batch(bytes(100_000), compression=Compression.ZSTD))
    with pytest.raises(RecordsTooLarge):
        list(batch.records(bytes_max=50_000))


@each_case(
    ("bit", "name"), [(4, "is_transactional"), (5, "is_control"), (6, "has_delete_horizon"), (3, "timestamp_type")]
)
def test_each_attribute_is_the_bit_that_kafka_assigned(bit: int, name: str) -> None:
    header = read_header(with_header(small_batch(b"a"), ATTRIBUTES_AT, ">h", 1 << bit))
    assert getattr(header, name)
    assert not getattr(read_header(small_batch(b"a")), name)


# Stamping: invariant 3


@given(records(), st.sampled_from(CODECS), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_stamping_keeps_the_checksum_and_touches_no_record(
    generated: list[Record], codec: Compression, base_offset: int, leader_epoch: int
) -> None:
    batch = build(generated, compression=codec)
    before = bytes(batch)
    stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    assert bytes(batch[CRC_AT:]) == before[CRC_AT:]
    check_crc(batch, read_header(batch))
    assert read_header(batch).leader_epoch == leader_epoch
    assert [r.offset for r in Batch(batch).records()] == [base_offset + r.offset for r in generated]


@given(records(), st.sampled_from(CODECS), st.integers(0, 2**62))
def test_log_append_time_renews_the_checksum_and_touches_no_record(
    generated: list[Record], codec: Compression, now_ms: int
) -> None:
    batch = build(generated, compression=codec)
    before = bytes(batch)
    stamp_log_append_time(batch, timestamp=now_ms)
    assert bytes(batch[RECORDS_AT:]) == before[RECORDS_AT:]
    check_crc(batch, read_header(batch))
    assert read_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in Batch(batch).records()} == {now_ms}
    assert read_header(batch).compression == codec
    stamped = bytes(batch)
    stamp_log_append_time(batch, timestamp=now_ms)
    assert bytes(batch) == stamped


def test_log_append_time_without_a_new_checksum_would_be_refused() -> None:
    batch = small_batch(b"a")
    renewed = bytearray(batch)
    stamp_log_append_time(renewed, timestamp=1)
    renewed[CRC_AT:ATTRIBUTES_AT] = batch[CRC_AT:ATTRIBUTES_AT]
    with pytest.raises(CorruptBatch, match="crc"):
        check_crc(renewed, read_header(renewed))


# Damage: invariant 2


@settings(max_examples=30)
@given(records(max_size=3), st.sampled_from(CODECS))
def test_every_bit_flip_under_the_checksum_is_caught(generated: list[Record], codec: Compression) -> None:
    batch = build(generated, compression=codec)
    header = read_header(batch)
    for position in range(CRC_AT, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(CorruptBatch, match="crc"):
                check_crc(batch, read_header(batch))
            batch[position] ^= 1 << bit
    check_crc(batch, header)


def test_a_flip_of_length_or_magic_is_caught() -> None:
    batch = small_batch(b"abc", b"defgh")
    for position in [*range(LENGTH_AT, LEADER_EPOCH_AT), CRC_AT - 1]:
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                Batch(flipped).check_crc()


@given(records(max_size=3), st.sampled_from(CODECS), st.data())
def test_every_prefix_of_a_batch_is_refused(generated: list[Record], codec: Compression, data: st.DataObject) -> None:
    batch = build(generated, compression=codec)
    cut = data.draw(st.integers(0, len(batch) - 1))
    with pytest.raises(CorruptBatch):
        Batch(batch[:cut])
    assert list(batches(batch[:cut])) == []


def test_a_batch_cut_off_after_whole_ones_is_left_out() -> None:
    whole = small_batch(b"a") + small_batch(b"b")
    for cut in range(len(small_batch(b"c"))):
        assert len(list(batches(whole + small_batch(b"c")[:cut]))) == 2


def test_a_batch_whose_records_were_all_removed_still_counts() -> None:
    emptied = encode_batch(read_header(small_batch(b"a", b"b"))._replace(record_count=0), b"")
    assert [(batch.header.next_offset, list(batch.records())) for batch in batches(emptied * 2)] == [(2, [])] * 2


def test_damage_between_batches_is_an_error_and_no_end() -> None:
    found = batches(small_batch(b"a") + bytes(100) + small_batch(b"b"))
    assert next(found).header.record_count == 1
    with pytest.raises(CorruptBatch, match="magic 0"):
        next(found)


def test_a_batch_is_read_at_any_position() -> None:
    batch = small_batch(b"a", b"b")
    found = Batch(b"xyz" + batch + b"tail", 3)
    found.check_crc()
    assert [record.value for record in found.records()] == [b"a", b"b"]
    with pytest.raises(CorruptBatch, match=f"only 4 of {HEADER_SIZE} header bytes"):
        Batch(b"xyz" + batch + b"tail", 3 + len(batch))


def test_a_checksum_covers_the_batch_at_its_position_and_no_more() -> None:
    first, second = small_batch(b"first"), small_batch(b"second, and longer")
    both = first + second
    check_crc(both, read_header(both, len(first)), len(first))
    both[-1] ^= 1
    check_crc(both, read_header(both))  # damage after a batch does not concern it
    with pytest.raises(CorruptBatch, match=f"position {len(first)}: crc"):
        check_crc(both, read_header(both, len(first)), len(first))
    with pytest.raises(CorruptBatch, match=f"{len(second) - 1} of {len(second)} bytes"):
        check_crc(both[:-1], read_header(both, len(first)), len(first))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_clear_error(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        Batch(data).check_crc()


def with_header(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """The batch with one field changed and a right checksum, as a faulty producer could send it."""
    struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return batch


@each_case("count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_wrong_record_count_is_refused(count: int) -> None:
    batch = Batch(with_header(small_batch(b"a", b"b"), 57, ">i", count))
    batch.check_crc()
    with pytest.raises(InvalidRecord):
        check_counts(batch.header)
    with pytest.raises(InvalidRecord):
        list(batch.records())


@each_case("length", [-(2**31), -1, 0, HEADER_SIZE - 13, 2**31 - 1])
def test_a_wrong_length_is_refused_without_allocating(length: int) -> None:
    batch = small_batch(b"a")
    if length == HEADER_SIZE - 13:  # one less than a header has, and even its checksum is right
        struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT : HEADER_SIZE - 1])))
    struct.pack_into(">i", batch, LENGTH_AT, length)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            Batch(batch).check_crc()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@each_case("magic", [0, 1, 3, 127, -1])
def test_another_magic_is_refused_by_name(magic: int) -> None:
    batch = small_batch(b"a")
    struct.pack_into(">b", batch, CRC_AT - 1, magic)
    for refuse in (read_header, check_whole):
        with pytest.raises(CorruptBatch, match=f"magic {magic}, but only 2"):
            refuse(batch)


def test_an_unassigned_codec_is_refused_by_number() -> None:
    batch = Batch(with_header(small_batch(b"a"), ATTRIBUTES_AT, ">h", 5))
    with pytest.raises(UnsupportedCompressionType, match="type 5"):
        list(batch.records())


@given(records(max_size=3), st.sampled_from(CODECS), st.data())
def test_damage_under_a_right_checksum_is_a_log_error_and_nothing_else(
    generated: list[Record], codec: Compression, data: st.DataObject
) -> None:
    batch = build(generated, compression=codec)
    position = data.draw(st.integers(RECORDS_AT, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    try:
        list(Batch(batch).records(bytes_max=1_000_000))
    except LogError as error:
        assert str(error)
