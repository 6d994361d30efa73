"""The vectorised codec, chapter 01's plain one and kafka-python's give the same records and the same errors."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from cases import case
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords
from log_strategies import CODECS, HEADERS, build, records, small_batch

from minibroker.client import partitioners
from minibroker.log.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    BatchBuilder,
    BatchHeader,
    batches,
    encode_batch,
    read_header,
    stamp,
    stamp_log_append_time,
)
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker
from minibroker.log.errors import CorruptBatch, InvalidRecord, LogError, RecordsTooLarge, UnsupportedCompressionType
from minibroker.log.record import Record, encode_record
from minibroker.log.varint import encode_varint
from minibroker.spark import decoding
from minibroker.spark.decoding import SCHEMA, SCHEMA_WITH_HEADERS, decode
from minibroker.spark.encoding import Producer, encode, murmur2, partitions_of

# Negative ones, zero, and so far apart that their difference takes many bytes.
TIMESTAMPS = st.sampled_from([-1, 0, 1, 1_700_000_000_000]) | st.integers(-(10**12), 10**13)
# Sizes on both sides of one, two and three bytes of length.
PAYLOADS = st.none() | st.binary(max_size=80) | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"y" * 8191, b"y" * 9000])
NO_HEADERS: st.SearchStrategy[list[tuple[str, bytes | None]]] = st.just([])
MAYBE_HEADERS = NO_HEADERS | HEADERS
ROWS = st.lists(st.tuples(TIMESTAMPS, PAYLOADS, PAYLOADS, MAYBE_HEADERS), max_size=30)


@st.composite
def record_sets(draw: st.DrawFn) -> bytes:
    """Batches as a log holds them: every codec, both timestamp types, gaps, control batches, batches left empty."""
    found, offset = bytearray(), draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(0, 5))):
        builder = BatchBuilder(
            compression=draw(st.sampled_from(CODECS)), base_offset=offset, is_control=draw(st.integers(0, 5)) == 0
        )
        for timestamp, key, value, headers in draw(ROWS) * draw(st.sampled_from([1, 1, 20])):
            offset += draw(st.sampled_from([0, 0, 0, 70, 10_000])) if builder.record_count < 5 else 0
            builder.append(timestamp=timestamp, key=key, value=value, headers=headers, offset=offset)
            offset += 1
        batch = builder.build() if builder.record_count else emptied(offset)
        offset += not builder.record_count
        if draw(st.booleans()):
            stamp_log_append_time(batch, timestamp=draw(TIMESTAMPS))
        found += batch
    return bytes(found)


def emptied(offset: int) -> bytearray:
    """A batch of one record that compaction has removed."""
    return encode_batch(BatchHeader(offset, 0, 0, 2, 0, 0, 0, -1, -1, 7, 0, 0, 0), b"")


def plainly(record_set: bytes) -> list[tuple[Record, int]]:
    """Return the records of chapter 01's decoder, with the timestamp type of each record."""
    found = []
    for batch in batches(record_set):
        batch.check_crc()
        if not batch.header.is_control:
            kind = int(batch.header.timestamp_type)
            found += [(record._replace(headers=list(record.headers)), kind) for record in batch.records()]
    return found


