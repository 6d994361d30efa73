"""The nodes of a simulated quorum: the real log, ballot, snapshots and state machine, on simulated disks.

What stands here is the driver, as small as it can be. And it watches: after everything that a node does, it is held
against what is true of every quorum.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from raft_nodes import batch_of, directory_id
from replication_cluster import Held, Mirror

from minibroker.log.batch import Batch, BatchHeader, batches
from minibroker.partitions.store import METADATA
from minibroker.raft.election import Ballot
from minibroker.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchSnapshot,
    Heard,
    Send,
    SnapshotFetched,
    SnapshotId,
    Vote,
    Voted,
)
from minibroker.raft.node import NotLeader, Raft
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.segments.config import UNLIMITED, LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.simulation import world
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.disk import Disk
from minibroker.simulation.links import Reply
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Timer
from minibroker.simulation.trace import BAND, MARK, NOTE
from minibroker.wire.codes import ErrorCode

FETCH_WAIT_MS = 350
FETCH_TIMEOUT_MS = 500
TICK_MS_MAX = 200
DECIDE_TIMEOUT_MS = 1500
SNAPSHOT_PIECE_BYTES = 300
UPKEEP_MS = 700


def transition(role: Role, cause: Cause) -> str:
    """The name of a change of role, as a state to be reached."""
    return f"{role.value}: {cause.value}"


TRANSITIONS = tuple(transition(*key) for key in NEXT)


# What is watched ------------------------------------------------------------------------------------------------------


class WatchedRaft(Raft):
    """The state machine, which tells why it changes its role."""

    reach: Callable[[str], None] = staticmethod(lambda _name: None)

    def _become(self, cause: Cause, deadline_ms: int) -> None:
        type(self).reach(transition(self.role, cause))
        super()._become(cause, deadline_ms)


class Line(NamedTuple):
    """What a batch is, and what stands before it in the log."""

    crc: int
    before: tuple[int, int] | None


class QuorumMirror(Mirror):
    """A mirror that holds every batch against all others of its offset and epoch: with the same, all before is, too."""

    def __init__(self, name: str, lines: dict[tuple[int, int], Line]) -> None:
        super().__init__()
        self._name = name
        self._lines = lines

    def replay(self, header: BatchHeader, position: int) -> None:
        last = self.held[-1] if self.held else None
        super().replay(header, position)
        key = (header.base_offset, header.leader_epoch)
        line = Line(header.crc, None if last is None else (last.base_offset, last.leader_epoch))
        known = self._lines.setdefault(key, line)
        if known.before is None:
            self._lines[key] = known = known._replace(before=line.before)
        if known.crc != line.crc or line.before not in (None, known.before):
            raise Violation(11, f"{self._name} has {line} at offset and epoch {key}, elsewhere it is {known}")

    on_append = replay


class Decided:
    """Every batch that was ever below a high watermark: it is the same in every log, and for good."""

    def __init__(self) -> None:
        self.batches: dict[int, Held] = {}
        self._epochs: dict[int, int] = {}
        self.end = 0

    def extend(self, name: str, found: list[Held], epoch: int) -> None:
        for batch in found:
            known = self.batches.setdefault(batch.base_offset, batch)
            self._epochs.setdefault(batch.base_offset, epoch)
            if known != batch:
                raise Violation(11, f"for {name} {batch} is decided, {known} was before")
            self.end = max(self.end, batch.next_offset)

    def holds(self, batch: Held) -> bool:
        return self.batches.get(batch.base_offset) == batch

    def missing(self, node: "QuorumNode") -> Held | None:
        """The first decided batch that a log should have and has not.

        One who was voted for long ago, and hears of it only now, leads an epoch that is over: it need not have more.
        """
        start, epoch = node.raft.log.log_start_offset, node.raft.epoch
        for base_offset in sorted(self.batches):
            batch = self.batches[base_offset]
            is_due = batch.next_offset > start and self._epochs[base_offset] <= epoch
            if is_due and not node.mirror.has(batch):
                return batch
        return None


# What is decided, folded ----------------------------------------------------------------------------------------------


class State(NamedTuple):
    """What all data records up to an offset come to: how many there are, and a digest of them all."""

    end_offset: int = 0
    records: int = 0
    digest: bytes = b""

    def after(self, header: BatchHeader) -> "State":
        digest = hashlib.sha256(self.digest + header.crc.to_bytes(4, "big")).digest()
        return State(header.next_offset, self.records + header.record_count, digest)

    def values(self) -> list[bytes]:
        """The records of a snapshot. Some of them are long, so that it comes in pieces."""
        return [str(self.records).encode(), self.digest, *([b"." * 200] * 2)]

    @classmethod
    def of(cls, end_offset: int, values: list[bytes]) -> "State":
        return cls(end_offset, int(values[0]), values[1])


# What is said ---------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A message of the quorum, as it stands in a trace."""

    message: NamedTuple

    def __str__(self) -> str:
        fields = zip(self.message._fields, self.message, strict=True)
        return f"{type(self.message).__name__}({', '.join(f'{name}={_short(it)}' for name, it in fields)})"


