"""The world of one replicated partition: everything that this chapter claims, under everything that can go wrong.

    python -m minibroker.simulation replication_world --path chapters/04-replication-isr/tests --seeds 1000

Every node runs the code of the broker: chapter 02's log on a simulated disk, chapter 03's producer states and metadata
log, this chapter's replica and authority. Simulated are the clock, the network, the disks, and the clients.
"""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import ClassVar

from replication_clients import Consumer, Producer
from replication_cluster import Authority, Committed, Node

from minibroker.log.batch import Batch, batches
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, CONSUMER
from minibroker.replication.authority import Election
from minibroker.replication.keys import MIN_INSYNC_REPLICAS
from minibroker.simulation import world
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.history import Value
from minibroker.simulation.trace import MARK, NOTE
from minibroker.wire.codes import ErrorCode

ACKS_MIN = 500
CALM_MS_MIN, CALM_MS_MAX = 6_000, 60_000
_ANY = 1_000_000  # a fault names nobody: this is taken modulo the number of those that it may hit at that time


def _node(chance: Random) -> tuple[int]:
    return (chance.randrange(_ANY),)


def _two(chance: Random) -> tuple[int, int, int]:
    return (chance.randrange(_ANY), chance.randrange(_ANY), chance.randrange(2))


CODES = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "NOT_ENOUGH_REPLICAS",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
}


