"""How handlers find a partition, and which node they name instead if another one leads it. A pure module.

An internal partition is a log served by Fetch that is no topic: the metadata log is one. It is for other nodes alone,
and its owner answers them itself.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from minibroker.partitions.partition import Partition
from minibroker.partitions.registry import Answer, Call
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchRequest

# Answers the fetches of one internal partition.
Serve = Callable[[Call[FetchRequest]], Answer]


class Leader(NamedTuple):
    """Who leads a partition, and where to reach that node."""

    node_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


class Routes(Protocol):
    """The partitions of this node, by topic and number. What is not there is refused with `Refused`."""

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, if it is on this node."""

    def topic_name(self, topic_id: bytes) -> str:
        """The topic that has this id."""

    def leader(self, name: TopicPartition) -> Leader | None:
        """Who leads a partition, as far as this node knows."""

    @property
    def internal(self) -> Mapping[bytes, Serve]:
        """What answers the fetches of each internal partition, by its id."""


WRONG_NODE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""With these errors a client is told who leads the partition, so that it need not ask again (KIP-951)."""
