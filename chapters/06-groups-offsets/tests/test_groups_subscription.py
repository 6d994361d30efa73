"""The subscriptions and assignments of classic consumers: the bytes of kio and kafka-python, and lenient readers."""

import io
from importlib import import_module
from typing import Any

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as KafkaPythonAssignment
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as KafkaPythonSubscription
from kio.serial import entity_reader, entity_writer
from test_wire_peers import kafka_python_object, kafka_python_plain, kio_plain
from wire_messages import plain, structs

from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    InvalidSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)

VERSIONS = range(4)

SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["a", "b"],
    user_data=None,
    owned_partitions=[OwnedTopicPartitions(topic="a", partitions=[0, 2])],
    generation_id=5,
    rack_id="r",
)
# version, topics, user data, and from version 1 on the owned partitions, the generation, the rack
PIECES = ["0003", "00000002 0001 61 0001 62", "ffffffff", "00000001 0001 61 00000002 00000000 00000002", "00000005"]
BYTES = bytes.fromhex(" ".join([*PIECES, "0001 72"]))


def test_a_subscription_has_kafkas_bytes() -> None:
    assert encode_subscription(SUBSCRIPTION).hex() == BYTES.hex()
    assert decode_subscription(BYTES) == SUBSCRIPTION


def test_an_older_version_leaves_the_newer_fields_out() -> None:
    for version, end in ((0, 2 + 10 + 4), (1, 2 + 10 + 4 + 19), (2, 2 + 10 + 4 + 19 + 4)):
        with case(version):
            assert encode_subscription(SUBSCRIPTION, version) == version.to_bytes(2, "big") + BYTES[2:end]
    old = decode_subscription(encode_subscription(SUBSCRIPTION, 0))
    assert (old.topics, old.owned_partitions, old.generation_id, old.rack_id) == (["a", "b"], [], -1, None)


def test_a_version_that_is_not_known_is_read_like_the_newest() -> None:
    assert decode_subscription(b"\x00\x09" + BYTES[2:] + b"more fields") == SUBSCRIPTION
    assignment = ConsumerProtocolAssignment(assigned_partitions=[])
    assert decode_assignment(b"\x7f\xff" + encode_assignment(assignment)[2:] + b"more fields") == assignment


def test_no_bytes_are_an_assignment_of_nothing_but_not_a_subscription() -> None:
    """The coordinator gives empty bytes to a member that the leader has left out."""
    assert decode_assignment(b"").assigned_partitions == []
    with pytest.raises(InvalidSubscription):
        decode_subscription(b"")


def test_damaged_bytes_are_refused() -> None:
    assigned = ConsumerProtocolAssignment(assigned_partitions=[AssignedTopicPartitions(topic="a", partitions=[1])])
    for size in range(1, len(BYTES)):
        with case(size), pytest.raises(InvalidSubscription):
            decode_subscription(BYTES[:size])
    for size in range(1, len(encode_assignment(assigned))):
        with case(size), pytest.raises(InvalidSubscription):
            decode_assignment(encode_assignment(assigned)[:size])
    with pytest.raises(InvalidSubscription, match="version -1"):
        decode_subscription(b"\xff\xff" + BYTES[2:])


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decoder in (decode_subscription, decode_assignment):
        try:
            decoder(data)
        except InvalidSubscription:
            continue
    subscribed_topics([data])


def test_the_topics_of_a_group_are_those_of_all_members() -> None:
    other = encode_subscription(ConsumerProtocolSubscription(topics=["b", "c"]), 0)
    assert subscribed_topics([BYTES, other]) == frozenset({"a", "b", "c"})
    assert subscribed_topics([]) == frozenset()


def test_the_topics_are_known_even_if_the_rest_is_damaged_but_unknown_if_they_are() -> None:
    assert subscribed_topics([BYTES[:-3]]) == frozenset({"a", "b"})
    assert subscribed_topics([BYTES, b"\x00\x01\x00\x00"]) is None
    assert subscribed_topics([BYTES, b""]) is None


# Other codecs


def kio_class(name: str, version: int) -> Any:
    module = "consumer_protocol_" + name.removeprefix("ConsumerProtocol").lower()
    return getattr(import_module(f"kio.schema.{module}.v{version}.data"), name)


@given(st.data())
def test_kio_has_the_same_bytes(data: st.DataObject) -> None:
    for ours in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        for version in VERSIONS:
            with case(ours.__name__, version):
                message = data.draw(structs(ours, version))
                written = message.encode(version)
                theirs = kio_class(ours.__name__, version)
                read, size = entity_reader(theirs)(written, 0)
                assert size == len(written)
                assert plain(message, version) == kio_plain(read)
                with io.BytesIO() as buffer:
                    entity_writer(theirs)(buffer, read)
                    assert buffer.getvalue() == written


@given(st.data())
def test_kafka_python_has_the_same_bytes(data: st.DataObject) -> None:
    for ours, theirs in (
        (ConsumerProtocolSubscription, KafkaPythonSubscription),
        (ConsumerProtocolAssignment, KafkaPythonAssignment),
    ):
        for version in VERSIONS:
            with case(ours.__name__, version):
                message = data.draw(structs(ours, version))
                written = version.to_bytes(2, "big") + message.encode(version)
                assert bytes(kafka_python_object(theirs, message, version).encode(version=version)) == written
                read = theirs.decode(written, version=version)
                assert plain(message, version) == kafka_python_plain(read, ours.schema, version)
