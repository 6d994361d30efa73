"""The world of transactions: groups copy records exactly once, whatever dies in the middle of it.

    python -m minibroker.simulation transactions_world --path chapters/06-groups-offsets/tests --seeds 1000

(with the tests of chapter 04 on PYTHONPATH). The partitions are those of two output topics, `__consumer_offsets` and
`__transaction_state`, each with its own leader. Copiers of all kinds share the work, die at any step, come back as
zombies, and lose their connections. `groups_watch` and `transactions_watch` list the invariants.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, ClassVar

import groups_world
from groups_clients import Member, Observer, Plan
from groups_cluster import OFFSETS, new_shard
from groups_watch import Broken, is_stable
from groups_world import any_member
from partition_watch import SomeStates
from replication_messages import alter_request, fetch_request
from replication_world import World as ReplicationWorld
from simulated_machine import Wire
from transactions_clients import (
    OLD_VERSION_1,
    VERSION_1,
    VERSION_2,
    ClassicCopier,
    CommittedReader,
    ConsumerCopier,
    Copier,
    LoneCopier,
    MixedCommitter,
    Versions,
)
from transactions_cluster import Broker, Controller, FetchAll, ProposeFor
from transactions_watch import INPUT, MIXED, DurableLog, DurableOffsets, DurableOutput, Outcomes, check_copies

from minibroker.coordinators.access import ROWS
from minibroker.coordinators.placing import partition_of
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.partitions.access import Access
from minibroker.replication.authority import Election, LogEnd
from minibroker.segments.checkpoint import TopicPartition
from minibroker.simulation import cluster
from minibroker.simulation.checker import Violation
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.host import DEATH, DISK_FAILED, DISK_FULL, DISK_UNREADABLE, Host
from minibroker.simulation.scheduler import Action
from minibroker.transactions.keys import TransactionSettings
from minibroker.transactions.logs import TransactionLogs
from minibroker.transactions.tables.write_txn_markers import WriteTxnMarkersRequest
from minibroker.wire.apis import ApiKey

ACKS_MIN = 500
CALM_MS_MIN, CALM_MS_MAX = 6_000, 120_000
CALM_PAUSES_S = (0.6, 0.8)
"""The pauses between the transactions of a copier when all faults are over and enough is acknowledged."""
OUTPUT = "out"
PARKED_MS_MAX = 12_000
MARKERS_MS_MAX = 33_000


class World(groups_world.World):
    """Three nodes, two groups of copiers, and readers of committed records."""

    STATES: ClassVar[tuple[str, ...]] = (
        "truncation",
        DEATH,
        "leader change",
        "partition without a leader",
        "marker waits for a leader",
        "coordinator loaded",
        "coordinator took over decided transactions",
        "abort marker",
        "commit marker",
        "pending offsets moved",
        "pending offsets dropped",
        "pending offset is older than a plain one",
        "verification refused",
        "offsets of an old generation refused",
        "offsets of a removed member refused",
        "producer fenced",
        "transaction of a fenced producer",
        "copier died at a step",
        cluster.ALL_STOPPED,
        DISK_FULL,
        DISK_FAILED,
        DISK_UNREADABLE,
        cluster.RACK_LOST,
    )
    WIRE: ClassVar[Wire] = {
        **groups_world.World.WIRE,
        FetchAll: lambda it: fetch_request(it.replica_id),
        ProposeFor: lambda it: alter_request(it.broker_id),
    }
    ROWS: ClassVar[Mapping[ApiKey, Access]] = {**groups_world.World.ROWS, **ROWS, **TransactionLogs.rows}
    KINDS: ClassVar[tuple[Kind, ...]] = (
        cluster.KILL,
        cluster.POWER_CUT,
        cluster.die_in_mid_write(changes_max=12, weight=1),
        cluster.RESTART,
        cluster.PAUSE,
        cluster.ISOLATE,
        cluster.SLOW,
        Kind("elect", lambda chance: (*cluster.any_node(chance), *cluster.any_node(chance)), weight=5),
        Kind("unlead", cluster.any_node, (200, 3000), 3),
        Kind("break client links", cluster.any_node, weight=2),
        Kind("cut member", lambda chance: (*any_member(chance), *cluster.any_node(chance)), (300, 4000), 2),
        Kind("crash member", any_member, (50, 4000), 2),
        Kind("crash at a step", lambda chance: (*any_member(chance), chance.randrange(12)), weight=4),
        Kind("pause member", any_member, (300, 6000), 4),
        Kind("leave member", any_member, (100, 4000), 2),
        Kind("twin", any_member, weight=3),
    )
    DISASTERS: ClassVar[tuple[Kind, ...]] = (
        cluster.STOP_ALL,
        cluster.FULL_DISK,
        cluster.FAILING_DISK,
        cluster.LOSE_RACK,
    )
    TRIALS: ClassVar[tuple[Kind, ...]] = ()
    VERSIONS: ClassVar[tuple[Versions, ...]] = (OLD_VERSION_1, VERSION_1, VERSION_2, VERSION_2)
    """The versions of producers, of which each group draws one."""
    DELAYS_S: ClassVar[tuple[tuple[float, ...], ...]] = ((0,), (0, 0, 0.1, 0.4), (0, 0, 0, 1.5))
    """How late requests between nodes may be."""

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All nodes are up, each leads some partitions, and the copiers start one after the other."""
        self.states = SomeStates(self.STATES)
        chance = self.chance("build")
        self.lag_ms_max = chance.choice((800, 1500))
        self.reaction_ms = chance.choice((200, 600))
        self.pauses_s = chance.choice(((0.05, 0.5), (0.3, 0.6), (0.4, 0.8)))
        self.transaction_ms = chance.choice((2000, 4000))
        self.watch_partition(
            TopicConfig({"min.insync.replicas": "2", "internal.segment.bytes": chance.choice(("3000", "1000000"))})
        )
        self.settings = self._draw_settings(chance)
        self.transaction_settings = replace(
            TransactionSettings.of(NodeConfig()), abort_interval_ms=chance.choice((300, 1000))
        )
        self.peer_delays_s = self.chance("delays").choice(self.DELAYS_S)
        self.numbers = count(1)
        self._unled: set[TopicPartition] = set()
        """The partitions that get no leader for now."""
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self.rebalance_ms_max = 0
        self.assigned_counts: dict[str, Mapping[str, int]] = {}
        self._create_topics(chance)
        self._watch()
        self._add_copiers(chance)
        self.readers = [CommittedReader(self, name) for name in self.outputs]
        self.scheduler.after(self.reaction_ms, self._operate)
        self.scheduler.after(500, self._check_parked)

    def _create_topics(self, chance: Random) -> None:
        self.incarnations = count(4)
        self.authority: Controller = Controller(self)
        counts = {GROUP_METADATA_TOPIC: 1, TRANSACTION_STATE_TOPIC: chance.choice((1, 2)), OUTPUT: 2}
        self.names = [TopicPartition(topic, number) for topic, count_ in counts.items() for number in range(count_)]
        self.counts = {INPUT: chance.choice((2, 3)), MIXED: 1}
        orders = [chance.sample((1, 2, 3), 3) for _name in range(8)]
        topics = {topic: [orders.pop() for _ in range(count_)] for topic, count_ in counts.items()}
        for topic, count_ in self.counts.items():
            topics[topic] = [[1]] * count_
        self.brokers: dict[int, Broker] = {}  # type: ignore[assignment]
        self.members = self.brokers  # type: ignore[assignment]
        epochs = {number: self.authority.register(number) for number in (1, 2, 3)}
        self.authority.create_topics(topics, {"min.insync.replicas": "2"})
        self.group_ids: list[str] = []
        for number, epoch in epochs.items():
            self.brokers[number] = Broker(self, number, self.config)
            self.brokers[number].kept_broker_epoch = epoch
        self.nodes = dict(self.brokers)

    def _watch(self) -> None:
        self.outcomes = Outcomes(self.states.reach)
        shard = new_shard(self.settings, str, self.image)
        self.durable: DurableOffsets = DurableOffsets(OFFSETS, self.outcomes, shard, self.states)
        self.outputs = {
            name: DurableOutput(name, self.outcomes, self.states.reach) for name in self.names if name.topic == OUTPUT
        }
        others = {name: DurableLog(name, self.outcomes) for name in self.names}
        self.logs: dict[TopicPartition, DurableLog] = {**others, **self.outputs, OFFSETS: self.durable}
        for node in self.brokers.values():
            node.start()

    def _add_copiers(self, chance: Random) -> None:
        self.crowd: list[Member] = []
        self.ended: list[Member] = []
        kinds = chance.sample(("eager", "cooperative", "consumer", "lone"), 2)
        for number, kind in enumerate(kinds, 1):
            self._add_group(f"g{number}-{kind}", kind, chance)
        plan = Plan("mixed", topics=(MIXED,))
        versions = chance.choice(self.VERSIONS)
        self.crowd.append(MixedCommitter(self, "mixed", plan, TopicPartition(MIXED, 0), versions))
        self.group_ids[:] = dict.fromkeys(it.plan.group_id for it in self.crowd)
        self.observer = Observer(self, "observer", self.group_ids)
        for it in self.crowd:
            self.scheduler.after(chance.randrange(2000), it.start)

    def _add_group(self, group_id: str, kind: str, chance: Random) -> None:
        plan = Plan(
            group_id,
            topics=(INPUT,),
            session_ms=chance.choice((1000, 2000)),
            rebalance_ms=chance.choice((1000, 2000)),
            assignors=("cooperative-sticky",) if kind == "cooperative" else ("range",),
        )
        self.rebalance_ms_max = max(self.rebalance_ms_max, plan.rebalance_ms)
        versions = chance.choice(self.VERSIONS)
        for number in range(self.counts[INPUT]):
            self.crowd.append(self._new_copier(f"{group_id[:2]}c{number}", plan, kind, number, versions))

    def _new_copier(self, name: str, plan: Plan, kind: str, number: int, versions: Versions) -> Copier:
        if kind == "lone":
            return LoneCopier(self, name, plan, TopicPartition(INPUT, number), versions)
        made = ConsumerCopier if kind == "consumer" else ClassicCopier
        return made(self, name, plan, name, versions)

    # What is decided --------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:  # type: ignore[override]
        """The controller's metadata."""
        return self.authority.image

    def state_partition(self, transactional_id: str) -> TopicPartition:
        """The partition with the state of a transactional id."""
        size = len(self.image.topics[TRANSACTION_STATE_TOPIC].partitions)
        return TopicPartition(TRANSACTION_STATE_TOPIC, partition_of(transactional_id, size))

    def output_of(self, partition: int, offset: int) -> TopicPartition:
        """Where a record is copied to."""
        return TopicPartition(OUTPUT, (partition + offset) % len(self.outputs))

    def draw_delay(self, line: str, chance: Random) -> tuple[float, bool]:
        """How late a request between nodes is, or its answer.

        A marker may be under way for long, and so may a question about a transaction, or its answer.
        """
        delay_s = chance.choice(self.peer_delays_s)
        return delay_s, line != "markers" and chance.random() >= 0.5

    def guess_leader(self, chance: Random, name: TopicPartition = OFFSETS) -> Any:
        """The node that a client takes for the leader of a partition, which is mostly right."""
        leader = self.authority.image_of(name).leader
        if chance.random() < 0.03:
            leader = chance.choice(list(self.brokers))
        node = self.brokers.get(leader)
        return node if node is not None and node.process.is_alive and node.replica is not None else None

    def check_partition(self) -> None:
        """The controller has decided: each epoch has one leader, which has all committed batches."""
        for name in self.names if self.brokers else ():
            it = self.authority.image_of(name)
            if it.leader < 0:
                self.states.reach("partition without a leader")
                continue
            key = (name, it.leader_epoch)
            if key in self._leaders:
                if self._leaders[key] != it.leader:
                    raise Violation(10, f"{name.directory}: epoch {it.leader_epoch} has two leaders")
                continue
            self._leaders[key] = it.leader
            self.states.reach("leader change")
            node = self.brokers[it.leader]
            if node.replica is not None and name in node.copies:
                copy = node.copies[name]
                missing = self.logs[name].committed.missing(copy.mirror, 0)
                # A node whose power was cut leads nothing before it has registered, and then it leaves the in-sync set.
                if missing is not None and not node.is_diminished:
                    raise Violation(1, f"{node.name} is to lead {name.directory} without {missing}, committed")
        for node in self.brokers.values():
            in_all = all(node.node_id in self.authority.image_of(name).isr for name in self.names)
            node.is_weak = node.is_weak and (not in_all or node.is_diminished or node.is_doomed)

    # The operator -----------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """An operator looks after the cluster: partitions whose leader does not answer get another one, or none."""
        self.scheduler.after(self.reaction_ms, self._operate)
        self.authority.process.run(self._elect_where_needed)
        for node in self.brokers.values():
            sender = node.transactions._sender if node.process.is_alive and node.replica is not None else None
            if sender is not None and any(self.authority.image_of(it.name).leader < 0 for it in sender._due):
                self.states.reach("marker waits for a leader")

    def _elect_where_needed(self) -> None:
        live = self.answering()
        for name in self.names:
            it = self.authority.image_of(name)
            if name in self._unled or it.leader in live:
                continue
            if not it.isr:
                if len(live) == len(self.brokers):
                    self._elect_uncleanly_for(name)
            elif set(it.isr) & set(live):
                self.authority.elect_for([name], live)
            elif it.leader >= 0:
                self.authority.unlead([name])

    def _elect_uncleanly_for(self, name: TopicPartition) -> None:
        """All replicas are there, so the longest log has all records that were promised."""
        ends = {
            node_id: LogEnd(*node.copies[name].mirror.end)
            for node_id, node in self.brokers.items()
            if node.replica is not None
        }
        self.authority.elect_for([name], list(self.brokers), Election.UNCLEAN, ends={name: ends})

    # Faults -----------------------------------------------------------------------------------------------------------

    def partition_hit(self, number: object) -> TopicPartition:
        """The partition that a fault hits."""
        return self.names[int(str(number)) % len(self.names)]

    def on_elect(self, fault: Fault) -> None:
        """A partition gets another leader although the old one works."""
        name = self.partition_hit(fault.arguments[0])
        live = [it for it in self.live() if it in self.authority.image_of(name).isr]
        if live:
            chosen = [live[int(fault.arguments[1]) % len(live)]]
            self.authority.process.run(partial(self.authority.elect_for, [name], chosen))

    def on_unlead(self, fault: Fault) -> Action:
        """A partition has no leader for a while."""
        name = self.partition_hit(fault.arguments[0])
        self._unled.add(name)
        self.authority.process.run(partial(self.authority.unlead, [name]))
        return partial(self._unled.discard, name)

    def on_crash_at_a_step(self, fault: Fault) -> None:
        """A copier dies at one of its next steps."""
        member = self.member_hit(fault)
        assert isinstance(member, Copier)
        member.crash_after = int(fault.arguments[1])

    def on_copier_died(self, copier: Copier, how: str, life: int) -> None:
        """A copier ends by itself, and is started again; a fenced one only if no other has its id."""
        if copier.process.lives != life or not copier.process.is_alive:
            return
        copier.end(how)
        same = [it for it in self.crowd if isinstance(it, Copier) and it.transactional_id == copier.transactional_id]
        if how == "fenced" and any(it.process.is_alive for it in same):
            self.crowd.remove(copier)
            self.ended.append(copier)
        else:
            self.scheduler.after(500, partial(self._restart, copier))

    def on_twin(self, fault: Fault) -> None:
        """A copier is started a second time while the first process still runs."""
        member = self.member_hit(fault)
        if isinstance(member, LoneCopier) and member.process.is_alive:
            name = f"{member.name}-{fault.at_ms}"
            twin = type(member)(self, name, member.plan, member.partition, member.versions)
            self.crowd.append(twin)
            twin.start()

    def may_cut_power(self, host: Host) -> bool:
        """Acknowledged records must survive: one node may lose power at a time."""
        return not any(it.is_weak for it in self.brokers.values() if it.node_id != host.node_id)

    def _check_parked(self) -> None:
        """Every request is answered in its time."""
        self.scheduler.after(500, self._check_parked)
        for node in self.brokers.values():
            if not node.process.is_alive or node.process.is_paused:
                continue
            for since_ms, asked in node.outstanding.values():
                limit_ms = MARKERS_MS_MAX if isinstance(asked.request, WriteTxnMarkersRequest) else PARKED_MS_MAX
                if isinstance(asked.request, JoinGroupRequest | SyncGroupRequest):
                    limit_ms += self.rebalance_ms_max
                waited_ms = self.scheduler.now_ms - max(since_ms, node.resumed_ms)
                if waited_ms > limit_ms:
                    raise Broken(23, f"{node.name} has let {asked} wait for {waited_ms} ms")

    def loop_processes(self) -> list[Any]:
        return [*super().loop_processes(), *(it.process for it in (*self.crowd, *self.ended))]

    # The end ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        ReplicationWorld.heal(self)
        self._unled.clear()
        self.peer_delays_s = (0,)
        for member in list(self.crowd):
            member.process.resume()
            member.start()

    def wait_for_recovery(self) -> None:
        """Run until all work again; then stop the copiers, and run until no transaction is open."""
        healed_ms = self.scheduler.now_ms
        limit_ms = healed_ms + CALM_MS_MAX

        def too_early() -> str:
            if self.history.acks >= ACKS_MIN:
                self.pauses_s = CALM_PAUSES_S
            is_enough = self.scheduler.now_ms >= healed_ms + CALM_MS_MIN and self.history.acks >= ACKS_MIN
            return "" if is_enough else f"only {self.history.acks} acks: {self.missing()}"

        self.run_until(too_early, limit_ms=limit_ms, step_ms=500)
        self.run_until(self.missing, limit_ms=limit_ms)
        self.ended, self.crowd = self.crowd, []
        for member in self.ended:
            member.end("done")
        self.run_until(self.undrained, limit_ms=self.scheduler.now_ms + CALM_MS_MAX)

    def degraded(self) -> str:
        for name in self.names:
            it = self.authority.image_of(name)
            node = self.brokers.get(it.leader)
            if node is None or set(it.isr) != set(it.replicas):
                return f"{name.directory}: node {it.leader} leads, {list(it.isr)} of {list(it.replicas)} are in sync"
        return ""

    def missing(self) -> str:
        """What has not recovered yet."""
        found = self.degraded()
        node = self.brokers.get(self.partition.leader)
        if found or node is None or node.shard is None:
            return found or "there is no group coordinator"
        for group_id in self.group_ids:
            members = [it for it in self.crowd if it.plan.group_id == group_id]
            unsettled = [it.name for it in members if not it.process.is_alive or not it.is_settled()]
            if unsettled:
                return f"{unsettled} of {group_id} are not settled"
            if not isinstance(members[0], LoneCopier) and not is_stable(node.shard.group(group_id)):
                return f"group {group_id} is not stable"
        return ""

    def undrained(self) -> str:
        """What keeps the last stable offset from the high watermark, or a reader from the end."""
        for name in self.names:
            node = self.brokers[self.authority.image_of(name).leader]
            local = node.copies[name].local
            offsets = (local.last_stable_offset, local.high_watermark, local.log_end_offset)
            if len(set(offsets)) > 1 or self.logs[name].end != offsets[0]:
                return (
                    f"{name.directory}: stable, replicated and end offset are {offsets}; {self.logs[name].undecided()}"
                )
        late = [it.name for it in self.readers if it.position != self.outputs[it.partition].end]
        return f"{late} have not read all" if late else ""

    def finish(self) -> None:
        """Check the copies."""
        check_copies(self.outputs, self.durable, self.outcomes)