def rows_of(decoded: Sequence[pa.RecordBatch]) -> list[tuple[Record, int]]:
    """Return the records of Arrow batches in the same form; each batch must be valid."""
    found = []
    for batch in decoded:
        batch.validate(full=True)
        micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
        headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * batch.num_rows
        for index, row in enumerate(batch.drop_columns(["timestamp"]).to_pylist()):
            pairs = [(header["key"], header["value"]) for header in headers[index] or ()]
            assert micros[index] % 1000 == 0
            record = Record(row["offset"], micros[index] // 1000, row["key"], row["value"], pairs)
            found.append((record, row["timestampType"]))
    return found


def fully(record_set: bytes, **options: Any) -> list[tuple[Record, int]]:
    return rows_of(list(decode("orders", 3, record_set, include_headers=True, **options)))


def signed(batch: bytearray) -> bytes:
    """Return a batch with changed bytes and a new, valid checksum."""
    from crc32c import crc32c

    batch[CRC_AT : CRC_AT + 4] = crc32c(memoryview(batch)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(batch)


# Decoding


@given(record_sets())
def test_decoder_finds_the_records_that_the_plain_decoder_finds(record_set: bytes) -> None:
    assert fully(record_set) == plainly(record_set)


@given(record_sets())
def test_decoder_without_headers_finds_the_rest_of_the_records(record_set: bytes) -> None:
    found = rows_of(list(decode("orders", 3, record_set)))
    assert found == [(record._replace(headers=[]), kind) for record, kind in plainly(record_set)]


@given(record_sets(), st.data())
def test_decoder_leaves_out_records_outside_the_offsets(record_set: bytes, data: st.DataObject) -> None:
    every = plainly(record_set)
    offsets = st.integers(0, every[-1][0].offset + 2 if every else 5)
    low, high = data.draw(offsets), data.draw(offsets)
    found = fully(record_set, from_offset=low, upto_offset=high)
    assert found == [(record, kind) for record, kind in every if low <= record.offset < high]


@given(record_sets(), st.integers(1, 7))
def test_arrow_batches_have_at_most_rows_max_rows(record_set: bytes, rows_max: int) -> None:
    decoded = list(decode("orders", 3, record_set, include_headers=True, rows_max=rows_max))
    assert all(0 < batch.num_rows <= rows_max for batch in decoded)
    assert rows_of(decoded) == plainly(record_set)


@given(record_sets(), st.integers(1, 200))
def test_a_batch_that_is_cut_off_at_the_end_is_left_out(record_set: bytes, cut: int) -> None:
    shorter = record_set[:-cut]
    assert fully(shorter) == plainly(shorter)


@given(records(), st.sampled_from(CODECS), st.booleans())
def test_decoder_agrees_with_kafka_python(generated: list[Record], codec: Compression, is_append_time: bool) -> None:
    batch = build(generated, compression=codec)
    stamp(batch, base_offset=500, leader_epoch=1)
    if is_append_time:
        stamp_log_append_time(batch, timestamp=77)
    peer = MemoryRecords(bytes(batch)).next_batch()
    assert peer is not None
    theirs = [(Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)), r.timestamp_type) for r in peer]
    assert fully(bytes(batch)) == theirs


def test_schema_is_that_of_sparks_own_connector() -> None:
    (plain,) = decode("orders", 3, small_batch(b"one"))
    (with_headers,) = decode("orders", 3, small_batch(b"one"), include_headers=True)
    assert plain.schema.equals(SCHEMA)
    assert with_headers.schema.equals(SCHEMA_WITH_HEADERS)
    assert SCHEMA.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert str(SCHEMA.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert plain.column("topic").to_pylist() == ["orders"]
    assert plain.column("partition").to_pylist() == [3]


def test_schema_is_the_one_that_spark_derives_from_its_own_types() -> None:
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    struct = types.StructType().add("key", types.BinaryType()).add("value", types.BinaryType())
    struct.add("topic", types.StringType()).add("partition", types.IntegerType()).add("offset", types.LongType())
    struct.add("timestamp", types.TimestampType()).add("timestampType", types.IntegerType())
    struct.add("headers", types.ArrayType(header))
    assert to_arrow_schema(struct, timezone="UTC").equals(SCHEMA_WITH_HEADERS)


def test_a_record_without_headers_has_null_headers() -> None:
    batch = build([Record(0, 1, None, b"a"), Record(1, 1, None, b"b", [("trace", None), ("", b"")])])
    (decoded,) = decode("orders", 0, batch, include_headers=True)
    assert decoded.column("headers").to_pylist() == [
        None,
        [{"key": "trace", "value": None}, {"key": "", "value": b""}],
    ]


def test_control_batches_are_skipped() -> None:
    marker = build_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5)
    stamp(marker, base_offset=1, leader_epoch=0)
    behind = small_batch(b"behind")
    stamp(behind, base_offset=2, leader_epoch=0)
    found = fully(bytes(small_batch(b"before") + marker + behind))
    assert [(record.offset, record.value) for record, _kind in found] == [(0, b"before"), (2, b"behind")]


