"""Which partition a record goes to: Kafka's own rule, and the ways around a key that is too popular.

A partition is what keeps order, so a partitioner decides which records stay in order among each other. Each class below
says what it gives up.

| partitioner   | records with a key            | records without        | gives up                                 |
|---------------|-------------------------------|------------------------|------------------------------------------|
| `Default`     | by murmur2 of the key         | sticky: batch by batch | nothing; a popular key fills one partition |
| `RoundRobin`  | in turn                       | in turn                | the order of every key; full batches     |
| `GeoRouting`  | by murmur2 within its region  | as the inner one       | evenness: a busy region has few partitions |
| `Salted`      | a hot key by key and salt     | as the inner one       | the order of the hot keys                |
| `FallThrough` | past a threshold in turn      | as the inner one       | the order of a key while it is hot       |

Where the order of a key is given up, its reader merges: it reads all partitions in question and sorts by something that
the records themselves carry, a sequence number or a timestamp.

Time and chance come in as arguments. A pure module.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from minibroker.client.partitioners import partition_of

Chance = Callable[[int], int]
"""A number from 0 up to its argument, exclusive: `random.Random(seed).randrange`."""

Clock = Callable[[], int]
"""The time in milliseconds."""


class Partitioner(Protocol):
    """What a producer asks for each record that names no partition."""

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """Choose from 0 up to `partition_count`, exclusive."""

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Hear that the batch of a partition is full or was sent, so that a record without a key may go elsewhere."""


class Default:
    """Kafka's rule: a key goes to its hash, records without one stick to a partition until its batch is full (KIP-480).

    Gives up nothing: the records of a key stay in order. But a key that is half of all traffic is half of the load,
    too, all of it on one partition, and records without a key are even only over many batches.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._sticky: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """By the key, or the partition that this topic sticks to now."""
        if key is not None:
            return partition_of(key, partition_count)
        partition = self._sticky.get(topic)
        # A topic that was deleted and made anew may have fewer partitions than before.
        if partition is None or partition >= partition_count:
            partition = self._sticky[topic] = self._chance(partition_count)
        return partition

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Move on to another partition, if it is the sticky one whose batch is full."""
        if self._sticky.get(topic) != previous or partition_count == 1:
            return
        # One of the others, each as likely: the numbers from `previous` on are shifted past it.
        chosen = self._chance(partition_count - 1)
        self._sticky[topic] = chosen + (chosen >= previous)


class RoundRobin:
    """Each record to the next partition, whatever its key.

    Gives up the order of every key, and full batches: with n partitions n batches fill at a time, each n times
    as slowly.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:  # noqa: ARG002
        """The next in turn."""
        partition = self._next.get(topic, 0) % partition_count
        self._next[topic] = partition + 1
        return partition

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Nothing sticks."""


class GeoRouting:
    """A partitioner of one's own, as an example: the text before the separator is a region, and has its own partitions.

    With the regions `eu`, `us` and `asia` and six partitions, `eu:order-7` goes to 0 or 1, by the hash of the key.
    A reader in Europe then fetches those two and no others. Keys of no region, and records without a key, go where the
    inner partitioner wants them.

    Gives up evenness: the partitions of a busy region are busy, and others cannot help. When partitions are added, keys
    move as they do with `Default`, and regions move with them.
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
        """Tell the inner one."""
        self._inner.on_new_batch(topic, partition_count, previous)

    def partitions_of(self, region: str, partition_count: int) -> range:
        """Where a reader finds a region; keys of no region may be there, too."""
        return self._block(self._number[region.encode()], partition_count)

    def _block(self, number: int, partition_count: int) -> range:
        # Neighbouring partitions, as even as it goes; where there are fewer partitions than regions, they share.
        count = len(self._number)
        if partition_count < count:
            return range(number % partition_count, number % partition_count + 1)
        return range(number * partition_count // count, (number + 1) * partition_count // count)


class Salted:
    """A hot key is split: a salt from 1 to `salts`, each in turn, is put behind it before it is hashed.

    The salt is for the choice of the partition only: the record keeps its key, and readers see nothing of it. One salt
    splits nothing. Two salts may hash to the same partition: n salts reach n partitions at most, often fewer.

    Gives up the order of the hot keys, and compaction's promise for them: the newest record of a hot key is only the
    newest in its partition. The reader merges `partitions_of(key)`. All other keys are as before.
    """

    def __init__(self, inner: Partitioner, *, salts: int, hot_keys: Collection[bytes]) -> None:
        if salts < 1:
            raise ValueError(f"salts={salts}: at least 1 is needed")
        self._inner = inner
        self._salts = salts
        self._turn = dict.fromkeys(hot_keys, 0)

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """As the inner one would; a hot key with its next salt."""
        if key is None or key not in self._turn:
            return self._inner.partition(topic, key, partition_count)
        turn = self._turn[key]
        self._turn[key] = (turn + 1) % self._salts
        return self._inner.partition(topic, _salted(key, turn + 1), partition_count)

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Tell the inner one."""
        self._inner.on_new_batch(topic, partition_count, previous)

    def partitions_of(self, topic: str, key: bytes, partition_count: int) -> list[int]:
        """Where a reader finds a key: all of these are to be merged."""
        keys = [_salted(key, salt) for salt in range(1, self._salts + 1)] if key in self._turn else [key]
        return sorted({self._inner.partition(topic, each, partition_count) for each in keys})


def _salted(key: bytes, salt: int) -> bytes:
    return b"%b_%d" % (key, salt)


class FallThrough:
    """A key stays in its partition up to a threshold of writes within a window; what is more goes round all partitions.

    No list of hot keys is needed: a key is hot as long as it is, and goes home when the next window begins. So many
    counters are kept as there were keys in the window.

    Gives up the order of a key while it is hot, and that a reader could know where it is: any partition may hold some
    of it, so the reader merges them all. A key that never passes the threshold keeps its order.
    """

    def __init__(self, inner: Partitioner, *, threshold: int, window_ms: int, clock: Clock) -> None:
        if threshold < 0 or window_ms < 1:
            raise ValueError(f"threshold={threshold}, window_ms={window_ms}: at least 0 and 1 are needed")
        self._inner = inner
        self._threshold = threshold
        self._window_ms = window_ms
        self._clock = clock
        self._window = -1
        self._written: dict[tuple[str, bytes], int] = {}
        self._round = RoundRobin()

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """As the inner one would, until the key was written too often."""
        if key is None:
            return self._inner.partition(topic, key, partition_count)
        # A new window forgets who was hot.
        window = self._clock() // self._window_ms
        if window != self._window:
            self._window = window
            self._written.clear()
        written = self._written.get((topic, key), 0) + 1
        self._written[topic, key] = written
        chosen = self._inner if written <= self._threshold else self._round
        return chosen.partition(topic, key, partition_count)

    def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
        """Tell the inner one."""
        self._inner.on_new_batch(topic, partition_count, previous)
