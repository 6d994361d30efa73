"""Varints: the bytes that the format demands, and hostile bytes refused (invariant 6 of the lesson)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import decode_varint as peer_decode
from kafka.record.util import encode_varint as peer_encode
from log_cases import each_case
from log_strategies import INT32, INT64

from minibroker.log.errors import InvalidVarint
from minibroker.log.varint import (
    VARLONG_BYTES_MAX,
    decode_unsigned_varint,
    decode_varint,
    decode_varlong,
    encode_unsigned_varint,
    encode_varint,
    unzigzag,
    zigzag,
)


@each_case(
    ("value", "encoded"),
    # The table in the Protocol Buffers documentation, which Kafka's format refers to.
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (63, "7e"), (64, "8001"), (300, "d804"), (2**31 - 1, "feffffff0f")],
)
def test_a_varint_is_the_bytes_the_format_says(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(INT64)
def test_zigzag_is_undone_by_unzigzag(value: int) -> None:
    assert unzigzag(zigzag(value)) == value
    assert zigzag(value) >= 0


@given(INT64, st.binary(max_size=3), st.binary(max_size=3))
def test_a_varlong_comes_back_wherever_it_stands(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varlong(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(INT32)
def test_a_varint_takes_at_most_five_bytes(value: int) -> None:
    assert len(encode_varint(value)) <= 5
    assert decode_varint(encode_varint(value), 0)[0] == value


@given(INT64)
def test_varints_agree_with_kafka_python(value: int) -> None:
    theirs = bytearray()
    peer_encode(value, theirs.append)
    assert encode_varint(value) == bytes(theirs)
    assert peer_decode(encode_varint(value), 0) == (value, len(theirs))


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_comes_back(value: int) -> None:
    encoded = encode_unsigned_varint(value)
    assert decode_unsigned_varint(encoded, 0) == (value, len(encoded))


@given(INT64, st.integers(0, 9))
def test_every_prefix_of_a_varint_is_refused(value: int, cut: int) -> None:
    encoded = encode_varint(value)
    with pytest.raises(InvalidVarint, match="cut off"):
        decode_varlong(encoded[: min(cut, len(encoded) - 1)], 0)


def test_a_varint_longer_than_its_type_is_refused() -> None:
    with pytest.raises(InvalidVarint, match="longer than 5 bytes"):
        decode_varint(b"\x80" * 5 + b"\x00", 0)
    with pytest.raises(InvalidVarint, match="longer than 10 bytes"):
        decode_varlong(b"\xff" * 11, 0)


def test_bits_above_the_type_are_refused() -> None:
    with pytest.raises(InvalidVarint, match="32 bits"):
        decode_varint(b"\xff\xff\xff\xff\x1f", 0)
    with pytest.raises(InvalidVarint, match="64 bits"):
        decode_unsigned_varint(b"\xff" * 9 + b"\x02", 0, bytes_max=VARLONG_BYTES_MAX)


def test_a_position_past_the_buffer_is_refused() -> None:
    with pytest.raises(InvalidVarint, match="position 4"):
        decode_varint(b"\x00", 4)