def test_a_large_batch_is_split_and_lengths_of_every_kind_are_read() -> None:
    chance = random.Random(5)
    # Long runs of one length, then all lengths mixed, then another run, with offsets of one to three bytes.
    sizes = [50] * 9000 + [chance.randrange(300) for _ in range(3000)] + [9000] * 300 + [0] * 7000
    given_ = [Record(n, 10**12 + n // 3, None, bytes(size)) for n, size in enumerate(sizes)]
    batch = bytes(build(given_, compression=Compression.ZSTD))
    decoded = list(decode("orders", 3, batch, include_headers=True))
    assert [one.num_rows for one in decoded] == [10_000, 9_300]
    assert rows_of(decoded) == plainly(batch)


def test_many_small_batches_become_few_arrow_batches() -> None:
    record_set = bytearray()
    for number in range(300):
        batch = small_batch(b"a", b"bc")
        stamp(batch, base_offset=2 * number, leader_epoch=0)
        record_set += batch
    decoded = list(decode("orders", 3, record_set))
    assert [one.num_rows for one in decoded] == [600]
    assert decoded[0].column("offset").to_pylist() == list(range(600))


def test_ordinary_records_need_no_plain_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_plain_columns", None)
    for codec in CODECS:
        for sizes in [[50] * 500, list(range(500)), [*range(300), 9000, 70_000, 0], [1]]:
            with case(codec, sizes[-5:]):
                given_ = [
                    Record(n, 10**12 - n, b"k" * (n % 3), bytes(size), [("h", b"")] * (n % 2))
                    for n, size in enumerate(sizes)
                ]
                batch = bytes(build([*given_, Record(len(sizes), 0, None, None)], compression=codec))
                assert fully(batch) == plainly(batch)


def test_an_empty_record_set_decodes_to_nothing() -> None:
    assert list(decode("orders", 3, b"")) == []
    assert list(decode("orders", 3, memoryview(bytes(emptied(4))))) == []


def test_varints_longer_than_needed_are_read() -> None:
    # Length 7, then attributes, timestamp 0 in two bytes, offset 0, null, null, no headers.
    records_ = encode_varint(7) + b"\x00\x80\x00\x00\x01\x01\x00"
    batch = bytes(encode_batch(BatchHeader(9, 0, 0, 2, 0, 0, 0, 5, 5, -1, -1, -1, 1), records_))
    assert fully(batch) == plainly(batch) == [(Record(9, 5, None, None, []), 0)]


def test_offsets_near_the_largest_are_read_by_the_plain_decoder() -> None:
    for base_offset in [2**62, 2**63 - 10]:
        with case(base_offset):
            batch = small_batch(b"a", b"b")
            stamp(batch, base_offset=base_offset, leader_epoch=0)
            assert [record.offset for record, _kind in fully(bytes(batch))] == [base_offset, base_offset + 1]


# Invalid records


@given(record_sets().filter(len), st.data())
def test_changed_bytes_raise_our_errors_or_decode_as_with_the_plain_decoder(
    record_set: bytes, data: st.DataObject
) -> None:
    first = read_header(record_set)
    batch = bytearray(record_set[: first.size])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(ATTRIBUTES_AT, len(batch) - 1))] = data.draw(st.integers(0, 255))
    changed = signed(batch)
    try:
        expected: Any = plainly(changed)
        # Python numbers can be larger than the numbers of a DataFrame.
        limit = (2**63 - 1) // 1000
        if any(abs(record.timestamp) > limit or record.offset >= 2**63 - 1 for record, _kind in expected):
            expected = InvalidRecord
    except LogError as error:
        expected = type(error)
    try:
        found: Any = fully(changed, from_offset=-(2**63))
    except LogError as error:
        found = type(error)
    # Which of several errors is found first may differ.
    assert found == expected or (isinstance(found, type) and isinstance(expected, type))


@given(st.binary(max_size=200), st.integers(-1, 30), st.sampled_from([0, 1, 2, 3, 4, 5, 7]))
@example(b"\xff" * 40, 3, 0)
@example(b"\x0c\x00\x00\x00\x01\x03\x00", 1, 0)
def test_random_bytes_raise_the_errors_of_the_plain_decoder(noise: bytes, count: int, codec: int) -> None:
    header = BatchHeader(0, 0, 0, 2, 0, 0, max(count - 1, 0), 0, 0, -1, -1, -1, count)
    batch = encode_batch(header, noise)
    batch[ATTRIBUTES_AT + 1] = codec
    changed = signed(batch)
    try:
        expected: Any = plainly(changed)
    except LogError:
        with pytest.raises(LogError):
            fully(changed, from_offset=-(2**63))
    else:
        assert fully(changed, from_offset=-(2**63)) == expected


