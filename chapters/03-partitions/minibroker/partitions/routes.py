"""How handlers find a partition, and its leader if that is another node. A pure module.

An internal partition is a log that Fetch serves, but that belongs to no topic, such as the metadata log. Only other
nodes may fetch it, and its owner answers them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from minibroker.partitions.partition import Partition
from minibroker.partitions.registry import Answer, Call
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchRequest

Serve = Callable[[Call[FetchRequest]], Answer]
"""Answers the fetches of one internal partition."""


class Leader(NamedTuple):
    """The leader of a partition, and its address."""

    node_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


class Routes(Protocol):
    """The partitions of this node, by topic and number. An unknown one raises `Refused`."""

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, which must be on this node."""

    def topic_name(self, topic_id: bytes) -> str:
        """The name of the topic that has this id."""

    def leader(self, name: TopicPartition, listener: str) -> Leader | None:
        """The leader of a partition, and the address of its listener with this name; None if either is unknown."""

    @property
    def internal(self) -> Mapping[bytes, Serve]:
        """The functions that answer the fetches of internal partitions, by topic id."""


WRONG_NODE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""With these errors an answer names the current leader, so that the client need not ask for it (KIP-951)."""
