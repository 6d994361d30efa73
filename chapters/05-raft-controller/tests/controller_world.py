"""The world of the controller: who decides may change at any time, and partitions must not notice.

    python -m minibroker.simulation controller_world --path chapters/05-raft-controller/tests --seeds 1000

Every node votes, or observes, and is a broker. The quorum decides who is alive and who leads; the partition is chapter
04's, with its producers, its consumers, and its invariants. Those of the quorum hold as well, and what ties them:

    10  a partition's leader epoch has one leader, who is not fenced
    11  the metadata are the same on all nodes at the same offset
    13  a partition's epochs only rise, and who joins the in-sync replicas has caught up
"""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, ClassVar

from controller_cluster import Broker, Decisions, Machine
from raft_cluster import QuorumWatch, voter_of
from replication_clients import Consumer, Producer
from replication_cluster import NAME, NODE_CONFIG, Committed, Mirror, Node, _Watched
from replication_nodes import TOPIC_ID
from replication_world import CODES
from replication_world import World as PartitionWorld

from minibroker.controller.moving import Move, ReassignPartitions, elect_moving_leaders
from minibroker.metadata.commands import CreateTopics, NewTopic
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image, PartitionImage
from minibroker.partitions.partition import ACKS_ALL
from minibroker.raft.voters import VoterSet
from minibroker.replication.authority import Election
from minibroker.simulation.checker import Violation
from minibroker.simulation.disk import Disk
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.states import States
from minibroker.wire.codes import ErrorCode

_ANY = 1_000_000
LEAVE_MS_MAX = 6000


def _node(chance: Random) -> tuple[int]:
    return (chance.randrange(_ANY),)


def _two(chance: Random) -> tuple[int, int, int]:
    return (chance.randrange(_ANY), chance.randrange(_ANY), chance.randrange(2))


class _Some(States):
    """States of which only those count that the world declares: its parts know more of them."""

    def reach(self, name: str) -> None:
        if name in self.counts:
            super().reach(name)