def _lying(body: bytes, count: int = 1) -> bytes:
    header = BatchHeader(0, 0, 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    return bytes(encode_batch(header, body))


def _record(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


GOOD = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"good")


def test_a_record_that_contradicts_itself_is_refused() -> None:
    for what, record in [
        ("key of length -2", _record(b"\x00\x00\x00\x03\x01\x00")),
        ("value of length -5", _record(b"\x00\x00\x00\x01\x09\x00")),
        ("value past the record", _record(b"\x00\x00\x00\x01\x20\x00")),
        ("record ends early", _record(b"\x00\x00\x00\x01\x01\x00\x00")),
        ("no headers field", _record(b"\x00\x00\x00\x01\x01")),
        ("header past the record", _record(b"\x00\x00\x00\x01\x01\x02\x03ab")),
        ("timestamp too long", _record(b"\x00" + b"\xff" * 10 + b"\x00\x01\x01\x00")),
        ("offset too large", _record(b"\x00\x00" + b"\xff\xff\xff\xff\x7f" + b"\x01\x01\x00")),
        ("record of negative length", b"\x0d" + b"\x00\x00\x00\x01\x01\x00"),
        ("length too long", b"\xff\xff\xff\xff\xff\x01" + b"\x00" * 6),
        ("length of 2 GiB", b"\xff\xff\xff\xff\x0e" + b"\x00" * 6),
    ]:
        with case(what):
            for record_set in (_lying(record), _lying(GOOD + record + GOOD, 3), _lying(GOOD * 100 + record, 101)):
                with pytest.raises(InvalidRecord):
                    plainly(record_set)
                with pytest.raises(InvalidRecord):
                    fully(record_set)


def test_a_wrong_record_count_is_refused() -> None:
    for count in [0, 2, 5, 2**31 - 1, -1]:
        with case(count):
            header = BatchHeader(0, 0, 0, 2, 0, 0, 3, 0, 0, -1, -1, -1, count)
            with pytest.raises(InvalidRecord):
                fully(bytes(encode_batch(header, GOOD * 3)))


def test_a_wrong_checksum_is_refused_unless_checks_are_off() -> None:
    batch = small_batch(b"value")
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="crc"):
        fully(bytes(batch))
    assert [record.value for record, _kind in fully(bytes(batch), check_crcs=False)] == [b"valud"]


def test_a_batch_that_decompresses_to_too_many_bytes_is_refused() -> None:
    batch = small_batch(bytes(1_000_000), compression=Compression.GZIP)
    with pytest.raises(RecordsTooLarge):
        fully(bytes(batch), bytes_max=100_000)


def test_an_unknown_codec_and_an_old_magic_are_refused() -> None:
    batch = small_batch(b"value")
    batch[ATTRIBUTES_AT + 1] = 6
    with pytest.raises(UnsupportedCompressionType):
        fully(signed(batch))
    batch[CRC_AT - 1] = 1
    with pytest.raises(CorruptBatch, match="magic 1"):
        fully(bytes(batch))


def test_a_timestamp_too_large_for_a_dataframe_is_refused_with_its_offset() -> None:
    batch = bytes(build([Record(0, 2**60, None, b"far"), Record(1, 5, None, b"near")]))
    with pytest.raises(InvalidRecord, match=r"offset 0 has timestamp 1152921504606846976 ms.*startingOffsets 1"):
        fully(batch)
    assert fully(batch, from_offset=1) == plainly(batch)[1:]


# Encoding


