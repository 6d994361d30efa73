"""How fast throttled replicas are copied (KIP-73). A pure module.

A replica that moves to another broker copies its whole log, and would compete with clients for the disk and the
network. An operator therefore names throttled replicas in the topic's configuration, and a rate in each broker's
configuration:

    leader.replication.throttled.replicas = 0:1     leader.replication.throttled.rate   = 1000000   on broker 1
    follower.replication.throttled.replicas = 0:3   follower.replication.throttled.rate = 1000000   on broker 3

Each side obeys its own rate. While the rate is exceeded, a follower leaves its throttled partitions out of its fetches,
and a leader answers for them without records. A replica that has caught up is never held back, because it would fall
out of the in-sync set; but the bytes that it copies count against the rate.

A `Quota` is a bucket that leaks at the rate. Copied bytes are poured in, and the rate is exceeded while the bucket,
which holds one second's worth, is full:

    copied in t seconds  ≤  rate * (t + 1) + the bytes of one fetch
"""

from minibroker.metadata.config_keys import LONG_MAX
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.replication.keys import (
    ALL_REPLICAS,
    FOLLOWER_REPLICATION_THROTTLED_RATE,
    FOLLOWER_REPLICATION_THROTTLED_REPLICAS,
    LEADER_REPLICATION_THROTTLED_RATE,
    LEADER_REPLICATION_THROTTLED_REPLICAS,
)
from minibroker.segments.checkpoint import TopicPartition

UNLIMITED_RATE = LONG_MAX
_BURST_MS = 1000
# A fetch of a few bytes is not worth its cost, so a full bucket counts as full until a tenth of it has leaked.
_PAUSE_MS = 100


class Quota:
    """A rate in bytes per second that all throttled replicas of a broker share, as leaders or as followers."""

    def __init__(self, rate: int = UNLIMITED_RATE) -> None:
        self._rate = rate
        # The level is in thousandths of a byte, so that no fraction is lost when little time has passed.
        self._level = 0
        self._now_ms = 0

    @property
    def rate(self) -> int:
        """The rate in bytes per second."""
        return self._rate

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Copy at another rate from now on. Bytes that were copied before still count."""
        self._leak(now_ms)
        self._rate = rate

    def record(self, count: int, now_ms: int) -> None:
        """Count bytes that were copied."""
        self._leak(now_ms)
        if self._rate != UNLIMITED_RATE:
            self._level += count * 1000

    def bytes_free(self, now_ms: int) -> int:
        """How many bytes may be copied now; 0 while the rate is exceeded."""
        self._leak(now_ms)
        free = self._rate * _BURST_MS - self._level
        return max(free // 1000, 1) if free >= max(self._rate * _PAUSE_MS, 1) else 0

    def wait_ms(self, now_ms: int) -> int:
        """How long the rate stays exceeded; 0 if it is not. At most a second, because the rate may be raised."""
        self._leak(now_ms)
        missing = self._level - self._rate * (_BURST_MS - _PAUSE_MS)
        if missing <= 0 < self._rate:
            return 0
        return _BURST_MS if self._rate == 0 else min(-(-missing // self._rate), _BURST_MS)

    def _leak(self, now_ms: int) -> None:
        # A fetch that waits keeps its arrival time, so `now_ms` may be earlier than in the last call.
        if now_ms > self._now_ms:
            self._level = max(self._level - self._rate * (now_ms - self._now_ms), 0)
            self._now_ms = now_ms


class ReplicationQuotas:
    """The two rates of a broker: to its followers, and from its leaders."""

    def __init__(self) -> None:
        self.as_leader = Quota()
        self.as_follower = Quota()

    def configure(self, config: NodeConfig, now_ms: int) -> None:
        """Apply the rates in the broker's configuration."""
        self.as_leader.set_rate(LEADER_REPLICATION_THROTTLED_RATE.of(config), now_ms)
        self.as_follower.set_rate(FOLLOWER_REPLICATION_THROTTLED_RATE.of(config), now_ms)


def is_throttled_leader(config: TopicConfig, name: TopicPartition, node_id: int) -> bool:
    """Whether a broker copies a partition to others at a throttled rate while it leads the partition."""
    return _is_named(LEADER_REPLICATION_THROTTLED_REPLICAS.of(config), name, node_id)


def is_throttled_follower(config: TopicConfig, name: TopicPartition, node_id: int) -> bool:
    """Whether a broker copies a partition from its leader at a throttled rate."""
    return _is_named(FOLLOWER_REPLICATION_THROTTLED_REPLICAS.of(config), name, node_id)


def _is_named(replicas: tuple[str, ...], name: TopicPartition, node_id: int) -> bool:
    pairs = (tuple(map(int, it.split(":"))) for it in replicas if it and it != ALL_REPLICAS)
    return replicas == (ALL_REPLICAS,) or (name.partition, node_id) in pairs
