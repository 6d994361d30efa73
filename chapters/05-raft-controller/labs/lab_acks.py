"""The lab `acks` of chapter 05: the cost of each `acks` of a producer, and its losses when the leader is killed.

There are three nodes, and a topic for each promise. The cost is measured first: latency with records at a steady rate,
and throughput at full speed. Then the worth: a producer for each promise writes, the followers are paused, and a moment
later the leader of all four topics is killed with kill -9. So the losses do not depend on chance: the records that only
the leader had are lost. The followers are resumed, and one of them leads.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

from labs.losing import Stream, read, write
from labs.pacing import (
    ACKS,
    Effort,
    Setting,
    order_values,
    rushed_mb_per_s,
    send_paced,
    sender_of,
    warm_up,
)

from minibroker.bench import BarChart, BarRow, Context, Findings, Lab, Table, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.failover import quick_settings
from minibroker.bench.local import LocalCluster
from minibroker.bench.measure import percentile
from minibroker.bench.units import number_text

PACED_PER_SECOND = 200
STREAM_PER_SECOND = 250
BLIND_S = 0.4
"""How long the followers are paused, at least. Less than a session: no follower is fenced before the leader."""
CAUGHT_UP = -1
"""The value of a record that shows that all followers have caught up; no stream sends it."""
_SETTLED_ACKS = 10


@dataclass(frozen=True)
class Promise:
    """The acks of a producer, and the topic's min.insync.replicas."""

    acks: str
    min_isr: int

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"acks={self.acks}" + (f", min.insync.replicas={self.min_isr}" if self.acks == "all" else "")

    @property
    def topic(self) -> str:
        """The topic of this promise."""
        return f"acks-{self.acks}-{self.min_isr}"


PROMISES = (Promise("0", 1), Promise("1", 1), Promise("all", 1), Promise("all", 2))


@dataclass(frozen=True)
class Cost:
    """The cost of a promise without faults."""

    mb_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Worth:
    """The records after the leader was killed."""

    acked: int
    acked_hung: int  # while the followers hung; with acks=all, records that the followers had already
    lost: int


class Kept(NamedTuple):
    """A promise with its cost and its worth."""

    promise: Promise
    cost: Cost
    worth: Worth


def run_acks(context: Context) -> Findings:
    """Start three nodes, and measure each promise."""
    with LocalCluster.within(context, *quick_settings()) as cluster:
        return acks(context, cluster)


def acks(context: Context, cluster: LocalCluster) -> Findings:
    """Run the experiment on a running cluster."""
    effort = scaled(Effort(3, paced_records=500, rushed_records=50_000), Effort(1, 20, 200))
    # The controller leads no partition here, so that the kill does not hit it.
    leader = cluster.controller() % 3 + 1
    for promise in PROMISES:
        replicas = [leader, *cluster.others(leader)]
        cluster.create(promise.topic, [replicas], min_insync_replicas=promise.min_isr)
        cluster.await_isr(promise.topic, *replicas)
    costs = measure_costs(context, cluster.bootstrap, effort)
    context.progress(effort.rounds, effort.rounds, "the leader is killed")
    worths = kill_the_leader(cluster, leader)
    found = [Kept(promise, costs[promise], worths[promise]) for promise in PROMISES]
    return Findings(table(found), reading(found), figure(found), {})


# Cost ---------------------------------------------------------------------------------------------------------------


def measure_costs(context: Context, bootstrap: str, effort: Effort) -> dict[Promise, Cost]:
    """Measure all promises in turn, several times, and return the medians."""
    rounds: dict[Promise, list[Cost]] = {promise: [] for promise in PROMISES}
    for number in range(effort.rounds):
        for promise in PROMISES:
            context.progress(number, effort.rounds, f"{promise.name}: what it costs")
            rounds[promise].append(cost_of(bootstrap, promise, effort))
    return {promise: median(costs) for promise, costs in rounds.items()}


def cost_of(bootstrap: str, promise: Promise, effort: Effort) -> Cost:
    """Measure one round: latency without linger, throughput with it."""
    values, topic = order_values(), promise.topic
    with closing(sender_of(bootstrap, Setting(0, "none", promise.acks))) as sender:
        warm_up(sender, topic)
        send_paced(sender, topic, values, effort.paced_records, per_second=PACED_PER_SECOND)
        latencies = sorted(sender.latencies_ms)
    with closing(sender_of(bootstrap, Setting(5, "none", promise.acks))) as sender:
        warm_up(sender, topic)
        mb_per_s = rushed_mb_per_s(sender, topic, values, effort.rushed_records)
    # Let the followers catch up now, so that the next measurement does not pay for it.
    write(bootstrap, topic, CAUGHT_UP, 1)
    return Cost(mb_per_s, percentile(latencies, 50), percentile(latencies, 99))