def columns(
    rows: Sequence[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
) -> list[pa.Array]:
    headers = [[{"key": key, "value": value} for key, value in row[3]] or None for row in rows]
    return [
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array(headers, decoding.HEADERS),
        pa.array([row[0] * 1000 for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
    ]


def as_records(rows: Sequence[Any]) -> list[Record]:
    return [Record(n, timestamp, key, value, list(headers)) for n, (timestamp, key, value, headers) in enumerate(rows)]


def numbered(encoded: Sequence[bytearray]) -> bytes:
    """Return the batches as a broker would store them, one after the other."""
    offset = 0
    for batch in encoded:
        stamp(batch, base_offset=offset, leader_epoch=0)
        offset = read_header(batch).next_offset
    return b"".join(encoded)


@given(ROWS, st.sampled_from(CODECS), st.sampled_from([1, 200, 16_384, 10**6]))
def test_encoded_rows_decode_to_the_same_rows(rows: list[Any], codec: Compression, bytes_max: int) -> None:
    encoded = list(encode(*columns(rows), timestamp_ms=0, compression=codec, batch_bytes_max=bytes_max))
    record_set = numbered(encoded)
    expected = [(record, 0) for record in as_records(rows)]
    assert plainly(record_set) == expected
    assert fully(record_set) == expected


@given(ROWS.filter(bool))
def test_a_batch_is_the_same_bytes_as_the_plain_encoders(rows: list[Any]) -> None:
    assert list(encode(*columns(rows), timestamp_ms=0, batch_bytes_max=10**7)) == [build(as_records(rows))]


@given(ROWS.filter(bool), st.sampled_from(CODECS))
def test_kafka_python_reads_encoded_rows(rows: list[Any], codec: Compression) -> None:
    encoded = list(encode(*columns(rows), timestamp_ms=0, compression=codec, batch_bytes_max=300))
    walked, found = MemoryRecords(numbered(encoded)), []
    while peer := walked.next_batch():
        assert peer.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in peer]
    assert found == as_records(rows)


@given(ROWS, st.integers(62, 2000))
def test_a_batch_is_not_larger_than_its_limit_unless_one_row_is(rows: list[Any], bytes_max: int) -> None:
    for batch in encode(*columns(rows), timestamp_ms=0, batch_bytes_max=bytes_max):
        assert len(batch) <= bytes_max or read_header(batch).record_count == 1


def test_batches_are_filled_nearly_to_their_size() -> None:
    values = pa.array([bytes(100)] * 10_000, pa.binary())
    sizes = [len(batch) for batch in encode(None, values, timestamp_ms=7)]
    assert min(sizes[:-1]) > 16_000


def test_sequences_continue_from_batch_to_batch_and_wrap_to_0() -> None:
    values = pa.array([b"x" * 50] * 10, pa.binary())
    producer = Producer(producer_id=9, producer_epoch=2, base_sequence=2**31 - 4, is_transactional=True)
    headers = [read_header(b) for b in encode(None, values, timestamp_ms=7, batch_bytes_max=190, producer=producer)]
    assert [header.record_count for header in headers] == [2] * 5
    assert [header.base_sequence for header in headers] == [2**31 - 4, 2**31 - 2, 0, 2, 4]
    assert {(h.producer_id, h.producer_epoch, h.is_transactional) for h in headers} == {(9, 2, True)}


def test_without_a_producer_id_batches_have_no_sequence() -> None:
    (batch,) = encode(None, pa.array([b"x"]), timestamp_ms=7)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_timestamp, header.max_timestamp, header.is_transactional) == (7, 7, False)


def test_columns_of_text_and_slices_of_columns_are_encoded() -> None:
    for kind in [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]:
        with case(kind):
            texts = pa.array(["skipped", "ä", None, "", "b", "skipped"], kind).slice(1, 4)
            found = plainly(numbered(list(encode(texts, texts, timestamp_ms=7))))
            assert [record.value for record, _kind in found] == ["ä".encode(), None, b"", b"b"]
            assert [record.key for record, _kind in found] == ["ä".encode(), None, b"", b"b"]


def test_timestamps_of_every_unit_become_milliseconds_and_null_the_given_time() -> None:
    for unit, number in [("s", 5), ("ms", 5000), ("us", 5_000_999), ("ns", 5_000_999_999)]:
        with case(unit, number):
            timestamps = pa.array([number, None], pa.timestamp(unit))
            (batch,) = encode(None, pa.array([b"a", b"b"]), None, timestamps, timestamp_ms=77)
            assert [record.timestamp for record, _kind in plainly(bytes(batch))] == [5000, 77]


def test_columns_that_cannot_be_records_are_refused() -> None:
    value = pa.array([b"x"])
    with pytest.raises(InvalidRecord, match="column value is int64: cast it"):
        list(encode(None, pa.array([1]), timestamp_ms=0))
    with pytest.raises(InvalidRecord, match="column key has 2 rows, column value 1"):
        list(encode(pa.array([b"x", b"y"]), value, timestamp_ms=0))
    with pytest.raises(InvalidRecord, match="column headers is"):
        list(encode(None, value, pa.array([[1]]), timestamp_ms=0))
    with pytest.raises(InvalidRecord, match="column timestamp is"):
        list(encode(None, value, None, pa.array([1]), timestamp_ms=0))
    with pytest.raises(InvalidRecord, match="a header's key is null"):
        list(encode(None, value, pa.array([[{"key": None, "value": b""}]], decoding.HEADERS), timestamp_ms=0))


def test_no_rows_give_no_batches() -> None:
    assert list(encode(None, pa.array([], pa.binary()), timestamp_ms=0)) == []


# Keys


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=250, max_size=300)))
@example([])
@example([b""])
@example([b"", b"a", b"ab", b"abc", b"abcd", b"abcde", b"\xff" * 255, b"\xff" * 256, b"\xff" * 1000])
def test_hashes_are_those_of_the_client(keys: list[bytes]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [partitioners.murmur2(key) for key in keys]


@given(st.lists(st.none() | st.text(max_size=20), max_size=20), st.integers(1, 1000), st.integers(0, 5))
def test_keys_go_to_the_partition_that_the_client_chooses(keys: list[str | None], count: int, first: int) -> None:
    expected = [-1 if key is None else partitioners.partition_of(key.encode(), count) for key in keys[first:]]
    assert partitions_of(pa.array(keys, pa.string()).slice(first), count).tolist() == expected


def test_hashes_of_a_known_key_are_those_of_kafkas_java_client() -> None:
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string", b"abc"]
    assert murmur2(pa.array(keys)).tolist() == [-973932308, -790332482, -985981536, -1486304829, 479470107]