def _short(value: object) -> str:
    if isinstance(value, VoterKey):
        return f"{value.node_id}:{value.directory_id[-1]}"
    return f"{len(value)} bytes" if isinstance(value, memoryview | bytes) else str(value)


# What clients say -----------------------------------------------------------------------------------------------------


class Append(NamedTuple):
    number: int
    values: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"append {self.values[0].decode()}"


class Appended(NamedTuple):
    number: int
    base_offset: int = -1
    leader_id: int = -1

    def __str__(self) -> str:
        return f"decided at {self.base_offset}" if self.base_offset >= 0 else f"ask {self.leader_id}"


class _Waiting(NamedTuple):
    attempt: Callable[[], bool]
    timer: Timer


# A world with a quorum ------------------------------------------------------------------------------------------------


class QuorumWatch(world.World):
    """What a world must know of its quorum: who has voted, who has led, what is decided."""

    segment_bytes: int
    snapshot_every: int
    settings: RaftSettings
    bootstrap: VoterSet

    def watch_quorum(self, chance: Random) -> None:
        """Begin to watch, and draw what the quorum is like."""
        self.segment_bytes = chance.choice((1200, 4000, 20_000))
        self.snapshot_every = chance.choice((30, 100, 1_000_000))
        self.settings = RaftSettings(
            election_timeout_ms=chance.choice((300, 500)), fetch_timeout_ms=chance.choice((600, 1000))
        )
        self.quorum_fetch_bytes: tuple[int, ...] = chance.choice(((1 << 20,), (1 << 20, 100), (100, 300)))
        self.lines: dict[tuple[int, int], Line] = {}
        self.decided = Decided()
        self.digests: dict[int, State] = {}
        self.quorum_leaders: dict[int, VoterKey] = {}
        self.led_since_ms: dict[int, int] = {}
        self.votes: dict[tuple[VoterKey, int], VoterKey] = {}
        self.quorum: dict[int, QuorumNode] = {}
        self.lost: dict[VoterKey, tuple[Mirror, int]] = {}
        self.bootstrap = VoterSet({})
        WatchedRaft.reach = staticmethod(self.states.reach)

    def on_vote(self, voter: VoterKey, epoch: int, candidate: VoterKey) -> None:
        known = self.votes.setdefault((voter, epoch), candidate)
        if known != candidate:
            raise Violation(10, f"{voter} votes in epoch {epoch} for {known} and for {candidate}")

    def on_quorum_leader(self, node: "QuorumNode") -> None:
        epoch = node.raft.epoch
        if self.quorum_leaders.setdefault(epoch, node.key) != node.key:
            raise Violation(10, f"epoch {epoch} has the leaders {self.quorum_leaders[epoch]} and {node.key}")
        self.led_since_ms[epoch] = node.process.now_ms
        missing = self.decided.missing(node)
        if missing is not None:
            raise Violation(11, f"{node.name} leads epoch {epoch} without {missing}, which is decided")
        if any(it.raft.is_leader for it in self.quorum.values() if it is not node and it.process.is_alive):
            self.states.reach("two leaders at a time")
        self.trace.happened(node.name, BAND, f"leads epoch {epoch}")

    def has(self, key: VoterKey, batch: Held) -> bool:
        """Whether the disk that a voter stands for has a batch, or a snapshot with it; or had it until it was lost."""
        node = self.quorum[key.node_id]
        if key in self.lost and key != node.key:
            mirror, log_start_offset = self.lost[key]
            return mirror.has(batch) or log_start_offset >= batch.next_offset
        if key.directory_id not in (bytes(16), node.key.directory_id):
            return False
        return node.mirror.has(batch) or node.raft.log.log_start_offset >= batch.next_offset

    def on_decided(self, batch: Batch) -> None:
        """A node has folded a batch."""

    def on_state(self, name: str, state: State) -> None:
        if self.digests.setdefault(state.end_offset, state) != state:
            raise Violation(11, f"{name} has folded {state}, others {self.digests[state.end_offset]}")

    def quorum_leader(self) -> "QuorumNode | None":
        """Who leads the newest epoch."""
        found = [it for it in self.quorum.values() if it.process.is_alive and it.raft.is_leader]
        return max(found, key=lambda it: it.raft.epoch, default=None)

    def may_lose_disk(self, node_id: int) -> bool:
        """Whether what is decided must survive this: in every set that may count, a majority keeps its disks."""
        for other in self.quorum.values():
            # One that died in the middle of a write may have a set on its disk that it never knew of.
            if other.has_died_writing and other.node_id != node_id:
                return False
            for voters in other.raft.history.latest(3):
                if any(voters.key_of(it).directory_id == bytes(16) for it in voters):
                    return False
                if not self.has_majority(voters, without=node_id):
                    return False
        return True

    def has_majority(self, voters: VoterSet, *, without: int = -1) -> bool:
        """Whether enough voters of a set have their disks. An operator who makes another set has nobody left."""
        kept = [it for it in voters if it != without and self.quorum[it].key in voters]
        return len(kept) >= voters.majority

    def told(self) -> str:
        """Every node in a few words."""
        return "; ".join(
            f"{it.name} {it.raft.role.value} in {it.raft.epoch}, {it.raft.log.log_start_offset} to"
            f" {it.raft.log.log_end_offset}, {it.raft.high_watermark} decided, voters {list(it.raft.voters)}"
            for it in self.quorum.values()
        )


