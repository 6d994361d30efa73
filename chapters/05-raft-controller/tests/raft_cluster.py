"""The nodes of a simulated quorum: the real log, ballot, snapshots and state machine, on simulated disks.

This module has the driver, as small as possible. After every event `quorum_watch` checks each node.
"""

from functools import partial
from typing import Any, NamedTuple

from partition_watch import Held
from quorum_watch import QuorumMirror, QuorumWatch, Said, State, WatchedRaft
from raft_nodes import directory_id
from replication_messages import fetch_request
from replication_nodes import batch_of
from simulated_machine import Machine, Wire

from minibroker.log.batch import batches
from minibroker.partitions.store import METADATA
from minibroker.quorum.translating import request_of, snapshot_request
from minibroker.raft import messages
from minibroker.raft.election import Ballot
from minibroker.raft.leading import NotLeader
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.voters import VoterKey
from minibroker.replication.epochs import EpochCache
from minibroker.segments.config import UNLIMITED, LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.disk import Disk
from minibroker.simulation.links import Reply
from minibroker.simulation.scheduler import Timer
from minibroker.simulation.trace import MARK
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.create_topics import CreateTopicsRequest

FETCH_WAIT_MS = 350
FETCH_TIMEOUT_MS = 500
TICK_MS_MAX = 200
COMMIT_TIMEOUT_MS = 1500
SNAPSHOT_PIECE_BYTES = 300
UPKEEP_MS = 700


# Requests of clients --------------------------------------------------------------------------------------------------


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
        return f"committed at {self.base_offset}" if self.base_offset >= 0 else f"ask {self.leader_id}"


# On the wire ----------------------------------------------------------------------------------------------------------


def said_request(said: Said) -> Request:
    """A message of the quorum as the access table sees it."""
    message: Any = said.message
    if isinstance(message, messages.Fetch):
        return fetch_request(message.replica.node_id)
    if isinstance(message, messages.FetchSnapshot):
        return snapshot_request(message, "", bytes_max=0)
    return request_of(message, "")


_OF_A_CLIENT = CreateTopicsRequest(topics=[])

QUORUM_WIRE: Wire = {Said: said_request, Append: lambda _it: _OF_A_CLIENT}


# A node ---------------------------------------------------------------------------------------------------------------


