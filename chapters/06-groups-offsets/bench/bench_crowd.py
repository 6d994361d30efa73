"""One group of a thousand members and a thousand partitions: the time until it is stable, and the cost of one leave.

All members live in one program with a connection each. They do what clients do: a classic member that learns of a
rebalance joins again; an eager one gives up its partitions first, a cooperative one reads on. A member of the new
protocol only sends heartbeats. A pause is the time in which a member owned nothing, although it stayed in the group.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.wires import Crowd, Traffic, Wire, find_coordinator, no_errors

from minibroker.bench import BarChart, BarRow, Benchmark, Case, Context, Fact, Results, children, scaled
from minibroker.bench.context import quick_note
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.groups.client_assignors import CLIENT_ASSIGNORS, Subscriber
from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.groups.tables.consumer_group_heartbeat import (
    LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.leave_group import LeaveGroupRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

IS_LONG = True

TOPIC = "orders"
EAGER, COOPERATIVE, NEW = "classic, eager", "classic, cooperative", "KIP-848"
ASSIGNORS = {EAGER: "range", COOPERATIVE: "cooperative-sticky"}
HEARTBEAT_S = scaled(full=1.0, quick=0.1)
_STABLE_S_MAX = 180.0
_LOOK_S = 0.02
_JOIN_VERSION, _VERSION = 3, 3


class Member:
    """A member of the group: its partitions, and the times in which it had none."""

    def __init__(self, group: "Group", number: int, wire: Wire) -> None:
        self.group, self.number, self.wire = group, number, wire
        self.owned: frozenset[int] = frozenset()
        self.pause_s = 0.0
        self._begun_s = time.monotonic()

    def own(self, partitions: frozenset[int]) -> None:
        """Own these partitions from now on."""
        now_s = time.monotonic()
        if not self.owned and partitions:
            self.pause_s += now_s - self._begun_s
        if self.owned and not partitions:
            self._begun_s = now_s
        self.owned = partitions

    async def run(self) -> None:
        """Join, and stay in the group until the task is cancelled."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group."""
        raise NotImplementedError


class ClassicMember(Member):
    """A member of the classic protocol."""

    _id, _generation = "", -1

    async def run(self) -> None:
        """Join; send heartbeats; join again when the group rebalances."""
        is_joining = True
        while True:
            if is_joining:
                is_joining = not await self._join()
            await asyncio.sleep(0 if is_joining else HEARTBEAT_S * random.uniform(0.9, 1.1))
            if not is_joining:
                beat = HeartbeatRequest(group_id=self.group.name, generation_id=self._generation, member_id=self._id)
                is_joining = (await self.wire.ask(beat, _VERSION)).error_code != ErrorCode.NONE

    async def _join(self) -> bool:
        """Join and sync; return whether this member has its place now."""
        if self.group.kind == EAGER:
            self.own(frozenset())
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=120_000,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=ASSIGNORS[self.group.kind], metadata=self._subscription())],
        )
        joined = await self.wire.insist(request, _JOIN_VERSION)
        no_errors([joined])
        self._id, self._generation = joined.member_id, joined.generation_id
        given = self._assignments(joined) if joined.leader == self._id else []
        sync = SyncGroupRequest(
            group_id=self.group.name, generation_id=self._generation, member_id=self._id, assignments=given
        )
        synced = await self.wire.ask(sync, _VERSION)
        if synced.error_code != ErrorCode.NONE:
            return False
        found = decode_assignment(synced.assignment).assigned_partitions
        partitions = frozenset(number for it in found for number in it.partitions)
        lost = self.owned - partitions
        self.own(partitions)
        # A cooperative member that has given up partitions joins again, so that others can have them.
        return not lost or self.group.kind == EAGER

    def _subscription(self) -> bytes:
        owned = [OwnedTopicPartitions(topic=TOPIC, partitions=sorted(self.owned))] if self.owned else []
        return encode_subscription(
            ConsumerProtocolSubscription(topics=[TOPIC], owned_partitions=owned, generation_id=self._generation)
        )

    def _assignments(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        """The leader's work."""
        members = {it.member_id: subscriber_of(it.metadata) for it in joined.members}
        assigned = CLIENT_ASSIGNORS[joined.protocol_name](members, {TOPIC: self.group.partitions})
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment_of(partitions))
            for member_id, partitions in assigned.items()
        ]

    async def leave(self) -> None:
        """Leave the group."""
        await self.wire.ask(LeaveGroupRequest(group_id=self.group.name, member_id=self._id), 1)


