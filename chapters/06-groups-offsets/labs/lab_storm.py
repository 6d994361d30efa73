"""The lab `storm` of chapter 06: who keeps reading while members miss heartbeats, in four kinds of groups.

Six processes are members of four groups on one topic: eager, static, cooperative, and the new protocol (KIP-848). Three
of the processes are paused in turn, each for longer than a session, and each shortly before the session of the one
before it ends. So the coordinator always waits for somebody. All groups see the same pauses at the same time; the lab
counts from how many partitions each group has read in each moment.
"""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibroker.bench import Context, Findings, Lab, Line, LineChart, Point, Table, children, scaled
from minibroker.bench.background import Background
from minibroker.bench.context import quick_note
from minibroker.bench.units import number_text
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer

EAGER, STATIC, COOPERATIVE, NEW = "eager", "static, long session", "cooperative", "KIP-848"
KINDS = (EAGER, STATIC, COOPERATIVE, NEW)
TOPIC = "storm"
MEMBERS, PAUSED, PARTITIONS = 6, 3, 12
SHARE = PARTITIONS // MEMBERS
_MEMBER = Path(__file__).with_name("storm_member.py")
_ENDED_S_MAX = 60.0


@dataclass(frozen=True)
class Weather:
    """The times of the storm, in seconds."""

    session_s: float
    heartbeat_s: float
    calm_s: float  # before the first pause, and after the last
    every_s: float  # from one pause to the next: a little less than a session
    pause_s: float  # a little more than a session
    bucket_s: float

    @property
    def long_session_s(self) -> float:
        """The session of static members: longer than any pause."""
        return 5 * self.session_s

    @property
    def broker_settings(self) -> tuple[str, ...]:
        """The settings of a broker whose groups have these sessions."""
        session_ms, heartbeat_ms = round(1000 * self.session_s), round(1000 * self.heartbeat_s)
        return (
            "group.initial.rebalance.delay.ms=0",
            f"group.min.session.timeout.ms={session_ms}",
            f"group.consumer.min.session.timeout.ms={session_ms}",
            f"group.consumer.session.timeout.ms={session_ms}",
            f"group.consumer.min.heartbeat.interval.ms={heartbeat_ms}",
            f"group.consumer.heartbeat.interval.ms={heartbeat_ms}",
        )


FULL = Weather(session_s=6, heartbeat_s=1, calm_s=6, every_s=5, pause_s=8, bucket_s=0.5)
QUICK = Weather(session_s=1.5, heartbeat_s=0.2, calm_s=1, every_s=1.2, pause_s=2, bucket_s=0.25)


@dataclass(frozen=True)
class Group:
    """One kind of group in the storm."""

    kind: str
    shares: Sequence[tuple[float, float]]
    """For each moment, in seconds, the percentage of the partitions that were read."""
    unread_s: float
    """Seconds of partitions that were not read, added up over all partitions."""
    silent_s: float
    """Seconds in which no partition was read."""
    assignments: int
    """How often the members that were never paused got an assignment during the storm."""


# The storm ------------------------------------------------------------------------------------------------------------


def run_storm(context: Context) -> Findings:
    """Start a broker, the members and a producer, and pause members in turn."""
    weather = scaled(FULL, QUICK)
    broker = children.serve(context, *weather.broker_settings)
    with Client(broker.address) as client:
        create_topics(client, [NewTopic(TOPIC, PARTITIONS, 1)])
    with ExitStack() as ending, Stream(broker.address):
        crew = [ending.enter_context(MemberProcess(number, broker.address, weather)) for number in range(MEMBERS)]
        for process in crew:
            process.await_ready()
        time.sleep(weather.calm_s)  # the last rebalance may still be on its way
        context.progress(1, 1, "the storm")
        begun_s = time.monotonic()
        blow(crew, weather)
        ended_s = time.monotonic()
        documents = [process.report() for process in crew]
    found = [group_of(kind, documents, weather, begun_s=begun_s, ended_s=ended_s) for kind in KINDS]
    return Findings(table(found), reading(found, weather), figure(found), {})


def blow(crew: Sequence["MemberProcess"], weather: Weather) -> None:
    """Pause members in turn, and let each go on after its pause."""
    events = []
    for number in range(PAUSED):
        at_s = weather.calm_s + number * weather.every_s
        events += [(at_s, number, signal.SIGSTOP), (at_s + weather.pause_s, number, signal.SIGCONT)]
    begun_s = time.monotonic()
    for at_s, number, sent in sorted(events):
        time.sleep(max(begun_s + at_s - time.monotonic(), 0))
        crew[number].send(sent)
    time.sleep(weather.calm_s + weather.session_s / 2)


class Stream(Background):
    """A producer that writes to every partition all the time."""

    _PAUSE_S = 0.02

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._client = Client(bootstrap)
        self._producer = Producer(self._client, linger_ms=0)

    def run(self) -> None:
        """Write one record to each partition, again and again."""
        while not self.is_over.wait(self._PAUSE_S):
            for partition in range(PARTITIONS):
                self._producer.send(TOPIC, b"order", partition=partition)

    def close(self, *, is_well: bool) -> None:
        """Wait for records under way, unless something has failed already."""
        self._producer.close(timeout_ms=_ENDED_S_MAX * 1000 if is_well else 0)
        self._client.close()