def median(rounds: Sequence[Cost]) -> Cost:
    """The median of each figure over the rounds."""
    return Cost(
        mb_per_s=statistics.median(each.mb_per_s for each in rounds),
        p50_ms=statistics.median(each.p50_ms for each in rounds),
        p99_ms=statistics.median(each.p99_ms for each in rounds),
    )


# Worth --------------------------------------------------------------------------------------------------------------


def kill_the_leader(cluster: LocalCluster, leader: int) -> dict[Promise, Worth]:
    """Pause the followers, kill the leader, resume the followers; producers write all the time."""
    followers = [cluster[number] for number in cluster.others(leader)]
    with ExitStack() as writing:
        streams = {promise: writing.enter_context(stream_of(cluster, promise)) for promise in PROMISES}
        await_all(streams.values())
        for node in followers:
            node.pause()
        before = {promise: len(stream.acked) for promise, stream in streams.items()}
        await_all(stream for promise, stream in streams.items() if promise.acks != "all")
        time.sleep(BLIND_S)
        hung = {promise: len(stream.acked) - before[promise] for promise, stream in streams.items()}
        cluster[leader].kill()
        for node in followers:
            node.resume()
        await_all(streams.values())
    worths = {}
    for promise, stream in streams.items():
        lost = stream.acked - read(cluster.bootstrap, promise.topic)
        worths[promise] = Worth(len(stream.acked), hung[promise], len(lost))
    return worths


def stream_of(cluster: LocalCluster, promise: Promise) -> Stream:
    """A producer with the acks of a promise."""
    return Stream(cluster.bootstrap, promise.topic, per_second=STREAM_PER_SECOND, acks=ACKS[promise.acks])


def await_all(streams: Iterable[Stream]) -> None:
    """Wait until each stream has acknowledged records."""
    for stream in streams:
        stream.await_acks(_SETTLED_ACKS)


# Findings -----------------------------------------------------------------------------------------------------------


def table(found: Sequence[Kept]) -> Table:
    """The table of cost and worth."""
    columns = ["promise", "MB/s", "p50, ms", "p99, ms", "acknowledged", "while the followers hung", "lost"]
    rows = [
        [
            each.promise.name,
            number_text(each.cost.mb_per_s),
            number_text(each.cost.p50_ms),
            number_text(each.cost.p99_ms),
            *(f"{count:,}" for count in (each.worth.acked, each.worth.acked_hung, each.worth.lost)),
        ]
        for each in found
    ]
    return Table(columns, rows)


def figure(found: Sequence[Kept]) -> BarChart:
    """Draw the lost records."""
    return BarChart(
        "The leader is killed while its followers hang",
        "acknowledged records that are gone",
        [BarRow(f"{each.promise.name} (p50 {number_text(each.cost.p50_ms)} ms)", each.worth.lost) for each in found],
        note=quick_note(),
    )


def reading(found: Sequence[Kept]) -> list[str]:
    """Explain the figures."""
    by = {each.promise: each for each in found}
    none, one, every, safe = (by[promise] for promise in PROMISES)
    return [
        f"Cost: half of the records are acknowledged within {number_text(one.cost.p50_ms)} ms with acks=1 and "
        f"{number_text(safe.cost.p50_ms)} ms with acks=all, which waits until the followers have asked for the next "
        f"record; 99 % within {number_text(one.cost.p99_ms)} and {number_text(safe.cost.p99_ms)} ms. At full speed it "
        f"is {number_text(none.cost.mb_per_s)} MB/s with acks=0, {number_text(one.cost.mb_per_s)} with 1 and "
        f"{number_text(safe.cost.mb_per_s)} with all, because batches are pipelined. With acks=0 "
        f"nothing is acknowledged: latency and count are those of records that were sent.",
        f"Worth: the followers hung for about {BLIND_S:g} s, and then the leader was killed. With acks=1 it "
        f"acknowledged {one.worth.acked_hung:,} records in that time, and {one.worth.lost:,} acknowledged records are "
        f"gone: the new leader was in sync, but never had them. With acks=0 {none.worth.lost:,} are gone, and the "
        f"producer does not know it. With acks=all the producers had to wait, and lost "
        f"{every.worth.lost + safe.worth.lost:,}.",
        f"min.insync.replicas made no difference here ({every.worth.lost:,} and {safe.worth.lost:,} lost), because "
        f"no follower had left the in-sync set yet. After that, acks=all with 1 is a promise of the leader alone, and "
        f"with 2 the write is refused. The lab `unclean` continues from there.",
    ]


LABS = [Lab("acks", "05", "what acks=0, 1 and all cost, and what each loses when the leader is killed", run_acks)]