class World(world.World):
    """Three nodes mostly, sometimes two or five; an authority; producers and consumers."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        "truncation",
        "divergence by epoch",
        "ISR shrink",
        "ISR expansion",
        "proposal refused",
        "watermark moved while an ISR change was pending",
        *CODES.values(),
        "duplicate answered",
        "producer gave up",
        "leader change",
        "leader change while the old leader is alive",
        "leader change with batches in flight",
        "producers restored from a snapshot",
        "log start moved",
        "log start moved on a follower",
        "consumer reset to the log's start",
        "segment rolled",
        "unclean registration",
        "stale incarnation refused",
        "death in mid-write",
        "offline, the most complete one elected",
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        Kind("kill", _node, (50, 4000), 2),
        Kind("power cut", _node, (50, 4000), 2),
        Kind(
            "die in mid-write",
            lambda chance: (*_node(chance), chance.randrange(12), chance.randrange(2)),
            (50, 3000),
            2,
        ),
        Kind("restart", _node, (20, 1000)),
        Kind("reincarnation", _node, (300, 2500)),
        Kind("pause", _node, (100, 5000), 2),
        Kind("cut", _two, (100, 5000), 2),
        Kind("isolate", _node, (500, 5000)),
        Kind("deaf leader", _node, (1000, 4000)),
        Kind("last replica standing", _node, (100, 1500)),
        Kind("slow", lambda chance: (*_two(chance), chance.choice((50, 300, 1500))), (500, 5000)),
        Kind("elect", _node, weight=4),
        Kind("clock", lambda chance: (*_node(chance), chance.choice((-60_000, -3_000, 3_000, 60_000))), (500, 8000)),
        Kind("break client links", _node, weight=2),
        Kind("stop the authority", lambda chance: (chance.randrange(2),), (50, 1500)),
        Kind("delete records", _node, weight=1),
    )

    def play(self) -> None:
        """A storm, healing, a calm in which everything comes right, and a look at everything."""
        self.build()
        storm = self.storm()
        self.scheduler.run(self.STORM_MS)
        storm.heal()
        self.heal()
        self.come_right()
        self.finish()

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Everybody is up, and the first node leads."""
        chance = self.chance("build")
        size = chance.choice((3, 3, 3, 3, 3, 3, 3, 5, 5, 2))
        min_isr = 2 if size < 5 else chance.choice((2, 3))
        self.lag_ms_max = chance.choice((800, 1500, 3000))
        self.reaction_ms = chance.choice((200, 600, 1500))
        self.fetch_bytes = chance.choice(((1 << 20,), (1 << 20, 100), (100, 300, 2000)))
        self.config = TopicConfig(
            {
                "min.insync.replicas": str(min_isr),
                "internal.segment.bytes": chance.choice(("1500", "4000", "20000")),
                "index.interval.bytes": "200",
                "retention.bytes": chance.choice(("-1", "-1", "6000")),
            }
        )
        self.committed = Committed()
        self.nodes: dict[int, Node] = {}
        self.last_leader_epoch = -1
        self.last_leader = -1
        self.is_producing = True
        self._incarnations = size
        self._producer_ids = 0
        self.written: dict[str, int] = {}
        """The batches that a leader has ever written, each with its last place."""
        self._values: dict[tuple[int, int], list[tuple[int, Value]]] = {}
        self.producers: list[Producer] = []
        self.authority = Authority(self)
        self.nodes = {number: Node(self, number, self.config) for number in range(1, size + 1)}
        for node_id, node in self.nodes.items():
            node.kept_broker_epoch = self.authority.register(node_id)
        self.authority.create(list(self.nodes), **{"min.insync.replicas": str(min_isr)})
        for node in self.nodes.values():
            node.start()
        self._add_clients(chance)
        self.scheduler.after(self.reaction_ms, self._operate)

    def _add_clients(self, chance: Random) -> None:
        self.producers = [Producer(self, f"p{number}", acks=ACKS_ALL, is_idempotent=True) for number in (1, 2)]
        if chance.random() < 0.5:
            self.producers.append(Producer(self, "weak", acks=1, is_idempotent=False))
        if chance.random() < 0.3:
            self.producers.append(Producer(self, "plain", acks=ACKS_ALL, is_idempotent=False))
        self.consumers = [Consumer(self, f"c{number}") for number in (1, 2)]

    def next_incarnation(self) -> int:
        """A number for a process that starts."""
        self._incarnations += 1
        return self._incarnations

    def next_producer_id(self) -> int:
        """A producer id that nobody has."""
        self._producer_ids += 1
        return self._producer_ids

    # What clients and nodes ask ---------------------------------------------------------------------------------------

    def guess_leader(self, chance: Random) -> Node | None:
        """Whom a client takes for the leader: mostly it is right."""
        leader = self.authority.partition.leader
        if chance.random() < 0.05:
            leader = chance.choice(list(self.nodes))
        node = self.nodes.get(leader)
        return node if node is not None and node.process.is_alive and node.replica is not None else None

    def values_of(self, batch: Batch) -> list[tuple[int, Value]]:
        """The records of a batch. Many read the same one: it is decoded once."""
        key = (batch.header.base_offset, batch.header.crc)
        if key not in self._values:
            texts = [(record.offset, (record.value or b"").decode()) for record in batch.records()]
            parts = [(offset, text.rpartition("/")) for offset, text in texts]
            self._values[key] = [(offset, Value(name, int(number))) for offset, (name, _slash, number) in parts]
        return self._values[key]

    def reach_code(self, code: ErrorCode) -> None:
        """A client is told an error."""
        if code in CODES:
            self.states.reach(CODES[code])

    def log_start_offset(self) -> int:
        """Where the log of the node that went furthest starts: what is before was deleted on purpose."""
        return max(node.started_at for node in self.nodes.values())

    def on_start_moved(self, log_start_offset: int, *, is_leader: bool) -> None:
        """A log starts later now. What a producer waits for may be among what was deleted: then nobody knows it."""
        self.states.reach("log start moved" if is_leader else "log start moved on a follower")
        for producer in self.producers:
            if producer.is_idempotent and any(
                self.written.get(outgoing.label, log_start_offset) < log_start_offset for outgoing in producer.window
            ):
                producer.forsake()

    def on_leader(self, partition: PartitionImage) -> None:
        """The authority has decided who leads."""
        old = self.nodes.get(self.last_leader)
        if self.last_leader_epoch >= 0:
            self.states.reach("leader change")
            if old is not None and old.process.is_alive and partition.leader != self.last_leader:
                self.states.reach("leader change while the old leader is alive")
                if any(producer.window for producer in self.producers):
                    self.states.reach("leader change with batches in flight")
        self.last_leader, self.last_leader_epoch = partition.leader, partition.leader_epoch
        self.trace.happened("authority", MARK, f"leader {partition.leader}, epoch {partition.leader_epoch}")

    # Faults -----------------------------------------------------------------------------------------------------------

    def causes(self) -> Mapping[str, Cause]:
        """What each kind does."""
        return {
            "kill": self._on_kill,
            "power cut": self._on_power_cut,
            "die in mid-write": self._on_die,
            "restart": self._on_restart,
            "reincarnation": self._on_reincarnation,
            "pause": self._on_pause,
            "cut": self._on_cut,
            "isolate": self._on_isolate,
            "deaf leader": self._on_deaf_leader,
            "last replica standing": self._on_last_standing,
            "slow": self._on_slow,
            "elect": self._on_elect,
            "clock": self._on_clock,
            "break client links": self._on_break,
            "stop the authority": self._on_stop_authority,
            "delete records": self._on_delete,
        }

    def _node(self, fault: Fault, which: int = 0) -> Node:
        number = fault.arguments[which]
        assert isinstance(number, int)
        return self.nodes[1 + number % len(self.nodes)]

    def may_cut_power(self, node: Node) -> bool:
        """Whether what is promised must survive this: fewer nodes than min.insync.replicas are weak at a time."""
        weak = [it for it in self.nodes.values() if it.is_weak and it is not node]
        return len(weak) + 1 < MIN_INSYNC_REPLICAS.of(self.config)

    def _on_kill(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.kill()
        return node.start

    def _on_power_cut(self, fault: Fault) -> Callable[[], None] | None:
        node = self._node(fault)
        if not self.may_cut_power(node):
            return None
        node.cut_power()
        return node.start

    def _on_die(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        changes, how = fault.arguments[1:]
        assert isinstance(changes, int)
        node.how_it_dies = ("kill", "power")[int(how)]
        node.restart_ms = fault.duration_ms
        node.disk.die_after(changes)
        return lambda: node.disk.die_after(None)

    def _on_restart(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.stop()
        return node.start

    def _on_reincarnation(self, fault: Fault) -> Callable[[], None] | None:
        """A node is gone and back at once, and what it said before is heard after what it says now (KIP-903)."""
        node, leader = self._node(fault), self.nodes.get(self.authority.partition.leader)
        if leader is None or leader is node or not self.may_cut_power(node):
            return None
        end = self.network.slow(node.name, leader.name, fault.duration_ms)
        self.scheduler.after(fault.duration_ms // 4, lambda: self._reincarnate(node))
        return end

    def _reincarnate(self, node: Node) -> None:
        if self.may_cut_power(node):
            node.cut_power()
            node.start()

    def _on_pause(self, fault: Fault) -> Callable[[], None]:
        process = self._node(fault).process
        process.pause()
        return process.resume

    def _parties(self, fault: Fault) -> tuple[str, str]:
        """Two of the nodes and the authority."""
        names = [*(node.name for node in self.nodes.values()), "authority"]
        first, second = int(fault.arguments[0]), int(fault.arguments[1])
        source = names.pop(first % len(names))
        return source, names[second % len(names)]

    def _on_cut(self, fault: Fault) -> Callable[[], None]:
        source, target = self._parties(fault)
        heals = [self.network.cut(source, target)]
        if fault.arguments[2]:
            heals.append(self.network.cut(target, source))
        return partial(_all, heals)

    def _on_isolate(self, fault: Fault) -> Callable[[], None]:
        name = self._node(fault).name
        others = [*(node.name for node in self.nodes.values() if node.name != name), "authority"]
        heals = [self.network.cut(*pair) for other in others for pair in ((name, other), (other, name))]
        return partial(_all, heals)

    def _on_deaf_leader(self, fault: Fault) -> None:
        """A follower leaves the in-sync set; when it returns, the leader does not hear that it may (KIP-497)."""
        node, leader = self._node(fault), self.nodes.get(self.authority.partition.leader)
        if leader is not None and leader is not node:
            node.process.pause()
            self.scheduler.after(self.lag_ms_max + 800, lambda: self._deafen(node, leader, fault.duration_ms))

    def _deafen(self, node: Node, leader: Node, duration_ms: int) -> None:
        node.process.resume()
        heal = self.network.cut("authority", leader.name)
        self.scheduler.after(duration_ms, heal)

    def _on_last_standing(self, fault: Fault) -> None:
        """All but the leader die, it is soon alone in sync, and then its power is cut (KIP-966)."""
        leader = self.nodes.get(self.authority.partition.leader)
        if leader is not None:
            for node in self.nodes.values():
                if node is not leader:
                    node.kill()
            self.scheduler.after(self.lag_ms_max + 1000, lambda: self._fall(leader, fault.duration_ms))

    def _fall(self, leader: Node, duration_ms: int) -> None:
        if self.may_cut_power(leader):
            leader.cut_power()
        for node in self.nodes.values():
            self.scheduler.after(duration_ms, node.start)

    def _on_slow(self, fault: Fault) -> Callable[[], None]:
        source, target = self._parties(fault)
        delay_ms = int(fault.arguments[3])
        ends = [self.network.slow(source, target, delay_ms)]
        if fault.arguments[2]:
            ends.append(self.network.slow(target, source, delay_ms))
        return partial(_all, ends)

    def _on_elect(self, fault: Fault) -> None:
        live = [it for it in self.authority.live() if it in self.authority.partition.isr]
        if live:
            chosen = live[int(fault.arguments[0]) % len(live)]
            self.authority.process.run(lambda: self._elect([chosen]))

    def _elect(self, live: list[int]) -> None:
        self.authority.elect(live)

    def _on_clock(self, fault: Fault) -> Callable[[], None]:
        process, error_ms = self._node(fault).process, int(fault.arguments[1])
        process.clock_error_ms += error_ms

        def end() -> None:
            process.clock_error_ms -= error_ms

        return end

    def _on_break(self, fault: Fault) -> None:
        for link in self._node(fault).links:
            link.break_off()

    def _on_stop_authority(self, fault: Fault) -> Callable[[], None] | None:
        if not self.authority.process.is_alive:
            return None
        self.authority.stop(is_power_cut=bool(fault.arguments[0]))
        return self.authority.start

    def _on_delete(self, fault: Fault) -> None:
        node = self.nodes.get(self.authority.partition.leader)
        if node is not None:
            node.process.run(partial(self._delete, node, int(fault.arguments[0])))

    def _delete(self, node: Node, number: int) -> None:
        replica = node.replica
        assert replica is not None
        if replica.leading is not None:
            span = replica.high_watermark - replica.log_start_offset
            try:
                replica.delete_records(replica.log_start_offset + number % (span + 1))
            except Refused as refused:
                self.trace.happened(node.name, NOTE, refused.message)

    # The operator -----------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """Somebody looks after the cluster: if the leader does not answer, another one is elected."""
        self.scheduler.after(self.reaction_ms, self._operate)
        authority = self.authority
        if not authority.process.is_alive:
            return
        live = [it for it in authority.live() if not self.nodes[it].process.is_paused]
        if not authority.partition.isr:
            if len(live) == len(self.nodes):
                authority.process.run(self._elect_most_complete)
        elif authority.partition.leader not in live and live:
            authority.process.run(lambda: self._elect(live))
        self._look_at_logs()

    def _elect_most_complete(self) -> None:
        """Nobody is in sync. A careful operator waits until all are there, and takes who has most: it has all promised.

        Whatever is promised was on as many nodes as must be in sync, and fewer than that have lost anything since.
        """
        self.states.reach("offline, the most complete one elected")
        ends = {node_id: (node.mirror.last_epoch, node.mirror.end) for node_id, node in self.nodes.items()}
        self.authority.elect([max(ends, key=lambda node_id: ends[node_id])], Election.UNCLEAN)

    def _look_at_logs(self) -> None:
        for node in self.nodes.values():
            if node.mirror.rolls:
                node.mirror.rolls = 0
                self.states.reach("segment rolled")

    # The end ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everybody is up, everything works."""
        self.network.become_calm()
        self.authority.start()
        for node in self.nodes.values():
            node.process.resume()
            node.disk.die_after(None)
            node.start()

    def come_right(self) -> None:
        """Go on until all is as it should be, and enough was done."""
        until_ms = self.scheduler.now_ms + CALM_MS_MIN
        limit_ms = self.scheduler.now_ms + CALM_MS_MAX
        while self.scheduler.now_ms < until_ms or self.history.acks < ACKS_MIN:
            self.scheduler.run(self.scheduler.now_ms + 500)
            if self.scheduler.now_ms > limit_ms:
                raise Violation(LIVENESS, f"only {self.history.acks} acks: {self._missing()}")
        self.is_producing = False
        while self._missing():
            self.scheduler.run(self.scheduler.now_ms + 250)
            if self.scheduler.now_ms > limit_ms:
                raise Violation(LIVENESS, f"{CALM_MS_MAX} ms after healing {self._missing()}")

    def _missing(self) -> str:
        """What is not as it should be."""
        partition = self.authority.partition
        leader = self.nodes.get(partition.leader)
        if leader is None or leader.replica is None or leader.replica.leading is None:
            return f"node {partition.leader} does not lead"
        if set(partition.isr) != set(self.nodes):
            return f"only {list(partition.isr)} are in sync"
        waiting = [producer.name for producer in self.producers if producer.window]
        if waiting:
            return f"{waiting} wait for acks"
        ends = {node.node_id: node.replica.log_end_offset for node in self.nodes.values() if node.replica is not None}
        marks = {node.node_id: node.replica.high_watermark for node in self.nodes.values() if node.replica is not None}
        if len({*ends.values(), *marks.values()}) > 1:
            return f"logs end at {ends}, high watermarks are {marks}"
        return ""

    def finish(self) -> None:
        """Read everything back, and compare all logs."""
        leader = self.nodes[self.authority.partition.leader].replica
        assert leader is not None
        start = self.log_start_offset()
        logs = {
            node.name: [held for held in node.mirror.held if held.base_offset >= start] for node in self.nodes.values()
        }
        first, *others = logs
        for name in others:
            if logs[name] != logs[first]:
                differing = sorted(set(logs[name]) ^ set(logs[first]))
                raise Violation(11, f"{first} and {name} differ from {start} on: {differing[:4]}")
        log: dict[int, Value] = {}
        offset = leader.log_start_offset
        while offset < leader.high_watermark:
            data = leader.read(offset, bytes_max=1 << 20, reader=CONSUMER).read()
            for batch in batches(data):
                batch.check_crc()
                log.update(self.values_of(batch))
                offset = batch.header.next_offset
        self.checker.finish(log, log_start_offset=leader.log_start_offset)


def _all(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()
