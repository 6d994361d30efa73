"""The labs `hotkey` and `grow` of chapter 03.

In `hotkey` one key has nine tenths of the traffic. It measures how much salting and falling through balance the load,
and which keys lose their order. `grow` adds partitions to a topic. It counts the keys that move, and the keys whose
records a reader sees out of order. Both are simulations with the real partitioners, a list as the topic and a virtual
clock.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.bench import BarChart, BarRow, Context, Findings, Lab, Table, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.plot import LIMIT, Mark
from minibroker.bench.units import number_text
from minibroker.client.partitioners import partition_of
from minibroker.clients.partitioners import Default, FallThrough, Partitioner, Salted

# Shared by both simulations -----------------------------------------------------------------------------------------

TOPIC = "orders"
FETCH_RECORDS = 50
"""How many records a reader takes from a partition before it goes on to the next."""


class Written(NamedTuple):
    """A record, reduced to its key and its sequence number within that key."""

    key: bytes
    sequence: int


Partitions = list[list[Written]]


class Writer:
    """A producer that numbers the records of each key. Its partitioner chooses the partition of each."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner
        self._sequences: Counter[bytes] = Counter()

    def write(self, keys: Iterable[bytes], partitions: Partitions) -> None:
        """Append a record for each key."""
        for key in keys:
            self._sequences[key] += 1
            partition = self.partitioner.partition(TOPIC, key, len(partitions))
            partitions[partition].append(Written(key, self._sequences[key]))


def read_in_turn(partitions: Partitions) -> Iterator[Written]:
    """Read all partitions as a consumer does: some records of one, then some of the next."""
    positions = [0] * len(partitions)
    while any(position < len(records) for position, records in zip(positions, partitions, strict=True)):
        for number, records in enumerate(partitions):
            yield from records[positions[number] : positions[number] + FETCH_RECORDS]
            positions[number] += FETCH_RECORDS


def out_of_order(records: Iterable[Written]) -> Counter[bytes]:
    """For each key, how many of its records a reader saw after a later one."""
    newest: dict[bytes, int] = {}
    violations: Counter[bytes] = Counter()
    for key, sequence in records:
        if sequence < newest.get(key, 0):
            violations[key] += 1
        else:
            newest[key] = sequence
    return violations


def held_to_merge(records: Iterable[Written]) -> int:
    """The most records that a reader must hold back to pass on those of each key in order."""
    expected: dict[bytes, int] = {}
    held: dict[bytes, set[int]] = {}
    now = most = 0
    for key, sequence in records:
        early = held.setdefault(key, set())
        early.add(sequence)
        now += 1
        wanted = expected.get(key, 1)
        while wanted in early:
            early.remove(wanted)
            now -= 1
            wanted += 1
        expected[key] = wanted
        most = max(most, now)
    return most


# The lab `hotkey` ---------------------------------------------------------------------------------------------------

HOT_KEY = b"tenant-1"
HOT_SHARE = 0.9
HOT_PARTITIONS = 12
SALTS = (1, 2, 3, 4, 5)
RECORDS_PER_SECOND = 10_000
WINDOW_MS = 1000
PLAIN, FALL_THROUGH = "key hash", "fall-through"


@dataclass(frozen=True)
class Spread:
    """The load and the order of the traffic with one partitioner."""

    name: str
    max_over_mean: float  # records of the fullest partition ÷ mean; 1 is even
    hot_partitions: int  # partitions that have records of the hot key
    hot_out_of_order: float  # the share of the hot key's records
    others_out_of_order: int
    held: int


def run_hotkey(_context: Context) -> Findings:
    """Send the same traffic through each partitioner."""
    records = scaled(full=200_000, quick=5_000)
    keys = hot_traffic(records)
    spreads = [spread(name, keys) for name in (PLAIN, *(salt_name(salts) for salts in SALTS), FALL_THROUGH)]
    return Findings(hotkey_table(spreads), hotkey_reading(spreads), hotkey_figure(spreads), {})


def hot_traffic(records: int) -> list[bytes]:
    """Nine tenths of the records have one key, the others one of a thousand keys."""
    chance = random.Random(0)
    return [
        HOT_KEY if chance.random() < HOT_SHARE else b"tenant-%d" % chance.randrange(2, 1002) for _ in range(records)
    ]


def salt_name(salts: int) -> str:
    """The name of a row."""
    return f"salt 1..{salts}" if salts > 1 else "salt 1"


def spread(name: str, keys: Sequence[bytes]) -> Spread:
    """Write the traffic through a partitioner, and read it as a consumer would."""
    partitions: Partitions = [[] for _ in range(HOT_PARTITIONS)]
    Writer(partitioner_of(name)).write(keys, partitions)
    violations = out_of_order(read_in_turn(partitions))
    hot_records = sum(key == HOT_KEY for key in keys)
    return Spread(
        name,
        max_over_mean=max(map(len, partitions)) * HOT_PARTITIONS / len(keys),
        hot_partitions=sum(any(record.key == HOT_KEY for record in records) for records in partitions),
        hot_out_of_order=violations[HOT_KEY] / hot_records,
        others_out_of_order=sum(violations.values()) - violations[HOT_KEY],
        held=held_to_merge(read_in_turn(partitions)),
    )


