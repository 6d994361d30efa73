"""The world of the quorum: what a majority has decided, under everything that can go wrong.

    python -m minibroker.simulation raft_world --path chapters/05-raft-controller/tests --seeds 1000

Three or five voters, and observers that may take their places. Disks are lost, voters are removed and added, logs are
cut to snapshots; clients append, and are told what is decided. The invariants are chapter 04's by their numbers; here:

    10  an epoch has one leader, and a voter votes once in it
    11  the same offset and epoch: the same log up to there; what is decided is in every leader's log, and never changes
    12  the high watermark never goes back, and what is before it is on a majority's disks
"""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import ClassVar

from raft_cluster import TRANSITIONS, Append, Appended, QuorumNode, QuorumWatch, voter_of

from minibroker.log.batch import Batch
from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.history import Acked, Invoked, Promise, Unknown, Value
from minibroker.simulation.process import Process
from minibroker.wire.codes import ErrorCode

CALM_MS_MIN, CALM_MS_MAX = 4_000, 30_000
LEADER_MS_MAX = 10_000
OPERATOR_MS = 800
_ANY = 1_000_000


def _node(chance: Random) -> tuple[int]:
    return (chance.randrange(_ANY),)


def _two(chance: Random) -> tuple[int, int, int]:
    return (chance.randrange(_ANY), chance.randrange(_ANY), chance.randrange(2))


