"""The bytes that classic consumers send each other through the coordinator. A pure module.

Each member sends its *subscription* to the leader, and the leader sends each member its *assignment*. The coordinator
of a classic group passes both on without decoding them.

    bytes = version:int16 fields

A new version may only add fields at the end. So a reader decodes an unknown version as the newest version that it
knows, and ignores the remaining bytes. Version 1 adds the partitions that the member owns (KIP-429),
version 2 its generation (KIP-792), version 3 its rack (KIP-881).
"""

from collections.abc import Iterable
from struct import Struct as Layout
from struct import error as struct_error
from typing import TypeVar

from minibroker.log.errors import ExpectedError
from minibroker.wire.errors import WireError
from minibroker.wire.schema import Message, Struct, array, bytes_, int32, string

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members send these bytes."""
NEWEST_VERSION = 3
NO_GENERATION = -1
ELEMENTS_MAX = 100_000
"""Larger subscriptions and assignments are not decoded, because that would take long."""

_VERSION = Layout(">h")


class InvalidSubscription(ExpectedError):
    """Bytes that cannot be decoded as a subscription or as an assignment."""


class OwnedTopicPartitions(Struct):
    """Partitions of one topic that a member owns."""

    topic: str = string(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The topics that a member subscribes to, and the partitions that it owns until the new assignment."""

    topics: list[str] = array(string, about="the topics that it reads")
    user_data: bytes | None = bytes_(nullable="0+", default=None, about="bytes that only the assignor reads")
    owned_partitions: list[OwnedTopicPartitions] = array(
        OwnedTopicPartitions, versions="1+", default=(), ignorable=True, about="the partitions that it owns"
    )
    generation_id: int = int32(
        versions="2+", default=NO_GENERATION, ignorable=True, about="the generation in which it got them, or -1"
    )
    rack_id: str | None = string(versions="3+", nullable="3+", default=None, ignorable=True, about="its rack")


class AssignedTopicPartitions(Struct):
    """Partitions of one topic that a member gets."""

    topic: str = string(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions that a member gets."""

    assigned_partitions: list[AssignedTopicPartitions] = array(AssignedTopicPartitions, about="the partitions")
    user_data: bytes | None = bytes_(nullable="0+", default=None, about="bytes that only the assignor reads")


P = TypeVar("P", ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = NEWEST_VERSION) -> bytes:
    """A subscription as bytes."""
    return _VERSION.pack(version) + subscription.encode(version)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION) -> bytes:
    """An assignment as bytes."""
    return _VERSION.pack(version) + assignment.encode(version)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription of any version, or raise InvalidSubscription."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment of any version, or raise InvalidSubscription. Zero bytes are an empty assignment."""
    return _decode(ConsumerProtocolAssignment, data) if data else ConsumerProtocolAssignment(assigned_partitions=[])


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all these subscriptions, or None if one of them cannot be decoded."""
    try:
        # Every version begins with the fields of version 0, which has the topics. Later fields need not be valid.
        return frozenset(
            topic for data in subscriptions for topic in _decode(ConsumerProtocolSubscription, data, 0).topics
        )
    except InvalidSubscription:
        return None


def _decode(kind: type[P], data: bytes, version_max: int = NEWEST_VERSION) -> P:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            raise InvalidSubscription(f"{kind.__name__} has the negative version {version}")
        version = min(version, version_max)
        found, _end = kind.decode_at_most(memoryview(data), _VERSION.size, version, elements_max=ELEMENTS_MAX)
    except (WireError, struct_error) as error:
        raise InvalidSubscription(f"{kind.__name__} cannot be decoded: {error}") from error
    return found