class NewMember(Member):
    """A member of the new protocol."""

    _epoch = 0
    _topic_id = bytes(16)

    async def run(self) -> None:
        """Send heartbeats, and say what it owns when that has changed."""
        has_changed = True
        while True:
            has_changed = await self._beat(says_owned=has_changed)
            # What was given up or taken over is told at once.
            await asyncio.sleep(0 if has_changed else HEARTBEAT_S * random.uniform(0.9, 1.1))

    async def _beat(self, *, says_owned: bool) -> bool:
        is_joining = self._epoch == 0
        owned = [HeartbeatTopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name,
            member_id=f"member-{self.number}",
            member_epoch=self._epoch,
            rebalance_timeout_ms=120_000 if is_joining else -1,
            subscribed_topic_names=[TOPIC] if is_joining else None,
            topic_partitions=owned if says_owned else None,
        )
        answer = await self.wire.insist(request, 1)
        no_errors([answer])
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        for it in answer.assignment.topic_partitions:
            self._topic_id = it.topic_id
        found = frozenset(number for it in answer.assignment.topic_partitions for number in it.partitions)
        has_changed = found != self.owned
        self.own(found)
        return has_changed

    async def leave(self) -> None:
        """Leave the group."""
        name = f"member-{self.number}"
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group.name, member_id=name, member_epoch=LEAVE_EPOCH, topic_partitions=None
        )
        await self.wire.ask(request, 1)


def subscriber_of(metadata: bytes) -> Subscriber:
    """What the leader knows of a member."""
    found = decode_subscription(metadata)
    owned = tuple(TopicPartition(it.topic, number) for it in found.owned_partitions for number in it.partitions)
    return Subscriber(frozenset(found.topics), owned, found.generation_id)


def assignment_of(partitions: Sequence[TopicPartition]) -> bytes:
    """The bytes for one member."""
    given = [AssignedTopicPartitions(topic=TOPIC, partitions=[it.partition for it in partitions])] if partitions else []
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=given))


class Cost(NamedTuple):
    """The cost of a change of the group."""

    seconds: float
    broker_cpu_s: float
    own_cpu_s: float
    requests: int
    bytes_count: int
    pause_s: float  # the longest of all members that stayed


