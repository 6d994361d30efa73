"""What `chaos` finds: counts for each scenario, the time until the cluster came back, and the history of all records.

The history is a file of JSON lines, one for each record whose fate the producer was told:

    {"producer": "chaos", "topic": "chaos-1", "partition": 0, "sequence": 17, "offset": 17,
     "sent_ms": 1700000000000, "acked_ms": 1700000000004, "error": null}

`sequence` is the value of the record as well. The sequence numbers of each partition rise from 0 without a gap; one
without a line was sent, and its fate is unknown. `offset` is null if the acknowledgement had none, or if the record was
refused: then `error` says why. Times are in milliseconds since 1970, by the clock of the producer.
"""

import json
import shutil
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from clients_stock import bounds, confluent_read
from clusters import Cluster, Sender, Tally
from confluent_kafka import KafkaException
from groups_crews import History

from minibroker.bench.outages import PROMISES, Outages, longest_gap_ms
from minibroker.bench.watching import until

PRODUCER = "chaos"
ANSWERED_S_MAX = 60.0


class RecordingSender(Sender):
    """A sender that also writes the fate of each record to a file."""

    def __init__(self, cluster: Cluster, topic: str, history: TextIO | None, **settings: Any) -> None:
        super().__init__(cluster, topic, **settings)
        self._history = history

    def _on_delivery(self, error: Any, message: Any) -> None:
        super()._on_delivery(error, message)
        if self._history is not None:
            json.dump(line_of(error, message, now_ms=round(time.time() * 1000)), self._history)
            self._history.write("\n")


def line_of(error: Any, message: Any, *, now_ms: int) -> dict[str, object]:
    """A line of the history."""
    offset = message.offset()
    return {
        "producer": PRODUCER,
        "topic": message.topic(),
        "partition": message.partition(),
        "sequence": int(message.value()),
        "offset": None if error is not None or offset is None or offset < 0 else offset,
        "sent_ms": now_ms - round((message.latency() or 0) * 1000),
        "acked_ms": now_ms,
        "error": None if error is None else str(error),
    }


@dataclass
class Counts:
    """What happened to records, and to the offsets of groups."""

    acked: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    elsewhere: int = 0
    skipped: int = 0
    redelivered: int = 0
    gone_back: int = 0

    @classmethod
    def of(cls, tally: Tally, groups: Iterable[History]) -> "Counts":
        """The counts up to now."""
        them = list(groups)
        return cls(
            *(tally.acked, tally.lost, tally.twice, tally.out_of_order, tally.elsewhere),
            skipped=sum(it.skipped for it in them),
            redelivered=sum(it.redelivered for it in them),
            gone_back=sum(len(it.gone_back) for it in them),
        )

    def plus(self, other: "Counts", sign: int = 1) -> "Counts":
        """The sum; with the sign -1, the difference."""
        return Counts(*(getattr(self, it.name) + sign * getattr(other, it.name) for it in fields(self)))

    @property
    def is_well(self) -> bool:
        return not (self.lost or self.twice or self.out_of_order or self.elsewhere or self.skipped or self.gone_back)

    def text(self) -> str:
        tally = Tally(self.acked, self.lost, self.twice, self.out_of_order, self.elsewhere)
        groups = f"{self.skipped} skipped, {self.redelivered} redelivered, {self.gone_back} offsets gone back"
        return f"{tally.text()}; groups: {groups}"