class World(PartitionWorld, QuorumWatch):
    """Three to five nodes, one partition, producers and consumers; nobody who is never lost."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        "truncation",
        "divergence by epoch",
        "ISR shrink",
        "ISR expansion",
        "proposal refused",
        *CODES.values(),
        "duplicate answered",
        "leader change",
        "leader change while the old leader is alive",
        "leader change with batches in flight",
        "unclean registration",
        "stale incarnation refused",
        "death in mid-write",
        "session over",
        "back to the preferred leader",
        "another controller",
        "controller change while the old one is alive",
        "controlled shutdown",
        "move begun",
        "move ended",
        "move taken back",
        "move on top of a move",
        "replica dropped",
        "disk lost",
        "snapshot taken over",
        "log forgets what is in a snapshot",
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        Kind("kill", _node, (50, 4000), 2),
        Kind("power cut", _node, (50, 4000), 2),
        Kind(
            "die in mid-write",
            lambda chance: (*_node(chance), chance.randrange(16), chance.randrange(2)),
            (50, 3000),
            2,
        ),
        Kind("leave", _node, (20, 1000), 2),
        Kind("pause", _node, (100, 5000), 2),
        Kind("cut", _two, (100, 5000), 2),
        Kind("isolate", _node, (500, 5000), 2),
        Kind("slow", lambda chance: (*_two(chance), chance.choice((50, 300, 1500))), (500, 5000)),
        Kind("elect", _node, weight=2),
        Kind("break client links", _node),
        Kind("move", lambda chance: (chance.randrange(_ANY), chance.randrange(_ANY)), weight=3),
        Kind("reincarnation", _node, (300, 2500)),
        Kind("lose disk", _node, (50, 3000)),
        Kind("snapshot", _node),
    )

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All nodes start; there is no topic until somebody decides."""
        self.states = _Some(self.STATES)
        chance = self.chance("build")
        size = chance.choice((3, 4, 4, 5))
        self.watch_quorum(chance)
        self.lag_ms_max = chance.choice((800, 1500, 3000))
        self.reaction_ms = 600
        self.session_ms = chance.choice((1500, 3000))
        self.balance_ms = chance.choice((None, 2000, 5000))
        self.fetch_bytes = chance.choice(((1 << 20,), (1 << 20, 300)))
        self.config = TopicConfig({"min.insync.replicas": "2", "internal.segment.bytes": "20000"})
        self.committed = Committed()
        self.last_leader_epoch = self.last_leader = -1
        self.is_producing = True
        self._incarnations = self._producer_ids = 0
        self.written = {}
        self._values = {}
        self.producers = []
        self.newest = Image()
        self.images: dict[int, Image] = {}
        self.last_partition: PartitionImage | None = None
        self.authority = Decisions(self)
        machines = {number: Machine(self, number) for number in range(1, size + 1)}
        self.machines = machines
        self.quorum = dict(machines)
        brokers = {number: Broker(self, machine, self.config) for number, machine in machines.items()}
        for number, machine in machines.items():
            machine.broker = brokers[number]
        self.nodes: dict[int, Node] = dict(brokers)
        voters = range(1, (3 if size < 5 else chance.choice((3, 5))) + 1)
        self.bootstrap = VoterSet.of(voter_of(machines[it].key) for it in voters)
        self.wanted_size = len(self.bootstrap)
        for machine in machines.values():
            machine.start()
        self.producers = [Producer(self, f"p{number}", acks=ACKS_ALL, is_idempotent=True) for number in (1, 2)]
        self.consumers = [Consumer(self, "c1")]
        self.scheduler.after(self.reaction_ms, self._operate)

    def watched(self, disk: Disk, mirror: Mirror) -> Any:
        return _Watched(disk, mirror)

    def _broker(self, node_id: int) -> Broker:
        return self.machines[node_id].broker

    # What is decided --------------------------------------------------------------------------------------------------

    def on_image(self, machine: Machine, image: Image) -> None:
        """A node has folded what is decided up to an offset."""
        known = self.images.setdefault(image.offset, image)
        if known is not image and known != image:
            raise Violation(11, f"{machine.name} has other metadata at offset {image.offset} than others had")
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
            raise Violation(10, f"node {partition.leader} is to lead, and is fenced")
        if partition.leader >= 0 and partition.leader not in partition.isr:
            raise Violation(10, f"node {partition.leader} is to lead, in sync are {partition.isr}")
        if not set(partition.isr) <= set(partition.replicas):
            raise Violation(13, f"in sync are {partition.isr}, replicas {partition.replicas}")
        self.authority.check_leader()
        for node_id in partition.isr:
            node = self.nodes[node_id]
            node.is_weak = node.is_weak and node.is_diminished
        if old is not None and old != partition:
            self._on_partition_changed(old, partition)

    def _on_partition_changed(self, old: PartitionImage, new: PartitionImage) -> None:
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Violation(13, f"{old} is followed by {new}")
        joined = set(new.isr) - set(old.isr)
        if joined or set(old.isr) - set(new.isr):
            self.states.reach("ISR expansion" if joined else "ISR shrink")
        if old.adding_replicas and not new.adding_replicas and set(old.adding_replicas) <= set(new.replicas):
            self.states.reach("move ended")
        if new.leader == old.leader and new.leader >= 0 and new.leader_epoch == old.leader_epoch:
            for each in joined:
                self.authority.check_joined(self.nodes[new.leader], self.nodes[each])

    def on_quorum_leader(self, node: Any) -> None:
        super().on_quorum_leader(node)
        self.states.reach("another controller")
        others = [it for it in self.machines.values() if it is not node and it.process.is_alive]
        if any(it.controller.is_active for it in others):
            self.states.reach("controller change while the old one is alive")

    # Faults -----------------------------------------------------------------------------------------------------------

    def causes(self) -> Mapping[str, Cause]:
        return {
            "kill": self._on_kill,
            "power cut": self._on_power_cut,
            "die in mid-write": self._on_die,
            "leave": self._on_leave,
            "pause": self._on_pause,
            "cut": self._on_cut,
            "isolate": self._on_isolate,
            "slow": self._on_slow,
            "elect": self._on_elect,
            "break client links": self._on_break,
            "move": self._on_move,
            "reincarnation": self._on_reincarnation,
            "lose disk": self._on_lose_disk,
            "snapshot": self._on_snapshot,
        }

    def _machine(self, fault: Fault) -> Machine:
        """Whoever decides and whoever leads are hit more often than others."""
        number = int(fault.arguments[0])
        hit = {0: self.decider(), 1: self.machines.get(self.authority.partition.leader)}.get(number % 4)
        return hit or self.machines[1 + number // 4 % len(self.machines)]

    def _node(self, fault: Fault, which: int = 0) -> Node:
        return self._machine(fault).broker

    def decider(self) -> Machine | None:
        """Who decides, if somebody does."""
        found = [it for it in self.machines.values() if it.process.is_alive and it.controller.is_active]
        return max(found, key=lambda it: it.raft.epoch, default=None)

    def _propose(self, command: Command[Any]) -> None:
        decider = self.decider()
        if decider is not None:
            decider.process.run(partial(_propose_to, decider, command))

    def _on_kill(self, fault: Fault) -> Callable[[], None]:
        machine = self._machine(fault)
        machine.kill()
        return machine.start

    def _on_power_cut(self, fault: Fault) -> Callable[[], None] | None:
        machine = self._machine(fault)
        if not self.may_cut_power(machine.broker):
            return None
        machine.cut_power()
        return machine.start

    def _on_die(self, fault: Fault) -> Callable[[], None]:
        machine = self._machine(fault)
        machine.how_it_dies = ("kill", "power")[int(fault.arguments[2])]
        machine.restart_ms = fault.duration_ms
        disk = machine.disk
        disk.die_after(int(fault.arguments[1]))
        return lambda: disk.die_after(None)

    def _on_lose_disk(self, fault: Fault) -> Callable[[], None] | None:
        machine = self._machine(fault)
        if not self.may_lose_disk(machine.node_id) or not self.may_cut_power(machine.broker):
            return None
        self.states.reach("disk lost")
        machine.lose_disk()
        return machine.start

    def _on_leave(self, fault: Fault) -> Callable[[], None]:
        """A controlled shutdown: others lead first, then it goes."""
        machine = self._machine(fault)
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
            self.scheduler.after(fault.duration_ms, machine.start)

        look()
        return lambda: None

    def _parties(self, fault: Fault) -> tuple[str, str]:
        names = [machine.name for machine in self.machines.values()]
        source = names.pop(int(fault.arguments[0]) % len(names))
        return source, names[int(fault.arguments[1]) % len(names)]

    def _on_isolate(self, fault: Fault) -> Callable[[], None]:
        name = self._machine(fault).name
        others = [machine.name for machine in self.machines.values() if machine.name != name]
        heals = [self.network.cut(*pair) for other in others for pair in ((name, other), (other, name))]
        return partial(_all, heals)

    def _on_elect(self, fault: Fault) -> None:
        live = [it for it in self.authority.live() if it in self.authority.partition.isr]
        if live:
            chosen = live[int(fault.arguments[0]) % len(live)]
            self._propose(elect_moving_leaders([NAME], live=[chosen], node=NODE_CONFIG))

    def _on_move(self, fault: Fault) -> None:
        if any(node.is_weak for node in self.nodes.values()) or self.newest.partition(NAME) is None:
            return
        chance = Random(int(fault.arguments[0]))
        target = chance.sample(sorted(self.machines), min(3, len(self.machines)))
        self.states.reach("move begun")
        self._propose(ReassignPartitions([Move(NAME, target)]))
        # Some are taken back at once, or another one is begun on top.
        then = chance.choice((None, self._take_back, partial(self._move_on, chance)))
        if then is not None:
            self.scheduler.after(chance.choice((0, 10, 50, 200)), then)

    def _take_back(self) -> None:
        if self.authority.partition.adding_replicas:
            self.states.reach("move taken back")
        self._propose(ReassignPartitions([Move(NAME, None)]))

    def _move_on(self, chance: Random) -> None:
        if self.authority.partition.adding_replicas:
            self.states.reach("move on top of a move")
        target = chance.sample(sorted(self.machines), min(3, len(self.machines)))
        self._propose(ReassignPartitions([Move(NAME, target)]))

    def _on_reincarnation(self, fault: Fault) -> Callable[[], None] | None:
        """A node is gone and back at once, and what it said before is heard after what it says now (KIP-903)."""
        machine, leader = self._machine(fault), self.machines.get(self.authority.partition.leader)
        if leader is None or leader is machine or not self.may_cut_power(machine.broker):
            return None
        end = self.network.slow(machine.name, leader.name, fault.duration_ms)
        self.scheduler.after(fault.duration_ms // 4, partial(self._come_back, machine))
        return end

    def _come_back(self, machine: Machine) -> None:
        if self.may_cut_power(machine.broker):
            machine.cut_power()
            machine.start()

    def _on_snapshot(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.process.run(machine.take_snapshot)

    # The operator -----------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """Somebody looks after the cluster: makes the topic, mends the voters, and helps where nobody is in sync."""
        self.scheduler.after(self.reaction_ms, self._operate)
        decider = self.decider()
        if decider is None:
            return
        decider.process.run(partial(self._look_after_voters, decider))
        live = self.newest.live_brokers()
        partition = self.newest.partition(NAME)
        if partition is None:
            self._create(live)
        elif not partition.isr and set(partition.replicas) <= set(live):
            ends = {it: (self.nodes[it].mirror.last_epoch, self.nodes[it].mirror.end) for it in partition.replicas}
            best = max(ends, key=lambda it: ends[it])
            self._propose(elect_moving_leaders([NAME], live=[best], node=NODE_CONFIG, kind=Election.UNCLEAN))

    def _create(self, live: list[int]) -> None:
        if len(live) >= 3:
            configs: dict[str, str | None] = {"min.insync.replicas": "2"}
            topic = NewTopic(NAME.topic, TOPIC_ID, assignments=[(0, live[:3])], configs=configs)
            self._propose(CreateTopics([topic], NODE_CONFIG))

    def _look_after_voters(self, leader: Machine) -> None:
        raft = leader.raft
        if not raft.is_leader:
            return
        lost = [key for key in map(raft.voters.key_of, raft.voters) if key != self.quorum[key.node_id].key]
        if lost and self.has_majority(raft.voters.without(lost[0].node_id)):
            raft.remove_voter(lost[0], timestamp=0)
        elif len(raft.voters) < self.wanted_size:
            for machine in self.machines.values():
                voter = voter_of(machine.key)
                is_free = machine.process.is_alive and machine.node_id not in raft.voters.voters
                may_add = is_free and self.has_majority(raft.voters.with_voter(voter))
                if may_add and raft.add_voter(voter, timestamp=0) is ErrorCode.NONE:
                    return

    # The end ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.network.become_calm()
        for machine in self.machines.values():
            machine.process.resume()
            machine.disk.die_after(None)
            machine.start()

    def _missing(self) -> str:
        partition = self.newest.partition(NAME)
        if partition is None:
            return f"there is no topic: {self.told()}"
        if partition.adding_replicas or partition.removing_replicas:
            return f"a move is not over: {partition}"
        leader = self.nodes.get(partition.leader)
        if leader is None or leader.replica is None or leader.replica.leading is None:
            return f"node {partition.leader} does not lead: {partition}; {self.told()}"
        if set(partition.isr) != set(partition.replicas):
            return f"only {list(partition.isr)} of {list(partition.replicas)} are in sync"
        fenced = [it.node_id for it in self.newest.brokers.values() if it.is_fenced]
        if fenced or len(self.newest.brokers) < len(self.nodes):
            return f"of {sorted(self.newest.brokers)} {fenced} are fenced"
        waiting = [producer.name for producer in self.producers if producer.window]
        if waiting:
            return f"{waiting} wait for acks"
        replicas = [it.replica for it in self.nodes.values() if it.replica is not None]
        offsets = {it.log.log_end_offset for it in replicas} | {it.high_watermark for it in replicas}
        if len(offsets) > 1 or len(replicas) != len(partition.replicas):
            return f"{len(replicas)} logs end at {offsets}"
        if len({it.controller.image.offset for it in self.machines.values()}) > 1:
            return f"metadata differ: {self.told()}"
        return ""

    def finish(self) -> None:
        dropped = {number: node for number, node in self.nodes.items() if node.replica is None}
        for number in dropped:
            del self.nodes[number]
        super().finish()


def _propose_to(decider: Machine, command: Command[Any]) -> None:
    decider.controller.propose(command)


def _all(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()
