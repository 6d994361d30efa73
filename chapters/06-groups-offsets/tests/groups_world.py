"""The world of consumer groups: coordinators may move, members may come, go and hang, and no commit is lost or stolen.

    python -m minibroker.simulation groups_world --path chapters/06-groups-offsets/tests --seeds 1000

(with the tests of chapter 04 on PYTHONPATH). The nodes and the controller are those of chapter 04's world. The
replicated partition is one of `__consumer_offsets`, and its leader runs this chapter's coordinators. Members of both
protocols join, commit, crash, pause past their session, leave and come back. `groups_watch` lists the invariants; those
of chapter 04's replication hold as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from random import Random
from typing import Any, ClassVar

import replication_world
from consumer_driver import image_of
from groups_clients import ClassicMember, ConsumerMember, Member, Observer, Plan
from groups_cluster import COMMIT_WHILE_LOADING, Asked, Node, new_shard, records_of
from groups_sessions import SESSION_STATES, Beat, SessionAuthority, heartbeat_request
from groups_watch import Broken, DurableGroups, differences, is_stable
from partition_watch import LEADER_CHANGES, PARTITION_DISASTER_STATES, SomeStates
from simulated_machine import Wire

from minibroker.coordinators.access import ROWS
from minibroker.groups.classic import ClassicGroup
from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.keys import GroupSettings, MigrationPolicy
from minibroker.groups.records import encode_key
from minibroker.groups.shard import GroupShard
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.partitions.access import Access
from minibroker.quorum.access import ROWS as QUORUM_ROWS
from minibroker.replication.replica import Replica
from minibroker.simulation import cluster
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.host import DEATH
from minibroker.simulation.scheduler import Action
from minibroker.simulation.trace import NOTE
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

ACKS_MIN = 500
CALM_MS_MIN, CALM_MS_MAX = 6_000, 90_000
COMMIT_TIMEOUT_MS = 1500
SLACK_MS = 1000
OPERATOR_MS = 15_000
REFUSED = {
    ErrorCode.ILLEGAL_GENERATION: "commit of an old generation refused",
    ErrorCode.UNKNOWN_MEMBER_ID: "commit of a removed member refused",
    ErrorCode.FENCED_INSTANCE_ID: "commit of a replaced static member refused",
    ErrorCode.REBALANCE_IN_PROGRESS: "commit in the middle of a rebalance refused",
    ErrorCode.NOT_COORDINATOR: "commit at a node that does not coordinate",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "commit that was not replicated in time",
}


def any_member(chance: Random) -> tuple[int]:
    """Draw a member."""
    return (chance.randrange(cluster.ANY),)


class World(replication_world.World):
    """Three to five nodes, two or three groups, up to ten members."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        "truncation",
        *LEADER_CHANGES[:2],
        DEATH,
        "coordinator loaded",
        "coordinator resigned with requests under way",
        "group became one of the new protocol",
        "group became a classic one",
        "classic generation",
        "static member replaced",
        "static member fenced",
        "member does not sync",
        "member does not give up partitions",
        "partitions given up (cooperative)",
        "partitions given up (new protocol)",
        "leader joins again, a topic has grown",
        "offsets from a coordinator that was replaced",
        COMMIT_WHILE_LOADING,
        *REFUSED.values(),
        *SESSION_STATES,
        *PARTITION_DISASTER_STATES,
    )
    WIRE: ClassVar[Wire] = {
        **replication_world.World.WIRE,
        Asked: lambda it: it.request,
        Beat: lambda it: heartbeat_request(it.broker_id),
    }
    ROWS: ClassVar[Mapping[ApiKey, Access]] = {**replication_world.World.ROWS, **QUORUM_ROWS, **ROWS}
    KINDS: ClassVar[tuple[Kind, ...]] = (
        cluster.KILL,
        cluster.POWER_CUT,
        cluster.die_in_mid_write(changes_max=12, weight=1),
        cluster.RESTART,
        cluster.PAUSE,
        cluster.ISOLATE,
        cluster.SLOW,
        Kind("elect", cluster.any_node, weight=4),
        Kind("break client links", cluster.any_node, weight=2),
        Kind("cut member", lambda chance: (*any_member(chance), *cluster.any_node(chance)), (300, 4000), 2),
        Kind("crash member", any_member, (50, 4000), 4),
        Kind("pause member", any_member, (300, 6000), 4),
        Kind("leave member", any_member, (100, 4000), 4),
        Kind("stuck member", any_member, (2000, 12_000), 3),
        Kind("twin", any_member, weight=3),
        Kind("grow topic", any_member, weight=2),
    )

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All nodes are up, the first one leads, and the members start one after the other."""
        self.states = SomeStates(self.STATES)
        chance = self.chance("build")
        size = chance.choice((3, 3, 3, 3, 3, 5))
        self.lag_ms_max = chance.choice((800, 1500))
        self.reaction_ms = chance.choice((200, 600))
        self.fetch_bytes = (1 << 20,)
        self.watch_partition(
            TopicConfig({"min.insync.replicas": "2", "internal.segment.bytes": chance.choice(("20000", "1000000"))})
        )
        self.settings = self._draw_settings(chance)
        self.numbers = count(1)
        self.counts = {"__consumer_offsets": 1, "t1": chance.choice((2, 3, 5)), "t2": chance.choice((1, 3))}
        self.image = image_of(1, **self.counts)
        self.durable = DurableGroups(self.new_shard(str, self.image), self.states)
        self.assigned_counts: dict[str, Mapping[str, int]] = {}
        self._add_nodes(size)
        self._add_members(chance)
        self.scheduler.after(self.reaction_ms, self._operate)
        self.scheduler.after(500, self._check_parked)

    def _draw_settings(self, chance: Random) -> GroupSettings:
        return replace(
            GroupSettings.of(NodeConfig()),
            session_timeout_ms_min=500,
            initial_rebalance_delay_ms=chance.choice((0, 300, 1000)),
            new_member_join_timeout_ms=6000,
            consumer_session_timeout_ms=chance.choice((1500, 3000)),
            consumer_heartbeat_interval_ms=300,
            consumer_assignment_interval_ms=chance.choice((0, 0, 500)),
            migration_policy=MigrationPolicy.BIDIRECTIONAL,
            append_timeout_ms=COMMIT_TIMEOUT_MS,
        )

    def _add_nodes(self, size: int) -> None:
        self.incarnations = count(size + 1)
        self.authority: SessionAuthority = SessionAuthority(self)
        self.brokers = {number: Node(self, number, self.config) for number in range(1, size + 1)}
        self.members = dict(self.brokers)
        self.nodes = dict(self.brokers)
        for node_id, node in self.nodes.items():
            node.kept_broker_epoch = self.authority.register(node_id)
        self.authority.create(list(self.nodes), **{"min.insync.replicas": "2"})
        for node in self.nodes.values():
            node.start()

    def _add_members(self, chance: Random) -> None:
        self.rebalance_ms_max = 0
        self.crowd: list[Member] = []
        self.owed: set[str] = set()
        kinds = chance.sample(("eager", "cooperative", "static", "consumer", "consumer static", "mixed"), 2)
        for number, kind in enumerate(kinds, 1):
            self._add_group(f"g{number}-{kind.replace(' ', '-')}", kind, chance)
        self.group_ids = list(dict.fromkeys(it.plan.group_id for it in self.crowd))
        self.observer = Observer(self, "observer", self.group_ids)
        for it in self.crowd:
            self.scheduler.after(chance.randrange(3000), it.start)

    def _add_group(self, group_id: str, kind: str, chance: Random) -> None:
        eager = chance.choice((("range",), ("roundrobin",), ("sticky", "range")))
        plan = Plan(
            group_id,
            topics=chance.choice((("t1",), ("t1", "t2"))),
            assignors=eager,
            session_ms=chance.choice((1000, 2000, 3000)),
            rebalance_ms=chance.choice((1000, 2000, 3000)),
            version=chance.choice((3, 4, 9)),
        )
        self.rebalance_ms_max = max(self.rebalance_ms_max, plan.rebalance_ms)
        size = chance.choice((2, 3, 4))
        for number in range(1, size + 1):
            self.crowd.append(self._new_member(f"{group_id[:2]}m{number}", plan, kind, number, chance))

    def _new_member(self, name: str, plan: Plan, kind: str, number: int, chance: Random) -> Member:
        cooperative = plan._replace(assignors=("cooperative-sticky",), version=9)
        consumer = plan._replace(assignors=chance.choice(((), ("range",), ("uniform",))))
        match kind:
            case "eager":
                return ClassicMember(self, name, plan)
            case "cooperative":
                return ClassicMember(self, name, cooperative)
            case "static":
                is_static = number > 1 or chance.random() < 0.5
                either = cooperative if "t2" in plan.topics else plan
                instance_id = f"i-{name}" if is_static else None
                return ClassicMember(self, name, either._replace(instance_id=instance_id, version=9))
            case "consumer":
                regex = "t.*" if "t2" in plan.topics and chance.random() < 0.5 else None
                topics = () if regex else plan.topics
                return ConsumerMember(self, name, consumer._replace(regex=regex, topics=topics))
            case "consumer static":
                return ConsumerMember(self, name, consumer._replace(instance_id=f"i-{name}"))
            case _:
                # All classic members of a group give up their partitions in the same way.
                either = cooperative if "t2" in plan.topics else plan._replace(assignors=("range",))
                instance_id = f"i-{name}" if chance.random() < 0.3 else None
                if number % 2 == 0:
                    return ConsumerMember(self, name, consumer._replace(instance_id=instance_id))
                return ClassicMember(self, name, either._replace(instance_id=instance_id, version=9))

    @cached_property
    def session_ms(self) -> int:
        """How long a node may be silent before the controller fences it."""
        return self.chance("sessions").choice((1000, 2000))

    def answering(self) -> list[int]:
        """The controller knows by the sessions which nodes answer."""
        return self.live()

    def new_shard(self, new_member_id: Callable[[str], str], image: Image) -> GroupShard:
        """An empty shard."""
        return new_shard(self.settings, new_member_id, image)

    # What nodes and clients report ------------------------------------------------------------------------------------

    def guess_leader(self, chance: Random) -> Any:
        """The node that a client takes for the coordinator, which is mostly right."""
        return super().guess_leader(chance)

    def on_durable(self, replica: Replica) -> None:
        """The high watermark of the leader has moved: read the records that it has passed."""
        for record, offset in records_of(replica, self.durable.end, replica.high_watermark):
            before = self.durable.group(record.key.group_id)
            self.durable.take(record, offset)
            self._reach_group(before, self.durable.group(record.key.group_id))

    def _reach_group(self, before: Any, after: Any) -> None:
        if before is None and isinstance(after, ConsumerGroup) and any(it.classic for it in after.members.values()):
            self.states.reach("group became one of the new protocol")
        elif isinstance(before, ConsumerGroup) or after is None or isinstance(after, ConsumerGroup):
            return
        elif before is None and after.members:
            self.states.reach("group became a classic one")
        elif before is not None and before.generation < after.generation:
            self.states.reach("classic generation")
        elif before is not None and before is not after and before.generation == after.generation and after.members:
            self.states.reach("static member replaced")

    def on_resigned(self, node: Node) -> None:
        """A node stops coordinating."""
        if node.outstanding:
            self.states.reach("coordinator resigned with requests under way")

    def on_commit_refused(self, code: ErrorCode) -> None:
        """A commit was refused."""
        if code in REFUSED:
            self.states.reach(REFUSED[code])

    def on_fenced(self, member: Member) -> None:
        """A process has lost its instance id to another one. If it was the last one, it is started again."""
        twins = [it for it in self.crowd if it.plan == member.plan and it.name[:4] == member.name[:4]]
        if any(it is not member and it.process.is_alive for it in twins):
            self.crowd.remove(member)
        else:
            self.scheduler.after(500, member.start)

    def on_join_owed(self, member: ClassicMember) -> None:
        """A static member has given up partitions and ends before it has joined again.

        Its successor gets the same assignment. If the coordinator moves as well, no node and no client knows that the
        partitions have no owner: in Kafka, too, they wait for the next rebalance.
        """
        self.owed.add(member.plan.group_id)

    def _settle_owed(self) -> None:
        """An operator lets such groups rebalance."""
        for it in self.crowd:
            if it.plan.group_id in self.owed and isinstance(it, ClassicMember) and it.process.is_alive:
                it.process.run(it.join_if_stable)

    def partition_counts(self) -> dict[str, int]:
        """The topics as clients see them."""
        return dict(self.counts)

    def has_grown(self, group_id: str) -> bool:
        """Whether a topic has grown since the leader of a group has made the assignment."""
        return self.assigned_counts.get(group_id) not in (None, self.counts)

    # Faults -----------------------------------------------------------------------------------------------------------

    def member_hit(self, fault: Fault) -> Member:
        """The member that a fault hits."""
        return self.crowd[int(fault.arguments[0]) % len(self.crowd)]

    def on_crash_member(self, fault: Fault) -> Action:
        """A member dies without a word, and is started again."""
        member = self.member_hit(fault)
        member.end("crash")
        return partial(self._restart, member)

    def _restart(self, member: Member) -> None:
        if member in self.crowd:
            member.start()

    def on_leave_member(self, fault: Fault) -> Action | None:
        """A member leaves, and comes back."""
        member = self.member_hit(fault)
        if not member.process.is_alive:
            return None
        member.process.run(member.leave)
        stop = self.scheduler.after(40, partial(member.end, "left"))

        def come_back() -> None:
            stop.cancel()
            member.end("left")
            self._restart(member)

        return come_back

    def on_pause_member(self, fault: Fault) -> Action:
        """A member hangs, perhaps past its session. When it goes on, it commits first, as a zombie does."""
        member = self.member_hit(fault)
        member.process.pause()
        if member.process.is_paused:
            member.process.run(member.commit)
        return member.process.resume

    def on_stuck_member(self, fault: Fault) -> Action:
        """A member joins again, and does not come to its next step, though its heartbeats go on."""
        member = self.member_hit(fault)
        member.is_stuck = True
        if isinstance(member, ClassicMember) and member.process.is_alive:
            member.process.run(member.join_if_stable)

        def end() -> None:
            member.is_stuck = False

        return end

    def on_twin(self, fault: Fault) -> None:
        """A static member is started a second time while the first process still runs."""
        member = self.member_hit(fault)
        if isinstance(member, ClassicMember) and member.plan.instance_id is not None and member.process.is_alive:
            twin = ClassicMember(self, f"{member.name}-{fault.at_ms}", member.plan)
            self.crowd.append(twin)
            twin.start()

    def on_cut_member(self, fault: Fault) -> Action:
        """A member and a node do not hear each other."""
        member, node = self.member_hit(fault), self.nodes[1 + int(fault.arguments[1]) % len(self.nodes)]
        ends = [self.network.cut(member.name, node.name), self.network.cut(node.name, member.name)]

        def heal() -> None:
            for end in ends:
                end()

        return heal

    def on_grow_topic(self, fault: Fault) -> None:
        """A topic gets another partition, or there is a new topic. Each node learns of it in its time."""
        name = ("t1", "t2", "t3")[int(fault.arguments[0]) % 3]
        self.counts = {**self.counts, name: self.counts.get(name, 0) + 1}
        self.image = image_of(self.image.offset + 1, **self.counts)
        chance = Random(int(fault.arguments[0]))
        for node in self.brokers.values():
            node.process.after(chance.randrange(400), partial(node.on_metadata, self.image))

    def on_pause(self, fault: Fault) -> Action:
        """A node hangs; its time limits end late."""
        node = self.brokers[self.host_hit(fault).node_id]
        end = super().on_pause(fault)

        def resume() -> None:
            node.resumed_ms = self.scheduler.now_ms
            end()

        return resume

    def _check_parked(self) -> None:
        """No request waits longer than the rebalance timeout, and most of them much shorter."""
        self.scheduler.after(500, self._check_parked)
        now_ms = self.scheduler.now_ms
        for node in self.brokers.values():
            if not node.process.is_alive or node.process.is_paused:
                continue
            for since_ms, asked in node.outstanding.values():
                waits = isinstance(asked.request, JoinGroupRequest | SyncGroupRequest)
                limit_ms = COMMIT_TIMEOUT_MS + SLACK_MS + (self.rebalance_ms_max if waits else 0)
                waited_ms = now_ms - max(since_ms, node.resumed_ms)
                if waited_ms > limit_ms:
                    raise Broken(23, f"{node.name} has let {asked} wait for {waited_ms} ms")

    # The end ----------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        try:
            super().play()
        finally:
            # Tasks that have not begun would complain when they are forgotten.
            for process in self.loop_processes():
                process.loop.drop_tasks()

    def loop_processes(self) -> list[Any]:
        """The processes that run tasks."""
        return [it.process for it in self.brokers.values()]

    def heal(self) -> None:
        super().heal()
        for node in self.brokers.values():
            node.process.run(partial(node.on_metadata, self.image))
        for member in list(self.crowd):
            member.is_stuck = False
            member.process.resume()
            member.start()
        self.scheduler.after(OPERATOR_MS, self._settle_owed)

    def wait_for_recovery(self) -> None:
        """Run until every group is stable, each partition has one owner, and enough commits were acknowledged."""
        healed_ms = self.scheduler.now_ms
        limit_ms = healed_ms + CALM_MS_MAX

        def too_early() -> str:
            is_enough = self.scheduler.now_ms >= healed_ms + CALM_MS_MIN and self.history.acks >= ACKS_MIN
            return "" if is_enough else f"only {self.history.acks} acks: {self.missing()}"

        self.run_until(too_early, limit_ms=limit_ms, step_ms=500)
        self.run_until(self.missing, limit_ms=limit_ms)

    def missing(self) -> str:
        """What has not recovered yet."""
        it = self.partition
        node = self.brokers.get(it.leader)
        if node is None or set(it.isr) != set(it.replicas):
            return f"node {it.leader} leads, {list(it.isr)} of {list(it.replicas)} are in sync"
        if node.shard is None:
            return f"node {it.leader} does not coordinate"
        waiting = [str(one.asked) for one in node.outstanding.values() if self.scheduler.now_ms - one.since_ms > 1000]
        if waiting:
            return f"{waiting} wait"
        return next((found for it in self.group_ids if (found := self._missing_in(it, node.shard))), "")

    def _missing_in(self, group_id: str, shard: GroupShard) -> str:
        group = shard.group(group_id)
        if not is_stable(group):
            return f"group {group_id} is {group.state.value if group else 'not there'}"
        members = [it for it in self.crowd if it.plan.group_id == group_id]
        unsettled = [it.name for it in members if not it.process.is_alive or not it.is_settled()]
        if unsettled:
            return f"{unsettled} of {group_id} are not settled"
        found = group.members() if isinstance(group, ClassicGroup) else group.members if group is not None else ()
        if len(found) != len(members):
            return f"{group_id} has {len(found)} members, of {[it.name for it in members]}"
        matching = [it for it in self.counts if it.startswith("t")]
        topics = {topic for it in members for topic in it.plan.topics or matching}
        wanted = sorted((topic, number) for topic in topics for number in range(self.counts[topic]))
        owned = sorted(tuple(partition) for it in members for partition in it.owned)
        return "" if owned == wanted else f"{group_id} owns {owned} of {wanted}"

    def finish(self) -> None:
        """Compare all logs; read the whole log, and what compaction would leave of it, and compare the groups."""
        node = self.brokers[self.partition.leader]
        assert node.replica is not None
        assert node.shard is not None
        self.scheduler.run(self.scheduler.now_ms + 50)
        records = records_of(node.replica, 0, node.replica.log.log_end_offset)
        last = {encode_key(record.key): offset for record, offset in records}
        for kept in (records, [(it, offset) for it, offset in records if last[encode_key(it.key)] == offset]):
            cold = self.new_shard(str, self.image)
            for record, offset in kept:
                cold.replay(record, offset)
            for group_id in self.group_ids:
                found = differences(group_id, node.shard, cold)
                if found:
                    raise Broken(22, f"group {group_id}, from {len(kept)} records: {found}")
        self.trace.happened("observer", NOTE, f"{len(records)} records")