class Audit:
    """Reads what was written since the last time, and compares all of it with the acknowledgements."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.logs: list[list[bytes]] = [[] for _ in range(sender.partitions)]

    def tally(self) -> Tally:
        """The tally of all records up to now."""
        acked, tally = dict(self._sender.acked), Tally()
        for partition, log in enumerate(self.logs):
            self._read_on(partition, log)
            tally.add(log, {value: at for (number, value), at in acked.items() if number == partition})
        return tally

    def _read_on(self, partition: int, log: list[bytes]) -> None:
        bootstrap, topic = self._sender.cluster.bootstrap, self._sender.topic

        def answered() -> tuple[int, int] | None:
            # A leader that was just elected does not know the high watermark yet, and librdkafka does not ask again.
            with suppress(KafkaException):
                return bounds(bootstrap, topic, partition)
            return None

        _start, end = until(answered, f"where {topic}-{partition} ends", seconds=ANSWERED_S_MAX, every_s=0.1) or (0, 0)
        assert end >= len(log), f"{topic}-{partition} ended at {len(log)}, and now ends at {end}"
        found = confluent_read(bootstrap, topic, end - len(log), len(log), partition=partition)
        offsets = list(range(len(log), end))
        assert [one.offset for one in found] == offsets, f"{len(found)} of {len(offsets)} records could be read"
        log += [one.value or b"" for one in found]


def back_ms(acked_s: Sequence[float], *, moments_s: Sequence[float], ended_s: float) -> int:
    """The longest time without an acknowledgement, counted from the last moment when the cluster was able to give one.

    The first moment is the beginning of the fault. A cluster whose nodes were all killed is able again when they are
    started.
    """
    inside = [it for it in acked_s if moments_s[0] < it < ended_s]
    gaps = pairwise([moments_s[0], *inside, ended_s])
    return round(1000 * max(end - max(start, moments_s[bisect_right(moments_s, end) - 1]) for start, end in gaps))


class Cycle(NamedTuple):
    """How one cycle went."""

    lasted_ms: int
    """The longest pause of the writes to a partition."""
    back_ms: int
    """How long the cluster needed to come back by itself."""
    in_sync_s: float
    """When all replicas were in sync again, counted from the beginning."""

    @classmethod
    def of(cls, acked_s: Sequence[Sequence[float]], *, moments_s: Sequence[float], ended_s: float) -> "Cycle":
        """Compute it from the times of the acknowledgements of each partition."""
        begun_s, times_s = moments_s[0], [list(it) for it in acked_s]
        return cls(
            max(longest_gap_ms(it, begun_s=begun_s, ended_s=ended_s) for it in times_s),
            max(back_ms(it, moments_s=moments_s, ended_s=ended_s) for it in times_s),
            ended_s - begun_s,
        )

    def text(self) -> str:
        return f"back after {self.back_ms} ms, longest pause {self.lasted_ms} ms, in sync after {self.in_sync_s:.1f} s"


@dataclass
class Outcome:
    """The cycles of one scenario."""

    cycles: list[Cycle] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def add(self, cycle: Cycle, counts: Counts) -> None:
        self.cycles.append(cycle)
        self.counts = self.counts.plus(counts)

    def text(self) -> str:
        back_ms_max = max(it.back_ms for it in self.cycles)
        plural = "s" if len(self.cycles) > 1 else ""
        return f"{len(self.cycles)} cycle{plural}, back after {back_ms_max} ms at most: {self.counts.text()}"


@dataclass
class Report:
    """The result of a run, on one cluster or several."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    total: Counts = field(default_factory=Counts)
    """From reading everything back at the end."""
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What happened and is no fault of the cluster."""
    groups: list[tuple[str, History]] = field(default_factory=list)
    humans: int = 0
    """How often the cluster did not come back by itself."""

    @property
    def is_well(self) -> bool:
        counts = [self.total, *(it.counts for it in self.outcomes.values())]
        is_well = all(it.is_well for it in counts) and all(history.is_well for _, history in self.groups)
        return is_well and not (self.humans or self.complaints)

    def text(self) -> str:
        lines = [*self.complaints[:20], *self.notes, *(f"group {kind}: {it.text()}" for kind, it in self.groups)]
        lasted_ms = tuple(it.lasted_ms for one in self.outcomes.values() for it in one.cycles)
        if lasted_ms:
            outages = Outages("a cycle's longest pause", lasted_ms)
            lines += [outages.text(), *(outages.budget_text(it) for it in PROMISES)]
        lines += [f"{name}: {it.text()}" for name, it in sorted(self.outcomes.items())]
        total = f"chaos: {len(lasted_ms)} cycles: {self.total.text()}; a human was needed: {self.humans}"
        return "\n".join([*lines, total])


def audit_difference(bootstrap: str, history: TextIO, begun: int, total: Counts) -> list[str]:
    """Audit the part of a history that begins at a position, and return how its counts differ from the total."""
    history.flush()
    path = Path(history.name)
    part = path.with_name(f"{path.name}-part")
    with path.open("rb") as whole, part.open("wb") as copy:
        whole.seek(begun)
        shutil.copyfileobj(whole, copy)
    command = [sys.executable, "-m", "minibroker.cli", "pipeline", "run", "audit", str(part)]
    command += ["--bootstrap-server", bootstrap, "--master", "local[2]"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    row = next((line.split() for line in result.stdout.splitlines() if line.startswith("all ")), [])
    part.unlink()
    found = [int(it.replace(",", "")) for it in row[1:]]
    expected = [total.acked, total.lost, total.twice, total.out_of_order, total.elsewhere]
    if [*found[:1], *found[2:]] == expected:
        return []
    return [f"the audit counts {found}, the checker {expected} (without those in the log) {result.stderr[-300:]}"]
