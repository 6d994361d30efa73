"""What a world must know of a replicated partition to check it: which batches are committed, and which node leads.

Every node has a `Mirror` of its log, and `PartitionWatch` compares the mirrors after every event. The worlds of
chapters 04 and 05 are such watches; each says by itself how a leader is decided.
"""

import itertools
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from replication_clients import Producer
from replication_messages import WIRE, Fetch
from replication_nodes import NAME
from simulated_machine import STRANGER_REFUSED, GuardedWorld, Wire

from minibroker.log.batch import Batch, BatchHeader, batches
from minibroker.log.interfaces import Files
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.partition import CONSUMER
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Election, LogEnd
from minibroker.replication.follower import Position
from minibroker.replication.keys import MIN_INSYNC_REPLICAS
from minibroker.replication.opening import HIGH_WATERMARKS
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.simulation import cluster
from minibroker.simulation.checker import Violation
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.history import Value
from minibroker.simulation.host import Host
from minibroker.simulation.scheduler import Action
from minibroker.simulation.states import States
from minibroker.simulation.trace import MARK
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from replication_cluster import Node

ACKS_MIN = 500
CALM_MS_MIN, CALM_MS_MAX = 6_000, 60_000
NO_ENDS: LogEnds = {}

REPLICA_STATES = ("truncation", "divergence by epoch", "ISR shrink", "ISR expansion", "proposal refused")
LEADER_CHANGES = (
    "leader change",
    "leader change while the old leader is alive",
    "leader change with batches in flight",
)
PARTITION_DISASTERS = (
    cluster.STOP_ALL,
    cluster.FULL_DISK,
    cluster.FAILING_DISK,
    cluster.LOSE_RACK,
    cluster.FORGE,
    Kind("unclean election", cluster.any_node),
)
PARTITION_DISASTER_STATES = (
    *cluster.DISASTER_STATES,
    STRANGER_REFUSED,
    "unclean election without all replicas",
)
CODES = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "NOT_ENOUGH_REPLICAS",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
}


class SomeStates(States):
    """The states that a world declares; its parts report more, which do not count."""

    def reach(self, name: str) -> None:
        if name in self.counts:
            super().reach(name)


# Logs -----------------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A batch in a log, with the fields in which two logs may differ."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class Mirror(Companion):
    """A companion of a log that knows every batch in it."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self._bases: list[int] = []
        self.rolls = 0
        self.cut: list[Held] = []
        """The batches that were truncated since the last check."""
        self._is_complete = False

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        if not self._is_complete:
            self._is_complete = True
            return log_start_offset
        return log_end_offset

    def replay(self, header: BatchHeader, batch: object, position: int = 0) -> None:
        self.held.append(Held(header.base_offset, header.next_offset, header.leader_epoch, header.crc))
        self._bases.append(header.base_offset)

    on_append = replay

    def on_truncate(self, offset: int) -> None:
        kept = bisect_left(self._bases, offset) if offset else 0
        self.cut += self.held[kept:]
        del self.held[kept:], self._bases[kept:]

    def on_delete(self, offset: int) -> None:
        first = bisect_left(self._bases, offset)
        if first and self.held[first - 1].next_offset > offset:
            first -= 1
        del self.held[:first], self._bases[:first]

    def on_roll(self, base_offset: int) -> None:
        self.rolls += 1

    def between(self, start: int, end: int) -> list[Held]:
        """The batches from one offset to another."""
        return self.held[bisect_left(self._bases, start) : bisect_left(self._bases, end)]

    def has(self, batch: Held) -> bool:
        index = bisect_left(self._bases, batch.base_offset)
        return index < len(self.held) and self.held[index] == batch

    @property
    def end(self) -> tuple[int, int]:
        """The last epoch and the end offset: of two logs, the one with the greater end is more complete."""
        return (self.held[-1].leader_epoch, self.held[-1].next_offset) if self.held else (-1, 0)


class WatchedDirectory(DataDirectory):
    """Opens logs with a mirror beside them."""

    def __init__(self, files: Files, mirror: Mirror) -> None:
        tokens = itertools.count()
        super().__init__(files, "data", more_checkpoints=[HIGH_WATERMARKS], token=lambda: f"{next(tokens):032x}")
        self._mirror = mirror

    def open_log(
        self, partition: TopicPartition, config: LogConfig | None = None, *, companions: Any = ()
    ) -> SegmentedLog:
        both: list[Companion] = [*companions, self._mirror]
        return super().open_log(partition, config, companions=both)


class Committed:
    """Every batch that was ever below a leader's high watermark. It must stay the same in every log."""

    def __init__(self) -> None:
        self._batches: dict[int, Held] = {}

    def extend(self, name: str, found: list[Held]) -> None:
        """A leader's watermark has passed these batches."""
        for batch in found:
            known = self._batches.setdefault(batch.base_offset, batch)
            if known != batch:
                raise Violation(11, f"{name} commits {batch}, committed was {known}")

    def check(self, name: str, found: list[Held]) -> None:
        """A follower's watermark has passed these batches."""
        for batch in found:
            if not self.holds(batch):
                known = self._batches.get(batch.base_offset)
                raise Violation(11, f"{name} has {batch} below its high watermark, committed was {known}")

    def holds(self, batch: Held) -> bool:
        return self._batches.get(batch.base_offset) == batch

    def missing(
        self, mirror: Mirror, log_start_offset: int, is_due: Callable[[Held], bool] = lambda _batch: True
    ) -> Held | None:
        """The first committed batch that a log lacks."""
        for _base_offset, batch in sorted(self._batches.items()):
            if batch.next_offset > log_start_offset and is_due(batch) and not mirror.has(batch):
                return batch
        return None


