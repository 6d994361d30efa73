"""Chooses the partition of a record: Kafka's own rule, and several ways to split a key that is too popular.

Records are in order only within a partition, so a partitioner decides which records stay in order. Each class below
says what it gives up.

| partitioner   | records with a key            | records without a key  | gives up                                 |
|---------------|-------------------------------|------------------------|------------------------------------------|
| `Default`     | by murmur2 of the key         | sticky: batch by batch | nothing; a popular key fills one partition |
| `RoundRobin`  | in turn                       | in turn                | the order of every key; full batches     |
| `GeoRouting`  | by murmur2 within its region  | as the inner one       | evenness: a busy region has few partitions |
| `Salted`      | a hot key by key and salt     | as the inner one       | the order of the hot keys                |
| `FallThrough` | above a threshold, in turn    | as the inner one       | the order of a key while it is hot       |

If the order of a key is given up, its reader has to merge: it reads all partitions that may hold the key, and sorts the
records by a sequence number or a timestamp that they carry.

Time and chance are arguments. A pure module.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from minibroker.client.partitioners import partition_of

Chance = Callable[[int], int]
"""Returns a random number from 0 up to its argument, exclusive, such as `random.Random(seed).randrange`."""

Clock = Callable[[], int]
"""The time in milliseconds."""


class Partitioner(Protocol):
    """Chooses the partition of each record that is sent without one."""

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """Choose a partition from 0 up to `partition_count`, exclusive."""

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Note that the batch of a partition is full or was sent, so that a sticky partitioner may choose another."""