class Group:
    """A crowd in one group on a broker of its own."""

    def __init__(self, context: Context, kind: str, count: int) -> None:
        self.kind, self.partitions, self.name = kind, count, "crowd"
        self._server = children.serve(
            context,
            # All members come within the delay, as when a large service is started.
            f"group.initial.rebalance.delay.ms={scaled(full=3000, quick=0)}",
            f"max.connections={2 * count}",
            "group.consumer.max.size=2147483647",
            "group.consumer.min.heartbeat.interval.ms=1000",
            "group.consumer.heartbeat.interval.ms=1000",
            name=f"data-{ASSIGNORS.get(kind, 'consumer')}",
        )
        with Client(self._server.address) as client:
            create_topics(client, [NewTopic(TOPIC, count, 1)])
        self._crowd = Crowd(context)
        self._crowd.run(find_coordinator(self._server.address, self.name))
        self._crowd.connect(self._server.address, count)
        kind_of_member = NewMember if kind == NEW else ClassicMember
        self._members = [kind_of_member(self, number, wire) for number, wire in enumerate(self._crowd.wires)]
        self._tasks: dict[Member, asyncio.Task[None]] = {}

    def measure(self) -> tuple[Cost, Cost]:
        """The cost until all have joined, and the cost of one leave."""
        return self._crowd.run(self._measure())

    async def _measure(self) -> tuple[Cost, Cost]:
        joined = await self._cost(self._join)
        await asyncio.sleep(HEARTBEAT_S)
        left = await self._cost(self._leave)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return joined, left

    async def _join(self) -> None:
        for member in self._members:
            self._tasks[member] = asyncio.get_running_loop().create_task(member.run())

    async def _leave(self) -> None:
        # Not the leader: the first member that came leads a classic group.
        member = self._members.pop(len(self._members) // 2)
        self._tasks.pop(member).cancel()
        for other in self._members:
            other.pause_s = 0.0
        await member.leave()

    async def _cost(self, change: Any) -> Cost:
        traffic, cpu_s, own_s = self._crowd.traffic, self._server.cpu_s(), time.process_time()
        begun_s, before = time.monotonic(), Traffic(traffic.requests, traffic.bytes_count)
        await change()
        while not self._is_stable():
            failed = next((it for it in self._tasks.values() if it.done()), None)
            if failed is not None:
                failed.result()
            if time.monotonic() - begun_s > _STABLE_S_MAX:
                raise TimeoutError(f"{self.kind}: not stable within {_STABLE_S_MAX:g} s")
            await asyncio.sleep(_LOOK_S)
        return Cost(
            time.monotonic() - begun_s,
            self._server.cpu_s() - cpu_s,
            time.process_time() - own_s,
            traffic.requests - before.requests,
            traffic.bytes_count - before.bytes_count,
            max(member.pause_s for member in self._members),
        )

    def _is_stable(self) -> bool:
        """Every partition has an owner; nobody waits for one in vain."""
        return sum(len(member.owned) for member in self._members) == self.partitions and all(
            member.owned for member in self._members
        )

    def stop(self) -> None:
        """Free the machine for the next kind."""
        self._server.stop()


def facts_of(kind: str, find: Any) -> list[Fact]:
    """The figures of one kind of group."""

    def fact(name: str, unit: str, which: int, field: str) -> Fact:
        return Fact(f"{kind}: {name}", unit, lambda: float(getattr(find(kind)[which], field)))

    others = fact("one leaves: longest pause of the others", "s", 1, "pause_s")
    return [
        fact("all join: until stable", "s", 0, "seconds"),
        fact("all join: CPU time of the broker", "s", 0, "broker_cpu_s"),
        fact("all join: CPU time of all clients", "s", 0, "own_cpu_s"),
        fact("one leaves: until stable", "s", 1, "seconds"),
        Fact(others.name, others.unit, others.find, at_most=0.001) if kind == NEW else others,
        fact("one leaves: CPU time of the broker", "s", 1, "broker_cpu_s"),
        fact("one leaves: requests", "", 1, "requests"),
        fact("one leaves: bytes", "", 1, "bytes_count"),
    ]


def benchmark(context: Context) -> Benchmark:
    count = scaled(full=1000, quick=6)
    kinds = (EAGER, COOPERATIVE, NEW)
    found: dict[str, tuple[Cost, Cost]] = {}
    for number, kind in enumerate(kinds, start=1):
        context.progress(number, len(kinds), kind)
        group = Group(context, kind, count)
        found[kind] = group.measure()
        group.stop()

    def figure(_results: Results) -> BarChart:
        rows = [
            BarRow(kind, getattr(found[kind][which], field), group=heading)
            for heading, which, field in (
                ("all join: seconds until stable", 0, "seconds"),
                ("one leaves: seconds until stable", 1, "seconds"),
                ("one leaves: longest pause of the others, seconds", 1, "pause_s"),
            )
            for kind in kinds
        ]
        return BarChart(f"A group of {count:,} members", "seconds", rows, note=quick_note())

    def lead() -> None:
        members = {f"member-{it}": Subscriber(frozenset([TOPIC])) for it in range(count)}
        CLIENT_ASSIGNORS["range"](members, {TOPIC: count})

    return Benchmark(
        f"A group of {count:,} members and {count:,} partitions",
        [Case("the leader's assignor, range", lead, operations_count=1)],
        metric="ms_per_op",
        columns=["ms_per_op"],
        figure=figure,
        facts=[fact for kind in kinds for fact in facts_of(kind, found.__getitem__)],
        note=f"Heartbeats every {HEARTBEAT_S:g} s; those of the time of a change are counted with it.",
    )