# A world with a partition ---------------------------------------------------------------------------------------------


class PartitionWatch(GuardedWorld):
    """What a world must know of its partition: what is committed, which node leads, what clients have sent."""

    WIRE: ClassVar[Wire] = WIRE
    lag_ms_max: int
    fetch_bytes: tuple[int, ...]

    def watch_partition(self, config: TopicConfig) -> None:
        """Begin to watch."""
        self.config = config
        self.nodes: dict[int, Node] = {}
        self.committed = Committed()
        self.leaders: dict[int, int] = {}
        """The leader of each epoch."""
        self.last_leader_epoch = self.last_leader = -1
        self.producers: list[Producer] = []
        self.is_producing = True
        self.incarnations = itertools.count(1)
        self.producer_ids = itertools.count(1)
        self.written: dict[str, int] = {}
        """All batches that leaders have written, each with its last offset."""
        self._values: dict[tuple[int, int], list[tuple[int, Value]]] = {}

    # What is decided --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def partition(self) -> PartitionImage:
        """The controller's decision about the partition."""

    @abstractmethod
    def live(self) -> list[int]:
        """The nodes that may be elected: those that are up and registered in their current life."""

    @abstractmethod
    def elect(self, live: list[int], kind: Election = Election.PREFERRED, ends: LogEnds = NO_ENDS) -> None:
        """Let one of these nodes be elected."""

    def elect_most_complete(self, node_ids: Iterable[int]) -> None:
        """No replica is in sync. A careful operator waits until all are there, and holds an unclean election.

        Whatever is promised was on as many nodes as must be in sync, and fewer than that have lost anything since. So
        the longest log has all of it.
        """
        live = list(node_ids)
        self.states.reach("offline, the most complete one elected")
        self.elect(live, Election.UNCLEAN, {NAME: self._log_ends(live)})

    def _log_ends(self, node_ids: Iterable[int]) -> dict[int, LogEnd]:
        """What these replicas answer to GetReplicaLogInfo."""
        told = {node_id: self.nodes[node_id].log_info() for node_id in node_ids}
        return {
            node_id: LogEnd(it.last_written_leader_epoch, it.log_end_offset)
            for node_id, it in told.items()
            if it.error_code == ErrorCode.NONE
        }

    def on_unclean_election(self, fault: Fault) -> None:
        """All machines are booted again. Nothing is lost, but no replica can prove that, so none is in sync."""
        chance = Random(int(fault.arguments[0]))
        for host in self.hosts().values():
            host.kill()
            host.forget_epoch()
            self.scheduler.after(chance.choice((50, 500, 3000)), host.start)
        for after_ms in range(500, 6000, 500):
            self.scheduler.after(after_ms, self._elect_uncleanly)

    def _elect_uncleanly(self) -> None:
        """An operator does not wait for all replicas, if one of those that are there has all committed records.

        The processes of all replicas that may lead have ended. If one of them were only cut off, it could still commit.
        """
        it = self.partition
        complete = (*it.isr, *it.eligible_leader_replicas)
        live = [node_id for node_id in it.replicas if node_id in self.live() and node_id not in complete]
        ends = self._log_ends(live)
        if not ends or any(self.nodes[node_id].process.is_alive for node_id in complete):
            return
        longest = self.nodes[max(ends, key=lambda node_id: ends[node_id])]
        if self.committed.missing(longest.mirror, longest.started_at) is None:
            self.states.reach("unclean election without all replicas")
            self.elect(live, Election.UNCLEAN, {NAME: ends})

    def check_partition(self) -> None:
        """The controller has decided: each epoch has one leader, and a leader has all committed batches."""
        it = self.partition
        if it.leader >= 0:
            known = self.leaders.setdefault(it.leader_epoch, it.leader)
            if known != it.leader:
                raise Violation(10, f"epoch {it.leader_epoch} has leaders {known} and {it.leader}")
            node = self.nodes[it.leader]
            if it.leader_epoch != self.last_leader_epoch and node.replica is not None:
                self._on_leader(it)
                missing = self.committed.missing(node.mirror, node.started_at)
                # A node whose power was cut leads nothing before it has registered, and then it leaves the in-sync set.
                if missing is not None and not node.is_diminished:
                    facts = f"is to lead in epoch {it.leader_epoch} without {missing}, committed"
                    raise Violation(1, f"{node.name} {facts}")
        self._note_strength()

    def _note_strength(self) -> None:
        """A replica in sync has all committed records, unless its power was cut or its disk fails."""
        for node_id in self.partition.isr:
            node = self.nodes[node_id]
            node.is_weak = node.is_weak and (node.is_diminished or node.is_doomed)

    def _on_leader(self, partition: PartitionImage) -> None:
        old = self.nodes.get(self.last_leader)
        if self.last_leader_epoch >= 0:
            self.states.reach("leader change")
            if old is not None and old.process.is_alive and partition.leader != self.last_leader:
                self.states.reach("leader change while the old leader is alive")
                if any(producer.window for producer in self.producers):
                    self.states.reach("leader change with batches in flight")
        self.last_leader, self.last_leader_epoch = partition.leader, partition.leader_epoch
        self.trace.happened("authority", MARK, f"leader {partition.leader}, epoch {partition.leader_epoch}")

    def check_joined(self, leader: "Node", node: "Node") -> None:
        """A replica that joins has all committed batches, and all from before the leader's epoch."""
        if node.is_diminished or node.replica is None or leader.replica is None or leader.replica.leading is None:
            return
        start = leader.replica.leading.epoch_start_offset
        if leader.replica.leader_epoch == self.partition.leader_epoch and node.replica.log.log_end_offset < start:
            facts = f"its log ends at {node.replica.log.log_end_offset}, the leader's epoch began at {start}"
            raise Violation(13, f"{node.name} joins: {facts}")
        missing = self.committed.missing(node.mirror, node.started_at)
        if missing is not None:
            raise Violation(13, f"{node.name} joins without {missing}, which is committed")

    # What clients and nodes ask ---------------------------------------------------------------------------------------

    def guess_leader(self, chance: Random) -> "Node | None":
        """The node that a client takes for the leader, which is mostly right."""
        leader = self.partition.leader
        if chance.random() < 0.05:
            leader = chance.choice(list(self.nodes))
        node = self.nodes.get(leader)
        return node if node is not None and node.process.is_alive and node.replica is not None else None

    def values_of(self, batch: Batch) -> list[tuple[int, Value]]:
        """The records of a batch, which is decoded once for all readers."""
        key = (batch.header.base_offset, batch.header.crc)
        if key not in self._values:
            self._values[key] = values_of(batch)
        return self._values[key]

    def reach_code(self, code: ErrorCode) -> None:
        """A client gets an error."""
        if code in CODES:
            self.states.reach(CODES[code])

    def log_start_offset(self) -> int:
        """The largest log start offset of all nodes: records before it were deleted on purpose."""
        return max(node.started_at for node in self.nodes.values())

    def on_start_moved(self, log_start_offset: int, *, is_leader: bool) -> None:
        """A log starts later now. A batch that a producer retries may be among the deleted ones."""
        self.states.reach("log start moved" if is_leader else "log start moved on a follower")
        for producer in self.producers:
            if producer.is_idempotent and any(
                self.written.get(outgoing.label, log_start_offset) < log_start_offset for outgoing in producer.window
            ):
                producer.forsake()

    # Faults -----------------------------------------------------------------------------------------------------------

    def may_cut_power(self, host: Host) -> bool:
        """Acknowledged records must survive: fewer nodes than min.insync.replicas may lose power at a time."""
        weak = [it for it in self.nodes.values() if it.is_weak and it.node_id != host.node_id]
        return len(weak) + 1 < MIN_INSYNC_REPLICAS.of(self.config)

    def may_stay_away(self, host: Host) -> bool:
        """Without this machine as many replicas are left as must be in sync."""
        return len(self.partition.replicas) > MIN_INSYNC_REPLICAS.of(self.config)

    def doom(self, host: Host, is_doomed: bool) -> None:
        """A failing disk may lose records, so it counts as a power cut from the beginning."""
        node = self.nodes[host.node_id]
        node.is_doomed, node.is_weak = is_doomed, node.is_weak or is_doomed
        super().doom(host, is_doomed)

    def forgeries(self) -> list[Callable[[int], None]]:
        return [*super().forgeries(), self._forge_fetch]

    def _forge_fetch(self, number: int) -> None:
        """Confirm, in the name of a follower, records that it does not have."""
        leader = self.nodes.get(self.partition.leader)
        replica = leader.replica if leader is not None else None
        if leader is None or replica is None:
            return
        followers = [it for it in self.partition.replicas if it != leader.node_id]
        end = replica.log.log_end_offset
        position = Position(leader.node_id, replica.leader_epoch, end, replica.epochs.epoch_of(end - 1), 0)
        request = Fetch(followers[number % len(followers)], position, -1, 1 << 20)
        self.forge(leader.process, request, partial(leader.on_fetch, request))

    def on_reincarnation(self, fault: Fault) -> Action | None:
        """A node restarts at once, and its earlier fetch arrives after a later one (KIP-903)."""
        host, leader = self.host_hit(fault), self.nodes.get(self.partition.leader)
        if leader is None or leader.node_id == host.node_id or not self.may_cut_power(host):
            return None
        end = self.network.slow(host.name, leader.name, fault.duration_ms)
        self.scheduler.after(fault.duration_ms // 4, partial(self._reincarnate, host))
        return end

    def _reincarnate(self, host: Host) -> None:
        if self.may_cut_power(host):
            host.cut_power()
            host.start()

    def on_elect(self, fault: Fault) -> None:
        """Another leader is elected although the old one works."""
        live = [it for it in self.live() if it in self.partition.isr]
        if live:
            self.elect([live[int(fault.arguments[0]) % len(live)]])

    def on_break_client_links(self, fault: Fault) -> None:
        """Clients lose their connections to a node."""
        for link in self.nodes[self.host_hit(fault).node_id].links:
            link.break_off()

    # The end ----------------------------------------------------------------------------------------------------------

    def wait_for_recovery(self) -> None:
        """Run until the cluster has recovered, and enough records were acked."""
        healed_ms = self.scheduler.now_ms
        limit_ms = healed_ms + CALM_MS_MAX

        def too_few() -> str:
            is_enough = self.scheduler.now_ms >= healed_ms + CALM_MS_MIN and self.history.acks >= ACKS_MIN
            return "" if is_enough else f"only {self.history.acks} acks: {self.missing()}"

        self.run_until(too_few, limit_ms=limit_ms, step_ms=500)
        self.is_producing = False
        self.run_until(self.missing, limit_ms=limit_ms)

    def degraded(self) -> str:
        it = self.partition
        leader = self.nodes.get(it.leader)
        if leader is None or leader.replica is None or leader.replica.leading is None:
            return f"node {it.leader} does not lead: {it}"
        if set(it.isr) != set(it.replicas):
            return f"only {list(it.isr)} of {list(it.replicas)} are in sync"
        # The disk of a node may have been about to fail without a single flush since then.
        self._note_strength()
        # A node that has just returned counts as in sync until the controller hears of its return.
        unknown = [node_id for node_id, node in self.nodes.items() if not node.is_registered]
        weak = [node_id for node_id in it.replicas if self.nodes[node_id].is_weak]
        return f"{unknown} are not registered, {weak} may have lost records" if unknown or weak else ""

    def missing(self) -> str:
        """What has not recovered yet."""
        return self.degraded() or self._unfinished()

    def _unfinished(self) -> str:
        waiting = [producer.name for producer in self.producers if producer.window]
        if waiting:
            return f"{waiting} wait for acks"
        replicas = {node.node_id: node.replica for node in self.nodes.values() if node.replica is not None}
        ends = {node_id: replica.log.log_end_offset for node_id, replica in replicas.items()}
        marks = {node_id: replica.high_watermark for node_id, replica in replicas.items()}
        if len({*ends.values(), *marks.values()}) > 1 or len(replicas) != len(self.partition.replicas):
            return f"logs end at {ends}, high watermarks are {marks}"
        return ""

    def finish(self) -> None:
        """Read everything back, and compare all logs."""
        start = self.log_start_offset()
        logs = {
            node.name: [held for held in node.mirror.held if held.base_offset >= start]
            for node in self.nodes.values()
            if node.replica is not None
        }
        first, *others = logs
        for name in others:
            if logs[name] != logs[first]:
                differing = sorted(set(logs[name]) ^ set(logs[first]))
                raise Violation(11, f"{first} and {name} differ from {start} on: {differing[:4]}")
        leader = self.nodes[self.partition.leader].local
        assert leader is not None
        log: dict[int, Value] = {}
        offset = leader.log_start_offset
        while offset < leader.high_watermark:
            data = leader.read(offset, bytes_max=1 << 20, reader=CONSUMER).read()
            for batch in batches(data):
                batch.check_crc()
                log.update(self.values_of(batch))
                offset = batch.header.next_offset
        self.checker.finish(log, log_start_offset=leader.log_start_offset)


def values_of(batch: Batch) -> list[tuple[int, Value]]:
    """The records of a batch, each with its offset."""
    found: list[tuple[int, Value]] = []
    for record in batch.records():
        name, _slash, number = (record.value or b"").decode().rpartition("/")
        found.append((record.offset, Value(name, int(number))))
    return found