class Default:
    """Kafka's rule: a key's hash chooses the partition; records without a key go to one partition per batch (KIP-480).

    It gives up nothing: the records of a key stay in order. But a key with half of all traffic puts half of the load on
    one partition, and records without a key are spread evenly only over many batches.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._sticky: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """The partition of the key's hash, or the sticky partition of the topic."""
        if key is not None:
            return partition_of(key, partition_count)
        partition = self._sticky.get(topic)
        # A topic that was deleted and created again may have fewer partitions than before.
        if partition is None or partition >= partition_count:
            partition = self._sticky[topic] = self._chance(partition_count)
        return partition

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Choose another sticky partition, if the batch of the present one is full."""
        if self._sticky.get(topic) != previous or partition_count == 1:
            return
        # One of the other partitions with equal probability: the numbers from `previous` on are shifted by one.
        chosen = self._chance(partition_count - 1)
        self._sticky[topic] = chosen + (chosen >= previous)


class RoundRobin:
    """Each record goes to the next partition; keys are ignored.

    It gives up the order of every key, and full batches: with n partitions, n batches fill at the same time, each n
    times as slowly.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:  # noqa: ARG002
        """The next partition in turn."""
        partition = self._next.get(topic, 0) % partition_count
        self._next[topic] = partition + 1
        return partition

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Do nothing: there is no sticky partition."""


class GeoRouting:
    """An example of a custom partitioner: the part of a key before the separator is a region with its own partitions.

    With the regions `eu`, `us` and `asia` and six partitions, `eu:order-7` goes to partition 0 or 1, by the hash of the
    key. A reader in Europe then fetches only those two. The inner partitioner chooses for keys without a region and for
    records without a key.

    It gives up evenness: the load of a busy region stays on its few partitions. When partitions are added, keys move as
    they do with `Default`, and regions move with them.
    """

    def __init__(self, regions: Sequence[str], inner: Partitioner, *, separator: bytes = b":") -> None:
        self._number: Mapping[bytes, int] = {region.encode(): number for number, region in enumerate(regions)}
        self._inner = inner
        self._separator = separator

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """One of the partitions of the key's region."""
        region, separator, _rest = (key or b"").partition(self._separator)
        if key is None or not separator or region not in self._number:
            return self._inner.partition(topic, key, partition_count)
        partitions = self._block(self._number[region], partition_count)
        return partitions[partition_of(key, len(partitions))]

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Pass the call on to the inner partitioner."""
        self._inner.on_new_batch(topic, partition_count, previous)

    def partitions_of(self, region: str, partition_count: int) -> range:
        """The partitions of a region; they may hold keys without a region, too."""
        return self._block(self._number[region.encode()], partition_count)

    def _block(self, number: int, partition_count: int) -> range:
        # A region gets neighbouring partitions, and all regions about the same number. If there are fewer partitions
        # than regions, several regions share one.
        count = len(self._number)
        if partition_count < count:
            return range(number % partition_count, number % partition_count + 1)
        return range(number * partition_count // count, (number + 1) * partition_count // count)


class Salted:
    """Splits hot keys: a salt from 1 to `salts`, each in turn, is appended to a hot key before it is hashed.

    The salt only serves to choose the partition: the record keeps its key, and readers do not see the salt. A single
    salt splits nothing. Two salts may hash to the same partition, so n salts reach at most n partitions.

    It gives up the order of the hot keys, and compaction for them: each partition keeps its own newest record of a hot
    key. The reader merges `partitions_of(key)`. Other keys are not affected.
    """

    def __init__(self, inner: Partitioner, *, salts: int, hot_keys: Collection[bytes]) -> None:
        if salts < 1:
            raise ValueError(f"salts={salts}: at least 1 is needed")
        self._inner = inner
        self._salts = salts
        self._turn = dict.fromkeys(hot_keys, 0)

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """The inner partitioner's choice for the key. A hot key first gets its next salt appended."""
        if key is None or key not in self._turn:
            return self._inner.partition(topic, key, partition_count)
        turn = self._turn[key]
        self._turn[key] = (turn + 1) % self._salts
        return self._inner.partition(topic, _salted(key, turn + 1), partition_count)

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Pass the call on to the inner partitioner."""
        self._inner.on_new_batch(topic, partition_count, previous)

    def partitions_of(self, topic: str, key: bytes, partition_count: int) -> list[int]:
        """The partitions that may hold a key; a reader has to merge them."""
        keys = [_salted(key, salt) for salt in range(1, self._salts + 1)] if key in self._turn else [key]
        return sorted({self._inner.partition(topic, each, partition_count) for each in keys})


def _salted(key: bytes, salt: int) -> bytes:
    return b"%b_%d" % (key, salt)


class FallThrough:
    """Keeps a key in its partition up to a threshold of writes per window; further writes go to all partitions in turn.

    No list of hot keys is needed: a key is hot while it is above the threshold, and returns to its partition in the
    next window. One counter is kept for each key of the window.

    It gives up the order of a key while it is hot. Any partition may then hold records of the key, so a reader has to
    merge all of them. A key that never passes the threshold keeps its order.
    """

    def __init__(self, inner: Partitioner, *, threshold: int, window_ms: int, clock: Clock) -> None:
        if threshold < 0 or window_ms < 1:
            raise ValueError(f"threshold={threshold} must be at least 0, and window_ms={window_ms} at least 1")
        self._inner = inner
        self._threshold = threshold
        self._window_ms = window_ms
        self._clock = clock
        self._window = -1
        self._written: dict[tuple[str, bytes], int] = {}
        self._round = RoundRobin()

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """The choice of the inner partitioner, up to the threshold; then the next partition in turn."""
        if key is None:
            return self._inner.partition(topic, key, partition_count)
        # A new window begins with no hot keys.
        window = self._clock() // self._window_ms
        if window != self._window:
            self._window = window
            self._written.clear()
        written = self._written.get((topic, key), 0) + 1
        self._written[topic, key] = written
        chosen = self._inner if written <= self._threshold else self._round
        return chosen.partition(topic, key, partition_count)

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Pass the call on to the inner partitioner."""
        self._inner.on_new_batch(topic, partition_count, previous)