class World(QuorumWatch):
    """Voters, observers, clients, and an operator who looks after the set of voters."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        *TRANSITIONS,
        "truncation",
        "divergence",
        "snapshot taken over",
        "log forgets what is in a snapshot",
        "disk lost",
        "voter added",
        "voter removed",
        "change refused: another one is under way",
        "leader removed",
        "death in mid-write",
        "two leaders at a time",
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        Kind("kill", _node, (50, 4000), 2),
        Kind("power cut", _node, (50, 4000), 2),
        Kind("power cut of all", lambda _chance: (), (50, 2000)),
        Kind(
            "die in mid-write",
            lambda chance: (*_node(chance), chance.randrange(16), chance.randrange(2)),
            (50, 3000),
            3,
        ),
        Kind("restart", _node, (20, 1000)),
        Kind("pause", _node, (100, 5000), 2),
        Kind("cut", _two, (100, 5000), 2),
        Kind("isolate", _node, (500, 5000), 2),
        Kind("slow", lambda chance: (*_two(chance), chance.choice((50, 300, 1500))), (500, 5000)),
        Kind("clock", lambda chance: (*_node(chance), chance.choice((300, 2_000, 60_000)))),
        Kind("lose disk", _node, (50, 3000), 2),
        Kind("change voters", _node, weight=2),
        Kind("change voters twice", lambda chance: (*_node(chance), chance.randrange(_ANY))),
        Kind("snapshot", _node),
    )

    def play(self) -> None:
        """A storm, healing, a calm in which everything comes right, and a look at everything."""
        self.build()
        storm = self.storm()
        self.scheduler.run(self.STORM_MS)
        storm.heal()
        self.heal()
        self.come_right()
        self.checker.finish(self.values)

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        chance = self.chance("build")
        size = chance.choice((3, 3, 3, 5))
        observers = chance.choice((0, 1, 1, 2)) if size == 3 else chance.choice((0, 1))
        self.watch_quorum(chance)
        self.values: dict[int, Value] = {}
        self.crcs: dict[int, int] = {}
        self.is_appending = True
        self.quorum = {number: QuorumNode(self, number) for number in range(1, size + observers + 1)}
        # The directories of the voters are known from the start, or found out: then no disk is lost before they are.
        keys = [self.quorum[number].key for number in range(1, size + 1)]
        self.is_bound = chance.random() < 0.8
        self.bootstrap = VoterSet.of(voter_of(key if self.is_bound else VoterKey(key.node_id)) for key in keys)
        self.wanted_size = size
        for node in self.quorum.values():
            node.start()
        self.clients = [Client(self, f"c{number}") for number in (1, 2)]
        self.scheduler.after(OPERATOR_MS, self._operate)

    # What nodes report ------------------------------------------------------------------------------------------------

    def on_decided(self, batch: Batch) -> None:
        # Many decide the same batch: it is decoded once.
        if self.crcs.get(batch.header.base_offset) == batch.header.crc or batch.header.is_control:
            return
        self.crcs[batch.header.base_offset] = batch.header.crc
        for record in batch.records():
            name, _slash, number = (record.value or b"").decode().rpartition("/")
            value = Value(name, int(number))
            if self.values.setdefault(record.offset, value) != value:
                raise Violation(2, f"offset {record.offset} is {self.values[record.offset]} and {value}")

    # Faults -----------------------------------------------------------------------------------------------------------

    def causes(self) -> Mapping[str, Cause]:
        return {
            "kill": self._on_kill,
            "power cut": self._on_power_cut,
            "power cut of all": self._on_power_cut_of_all,
            "die in mid-write": self._on_die,
            "restart": self._on_restart,
            "pause": self._on_pause,
            "cut": self._on_cut,
            "isolate": self._on_isolate,
            "slow": self._on_slow,
            "clock": self._on_clock,
            "lose disk": self._on_lose_disk,
            "change voters": self._on_change,
            "change voters twice": self._on_change_twice,
            "snapshot": self._on_snapshot,
        }

    def _node(self, fault: Fault, which: int = 0) -> QuorumNode:
        # Whoever leads is hit more often than others.
        number = int(fault.arguments[which])
        leader = self.quorum_leader()
        return leader if leader is not None and number % 3 == 0 else self.quorum[1 + number // 3 % len(self.quorum)]

    def _on_kill(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.kill()
        return node.start

    def _on_power_cut(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.cut_power()
        return node.start

    def _on_power_cut_of_all(self, _fault: Fault) -> Callable[[], None]:
        for node in self.quorum.values():
            node.cut_power()
        return self._start_all

    def _start_all(self) -> None:
        for node in self.quorum.values():
            node.start()

    def _on_die(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.how_it_dies = ("kill", "power")[int(fault.arguments[2])]
        node.restart_ms = fault.duration_ms
        node.disk.die_after(int(fault.arguments[1]))
        disk = node.disk
        return lambda: disk.die_after(None)

    def _on_restart(self, fault: Fault) -> Callable[[], None]:
        node = self._node(fault)
        node.stop()
        return node.start

    def _on_pause(self, fault: Fault) -> Callable[[], None]:
        process = self._node(fault).process
        process.pause()
        return process.resume

    def _parties(self, fault: Fault) -> tuple[str, str]:
        names = [node.name for node in self.quorum.values()]
        source = names.pop(int(fault.arguments[0]) % len(names))
        return source, names[int(fault.arguments[1]) % len(names)]

    def _on_cut(self, fault: Fault) -> Callable[[], None]:
        source, target = self._parties(fault)
        heals = [self.network.cut(source, target)]
        if fault.arguments[2]:
            heals.append(self.network.cut(target, source))
        return partial(_all, heals)

    def _on_isolate(self, fault: Fault) -> Callable[[], None]:
        name = self._node(fault).name
        others = [node.name for node in self.quorum.values() if node.name != name]
        heals = [self.network.cut(*pair) for other in others for pair in ((name, other), (other, name))]
        return partial(_all, heals)

    def _on_slow(self, fault: Fault) -> Callable[[], None]:
        source, target = self._parties(fault)
        delay_ms = int(fault.arguments[3])
        ends = [self.network.slow(source, target, delay_ms)]
        if fault.arguments[2]:
            ends.append(self.network.slow(target, source, delay_ms))
        return partial(_all, ends)

    def _on_clock(self, fault: Fault) -> None:
        # A clock that only goes forward leaps: as if the machine had slept.
        self._node(fault).process.clock_error_ms += int(fault.arguments[1])

    def _on_lose_disk(self, fault: Fault) -> Callable[[], None] | None:
        node = self._node(fault)
        if not self.may_lose_disk(node.node_id):
            return None
        self.states.reach("disk lost")
        node.lose_disk()
        return node.start

    # The set of voters ------------------------------------------------------------------------------------------------

    def _on_change(self, fault: Fault) -> None:
        leader = self.quorum_leader()
        if leader is not None:
            leader.process.run(partial(self._remove, leader, int(fault.arguments[0])))

    def _on_change_twice(self, fault: Fault) -> None:
        """Two changes at once: the second must wait for the first."""
        leader = self.quorum_leader()
        if leader is not None:
            leader.process.run(partial(self._remove_two, leader, fault))

    def _remove_two(self, leader: QuorumNode, fault: Fault) -> None:
        for number in fault.arguments:
            self._remove(leader, int(number))

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

    def on_change(self, what: str, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.states.reach(what)
        elif code is ErrorCode.REQUEST_TIMED_OUT:
            self.states.reach("change refused: another one is under way")

    def _operate(self) -> None:
        """Somebody looks after the voters: who has lost its disk goes, and who is up comes, one at a time."""
        self.scheduler.after(OPERATOR_MS, self._operate)
        leader = self.quorum_leader()
        if leader is not None:
            leader.process.run(partial(self._look_after, leader))

    def _look_after(self, leader: QuorumNode) -> None:
        raft = leader.raft
        if not raft.is_leader:
            return
        lost = [key for key in map(raft.voters.key_of, raft.voters) if self._is_lost(key)]
        if lost and self.has_majority(raft.voters.without(lost[0].node_id)):
            self.on_change("voter removed", raft.remove_voter(lost[0], timestamp=0))
        elif len(raft.voters) < self.wanted_size:
            for node in self.quorum.values():
                is_free = node.process.is_alive and node.node_id not in raft.voters.voters
                if is_free and self.has_majority(raft.voters.with_voter(voter_of(node.key))):
                    code = raft.add_voter(voter_of(node.key), timestamp=0)
                    self.on_change("voter added", code)
                    if code is ErrorCode.NONE:
                        return

    def _is_lost(self, key: VoterKey) -> bool:
        return key.directory_id not in (bytes(16), self.quorum[key.node_id].key.directory_id)

    def _on_snapshot(self, fault: Fault) -> None:
        node = self._node(fault)

        node.process.run(node.take_snapshot)

    # The end ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.network.become_calm()
        for node in self.quorum.values():
            node.process.resume()
            node.disk.die_after(None)
            node.start()

    def come_right(self) -> None:
        """There is a leader soon, it stays, and all logs come to be the same."""
        healed_ms = self.scheduler.now_ms
        while self.quorum_leader() is None:
            self.scheduler.run(self.scheduler.now_ms + 100)
            if self.scheduler.now_ms > healed_ms + LEADER_MS_MAX:
                raise Violation(LIVENESS, f"nobody leads {LEADER_MS_MAX} ms after healing: {self.told()}")
        self.scheduler.run(healed_ms + CALM_MS_MIN)
        self._await("the voters are not settled", self._are_voters_settled)
        leaders = len(self.quorum_leaders)
        self.scheduler.run(self.scheduler.now_ms + 1_500)
        if len(self.quorum_leaders) > leaders:
            raise Violation(
                LIVENESS, f"all is well, and {len(self.quorum_leaders) - leaders} more leaders were elected"
            )
        self.is_appending = False
        self._await("logs differ", self._are_logs_equal)

    def _await(self, what: str, is_so: Callable[[], bool]) -> None:
        limit_ms = self.scheduler.now_ms + CALM_MS_MAX
        while not is_so():
            self.scheduler.run(self.scheduler.now_ms + 250)
            if self.scheduler.now_ms > limit_ms:
                raise Violation(LIVENESS, f"{CALM_MS_MAX} ms later {what}: {self.told()}")

    def _are_voters_settled(self) -> bool:
        leader = self.quorum_leader()
        if leader is None or not leader.raft._is_settled or len(leader.raft.voters) < self.wanted_size:
            return False
        voters = leader.raft.voters
        return all(voters.key_of(it) == self.quorum[it].key for it in voters)

    def _are_logs_equal(self) -> bool:
        ends = {it.raft.log.log_end_offset for it in self.quorum.values()}
        marks = {it.raft.high_watermark for it in self.quorum.values()}
        states = {it.state for it in self.quorum.values()}
        return len(ends | marks) == 1 and len(states) == 1 and not any(it.outgoing for it in self.clients)


class Client:
    """Appends one batch after the other, each once. Who has no answer in time does not know what became of it."""

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


def _all(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()
