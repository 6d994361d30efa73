"""The world of the quorum: its commits and elections under all kinds of faults.

    python -m minibroker.simulation raft_world --path chapters/05-raft-controller/tests --seeds 1000

There are three or five voters, and observers that may replace them. Disks are lost, voters are removed and added, logs
are replaced by snapshots; clients append, and are answered after the commit. The invariants have chapter 04's numbers:

    10  an epoch has one leader, and a voter votes once in it
    11  logs with the same offset and epoch are the same up to there; committed records never change, and every later
        leader has them
    12  the high watermark never goes back, and the records before it are on the disks of a majority
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

from partition_watch import values_of
from quorum_watch import TRANSITIONS, QuorumWatch, voter_of
from raft_cluster import QUORUM_WIRE, Append, Appended, QuorumNode
from simulated_machine import STRANGER_REFUSED

from minibroker.log.batch import Batch
from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.simulation import cluster
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.history import Acked, Invoked, Promise, Unknown, Value
from minibroker.simulation.host import DEATH
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action
from minibroker.wire.codes import ErrorCode

CALM_MS_MIN, CALM_MS_MAX = 4_000, 30_000
LEADER_MS_MAX = 10_000
OPERATOR_MS = 800


class World(QuorumWatch):
    """Voters, observers, clients, and an operator that maintains the voter set."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        *TRANSITIONS,
        "truncation",
        "divergence",
        "snapshot installed",
        "log deleted up to a snapshot",
        "disk lost",
        "voter added",
        "voter removed",
        "change refused: another one is under way",
        "leader removed",
        DEATH,
        "two leaders at a time",
        *cluster.DISASTER_STATES,
        STRANGER_REFUSED,
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        cluster.KILL,
        cluster.POWER_CUT,
        Kind("power cut of all", lambda _chance: (), (50, 2000)),
        cluster.die_in_mid_write(changes_max=16, weight=3),
        cluster.RESTART,
        cluster.PAUSE,
        cluster.CUT,
        cluster.ISOLATE,
        cluster.SLOW,
        Kind("clock", lambda chance: (*cluster.any_node(chance), chance.choice((300, 2_000, 60_000)))),
        Kind("lose disk", cluster.any_node, (50, 3000), 2),
        Kind("change voters", cluster.any_node, weight=2),
        Kind("change voters twice", lambda chance: (*cluster.any_node(chance), *cluster.any_node(chance))),
        Kind("snapshot", cluster.any_node),
    )
    DISASTERS = (cluster.STOP_ALL, cluster.FULL_DISK, cluster.FAILING_DISK, cluster.LOSE_RACK, cluster.FORGE)
    TRIALS = (cluster.COMEBACK,)
    WIRE = QUORUM_WIRE

    # Setup ------------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        chance = self.chance("build")
        size = chance.choice((3, 3, 3, 5))
        observers = chance.choice((0, 1, 1, 2)) if size == 3 else chance.choice((0, 1))
        self.watch_quorum(chance)
        self.values: dict[int, Value] = {}
        self.crcs: dict[int, int] = {}
        self.is_appending = True
        self.quorum = {number: QuorumNode(self, number) for number in range(1, size + observers + 1)}
        # The directories of the voters are known at the start, or are learnt; no disk is lost before that.
        keys = [self.quorum[number].key for number in range(1, size + 1)]
        self.is_bound = chance.random() < 0.8
        self.bootstrap = VoterSet.of(voter_of(key if self.is_bound else VoterKey(key.node_id)) for key in keys)
        self.wanted_size = size
        for node in self.quorum.values():
            node.start()
        self.clients = [Client(self, f"c{number}") for number in (1, 2)]
        self.scheduler.after(OPERATOR_MS, self._operate)

    def hosts(self) -> Mapping[int, QuorumNode]:
        return self.quorum

    # Reports of nodes -------------------------------------------------------------------------------------------------

    def on_decided(self, batch: Batch) -> None:
        # Several nodes report the same batch: it is decoded once.
        if self.crcs.get(batch.header.base_offset) == batch.header.crc or batch.header.is_control:
            return
        self.crcs[batch.header.base_offset] = batch.header.crc
        for offset, value in values_of(batch):
            if self.values.setdefault(offset, value) != value:
                raise Violation(2, f"offset {offset} is {self.values[offset]} and {value}")

    # Faults -----------------------------------------------------------------------------------------------------------

    def host_hit(self, fault: Fault) -> QuorumNode:
        """Choose a node; the leader more often than others."""
        number = int(fault.arguments[0])
        leader = self.quorum_leader()
        return leader if leader is not None and number % 3 == 0 else self.quorum[1 + number // 3 % len(self.quorum)]

    def on_power_cut_of_all(self, _fault: Fault) -> Action:
        """All machines lose power at once."""
        for node in self.quorum.values():
            node.cut_power()
        return self._start_all

    def _start_all(self) -> None:
        for node in self.quorum.values():
            node.start()

    def on_clock(self, fault: Fault) -> None:
        """Advance a node's clock at once, as if the machine had slept; it never goes back."""
        self.host_hit(fault).process.clock_error_ms += int(fault.arguments[1])

    def on_change_voters(self, fault: Fault) -> None:
        """Remove one or two of the voters: the second change must wait for the first."""
        leader = self.quorum_leader()
        if leader is not None:
            leader.process.run(partial(self._remove_all, leader, [int(it) for it in fault.arguments]))

    on_change_voters_twice = on_change_voters

    def _remove_all(self, leader: QuorumNode, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._remove(leader, number)

    def _remove(self, leader: QuorumNode, number: int) -> None:
        raft = leader.raft
        voters = list(raft.voters)
        chosen = leader.node_id if number % 3 == 0 else voters[number // 3 % len(voters)]
        if len(voters) < 3 or chosen not in voters or not self.has_majority(raft.voters.without(chosen)):
            return
        code = raft.remove_voter(raft.voters.key_of(chosen), timestamp=0)
        self.on_change("voter removed", code)
        if code is ErrorCode.NONE and chosen == leader.node_id:
            self.states.reach("leader removed")

    def _operate(self) -> None:
        """Let the operator maintain the voter set."""
        self.scheduler.after(OPERATOR_MS, self._operate)
        leader = self.quorum_leader()
        if leader is not None and self.is_operated:
            leader.process.run(partial(self.look_after_voters, leader))

    # The end ----------------------------------------------------------------------------------------------------------

    def degraded(self) -> str:
        return self.unsettled()

    def wait_for_recovery(self) -> None:
        """A leader is elected soon and stays, and all logs become the same."""
        healed_ms = self.scheduler.now_ms
        self.run_until(self._lacks_leader, limit_ms=healed_ms + LEADER_MS_MAX, step_ms=100)
        self.scheduler.run(healed_ms + CALM_MS_MIN)
        self.run_until(self.unsettled, limit_ms=self.scheduler.now_ms + CALM_MS_MAX)
        leaders = len(self.quorum_leaders)
        self.scheduler.run(self.scheduler.now_ms + 1_500)
        if len(self.quorum_leaders) > leaders:
            more = len(self.quorum_leaders) - leaders
            raise Violation(LIVENESS, f"{more} more leaders were elected without a fault")
        self.is_appending = False
        self.run_until(self._differing, limit_ms=self.scheduler.now_ms + CALM_MS_MAX)

    def finish(self) -> None:
        self.checker.finish(self.values)

    def _lacks_leader(self) -> str:
        return "" if self.quorum_leader() else f"there is no leader {LEADER_MS_MAX} ms after healing: {self.told()}"

    def _differing(self) -> str:
        ends = {it.raft.log.log_end_offset for it in self.quorum.values()}
        marks = {it.raft.high_watermark for it in self.quorum.values()}
        states = {it.state for it in self.quorum.values()}
        is_equal = len(ends | marks) == 1 and len(states) == 1 and not any(it.outgoing for it in self.clients)
        return "" if is_equal else f"logs differ: {self.told()}"


class Client:
    """Appends one batch after the other, each once. After a timeout it does not know whether the batch is committed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(name)
        self.process = Process(world.scheduler, world.trace, name)
        self.process.start()
        self.gap_ms = self.chance.choice((150, 250, 400))
        self.sequence = 0
        self.outgoing: list[Value] = []
        self.leader_id = 1
        self.sent_ms = 0
        world.promises[name] = Promise(is_durable=True, is_idempotent=False)
        self._schedule()

    def _schedule(self) -> None:
        self.process.after(1 + int(self.chance.random() * 2 * self.gap_ms), self._append)

    def _append(self) -> None:
        self._schedule()
        world, now_ms = self.world, self.world.scheduler.now_ms
        if self.outgoing and now_ms - self.sent_ms > 1800:
            self._give_up()
            self.leader_id = self.chance.choice(list(world.quorum))
        if self.outgoing or not world.is_appending:
            return
        self.outgoing = [Value(self.name, self.sequence + it) for it in range(self.chance.choice((1, 2, 5, 8)))]
        self.sequence += len(self.outgoing)
        for value in self.outgoing:
            world.history.record(Invoked(now_ms, value))
        self.sent_ms = now_ms
        request = Append(self.outgoing[0].sequence, tuple(str(it).encode() for it in self.outgoing))
        node = world.quorum[self.leader_id]
        world.network.ask(self.process, node.process, request, partial(node.serve, request), self._on_answer)

    def _give_up(self) -> None:
        for value in self.outgoing:
            self.world.history.record(Unknown(self.world.scheduler.now_ms, value))
        self.outgoing = []

    def _on_answer(self, answer: Appended) -> None:
        if not self.outgoing or answer.number != self.outgoing[0].sequence:
            return
        if answer.base_offset < 0:
            self._give_up()
            others = list(self.world.quorum)
            self.leader_id = answer.leader_id if answer.leader_id in others else self.chance.choice(others)
            return
        for index, value in enumerate(self.outgoing):
            self.world.history.record(Acked(self.world.scheduler.now_ms, value, answer.base_offset + index))
        self.outgoing = []