class QuorumNode(Machine):
    """A node of the quorum."""

    world: QuorumWatch
    disks = 0

    def __init__(self, world: QuorumWatch, node_id: int) -> None:
        super().__init__(world, node_id)
        self.has_died_writing = False

    def new_disk(self) -> None:
        self.disk = Disk(self.world.chance(f"disk {self.node_id} {self.disks}"))
        self.key = VoterKey(self.node_id, directory_id(self.node_id, self.disks))
        self.disks += 1

    # Process ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.has_died_writing = False
        self._fetch_number = 0
        self._fetch_timer = Timer(lambda: None)
        self._is_fetching = False
        self._told: dict[VoterKey, int] = {}
        self.heard_ms: dict[VoterKey, int] = {}
        self._led = -1
        self._open_raft()
        self._hw_seen = self.raft.high_watermark
        self.on_opened()
        self._tick()
        self._fetch()
        self.later(UPKEEP_MS, self._upkeep)

    def _open_raft(self) -> None:
        world = self.world
        config = LogConfig(segment_bytes=world.segment_bytes, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
        self.data = DataDirectory(self.files, "metadata")
        directory = self.data.directory_of(METADATA)
        epochs = EpochCache(self.files, directory)
        self.mirror = QuorumMirror(self.name, world.lines)
        log = self.data.open_log(METADATA, config, companions=[epochs, self.mirror])
        self.snapshots = SnapshotFiles(self.files, directory)
        self.raft = WatchedRaft(
            self.key,
            log,
            epochs,
            Ballot(self.files, directory),
            world.bootstrap,
            chance=self.chance.randrange,
            now_ms=self.process.now_ms,
            settings=world.settings,
            snapshots=self.snapshots,
            clock=lambda: self.process.now_ms,
        )

    def on_opened(self) -> None:
        """Begin with the state of the snapshot; later records are folded as they are committed."""
        self.state = State()
        if self.snapshots.latest is not None:
            self.state = State.of(self.snapshots.latest.end_offset, list(self.snapshots.values()))

    def lose_disk(self) -> None:
        """Lose the disk with all promises: the node comes back as another voter."""
        if self.process.is_alive:
            self.end("disk lost")
        self.world.lost[self.key] = (self.mirror, self.raft.log.log_start_offset)
        self.new_disk()

    def stop(self) -> None:
        """A clean shutdown: tell the others, then close."""
        if self.process.is_alive and not self.process.is_paused:
            self.process.run(lambda: self._send(self.raft.resign(self.process.now_ms)))
            super().stop()

    def close(self) -> None:
        if self.raft.log.failure is None:
            self.data.close()

    def on_died(self) -> None:
        self.has_died_writing = True
        super().on_died()

    def forget_epoch(self) -> None:
        """A voter's log is flushed, so it needs no such proof."""

    def _end_by_disk(self) -> None:
        self.has_died_writing = True
        super()._end_by_disk()

    # The driver -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms = self.process.now_ms
        self._send(self.raft.tick(now_ms))
        if self.raft.is_leader:
            self._check_quorum()
        self.process.after(min(max(self.raft.next_deadline_ms - now_ms, 1), TICK_MS_MAX), self._tick)

    def _send(self, sends: list[messages.Send]) -> None:
        for node_id, message in sends:
            other = self.world.quorum[node_id]
            self.world.network.ask(
                self.process,
                other.process,
                Said(message),
                partial(other.on_message, message),
                partial(self._on_answer, node_id, message),
            )

    def on_message(
        self, message: messages.Vote | messages.BeginQuorumEpoch | messages.EndQuorumEpoch, reply: Reply
    ) -> None:
        now_ms = self.process.now_ms
        if isinstance(message, messages.Vote):
            voted = self.raft.on_vote(message, now_ms)
            if voted.is_granted and not message.is_pre_vote:
                self.world.on_vote(self.key, message.epoch, message.candidate)
            reply(Said(voted))
        elif isinstance(message, messages.BeginQuorumEpoch):
            reply(Said(self.raft.on_begin(message, now_ms)))
        else:
            reply(Said(self.raft.on_end(message, now_ms)))

    def _on_answer(self, node_id: int, message: object, said: Said) -> None:
        answer = said.message
        if isinstance(answer, messages.Voted):
            assert isinstance(message, messages.Vote)
            self._send(self.raft.on_voted(node_id, message, answer, self.process.now_ms))
        else:
            assert isinstance(answer, messages.Heard)
            self.raft.on_heard(answer, self.process.now_ms)

    def _fetch(self) -> None:
        """Keep one fetch under way."""
        if self._is_fetching:
            return
        request: messages.Fetch | messages.FetchSnapshot | None
        target = self.raft.target()
        request = self.raft.snapshot_position(self.snapshots.received(self.raft.snapshot_wanted, target))
        if request is None:
            request = self.raft.position()
        if request is None or target in (-1, self.node_id):
            self.later(50, self._fetch)
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
        self._fetch_timer = self.process.after(FETCH_TIMEOUT_MS, partial(self._on_timeout, number))

    def _on_timeout(self, number: int) -> None:
        if self._is_fetching and number == self._fetch_number:
            self._is_fetching = False
            self.raft.on_unanswered()
            self._fetch()

    def _on_fetched(
        self, number: int, source: int, request: messages.Fetch | messages.FetchSnapshot, said: Said
    ) -> None:
        answer = said.message
        assert isinstance(answer, messages.Fetched | messages.SnapshotFetched)
        # A response that arrives after the timeout still counts.
        is_last = number == self._fetch_number
        if is_last:
            self._is_fetching = False
            self._fetch_timer.cancel()
        if isinstance(answer, messages.Fetched):
            assert isinstance(request, messages.Fetch)
            if answer.diverging is not None:
                self.world.states.reach("divergence")
            self.raft.on_fetched(request, answer, self.process.now_ms)
        else:
            assert isinstance(request, messages.FetchSnapshot)
            self._on_piece(source, request, answer)
        if is_last and answer.code is ErrorCode.NONE:
            self._fetch()
        elif is_last:
            self.later(40, self._fetch)

    def _on_piece(self, source: int, request: messages.FetchSnapshot, found: messages.SnapshotFetched) -> None:
        if found.code is ErrorCode.SNAPSHOT_NOT_FOUND:
            self.snapshots.give_up()
        if not self.raft.on_snapshot_fetched(found, self.process.now_ms):
            return
        if self.snapshots.receive(request.snapshot, source, found.position, found.data, size=found.size):
            assert self.snapshots.voters is not None
            self.raft.on_snapshot(request.snapshot, self.snapshots.voters)
            self.world.states.reach("snapshot installed")
            self.on_snapshot_taken(request.snapshot)

    def on_snapshot_taken(self, snapshot: messages.SnapshotId) -> None:
        self.state = State.of(snapshot.end_offset, list(self.snapshots.values()))

    # Requests ---------------------------------------------------------------------------------------------------------

    def on_fetch(self, request: messages.Fetch | messages.FetchSnapshot, reply: Reply) -> None:
        if self.raft.is_leader and request.epoch == self.raft.epoch:
            self.heard_ms[request.replica] = self.world.scheduler.now_ms
        if isinstance(request, messages.FetchSnapshot):
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

    def _piece(self, request: messages.FetchSnapshot) -> messages.SnapshotFetched:
        code, raft = self.raft.on_fetch_snapshot(request, self.process.now_ms), self.raft
        piece = self.snapshots.piece(request.snapshot, request.position, SNAPSHOT_PIECE_BYTES)
        if code is ErrorCode.NONE and piece is None:
            code = ErrorCode.SNAPSHOT_NOT_FOUND
        size, data = piece if code is ErrorCode.NONE and piece is not None else (0, b"")
        return messages.SnapshotFetched(code, raft.epoch, raft.leader_id, size, request.position, data)

    def serve(self, request: Append, reply: Reply) -> None:
        """Append for a client, and answer when the records are committed."""
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
            self.wait(attempt, COMMIT_TIMEOUT_MS, lambda: None)

    def _settle(self) -> None:
        """Retry waiting requests until none of them changes anything."""
        while True:
            before = self._progress()
            self.try_waiting()
            if self._progress() == before:
                return

    def _progress(self) -> tuple[int, int, int, Role]:
        raft = self.raft
        return raft.log.log_end_offset, raft.high_watermark, raft.epoch, raft.role

    # Snapshots --------------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        self.later(UPKEEP_MS, self._upkeep)
        raft = self.raft
        if raft.is_leader:
            raft.bind_voters(timestamp=0)
        self.take_snapshot(at_least=self.world.snapshot_every)

    def folded(self) -> tuple[int, list[bytes]]:
        """The state after the committed records before an offset."""
        return self.state.end_offset, self.state.values()

    def take_snapshot(self, *, at_least: int = 0) -> None:
        """Write a snapshot, if there are enough new records since the last one."""
        raft, latest = self.raft, self.snapshots.latest
        end_offset, values = self.folded()
        if end_offset - (0 if latest is None else latest.end_offset) <= at_least:
            return
        snapshot = messages.SnapshotId(end_offset, raft.epochs.epoch_of(end_offset - 1))
        self.snapshots.write(snapshot, raft.history.at(end_offset), values, timestamp=0)
        raft.forget_before(snapshot)
        self.world.states.reach("log deleted up to a snapshot")

    # After every event ------------------------------------------------------------------------------------------------

    _progress_seen: tuple[int, int, int, Role] | None = None

    def after_run(self) -> None:
        now = self._progress()
        if now == self._progress_seen:
            return
        self._settle()
        self._check()
        self._progress_seen = self._progress()

    def _check(self) -> None:
        """Check all invariants of the node."""
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
            raise Violation(12, f"{self.name}: the high watermark goes back from {self._hw_seen} to {watermark}")
        if not raft.log.log_start_offset <= watermark <= raft.log.log_end_offset:
            raise Violation(12, f"{self.name}: the high watermark {watermark} is outside the log")
        if watermark > self._hw_seen:
            found = self.mirror.between(self._hw_seen, watermark)
            if raft.is_leader:
                self._check_majority(found)
            world.committed_batches.note(self.name, found, raft.epoch)
            self._hw_seen = watermark
            world.trace.happened(self.name, MARK, f"high watermark {watermark}")
        self.catch_up()

    def _check_cut(self) -> None:
        """No committed record is truncated, unless it is in a snapshot."""
        cut, self.mirror.cut = self.mirror.cut, []
        self.world.states.reach("truncation")
        for batch in cut:
            if self.world.committed_batches.holds(batch) and batch.next_offset > self.raft.log.log_start_offset:
                raise Violation(11, f"{self.name} truncates {batch}, which is committed")

    def _check_majority(self, found: list[Held]) -> None:
        """The leader has committed records: a majority must have them on disks that are not lost."""
        raft = self.raft
        for batch in found:
            holding = [it for it in raft.voters if self.world.has(raft.voters.key_of(it), batch)]
            if len(holding) < raft.voters.majority:
                facts = f"but of the voters {list(raft.voters)} only {holding} have it"
                raise Violation(12, f"{self.name} commits {batch}, {facts}")

    def _check_quorum(self) -> None:
        """A leader has had fetches of a majority lately, or has resigned."""
        raft = self.raft
        horizon_ms = self.world.scheduler.now_ms - raft.settings.check_quorum_ms
        if self.process.now_ms - self._led_since() <= raft.settings.check_quorum_ms:
            return
        heard = [it for it in raft.voters if self._heard_of(raft.voters.key_of(it)) >= horizon_ms]
        if len(heard) + raft.is_voter < raft.voters.majority:
            raise Violation(LIVENESS, f"{self.name} leads epoch {raft.epoch}, but only {heard} have fetched lately")

    def _led_since(self) -> int:
        return self.world.led_since_ms.get(self.raft.epoch, self.process.now_ms)

    def _heard_of(self, key: VoterKey) -> int:
        heard = [at_ms for it, at_ms in self.heard_ms.items() if it == key or key == VoterKey(it.node_id)]
        return max(heard, default=-(2**62)) if key.node_id != self.node_id else -(2**62)

    def catch_up(self) -> None:
        """Fold the committed records, and compare the state with other nodes."""
        raft = self.raft
        while self.state.end_offset < raft.high_watermark:
            data = raft.log.read(self.state.end_offset, bytes_max=1 << 20, upto_offset=raft.high_watermark).read()
            for batch in batches(data):
                self.world.on_decided(batch)
                self.state = self.state.after(batch.header)
                self.world.on_state(self.name, self.state)
