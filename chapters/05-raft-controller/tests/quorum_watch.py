"""What a world must know of a quorum to check it: all votes, all leaders, and what is decided.

Every node has a mirror of its log, and `QuorumWatch` compares the mirrors after every event. The worlds of the quorum
and of the controller are such watches.
"""

import hashlib
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from partition_watch import Committed, Held, Mirror

from minibroker.log.batch import Batch, BatchHeader
from minibroker.raft.node import Raft
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.simulation.checker import Violation
from minibroker.simulation.cluster import ClusterWorld
from minibroker.simulation.faults import Fault
from minibroker.simulation.scheduler import Action
from minibroker.simulation.trace import BAND
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from raft_cluster import QuorumNode


def transition(role: Role, cause: Cause) -> str:
    """The name of a change of role, as a state to be reached."""
    return f"{role.value}: {cause.value}"


TRANSITIONS = tuple(transition(*key) for key in NEXT)


# Logs -----------------------------------------------------------------------------------------------------------------


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

    def replay(self, header: BatchHeader, batch: object, position: int = 0) -> None:
        last = self.held[-1] if self.held else None
        super().replay(header, batch, position)
        key = (header.base_offset, header.leader_epoch)
        line = Line(header.crc, None if last is None else (last.base_offset, last.leader_epoch))
        known = self._lines.setdefault(key, line)
        if known.before is None:
            self._lines[key] = known = known._replace(before=line.before)
        if known.crc != line.crc or line.before not in (None, known.before):
            raise Violation(11, f"{self._name} has {line} at offset and epoch {key}, elsewhere it is {known}")

    on_append = replay


class Decided(Committed):
    """Every batch that was ever below a high watermark, with the epoch in which that was so first."""

    def __init__(self) -> None:
        super().__init__()
        self._epochs: dict[int, int] = {}

    def decide(self, name: str, found: list[Held], epoch: int) -> None:
        """The high watermark of a node has passed these."""
        self.extend(name, found)
        for batch in found:
            self._epochs.setdefault(batch.base_offset, epoch)

    def missing_at(self, node: "QuorumNode") -> Held | None:
        """The first decided batch that a leader should have and has not.

        A node that was elected long ago, and hears of it only now, leads an epoch that is over. It need not have more.
        """
        epoch = node.raft.epoch
        start = node.raft.log.log_start_offset
        return self.missing(node.mirror, start, lambda batch: self._epochs[batch.base_offset] <= epoch)


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


# A world with a quorum ------------------------------------------------------------------------------------------------


class QuorumWatch(ClusterWorld):
    """What a world must know of its quorum: who has voted, who has led, what is decided."""

    segment_bytes: int
    snapshot_every: int
    settings: RaftSettings
    bootstrap: VoterSet
    wanted_size: int

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
        missing = self.decided.missing_at(node)
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
        """The leader of the newest epoch, if there is one."""
        found = [it for it in self.quorum.values() if it.process.is_alive and it.raft.is_leader]
        return max(found, key=lambda it: it.raft.epoch, default=None)

    def may_lose_disk(self, node_id: int) -> bool:
        """Whether what is decided must survive this: in every set that may count, a majority keeps its disks."""
        for other in self.quorum.values():
            # One that died in the middle of a write may have a set on its disk that it never knew of.
            if other.has_died_writing and other.node_id != node_id:
                return False
            for _offset, voters in other.raft.history._sets[-3:]:
                if any(voters.key_of(it).directory_id == bytes(16) for it in voters):
                    return False
                if not self.has_majority(voters, without=node_id):
                    return False
        return True

    def has_majority(self, voters: VoterSet, *, without: int = -1) -> bool:
        """Whether enough voters of a set have their disks. Without them, a new set could decide nothing."""
        kept = [it for it in voters if it != without and self.quorum[it].key in voters]
        return len(kept) >= voters.majority

    # Faults -----------------------------------------------------------------------------------------------------------

    def on_lose_disk(self, fault: Fault) -> Action | None:
        """A node loses its disk, unless what is decided might be gone with it."""
        node = self.quorum[self.host_hit(fault).node_id]
        if not self.may_lose_disk(node.node_id) or not self.may_cut_power(node):
            return None
        self.states.reach("disk lost")
        node.lose_disk()
        return node.start

    def on_snapshot(self, fault: Fault) -> None:
        """A node writes a snapshot, however little is new."""
        node = self.quorum[self.host_hit(fault).node_id]
        node.process.run(node.take_snapshot)

    # The set of voters ------------------------------------------------------------------------------------------------

    def look_after_voters(self, leader: "QuorumNode") -> None:
        """What an operator does: voters that have lost their disks go, nodes that are up come, one at a time."""
        raft = leader.raft
        if not raft.is_leader:
            return
        lost = [key for key in map(raft.voters.key_of, raft.voters) if self._is_lost(key)]
        if lost and self.has_majority(raft.voters.without(lost[0].node_id)):
            self.on_change("voter removed", raft.remove_voter(lost[0], timestamp=0))
        elif len(raft.voters) < self.wanted_size:
            for node in self.quorum.values():
                voter = voter_of(node.key)
                is_free = node.process.is_alive and node.node_id not in raft.voters.voters
                if is_free and self.has_majority(raft.voters.with_voter(voter)):
                    code = raft.add_voter(voter, timestamp=0)
                    self.on_change("voter added", code)
                    if code is ErrorCode.NONE:
                        return

    def _is_lost(self, key: VoterKey) -> bool:
        return key.directory_id not in (bytes(16), self.quorum[key.node_id].key.directory_id)

    def on_change(self, what: str, code: ErrorCode) -> None:
        """A change of the voters was asked for, and this came of it."""
        if code is ErrorCode.NONE:
            self.states.reach(what)
        elif code is ErrorCode.REQUEST_TIMED_OUT:
            self.states.reach("change refused: another one is under way")

    def told(self) -> str:
        """Every node in a few words."""
        return "; ".join(
            f"{it.name} {it.raft.role.value} in {it.raft.epoch}, {it.raft.log.log_start_offset} to"
            f" {it.raft.log.log_end_offset}, {it.raft.high_watermark} decided, voters {list(it.raft.voters)}"
            for it in self.quorum.values()
        )


def voter_of(key: VoterKey) -> Voter:
    return Voter(key, "127.0.0.1", 9000 + key.node_id)