# A node ---------------------------------------------------------------------------------------------------------------


class QuorumNode:
    """A node of the quorum. All that it does runs in its process; all it keeps is on its disk."""

    def __init__(self, world: "QuorumWatch", node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.disks = 0
        self.process = Process(world.scheduler, world.trace, self.name, on_died=self._on_died)
        self.process.after_run = self._after_run
        self.chance = world.chance(self.name)
        self.how_it_dies = "kill"
        self.has_died_writing = False
        self.restart_ms = 500
        self._new_disk()

    def _new_disk(self) -> None:
        self.disk = Disk(self.world.chance(f"disk {self.node_id} {self.disks}"))
        self.key = VoterKey(self.node_id, directory_id(self.node_id, self.disks))
        self.disks += 1

    # Life -------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self.process.is_alive:
            self.process.start()
            self.process.run(self._open)

    def _open(self) -> None:
        self.has_died_writing = False
        self._waiting: list[_Waiting] = []
        self._fetch_number = 0
        self._is_fetching = False
        self._told: dict[VoterKey, int] = {}
        self.heard_ms: dict[VoterKey, int] = {}
        self._led = -1
        world = self.world
        config = LogConfig(segment_bytes=world.segment_bytes, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
        data = DataDirectory(self.disk, "metadata")
        directory = data.directory_of(METADATA)
        epochs = EpochCache(self.disk, directory)
        self.mirror = QuorumMirror(self.name, world.lines)
        self.data = data
        log = data.open_log(METADATA, config, companions=[epochs, self.mirror])
        self.snapshots = SnapshotFiles(self.disk, directory)
        self.raft = WatchedRaft(
            self.key,
            log,
            epochs,
            Ballot(self.disk, directory),
            world.bootstrap,
            chance=self.chance.randrange,
            now_ms=self.process.now_ms,
            settings=world.settings,
            snapshots=self.snapshots,
            clock=lambda: self.process.now_ms,
        )
        self._hw_seen = self.raft.high_watermark
        self.on_opened()
        self._tick()
        self._fetch()
        self._later(UPKEEP_MS, self._upkeep)

    def on_opened(self) -> None:
        """Take up what the snapshot says; what follows is folded as it is decided."""
        self.state = State()
        if self.snapshots.latest is not None:
            self.state = State.of(self.snapshots.latest.end_offset, list(self.snapshots.values()))

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.process.after(delay_ms // 2 + int(self.chance.random() * delay_ms), action)

    def kill(self) -> None:
        if self.process.is_alive:
            self._end("")
            self.disk.kill()

    def cut_power(self) -> None:
        if self.process.is_alive:
            self._end("power cut")
        self.disk.cut_power()

    def lose_disk(self) -> None:
        """The disk is gone, and with it all promises: it comes back as somebody else."""
        if self.process.is_alive:
            self._end("disk lost")
        self.world.lost[self.key] = (self.mirror, self.raft.log.log_start_offset)
        self._new_disk()

    def stop(self) -> None:
        """A clean shutdown: tell the others, then close."""
        if self.process.is_alive and not self.process.is_paused:
            self.process.run(lambda: self._send(self.raft.resign(self.process.now_ms)))
            self.process.run(self._close)
            if self.process.is_alive:
                self._end("clean shutdown")
                self.disk.kill()

    def _close(self) -> None:
        if self.raft.log.failure is None:
            self.data.close()

    def _end(self, how: str) -> None:
        self.process.kill(how)
        for waiting in self._waiting:
            waiting.timer.cancel()
        self._waiting = []
        self.world.trace.happened(self.name, BAND, "")

    def _on_died(self) -> None:
        self.world.states.reach("death in mid-write")
        self.has_died_writing = True
        if self.how_it_dies == "power":
            self.cut_power()
        else:
            self.kill()
        self.world.scheduler.after(self.restart_ms, self.start)

    # The driver -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms = self.process.now_ms
        self._send(self.raft.tick(now_ms))
        if self.raft.is_leader:
            self._check_quorum()
        self.process.after(min(max(self.raft.next_deadline_ms - now_ms, 1), TICK_MS_MAX), self._tick)

    def _send(self, sends: list[Send]) -> None:
        for node_id, message in sends:
            other = self.world.quorum[node_id]
            self.world.network.ask(
                self.process,
                other.process,
                Said(message),
                partial(other.on_message, message),
                partial(self._on_answer, node_id, message),
            )

    def on_message(self, message: Vote | BeginQuorumEpoch | EndQuorumEpoch, reply: Reply) -> None:
        now_ms = self.process.now_ms
        if isinstance(message, Vote):
            voted = self.raft.on_vote(message, now_ms)
            if voted.is_granted and not message.is_pre_vote:
                self.world.on_vote(self.key, message.epoch, message.candidate)
            reply(Said(voted))
        elif isinstance(message, BeginQuorumEpoch):
            reply(Said(self.raft.on_begin(message, now_ms)))
        else:
            reply(Said(self.raft.on_end(message, now_ms)))

    def _on_answer(self, node_id: int, message: object, said: Said) -> None:
        answer = said.message
        if isinstance(answer, Voted):
            assert isinstance(message, Vote)
            self._send(self.raft.on_voted(node_id, message, answer, self.process.now_ms))
        else:
            assert isinstance(answer, Heard)
            self.raft.on_heard(answer, self.process.now_ms)

    def _fetch(self) -> None:
        """Keep one fetch under way."""
        if self._is_fetching:
            return
        request: Fetch | FetchSnapshot | None
        target = self.raft.target()
        request = self.raft.snapshot_position(self.snapshots.received(self.raft.snapshot_wanted, target))
        if request is None:
            request = self.raft.position()
        if request is None or target in (-1, self.node_id):
            self._later(50, self._fetch)
            return
        self._is_fetching = True
        self._fetch_number += 1
        number, other = self._fetch_number, self.world.quorum[target]
        self.world.network.ask(
            self.process,
            other.process,
            Said(request),
            partial(other.on_fetch, request),
            partial(self._on_fetched, number, target, request),
        )
        self.process.after(FETCH_TIMEOUT_MS, partial(self._on_timeout, number))

    def _on_timeout(self, number: int) -> None:
        if self._is_fetching and number == self._fetch_number:
            self._is_fetching = False
            self.raft.on_unanswered()
            self._fetch()

    def _on_fetched(self, number: int, source: int, request: Fetch | FetchSnapshot, said: Said) -> None:
        answer = said.message
        assert isinstance(answer, Fetched | SnapshotFetched)
        # An answer that comes after its time is out is an answer all the same.
        is_last = number == self._fetch_number
        if is_last:
            self._is_fetching = False
        if isinstance(answer, Fetched):
            assert isinstance(request, Fetch)
            if answer.diverging is not None:
                self.world.states.reach("divergence")
            self.raft.on_fetched(request, answer, self.process.now_ms)
        else:
            assert isinstance(request, FetchSnapshot)
            self._on_piece(source, request, answer)
        if is_last and answer.code is ErrorCode.NONE:
            self._fetch()
        elif is_last:
            self._later(40, self._fetch)

    def _on_piece(self, source: int, request: FetchSnapshot, found: SnapshotFetched) -> None:
        if found.code is ErrorCode.SNAPSHOT_NOT_FOUND:
            self.snapshots.give_up()
        if not self.raft.on_snapshot_fetched(found, self.process.now_ms):
            return
        if self.snapshots.receive(request.snapshot, source, found.position, found.data, size=found.size):
            assert self.snapshots.voters is not None
            self.raft.on_snapshot(request.snapshot, self.snapshots.voters)
            self.world.states.reach("snapshot taken over")
            self.on_snapshot_taken(request.snapshot)

    def on_snapshot_taken(self, snapshot: SnapshotId) -> None:
        self.state = State.of(snapshot.end_offset, list(self.snapshots.values()))

    # Serving ----------------------------------------------------------------------------------------------------------

    def on_fetch(self, request: Fetch | FetchSnapshot, reply: Reply) -> None:
        if self.raft.is_leader and request.epoch == self.raft.epoch:
            self.heard_ms[request.replica] = self.world.scheduler.now_ms
        if isinstance(request, FetchSnapshot):
            reply(Said(self._piece(request)))
            return
        bytes_max, now_ms = self.chance.choice(self.world.quorum_fetch_bytes), self.process.now_ms

        def attempt(*, is_last: bool = False) -> bool:
            fetched = self.raft.on_fetch(request, now_ms, bytes_max=bytes_max)
            is_news = bool(
                fetched.code or len(fetched.records) or fetched.diverging is not None or fetched.snapshot is not None
            ) or fetched.high_watermark > self._told.get(request.replica, -1)
            if is_news or is_last:
                self._told[request.replica] = fetched.high_watermark
                reply(Said(fetched))
            return is_news

        if not attempt():
            self.wait(attempt, FETCH_WAIT_MS, lambda: attempt(is_last=True))

    def _piece(self, request: FetchSnapshot) -> SnapshotFetched:
        code, raft = self.raft.on_fetch_snapshot(request, self.process.now_ms), self.raft
        piece = self.snapshots.piece(request.snapshot, request.position, SNAPSHOT_PIECE_BYTES)
        if code is ErrorCode.NONE and piece is None:
            code = ErrorCode.SNAPSHOT_NOT_FOUND
        size, data = piece if code is ErrorCode.NONE and piece is not None else (0, b"")
        return SnapshotFetched(code, raft.epoch, raft.leader_id, size, request.position, data)

    def serve(self, request: Append, reply: Reply) -> None:
        """A client appends: it is told when that is decided."""
        raft = self.raft
        try:
            base_offset = raft.append(batch_of(*request.values))
        except NotLeader:
            reply(Appended(request.number, leader_id=raft.leader_id))
            return
        epoch, end_offset = raft.epoch, raft.log.log_end_offset

        def attempt() -> bool:
            if not raft.is_leader or raft.epoch != epoch:
                reply(Appended(request.number, leader_id=raft.leader_id))
                return True
            if raft.high_watermark >= end_offset:
                reply(Appended(request.number, base_offset))
                return True
            return False

        if not attempt():
            self.wait(attempt, DECIDE_TIMEOUT_MS, lambda: None)

    def wait(self, attempt: Callable[[], bool], timeout_ms: int, expire: Callable[[], object]) -> None:
        def on_timeout() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                expire()

        waiting = _Waiting(attempt, self.process.after(timeout_ms, on_timeout))
        self._waiting.append(waiting)

    def _settle(self) -> None:
        """Try what waits, until nothing changes by it."""
        while True:
            before = self._progress()
            waiting, self._waiting = self._waiting, []
            for it in waiting:
                if it.attempt():
                    it.timer.cancel()
                else:
                    self._waiting.append(it)
            if self._progress() == before:
                return

    def _progress(self) -> tuple[int, int, int, Role]:
        raft = self.raft
        return raft.log.log_end_offset, raft.high_watermark, raft.epoch, raft.role

    # Now and then -----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        self._later(UPKEEP_MS, self._upkeep)
        raft = self.raft
        if raft.is_leader:
            raft.bind_voters(timestamp=0)
        self.take_snapshot(at_least=self.world.snapshot_every)

    def folded(self) -> tuple[int, list[bytes]]:
        """What is decided comes to this, up to an offset."""
        return self.state.end_offset, self.state.values()

    def take_snapshot(self, *, at_least: int = 0) -> None:
        """Write a snapshot, if there is so much more than in the last one."""
        raft, latest = self.raft, self.snapshots.latest
        end_offset, values = self.folded()
        if end_offset - (0 if latest is None else latest.end_offset) <= at_least:
            return
        snapshot = SnapshotId(end_offset, raft.epochs.epoch_of(end_offset - 1))
        self.snapshots.write(snapshot, raft.voters_at(end_offset), values, timestamp=0)
        raft.forget_before(snapshot)
        self.world.states.reach("log forgets what is in a snapshot")

    # After every event ------------------------------------------------------------------------------------------------

    _progress_seen: tuple[int, int, int, Role] | None = None

    def _after_run(self) -> None:
        now = self._progress()
        if now == self._progress_seen:
            return
        if self._waiting:
            self._settle()
        self._check()
        self._progress_seen = self._progress()

    def _check(self) -> None:
        """Hold the node against everything that must be true of it."""
        raft, world = self.raft, self.world
        if raft.role is Role.CANDIDATE:
            world.on_vote(self.key, raft.epoch, self.key)
        if self.mirror.cut:
            self._check_cut()
        if raft.is_leader and self._led != raft.epoch:
            self._led = raft.epoch
            world.on_quorum_leader(self)
        watermark = raft.high_watermark
        if watermark < self._hw_seen:
            raise Violation(12, f"{self.name}: the high watermark goes from {self._hw_seen} to {watermark}")
        if not raft.log.log_start_offset <= watermark <= raft.log.log_end_offset:
            raise Violation(12, f"{self.name}: the high watermark {watermark} is outside of the log")
        if watermark > self._hw_seen:
            found = self.mirror.between(self._hw_seen, watermark)
            if raft.is_leader:
                self._check_majority(found)
            world.decided.extend(self.name, found, self.raft.epoch)
            self._hw_seen = watermark
            world.trace.happened(self.name, MARK, f"high watermark {watermark}")
        self.catch_up()

    def _check_cut(self) -> None:
        """Nothing that is decided is cut off, unless it is in a snapshot."""
        cut, self.mirror.cut = self.mirror.cut, []
        self.world.states.reach("truncation")
        for batch in cut:
            if self.world.decided.holds(batch) and batch.next_offset > self.raft.log.log_start_offset:
                raise Violation(11, f"{self.name} cuts off {batch}, which is decided")

    def _check_majority(self, found: list[Held]) -> None:
        """The leader's watermark has moved: a majority has what is before it, on disks that are still there."""
        raft = self.raft
        for batch in found:
            holding = [it for it in raft.voters if self.world.has(raft.voters.key_of(it), batch)]
            if len(holding) < raft.voters.majority:
                facts = f"of the voters {list(raft.voters)} only {holding} have it"
                raise Violation(12, f"{self.name} decides {batch}, {facts}")

    def _check_quorum(self) -> None:
        """A leader has heard of a majority lately, or it would lead no more."""
        raft = self.raft
        horizon_ms = self.world.scheduler.now_ms - raft.settings.check_quorum_ms
        if self.process.now_ms - self._led_since() <= raft.settings.check_quorum_ms:
            return
        heard = [it for it in raft.voters if self._heard_of(raft.voters.key_of(it)) >= horizon_ms]
        if len(heard) + raft.is_voter < raft.voters.majority:
            raise Violation(LIVENESS, f"{self.name} leads epoch {raft.epoch} though it has heard only of {heard}")

    def _led_since(self) -> int:
        return self.world.led_since_ms.get(self.raft.epoch, self.process.now_ms)

    def _heard_of(self, key: VoterKey) -> int:
        heard = [at_ms for it, at_ms in self.heard_ms.items() if it == key or key == VoterKey(it.node_id)]
        return max(heard, default=-(2**62)) if key.node_id != self.node_id else -(2**62)

    def catch_up(self) -> None:
        """Fold what is decided by now, and compare."""
        raft = self.raft
        while self.state.end_offset < raft.high_watermark:
            data = raft.log.read(self.state.end_offset, bytes_max=1 << 20, upto_offset=raft.high_watermark).read()
            for batch in batches(data):
                self.world.on_decided(batch)
                self.state = self.state.after(batch.header)
                self.world.on_state(self.name, self.state)

    def note(self, text: str) -> None:
        self.world.trace.happened(self.name, NOTE, text)


def voter_of(key: VoterKey) -> Voter:
    return Voter(key, "127.0.0.1", 9000 + key.node_id)
