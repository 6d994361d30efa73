"""Records: what is encoded is decoded again, and wrong lengths are refused (invariant 6)."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case
from log_strategies import INT64, records

from minibroker.log.errors import InvalidRecord
from minibroker.log.record import (
    RECORD_BYTES_MIN,
    Record,
    decode_records,
    encode_record,
    follow_lengths,
    scan_records,
)
from minibroker.log.varint import encode_varint

SMALLEST = b"\x0c\x00\x00\x00\x01\x01\x00"  # a record of length 6: no key, no value, no headers


def encode(given_records: list[Record]) -> bytes:
    return b"".join(
        encode_record(offset_delta=r.offset, timestamp_delta=r.timestamp, key=r.key, value=r.value, headers=r.headers)
        for r in given_records
    )


def decode(data: bytes, count: int = 1) -> list[Record]:
    decoded = decode_records(data, count=count, base_offset=0, base_timestamp=0)
    # Headers may be any sequence.
    return [record._replace(headers=tuple(record.headers)) for record in decoded]


def framed(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


@given(records())
def test_records_come_back_as_they_went_in(generated: list[Record]) -> None:
    expected = [record._replace(headers=tuple(record.headers)) for record in generated]
    assert decode(encode(generated), len(generated)) == expected


@given(records(), INT64, st.integers(0, 2**62))
def test_offsets_and_timestamps_are_counted_from_the_batch(
    generated: list[Record], base_timestamp: int, base_offset: int
) -> None:
    data = encode(generated)
    decoded = decode_records(data, count=len(generated), base_offset=base_offset, base_timestamp=base_timestamp)
    for record, was in zip(decoded, generated, strict=True):
        assert record.offset == base_offset + was.offset
        assert record.timestamp == base_timestamp + was.timestamp


def test_null_and_empty_are_different() -> None:
    different = [Record(0, 0, None, b""), Record(1, 0, b"", None, (("h", None), ("", b"")))]
    assert decode(encode(different), 2) == different


def test_records_are_decoded_only_as_they_are_asked_for() -> None:
    good = encode([Record(0, 0, None, b"first")])
    decoded = decode_records(good + b"\xff\xff", count=2, base_offset=0, base_timestamp=0)
    assert next(decoded).value == b"first"
    with pytest.raises(InvalidRecord):
        next(decoded)


@given(records(max_size=3), st.data())
def test_every_prefix_is_refused(generated: list[Record], data: st.DataObject) -> None:
    encoded = encode(generated)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(InvalidRecord):
        decode(encoded[:cut], len(generated))


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="end at byte 8, but there are 9 bytes"):
        decode(encode([Record(0, 0, None, b"x")]) + b"\x00")


@given(st.binary(max_size=80), st.integers(0, 5))
def test_arbitrary_bytes_give_records_or_one_clear_error(data: bytes, count: int) -> None:
    try:
        assert len(decode(data, count)) == count
    except InvalidRecord as error:
        assert str(error)


@each_case(
    ("data", "message"),
    [
        (framed(b"\x00\x00\x00\x03x\x01\x00"), "negative length"),  # a key of length -2
        (framed(b"\x00\x00\x00\x01\x05ab\x00"), "negative length"),  # a value of length -3
        (framed(b"\x00\x00\x00\x01\x01\x03"), "-2 headers"),
        (framed(b"\x00\x00\x00\x01\x01\x7e"), "63 headers do not fit in 0 bytes"),
        (framed(b"\x00\x00\x00\x01\x01\x02\x01\x01"), "header's key is null"),
        (framed(b"\x00\x00\x00\x01\x01\x02\x00\x14x"), "a field at byte 9 claims 10 bytes, but 1 follow"),
        (framed(b"\x00\x00\x00\x01\x01\x02\x00\x07"), "a field at byte 9 claims -4 bytes"),
        (b"\x0d\x00\x00\x00\x01\x01\x00", "negative length"),  # a record of length -7
        (encode_varint(2**31 - 1) + b"\x00\x00\x00\x01\x01\x00", "as its length says"),
        (framed(b"\x00\x00\x00\x01" + encode_varint(2**31 - 1) + b"\x00"), "cut off"),
        (b"\xff" * 20, "malformed"),
    ],
)
def test_a_wrong_length_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        decode(data)


def test_a_header_key_that_is_not_utf_8_is_shown_with_replacements_as_kafka_does() -> None:
    (record,) = decode(framed(b"\x00\x00\x00\x01\x01\x02\x0acaf\xe9!\x01"))
    assert record.headers == (("caf\ufffd!", None),)


@each_case("delta", [-7, 63, 64, 8191, 8192, 8193, 2**20, 2**31 - 1])
def test_offset_deltas_of_every_length_come_back(delta: int) -> None:
    data = encode_record(offset_delta=delta, timestamp_delta=-delta, key=b"k" * 100, value=b"v" * 9000)
    assert decode(data) == [Record(delta, -delta, b"k" * 100, b"v" * 9000)]
    assert list(scan_records(data, count=1)) == [(0, len(data), -delta, delta, b"k" * 100, True)]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="count -5 is negative"):
        decode(b"", -5)


def test_the_lengths_of_the_first_records_tell_whether_the_count_can_be_right() -> None:
    sizes = (0, 1, 50, 60, 8_000, 9_000, 3, 3)
    data = b"".join(
        encode_record(offset_delta=it, timestamp_delta=0, key=None, value=b"v" * size) for it, size in enumerate(sizes)
    )
    for position in (0, 61):
        for count_max in (len(sizes), 100):
            follow_lengths(bytes(position) + data, position, count=len(sizes), count_max=count_max)
        for wrong in (0, 1, len(sizes) - 1, len(sizes) + 1, 2**31 - 1):
            with pytest.raises(InvalidRecord, match=f"the header says {wrong} records"):
                follow_lengths(bytes(position) + data, position, count=wrong, count_max=100)
    # After the records whose lengths are followed there must be room for the others, which may be as small as can be.
    assert encode_record(offset_delta=0, timestamp_delta=0, key=None, value=None) == SMALLEST
    assert len(SMALLEST) == RECORD_BYTES_MIN
    follow_lengths(SMALLEST * 10, 0, count=10, count_max=3)
    with pytest.raises(InvalidRecord, match="the header says 11 records"):
        follow_lengths(SMALLEST * 10, 0, count=11, count_max=3)


@given(records())
def test_a_scan_tells_where_each_record_is_and_whose_it_is(generated: list[Record]) -> None:
    data = encode(generated)
    scanned = list(scan_records(data, count=len(generated)))
    assert [data[start:end] for start, end, *_rest in scanned] == [encode([record]) for record in generated]
    assert [tuple(rest) for _start, _end, *rest in scanned] == [
        (record.timestamp, record.offset, record.key, record.value is not None) for record in generated
    ]


@each_case(
    ("data", "count"),
    [
        (b"\x00" * 9, 1),
        (framed(b"\x00\x00\x00\x03x\x01\x00"), 1),
        (framed(b"\x00\x00\x00\x01"), 1),
        (framed(b"\x00\x00\x00\x01") + SMALLEST, 2),  # the first ends before the length of its value
        (b"\x0d" + SMALLEST[1:], 1),  # a record of length -7
        (SMALLEST + b"\x00", 1),
        (b"\xff" * 20, 1),
    ],
)
def test_a_scan_refuses_records_that_contradict_their_length(data: bytes, count: int) -> None:
    with pytest.raises(InvalidRecord):
        list(scan_records(data, count=count))


@each_case("data", [b"\x00" * 9, b"\x0b" * 9, b"\x0a" * 9, b"\x0a" * 18, b"\xff" * 9, b"\x80", b""])
def test_lengths_that_no_record_has_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        follow_lengths(data, 0, count=3, count_max=16)


def test_a_hostile_length_costs_no_memory() -> None:
    hostile = framed(b"\x00\x00\x00\x01" + encode_varint(2**31 - 1) + b"\x00")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord):
            decode(hostile, 2**31 - 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
