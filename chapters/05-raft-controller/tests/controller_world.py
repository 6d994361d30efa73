"""The world of the controller: the active controller may change at any time, without harm to a partition.

    python -m minibroker.simulation controller_world --path chapters/05-raft-controller/tests --seeds 1000

Every node is a voter or an observer, and a broker. The controller knows which brokers are alive, and elects leaders.
The partition is chapter 04's, with its producers, consumers and invariants. The invariants of the quorum hold as well,
and three more:

    10  a partition's leader epoch has one leader, which is not fenced
    11  the metadata are the same on all nodes at the same offset
    13  a partition's epochs only rise, and a replica that joins the in-sync replicas has caught up
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar

from controller_cluster import CONTROLLER_WIRE, Ask, Broker, ControllerHost
from partition_watch import (
    CODES,
    LEADER_CHANGES,
    NO_ENDS,
    PARTITION_DISASTER_STATES,
    PARTITION_DISASTERS,
    REPLICA_STATES,
    PartitionWatch,
    SomeStates,
)
from quorum_watch import QuorumWatch, voter_of
from raft_cluster import QuorumNode
from replication_clients import Consumer, Producer
from replication_cluster import NODE_CONFIG
from replication_nodes import ENDPOINTS, NAME, TOPIC_ID

from minibroker.controller.lifecycle import Heartbeat, RegisterFenced
from minibroker.controller.reassignment import Move, ReassignPartitions, elect_moving_leaders
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image, PartitionImage
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.partitions.partition import ACKS_ALL
from minibroker.raft.voters import VoterSet
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import AlterPartitions, Election, IsrChange
from minibroker.simulation import cluster
from minibroker.simulation.checker import Violation
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.host import DEATH, Host

LEAVE_MS_MAX = 6000
NO_PARTITION = PartitionImage(replicas=(), isr=(), leader=-1, leader_epoch=-1, partition_epoch=-1)


class World(PartitionWatch, QuorumWatch):
    """Three to five nodes, one partition, producers and consumers; any node may be lost."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        *REPLICA_STATES,
        *CODES.values(),
        "duplicate answered",
        *LEADER_CHANGES,
        "unclean registration",
        "eligible replica elected",
        "stale incarnation refused",
        DEATH,
        "session expired",
        "preferred leader elected",
        "controller changed",
        "controller change while the old one is alive",
        "controlled shutdown",
        "move started",
        "move ended",
        "move cancelled",
        "move replaced by a move",
        "replica dropped",
        "disk lost",
        "snapshot installed",
        "log deleted up to a snapshot",
        *PARTITION_DISASTER_STATES,
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        cluster.KILL,
        cluster.POWER_CUT,
        cluster.die_in_mid_write(changes_max=16, weight=2),
        Kind("leave", cluster.any_node, (20, 1000), 2),
        cluster.PAUSE,
        cluster.CUT,
        cluster.ISOLATE,
        cluster.SLOW,
        Kind("elect", cluster.any_node, weight=2),
        Kind("break client links", cluster.any_node),
        Kind("move", lambda chance: (*cluster.any_node(chance), *cluster.any_node(chance)), weight=3),
        Kind("reincarnation", cluster.any_node, (300, 2500)),
        Kind("lose disk", cluster.any_node, (50, 3000)),
        Kind("snapshot", cluster.any_node),
    )
    DISASTERS: ClassVar[tuple[Kind, ...]] = PARTITION_DISASTERS
    TRIALS = (cluster.COMEBACK,)
    WIRE = CONTROLLER_WIRE

    # Setup ------------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All nodes start; there is no topic until a controller is active."""
        self.states = SomeStates(self.STATES)
        chance = self.chance("build")
        size = chance.choice((3, 4, 4, 5))
        self.watch_quorum(chance)
        self.lag_ms_max = chance.choice((800, 1500, 3000))
        self.reaction_ms = 600
        self.session_ms = chance.choice((1500, 3000))
        self.balance_ms = chance.choice((None, 2000, 5000))
        self.fetch_bytes = chance.choice(((1 << 20,), (1 << 20, 300)))
        self.watch_partition(TopicConfig({"min.insync.replicas": "2", "internal.segment.bytes": "20000"}))
        self.newest = Image()
        self.images: dict[int, Image] = {}
        self.last_partition: PartitionImage | None = None
        machines = {number: ControllerHost(self, number) for number in range(1, size + 1)}
        self.machines = machines
        self.quorum = dict(machines)
        brokers = {number: Broker(self, machine, self.config) for number, machine in machines.items()}
        for number, machine in machines.items():
            machine.broker = brokers[number]
        self.nodes = dict(brokers)
        voters = range(1, (3 if size < 5 else chance.choice((3, 5))) + 1)
        self.bootstrap = VoterSet.of(voter_of(machines[it].key) for it in voters)
        self.wanted_size = len(self.bootstrap)
        for machine in machines.values():
            machine.start()
        self.producers = [Producer(self, f"p{number}", acks=ACKS_ALL, is_idempotent=True) for number in (1, 2)]
        self.consumers = [Consumer(self, "c1")]
        self.scheduler.after(self.reaction_ms, self._operate)

    def hosts(self) -> Mapping[int, ControllerHost]:
        return self.machines

    def _broker(self, node_id: int) -> Broker:
        return self.machines[node_id].broker

    # Committed metadata -----------------------------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionImage:
        return self.newest.partition(NAME) or NO_PARTITION

    def live(self) -> list[int]:
        return self.newest.live_brokers()

    def elect(self, live: list[int], kind: Election = Election.PREFERRED, ends: LogEnds = NO_ENDS) -> None:
        self._propose(replace(elect_moving_leaders([NAME], live=live, node=NODE_CONFIG, kind=kind), ends=ends))

    def on_image(self, machine: ControllerHost, image: Image) -> None:
        """Compare the image of a node with those of others at the same offset."""
        known = self.images.setdefault(image.offset, image)
        if known is not image and known != image:
            raise Violation(11, f"{machine.name} has other metadata at offset {image.offset} than other nodes")
        if image.offset <= self.newest.offset:
            return
        old, self.newest = self.newest, image
        self._on_brokers(old, image)
        partition = image.partition(NAME)
        if partition is not None:
            self._on_partition(image, partition)

    def _on_brokers(self, old: Image, new: Image) -> None:
        for broker in new.brokers.values():
            node, known = self._broker(broker.node_id), old.brokers.get(broker.node_id)
            if broker.incarnation_id == node.incarnation_id and node.process.is_alive:
                if node.is_diminished and known is not None and known.incarnation_id != broker.incarnation_id:
                    self.states.reach("unclean registration")
                node.is_diminished = False

    def _on_partition(self, image: Image, partition: PartitionImage) -> None:
        old, self.last_partition = self.last_partition, partition
        if partition.leader >= 0 and image.brokers[partition.leader].is_fenced:
            raise Violation(10, f"node {partition.leader} leads, and is fenced")
        if partition.leader >= 0 and partition.leader not in partition.isr:
            raise Violation(10, f"node {partition.leader} leads, and is not in the in-sync set {partition.isr}")
        if not set(partition.isr) <= set(partition.replicas):
            raise Violation(13, f"the in-sync set {partition.isr} is not within the replicas {partition.replicas}")
        self._check_eligible(partition)
        self.check_partition()
        if old is not None and old != partition:
            self._on_partition_changed(old, partition)

    def _check_eligible(self, partition: PartitionImage) -> None:
        """Each eligible replica has all committed batches, unless it has lost power since (KIP-966)."""
        for node in map(self._broker, partition.eligible_leader_replicas):
            missing = self.committed.missing(node.mirror, node.started_at)
            if missing is not None and not node.is_diminished and node.replica is not None:
                raise Violation(1, f"{node.name} is eligible without {missing}, which is committed")

    def _on_partition_changed(self, old: PartitionImage, new: PartitionImage) -> None:
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Violation(13, f"{old} is followed by {new}")
        joined = set(new.isr) - set(old.isr)
        if joined or set(old.isr) - set(new.isr):
            self.states.reach("ISR expansion" if joined else "ISR shrink")
        if new.leader in old.eligible_leader_replicas:
            self.states.reach("eligible replica elected")
        if old.adding_replicas and not new.adding_replicas and set(old.adding_replicas) <= set(new.replicas):
            self.states.reach("move ended")
        if new.leader == old.leader and new.leader >= 0 and new.leader_epoch == old.leader_epoch:
            for each in joined:
                self.check_joined(self.nodes[new.leader], self.nodes[each])

    def on_quorum_leader(self, node: QuorumNode) -> None:
        super().on_quorum_leader(node)
        self.states.reach("controller changed")
        others = [it for it in self.machines.values() if it is not node and it.process.is_alive]
        if any(it.controller.is_active for it in others):
            self.states.reach("controller change while the old one is alive")

    # Faults -----------------------------------------------------------------------------------------------------------

    def host_hit(self, fault: Fault) -> ControllerHost:
        """Choose a node; the controller and the partition's leader more often than others."""
        number = int(fault.arguments[0])
        hit = {0: self.active_host(), 1: self.machines.get(self.partition.leader)}.get(number % 4)
        return hit or self.machines[1 + number // 4 % len(self.machines)]

    def active_host(self) -> ControllerHost | None:
        """The node with the active controller, if there is one."""
        found = [it for it in self.machines.values() if it.process.is_alive and it.controller.is_active]
        return max(found, key=lambda it: it.raft.epoch, default=None)

    def _propose(self, command: Command[Any]) -> None:
        active = self.active_host()
        if active is not None:
            active.process.run(partial(_propose_to, active, command))

    def on_leave(self, fault: Fault) -> None:
        """A controlled shutdown: other brokers lead first, then the node stops."""
        machine = self.host_hit(fault)
        self.shut_down(machine, partial(self.scheduler.after, fault.duration_ms, machine.start))

    def shut_down(self, host: Host, then: Callable[[], object]) -> None:
        machine = self.machines[host.node_id]
        life = machine.process.lives
        machine.broker.is_leaving = True
        begun_ms = self.scheduler.now_ms

        def look() -> None:
            if machine.process.lives != life or not machine.process.is_alive:
                return
            is_over = self.scheduler.now_ms - begun_ms > LEAVE_MS_MAX
            if machine.process.is_paused or not (machine.broker.is_let_go or is_over):
                self.scheduler.after(50, look)
                return
            if machine.broker.is_let_go:
                self.states.reach("controlled shutdown")
            machine.stop()
            then()

        look()

    def on_move(self, fault: Fault) -> None:
        """Move the partition to other brokers."""
        if any(node.is_weak for node in self.nodes.values()) or self.newest.partition(NAME) is None:
            return
        chance = Random(int(fault.arguments[0]))
        target = chance.sample(sorted(self.machines), min(3, len(self.machines)))
        self.states.reach("move started")
        self._propose(ReassignPartitions([Move(NAME, target)]))
        # Some moves are cancelled or replaced at once.
        then = chance.choice((None, self._take_back, partial(self._move_on, chance)))
        if then is not None:
            self.scheduler.after(chance.choice((0, 10, 50, 200)), then)

    def _take_back(self) -> None:
        if self.partition.adding_replicas:
            self.states.reach("move cancelled")
        self._propose(ReassignPartitions([Move(NAME, None)]))

    def _move_on(self, chance: Random) -> None:
        if self.partition.adding_replicas:
            self.states.reach("move replaced by a move")
        target = chance.sample(sorted(self.machines), min(3, len(self.machines)))
        self._propose(ReassignPartitions([Move(NAME, target)]))

    # Strangers --------------------------------------------------------------------------------------------------------

    def forgeries(self) -> list[Callable[[int], None]]:
        return [*super().forgeries(), self._forge_command]

    def _forge_command(self, number: int) -> None:
        """Speak for a broker: register it anew, ask to shut it down, or drop the others from the in-sync set."""
        active, known = self.active_host(), self.newest.brokers.get(1 + number % len(self.machines))
        if active is None or known is None:
            return
        it, broker_id = self.partition, known.node_id
        change = IsrChange(TOPIC_ID, NAME.partition, it.leader_epoch, it.partition_epoch, [(it.leader, -1)])
        commands: tuple[Command[Any], ...] = (
            RegisterFenced(broker_id=broker_id, endpoints=ENDPOINTS, incarnation_id=bytes(16)),
            Heartbeat(broker_id, known.epoch, 1 << 40, wants_shut_down=True),
            AlterPartitions(it.leader, -1, [change]),
        )
        ask = Ask(commands[number % len(commands)])
        self.forge(active.process, ask, partial(active.on_command, ask))

    # The operator -----------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """An operator creates the topic, maintains the voter set, and elects a leader if no replica has all records."""
        self.scheduler.after(self.reaction_ms, self._operate)
        active = self.active_host()
        if active is None or not self.is_operated:
            return
        active.process.run(partial(self.look_after_voters, active))
        partition = self.newest.partition(NAME)
        if partition is None:
            self._create(self.live())
        elif not (partition.isr or partition.eligible_leader_replicas) and set(partition.replicas) <= set(self.live()):
            self.elect_most_complete(partition.replicas)

    def _create(self, live: list[int]) -> None:
        if len(live) >= 3:
            configs: dict[str, str | None] = {"min.insync.replicas": "2"}
            topic = NewTopic(NAME.topic, TOPIC_ID, assignments=[(0, live[:3])], configs=configs)
            self._propose(CreateTopics([topic], NODE_CONFIG))

    # The end ----------------------------------------------------------------------------------------------------------

    def degraded(self) -> str:
        partition = self.newest.partition(NAME)
        if partition is None:
            return f"there is no topic: {self.told()}"
        if partition.adding_replicas or partition.removing_replicas:
            return f"a move is not complete: {partition}"
        fenced = [it.node_id for it in self.newest.brokers.values() if it.is_fenced]
        if fenced or len(self.newest.brokers) < len(self.nodes):
            return f"of the brokers {sorted(self.newest.brokers)}, {fenced} are fenced"
        return self.unsettled() or super().degraded()

    def missing(self) -> str:
        if len({it.controller.image.offset for it in self.machines.values()}) > 1:
            return f"metadata differ: {self.told()}"
        return super().missing()


def _propose_to(active: ControllerHost, command: Command[Any]) -> None:
    active.controller.propose(command)
