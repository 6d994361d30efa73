"""The cost of many groups that do nothing: a thousand groups on one node, with one member each, which sends heartbeats.

Each member has a connection of its own. The connections are open before the memory is measured the first time, so the
memory of a group is that of its state. The heartbeats come as often as clients send them by default: every 5 s in the
new protocol, every 3 s in the classic one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import NamedTuple

from bench.wires import Crowd, Wire, find_coordinator, framed, no_errors

from minibroker.bench import KIB, Benchmark, Case, Context, Fact, children, scaled
from minibroker.bench.launcher import Server, resident_bytes
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.groups.subscription import ConsumerProtocolSubscription, encode_subscription
from minibroker.groups.tables.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.wire.schema import Request

TOPIC = "orders"
NEW, CLASSIC = "KIP-848", "classic"
EVERY_S = {NEW: 5.0, CLASSIC: 3.0}
CORE_PERCENT_MAX = 15
GROUP_BYTES_MAX = 20 * KIB


class Beat(NamedTuple):
    """The heartbeat of a member that has joined."""

    request: Request
    version: int


Join = Callable[[int, Wire], Awaitable[Beat]]


class IdleGroups:
    """A broker with many groups of one kind."""

    def __init__(self, context: Context, kind: str, count: int) -> None:
        self.kind = kind
        settings = ("group.initial.rebalance.delay.ms=0", f"max.connections={2 * count}")
        self.server: Server = children.serve(context, *settings, name=f"data-{kind}")
        with Client(self.server.address) as client:
            create_topics(client, [NewTopic(TOPIC, 1, 1)])
        self.crowd = Crowd(context)
        self.crowd.run(find_coordinator(self.server.address, "first"))
        self.crowd.connect(self.server.address, count)
        join = join_new if kind == NEW else join_classic
        # The first groups make the broker load code and grow its tables.
        warm = min(20, count // 10)
        self.beats = [self.crowd.run(join(number, wire)) for number, wire in enumerate(self.crowd.wires[:warm])]
        before = resident_bytes(self.server.pid)
        self.beats += self.crowd.run(self._join_others(join, warm))
        self.group_bytes = (resident_bytes(self.server.pid) - before) / (count - warm)
        self._frames = [framed(*beat) for beat in self.beats]

    async def _join_others(self, join: Join, first: int) -> list[Beat]:
        found = []
        for number, wire in enumerate(self.crowd.wires[first:], start=first):
            found.append(await join(number, wire))
        return found

    def beat_all(self) -> None:
        """Every member sends a heartbeat, all at once."""
        self.crowd.each(lambda number, wire: wire.send(self._frames[number]))

    def check(self) -> None:
        """Every member is still a member."""
        no_errors(self.crowd.each(lambda number, wire: wire.ask(*self.beats[number])))

    @cached_property
    def core_percent(self) -> float:
        """The share of a core that the broker uses while heartbeats come evenly."""
        rounds = scaled(full=4, quick=1)
        every_s = scaled(full=EVERY_S[self.kind], quick=0.5)
        begun_s, cpu_s = time.monotonic(), self.server.cpu_s()
        self.crowd.run(self._beat_evenly(rounds, every_s))
        return 100 * (self.server.cpu_s() - cpu_s) / (time.monotonic() - begun_s)

    async def _beat_evenly(self, rounds: int, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        begun_s, count = loop.time(), len(self._frames)
        for number in range(rounds * count):
            delay_s = begun_s + number * every_s / count - loop.time()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            self.crowd.wires[number % count].send(self._frames[number % count])
        await asyncio.sleep(every_s / count)


async def join_new(number: int, wire: Wire) -> Beat:
    """Join a group of the new protocol."""
    group_id, member_id = f"group-{number}", f"member-{number}"
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    answer = await wire.insist(request, 1)
    no_errors([answer])
    request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=answer.member_epoch)
    return Beat(request, 1)


async def join_classic(number: int, wire: Wire) -> Beat:
    """Join a classic group, in a version that has no second join, and sync."""
    group_id = f"group-{number}"
    metadata = encode_subscription(ConsumerProtocolSubscription(topics=[TOPIC]))
    join = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    joined = await wire.insist(join, 3)
    who = {"group_id": group_id, "member_id": joined.member_id, "generation_id": joined.generation_id}
    given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(30))]
    no_errors([joined, await wire.ask(SyncGroupRequest(**who, assignments=given), 3)])
    return Beat(HeartbeatRequest(**who), 3)


def facts_of(groups: IdleGroups) -> list[Fact]:
    """The bounds on CPU time and memory."""
    name = f"{len(groups.beats):,} groups, {groups.kind}"
    return [
        Fact(
            f"{name}: heartbeats only",
            "% of a core",
            lambda: groups.core_percent,
            at_most=CORE_PERCENT_MAX,
        ),
        Fact(f"{name}: memory of a group", "bytes", lambda: groups.group_bytes, at_most=GROUP_BYTES_MAX),
    ]


def case_of(groups: IdleGroups) -> Case:
    """All heartbeats at once."""
    return Case(
        f"heartbeats, {groups.kind}",
        groups.beat_all,
        operations_count=len(groups.beats),
        after=groups.check,
        cpu_s=groups.server.cpu_s,
    )


def benchmark(context: Context) -> Benchmark:
    count = scaled(full=1000, quick=40)
    kinds = [IdleGroups(context, kind, count) for kind in (NEW, CLASSIC)]
    return Benchmark(
        "Groups that do nothing",
        [case_of(groups) for groups in kinds],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op"],
        facts=[fact for groups in kinds for fact in facts_of(groups)],
        note=f"{count:,} groups of one member each, a connection for each; CPU time is the broker's.",
    )
