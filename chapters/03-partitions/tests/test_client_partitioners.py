"""The partition of a key is exactly Kafka's."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from minibroker.client.partitioners import murmur2, partition_of


def test_murmur2_gives_the_numbers_of_kafkas_own_test() -> None:
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in expected} == expected


@given(st.binary(max_size=200))
def test_murmur2_agrees_with_kafka_python(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == murmur2_of_kafka_python(key)


@given(st.binary(max_size=100), st.integers(min_value=1, max_value=64))
def test_a_key_has_the_same_partition_as_in_kafka_python(key: bytes, partition_count: int) -> None:
    expected = (murmur2_of_kafka_python(key) & 0x7FFFFFFF) % partition_count
    assert partition_of(key, partition_count) == expected


def test_a_negative_hash_loses_its_sign_bit_and_is_not_negated() -> None:
    assert partition_of(b"foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000 == 166
    assert partition_of(b"foobar", 1000) != 790332482 % 1000