def partitioner_of(name: str) -> Partitioner:
    """The partitioner of a row."""
    inner = Default(random.Random(0).randrange)
    if name == PLAIN:
        return inner
    if name == FALL_THROUGH:
        # A key may have a quarter of one partition's share, because its partition also gets other keys.
        fair = RECORDS_PER_SECOND * WINDOW_MS // 1000 // HOT_PARTITIONS
        return FallThrough(inner, threshold=fair // 4, window_ms=WINDOW_MS, clock=VirtualClock())
    salts = next(salts for salts in SALTS if salt_name(salts) == name)
    return Salted(inner, salts=salts, hot_keys=[HOT_KEY])


class VirtualClock:
    """A clock that is read once for each record, and advances by the time of one record."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self) -> int:
        """The time in milliseconds."""
        self._asked += 1
        return self._asked * 1000 // RECORDS_PER_SECOND


def hotkey_table(spreads: Sequence[Spread]) -> Table:
    """A table of load and order for each partitioner."""
    columns = [
        "partitioner",
        "max/mean load",
        "partitions with the hot key",
        "% of it out of order",
        "others out of order",
        "held to merge",
    ]
    rows = [
        [
            each.name,
            f"{each.max_over_mean:.2f}",
            str(each.hot_partitions),
            f"{100 * each.hot_out_of_order:.0f}",
            str(each.others_out_of_order),
            f"{each.held:,}",
        ]
        for each in spreads
    ]
    return Table(columns, rows)


def hotkey_figure(spreads: Sequence[Spread]) -> BarChart:
    """A chart of the load of the fullest partition."""
    return BarChart(
        f"One key has {100 * HOT_SHARE:.0f} % of the records; {HOT_PARTITIONS} partitions",
        "records of the fullest partition ÷ mean; 1 is even",
        [
            BarRow(f"{each.name} ({100 * each.hot_out_of_order:.0f} % of the key out of order)", each.max_over_mean)
            for each in spreads
        ],
        limit=Mark(1, "even"),
        note=quick_note(),
    )


def hotkey_reading(spreads: Sequence[Spread]) -> list[str]:
    """The figures in sentences."""
    by_name = {each.name: each for each in spreads}
    plain, most, through = by_name[PLAIN], by_name[salt_name(SALTS[-1])], by_name[FALL_THROUGH]
    expected = HOT_PARTITIONS * (1 - (1 - 1 / HOT_PARTITIONS) ** SALTS[-1])
    others = sum(each.others_out_of_order for each in spreads)
    return [
        f"Hash: the fullest partition has {number_text(plain.max_over_mean)} times the mean load, and nothing is out "
        f"of order. More partitions would not help: the key has one of them. A topic is as fast as its fullest one.",
        f"Salt: with salts 1..{SALTS[-1]} the key is in {most.hot_partitions} partitions and the fullest has "
        f"{number_text(most.max_over_mean)} times the mean. Salts are hashed, so some share a partition: "
        f"{SALTS[-1]} of them reach {number_text(expected)} of {HOT_PARTITIONS} partitions on average. Which keys are "
        f"hot must be known, and a reader needs {most.hot_partitions} partitions to see all of the key.",
        f"Fall-through: the fullest has {number_text(through.max_over_mean)} times the mean, without a list of hot "
        f"keys. The key is in {through.hot_partitions} partitions, so its reader needs them all.",
        f"The price is the order of the hot key: a reader meets {100 * most.hot_out_of_order:.0f} % (salt) and "
        f"{100 * through.hot_out_of_order:.0f} % (fall-through) of its records after a later one. To give them on in "
        f"order it merges by a sequence number that the records carry, and holds back up to {most.held:,} and "
        f"{through.held:,} records. Of all other keys {others} records are out of order.",
    ]


# The lab `grow` -----------------------------------------------------------------------------------------------------

PARTITIONS_BEFORE = 4
PARTITIONS_AFTER = (5, 6, 8, 12, 16)
SHOWN_AFTER = 6
WRITES_PER_KEY = 5


@dataclass(frozen=True)
class Growth:
    """How many keys moved and lost their order when a topic of four partitions grew."""

    partitions: int
    keys: int
    moved: int
    broken_behind: int  # keys out of order for a reader that had read nothing before
    broken_caught_up: int  # keys out of order for a reader that had read everything before

    @property
    def moved_share(self) -> float:
        """The share of keys that moved."""
        return self.moved / self.keys

    @property
    def moved_expected(self) -> float:
        """The same in theory: see `moved_in_theory`."""
        return moved_in_theory(PARTITIONS_BEFORE, self.partitions)

    @property
    def broken_share(self) -> float:
        """The share of keys out of order for a reader that had read nothing before."""
        return self.broken_behind / self.keys

    @property
    def broken_expected(self) -> float:
        """The same in theory: the keys that moved to new partitions, whose records a reader sees first."""
        return 1 - PARTITIONS_BEFORE / self.partitions


def moved_in_theory(before: int, after: int) -> float:
    """The share of hashes whose remainder changes.

    The pair of remainders repeats after the least common multiple. In each such period the remainders agree for the
    hashes below the smaller number.
    """
    return 1 - min(before, after) / math.lcm(before, after)


def run_grow(_context: Context) -> Findings:
    """Grow a topic to several sizes."""
    keys = [b"user-%d" % number for number in range(scaled(full=10_000, quick=500))]
    growths = [grow(keys, after) for after in PARTITIONS_AFTER]
    return Findings(grow_table(growths), grow_reading(growths), grow_figure(growths), {})


def grow(keys: Sequence[bytes], after: int) -> Growth:
    """Write, add partitions and write again. Then read, once with all records unread, once with only the new ones."""
    chance = random.Random(0)
    writer = Writer(Default(chance.randrange))
    early: Partitions = [[] for _ in range(PARTITIONS_BEFORE)]
    writer.write(chance.choices(keys, k=WRITES_PER_KEY * len(keys)), early)
    late: Partitions = [[] for _ in range(after)]
    writer.write(chance.choices(keys, k=WRITES_PER_KEY * len(keys)), late)
    # A partition is one log, so records from after the growth follow the earlier ones.
    whole = [(early[number] if number < PARTITIONS_BEFORE else []) + late[number] for number in range(after)]
    return Growth(
        after,
        keys=len(keys),
        moved=sum(partition_of(key, PARTITIONS_BEFORE) != partition_of(key, after) for key in keys),
        broken_behind=len(out_of_order(read_in_turn(whole))),
        broken_caught_up=len(out_of_order([*read_in_turn(early), *read_in_turn(late)])),
    )


def grow_table(growths: Sequence[Growth]) -> Table:
    """A table of the measurements and the theory."""
    columns = [
        "partitions",
        "% of keys moved",
        "in theory",
        "% out of order, reader behind",
        "in theory",
        "reader caught up",
    ]
    rows = [
        [
            f"{PARTITIONS_BEFORE} → {growth.partitions}",
            f"{100 * growth.moved_share:.1f}",
            f"{100 * growth.moved_expected:.1f}",
            f"{100 * growth.broken_share:.1f}",
            f"{100 * growth.broken_expected:.1f}",
            f"{100 * growth.broken_caught_up / growth.keys:.1f}",
        ]
        for growth in growths
    ]
    return Table(columns, rows)


def grow_figure(growths: Sequence[Growth]) -> BarChart:
    """A chart of the measured and the theoretical shares for each number of partitions."""
    rows = []
    for each in growths:
        group = f"{PARTITIONS_BEFORE} → {each.partitions} partitions"
        rows += [
            BarRow("moved", 100 * each.moved_share, series="moved", group=group),
            BarRow("in theory", 100 * each.moved_expected, series=LIMIT, group=group),
            BarRow("out of order, reader behind", 100 * each.broken_share, series="out of order", group=group),
            BarRow("in theory", 100 * each.broken_expected, series=LIMIT, group=group),
        ]
    return BarChart(
        "A topic grows: keys that move, and order that breaks",
        "% of keys",
        rows,
        note=quick_note(),
    )


def grow_reading(growths: Sequence[Growth]) -> list[str]:
    """The figures in sentences."""
    shown = next(each for each in growths if each.partitions == SHOWN_AFTER)
    double = next(each for each in growths if each.partitions == 2 * PARTITIONS_BEFORE)
    return [
        f"Moved: from {PARTITIONS_BEFORE} to {shown.partitions} partitions {shown.moved:,} of {shown.keys:,} keys "
        f"({100 * shown.moved_share:.1f} %) get another partition; in theory {100 * shown.moved_expected:.1f} %. "
        f"Doubling moves {100 * double.moved_share:.1f} %, the least that any growth here does: half of "
        f"each partition stays.",
        f"Order: what was written stays where it is, so a moved key has its past in one partition and its present in "
        f"another. A reader that is behind sees {shown.broken_behind:,} keys out of order "
        f"({100 * shown.broken_share:.1f} %; in theory {100 * shown.broken_expected:.1f} %): those that moved to a new "
        f"partition, where their newest records are the first to be read. A key that moved between two old partitions "
        f"has luck as long as its reader keeps both at the same pace. A reader that had read everything before the "
        f"growth sees {shown.broken_caught_up:,}.",
        "So plan partitions ahead. To grow a topic whose order counts, stop its writers, let its readers catch up, "
        "grow, and go on; or write to a new topic. A topic never shrinks, for its partitions hold records.",
    ]


LABS = [
    Lab("hotkey", "03", "one key at 90 %: salting and falling through, load against order", run_hotkey),
    Lab("grow", "03", "4 → 6 partitions: keys that move, and order that breaks", run_grow),
]
