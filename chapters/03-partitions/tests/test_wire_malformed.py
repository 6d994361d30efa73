"""Invalid bytes: truncated, mutated, hostile. Every decoder raises MalformedMessage and nothing else."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_messages import EVERY_MESSAGE, case, sample

from minibroker.cli.frame_tree import Node, explain
from minibroker.log.varint import encode_unsigned_varint
from minibroker.wire.errors import MalformedMessage, TooManyElements
from minibroker.wire.schema import Message, decode_whole
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponseBroker
from minibroker.wire.tables.produce import ProduceRequest

MUTATIONS = 150
HUGE = [2**31 - 1, 2**31, 2**32 - 1]
FLEXIBLE = [(cls, version) for cls, version in EVERY_MESSAGE if cls.schema.is_flexible(version)]


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def only_malformed(cls: type[Message], data: bytes, version: int) -> bool:
    """Whether the bytes are a message. Any error but MalformedMessage fails the test."""
    try:
        cls.decode(memoryview(data), 0, version)
    except MalformedMessage:
        return False
    return True


def test_every_truncation_is_refused() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = sample(cls, version).encode(version)
            for size in range(len(written)):
                assert not only_malformed(cls, written[:size], version), f"{size} of {len(written)} bytes"


def test_trailing_bytes_are_refused() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = sample(cls, version).encode(version)
            with pytest.raises(MalformedMessage, match="1 bytes before the end"):
                decode_whole(cls, memoryview(written + b"\0"), 0, version)


def test_mutated_bytes_are_decoded_or_refused() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = sample(cls, version).encode(version)
            chance = random.Random(f"{cls.__name__} {version}")
            for _ in range(MUTATIONS):
                data = bytearray(written)
                for _ in range(chance.randint(1, 3)):
                    position = chance.randrange(len(data) + 1)
                    if chance.random() < 0.7 and position < len(data):
                        data[position] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
                    else:
                        data[position : position + chance.randint(0, 4)] = chance.randbytes(chance.randint(0, 4))
                only_malformed(cls, bytes(data), version)


@settings(max_examples=100)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            only_malformed(cls, data, version)


def with_length(data: bytes, node: Node, length: int, *, is_flexible: bool) -> bytes:
    """The message with another length or count before a field."""
    if is_flexible:
        first = next(index for index in range(node.start, node.end) if data[index] < 0x80)
        return data[: node.start] + encode_unsigned_varint(length) + data[first + 1 :]
    size = 2 if node.type == "string" else 4
    largest = min(length, 0x7FFF if size == 2 else 0x7FFFFFFF)
    return data[: node.start] + largest.to_bytes(size) + data[node.start + size :]


def test_a_huge_length_or_count_is_refused_and_allocates_nothing() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = sample(cls, version).encode(version)
            only_malformed(cls, written, version)  # compiles
            sized = [
                node
                for node in nodes(explain(cls, memoryview(written), 0, version))
                if node.type.startswith("[]") or node.type in ("string", "bytes", "records")
            ]
            sized = [node for node in sized if node.name not in ("rest", "unknown")]  # these have no length before them
            hostile = [
                with_length(written, node, length, is_flexible=cls.schema.is_flexible(version))
                for node in sized
                for length in HUGE
            ]
            tracemalloc.start()
            try:
                for data in hostile:
                    assert not only_malformed(cls, data, version)
                _now, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 50_000 + 20 * len(written)


def test_the_elements_of_all_arrays_and_the_tagged_fields_are_counted() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = memoryview(sample(cls, version).encode(version))
            names = [node.name for node in nodes(explain(cls, written, 0, version))]
            count = sum(name.startswith(("[", "tag ")) for name in names)
            if count:
                with pytest.raises(TooManyElements):
                    cls.decode_at_most(written, 0, version, elements_max=count - 1)
            found = cls.decode_at_most(written, 0, version, elements_max=count)
            assert found == cls.decode(written, 0, version)


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_the_first_element() -> None:
    # The count announces a million topics of at least two bytes each, but only a megabyte follows.
    data = memoryview((1_000_000).to_bytes(4) + bytes(1_000_000))
    with pytest.raises(MalformedMessage, match="topics at position 4 cannot have 1000000 elements in 1000000 bytes"):
        MetadataRequest.decode(data, 0, 1)


# Tagged fields


def test_unknown_tagged_fields_are_ignored_in_every_struct() -> None:
    for cls, version in FLEXIBLE:
        with case(cls, version):
            message = sample(cls, version)
            written = message.encode(version)
            tree = explain(cls, memoryview(written), 0, version)
            for tags in [node for node in nodes(tree) if node.type == "tagged fields"]:
                inside_a_tag = any(
                    node.name.startswith("tag ") and node.start <= tags.start < node.end for node in nodes(tree)
                )
                if inside_a_tag:
                    continue  # the size of the enclosing tag would have to grow, too
                unknown = encode_unsigned_varint(tags.value + 1) + b"\x63\x03abc"
                grown = written[: tags.start] + unknown + written[tags.start + 1 :]
                assert decode_whole(cls, memoryview(grown), 0, version) == message


def test_a_tagged_field_must_be_as_long_as_it_says() -> None:
    for cls, version in FLEXIBLE:
        with case(cls, version):
            written = sample(cls, version).encode(version)
            tree = explain(cls, memoryview(written), 0, version)
            for tag in [node for node in nodes(tree) if node.name.startswith("tag ")]:
                size_at = tag.start + 1
                if written[size_at] < 0x7F:
                    longer = written[:size_at] + bytes([written[size_at] + 1]) + written[size_at + 1 :]
                    assert not only_malformed(cls, longer, version)


# Single faults


def test_a_bad_string_is_refused() -> None:
    for data, why in (
        (b"\x80\x80\x80\x80\x80\x00", "longer than 5 bytes"),
        (b"\xff\xff\xff\xff\x7f", "does not fit in 32 bits"),
        (b"\xff\xff\xff\xff", "cut off"),
        (b"\xff\xff\x03" + b"x" * 65_535, "a string of 65534 bytes"),
        (b"\x03\xc3\x28" + bytes(8), "invalid continuation byte"),
        (b"\x04\xed\xa0\x80" + bytes(8), "invalid continuation byte"),
        (b"\x00" + bytes(8), "host at position 5 is null"),
    ):
        with pytest.raises(MalformedMessage, match=why):
            MetadataResponseBroker.decode(memoryview(bytes(4) + data), 0, 9)


def test_a_negative_length_is_null_or_refused() -> None:
    with pytest.raises(MalformedMessage, match="host at position 6 is null"):
        MetadataResponseBroker.decode(memoryview(bytes(4) + b"\xff\xff" + bytes(8)), 0, 1)
    with pytest.raises(MalformedMessage, match="topic_data at position 12 is null"):
        ProduceRequest.decode(memoryview(b"\xff\xff" + bytes(6) + b"\xff\xff\xff\xff"), 0, 3)


def test_the_refusal_names_message_version_and_position() -> None:
    with pytest.raises(MalformedMessage, match=r"ProduceRequest v3, 5 bytes, near position 2: unpack_from requires"):
        ProduceRequest.decode(memoryview(b"\xff\xff\0\0\0"), 0, 3)