class MemberProcess:
    """A process with one member in each group."""

    def __init__(self, number: int, bootstrap: str, weather: Weather) -> None:
        groups = {kind: settings_of(kind, number, weather) | {"bootstrap.servers": bootstrap} for kind in KINDS}
        task = {"topic": TOPIC, "share": SHARE, "bucket_s": weather.bucket_s, "groups": groups}
        self._process = subprocess.Popen(
            [sys.executable, str(_MEMBER), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "MemberProcess":
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def await_ready(self) -> None:
        """Wait until each of its members has its share of the partitions."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise ChildProcessError("a member of the storm did not start")

    def send(self, sent: signal.Signals) -> None:
        """Pause it, or let it go on."""
        self._process.send_signal(sent)

    def report(self) -> dict[str, Any]:
        """Let it leave its groups, and return what it has seen."""
        printed, _nothing = self._process.communicate(timeout=_ENDED_S_MAX)
        document: dict[str, Any] = json.loads(printed)
        return document


def settings_of(kind: str, number: int, weather: Weather) -> dict[str, object]:
    """The settings of librdkafka for a member of a group."""
    common: dict[str, object] = {
        "group.id": kind,
        "auto.offset.reset": "latest",
        "auto.commit.interval.ms": 500,
        "log_level": 0,
    }
    if kind == NEW:
        return common | {"group.protocol": "consumer"}
    session_s = weather.long_session_s if kind == STATIC else weather.session_s
    strategy = "cooperative-sticky" if kind == COOPERATIVE else "range"
    classic: dict[str, object] = {
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": round(1000 * session_s),
        "heartbeat.interval.ms": round(1000 * weather.heartbeat_s),
    }
    return common | classic | ({"group.instance.id": f"member-{number}"} if kind == STATIC else {})


# Findings -------------------------------------------------------------------------------------------------------------


def group_of(
    kind: str, documents: Sequence[dict[str, Any]], weather: Weather, *, begun_s: float, ended_s: float
) -> Group:
    """Put together what the members of a group have seen between two times."""
    first, last = (int(it / weather.bucket_s) for it in (begun_s, ended_s))
    partitions = {(bucket, number) for it in documents for bucket, number, _count in it[kind]["read"]}
    read = Counter(bucket for bucket, _number in partitions)
    counts = [read[bucket] for bucket in range(first + 1, last)]
    return Group(
        kind,
        [(number * weather.bucket_s, 100 * count / PARTITIONS) for number, count in enumerate(counts)],
        unread_s=sum(PARTITIONS - count for count in counts) * weather.bucket_s,
        silent_s=counts.count(0) * weather.bucket_s,
        assignments=sum(at_s >= begun_s for it in documents[PAUSED:] for at_s in it[kind]["assigned_s"]),
    )


def table(found: Sequence[Group]) -> Table:
    """The table of all kinds."""
    columns = ["group", "partition-seconds unread", "seconds without any reading", "assignments of the healthy"]
    rows = [[it.kind, number_text(it.unread_s), number_text(it.silent_s), str(it.assignments)] for it in found]
    return Table(columns, rows)


def figure(found: Sequence[Group]) -> LineChart:
    """Draw the share of the partitions that are read, over time."""
    return LineChart(
        "Three of six members miss their heartbeats, one after the other",
        "seconds",
        "partitions that are read, %",
        [Line(it.kind, [Point(*share) for share in it.shares]) for it in found],
        note=quick_note(),
    )


def reading(found: Sequence[Group], weather: Weather) -> list[str]:
    """Explain the figures."""
    eager, static, cooperative, new = found
    return [
        f"Each paused member owned {SHARE} partitions, so at best "
        f"{PAUSED * weather.pause_s * SHARE:g} partition-seconds pass unread if nobody takes them over, "
        f"and {PAUSED * weather.session_s * SHARE:g} if others take them over when the session ends.",
        f"Eager: {number_text(eager.unread_s)} partition-seconds unread, and no partition was read for "
        f"{number_text(eager.silent_s)} s. Everybody gives up everything before a rebalance and waits for the slowest "
        f"member, which is paused; when its session ends, the next one is paused.",
        f"Static members with a session of {weather.long_session_s:g} s: {number_text(static.unread_s)} unread. Nobody "
        f"else notices the pauses, and nobody takes the partitions over. A member that is really gone would be missed "
        f"for {weather.long_session_s:g} s.",
        f"Cooperative: {number_text(cooperative.unread_s)} unread, {number_text(cooperative.silent_s)} s without any "
        f"reading. Members read on while the rebalance waits, but the partitions of the lost member wait, too.",
        f"KIP-848: {number_text(new.unread_s)} unread, {number_text(new.silent_s)} s without any reading. There is no "
        f"barrier: a partition moves as soon as its owner's session ends, whoever else is paused.",
    ]


LABS = [Lab("storm", "06", "who keeps reading while members miss heartbeats, in four kinds of groups", run_storm)]
