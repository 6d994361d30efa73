"""Watches a quorum in a world: all votes, all leaders, and all committed records.

Every node has a mirror of its log, and `QuorumWatch` compares the mirrors after every event. The worlds of the quorum
and of the controller are such watches.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from partition_watch import Committed, Held, Mirror
from simulated_machine import GuardedWorld

from minibroker.log.batch import Batch, BatchHeader
from minibroker.partitions.access import Access
from minibroker.quorum.access import ROWS
from minibroker.raft import messages
from minibroker.raft.node import Raft
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.simulation.checker import Violation
from minibroker.simulation.faults import Fault
from minibroker.simulation.scheduler import Action
from minibroker.simulation.trace import BAND
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from raft_cluster import QuorumNode


def transition(role: Role, cause: Cause) -> str:
    """The name of a change of role, as a state that seeds should reach."""
    return f"{role.value}: {cause.value}"


TRANSITIONS = tuple(transition(*key) for key in NEXT)


# Messages -------------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A message of the quorum, as text for a trace."""

    message: NamedTuple

    def __str__(self) -> str:
        fields = zip(self.message._fields, self.message, strict=True)
        return f"{type(self.message).__name__}({', '.join(f'{name}={_short(it)}' for name, it in fields)})"


def _short(value: object) -> str:
    if isinstance(value, VoterKey):
        return f"{value.node_id}:{value.directory_id[-1]}"
    return f"{len(value)} bytes" if isinstance(value, memoryview | bytes) else str(value)


# Logs -----------------------------------------------------------------------------------------------------------------


class WatchedRaft(Raft):
    """The state machine, which reports the cause of each change of role."""

    reach: Callable[[str], None] = staticmethod(lambda _name: None)

    def _become(self, cause: Cause, deadline_ms: int) -> None:
        type(self).reach(transition(self.role, cause))
        super()._become(cause, deadline_ms)


class Line(NamedTuple):
    """A batch, and the batch before it in the log."""

    crc: int
    before: tuple[int, int] | None


class QuorumMirror(Mirror):
    """A mirror that compares every batch with those of other logs: same offset and epoch, same log up to there."""

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


class QuorumCommitted(Committed):
    """Every committed batch, with the first epoch in which it was committed."""

    def __init__(self) -> None:
        super().__init__()
        self._epochs: dict[int, int] = {}

    def note(self, name: str, found: list[Held], epoch: int) -> None:
        """Note batches that are before the high watermark of a node."""
        self.extend(name, found)
        for batch in found:
            self._epochs.setdefault(batch.base_offset, epoch)

    def missing_at(self, node: "QuorumNode") -> Held | None:
        """The first committed batch that a leader should have and has not.

        A node that was elected long ago, and hears of it only now, leads an epoch that is over. It need not have more.
        """
        epoch = node.raft.epoch
        start = node.raft.log.log_start_offset
        return self.missing(node.mirror, start, lambda batch: self._epochs[batch.base_offset] <= epoch)


# The state of the records ---------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The state after all data records before an offset: their number and a digest of them."""

    end_offset: int = 0
    records: int = 0
    digest: bytes = b""

    def after(self, header: BatchHeader) -> "State":
        digest = hashlib.sha256(self.digest + header.crc.to_bytes(4, "big")).digest()
        return State(header.next_offset, self.records + header.record_count, digest)

    def values(self) -> list[bytes]:
        """The records of a snapshot. Some are long, so that it is sent in pieces."""
        return [str(self.records).encode(), self.digest, *([b"." * 200] * 2)]

    @classmethod
    def of(cls, end_offset: int, values: list[bytes]) -> "State":
        return cls(end_offset, int(values[0]), values[1])


# A world with a quorum ------------------------------------------------------------------------------------------------


class QuorumWatch(GuardedWorld):
    """A world that watches its quorum: votes, leaders and committed records."""

    ROWS: ClassVar[Mapping[ApiKey, Access]] = {**GuardedWorld.ROWS, **ROWS}
    segment_bytes: int
    snapshot_every: int
    settings: RaftSettings
    bootstrap: VoterSet
    wanted_size: int

    def watch_quorum(self, chance: Random) -> None:
        """Begin to watch, and draw the settings of the quorum."""
        self.segment_bytes = chance.choice((1200, 4000, 20_000))
        self.snapshot_every = chance.choice((30, 100, 1_000_000))
        self.settings = RaftSettings(
            election_timeout_ms=chance.choice((300, 500)), fetch_timeout_ms=chance.choice((600, 1000))
        )
        self.quorum_fetch_bytes: tuple[int, ...] = chance.choice(((1 << 20,), (1 << 20, 100), (100, 300)))
        self.lines: dict[tuple[int, int], Line] = {}
        self.committed_batches = QuorumCommitted()
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
        missing = self.committed_batches.missing_at(node)
        if missing is not None:
            raise Violation(11, f"{node.name} leads epoch {epoch} without {missing}, which is committed")
        if any(it.raft.is_leader for it in self.quorum.values() if it is not node and it.process.is_alive):
            self.states.reach("two leaders at a time")
        self.trace.happened(node.name, BAND, f"leads epoch {epoch}")

    def has(self, key: VoterKey, batch: Held) -> bool:
        """Whether the disk of a voter has a batch or a snapshot with it, or had it before the disk was lost."""
        node = self.quorum[key.node_id]
        if key in self.lost and key != node.key:
            mirror, log_start_offset = self.lost[key]
            return mirror.has(batch) or log_start_offset >= batch.next_offset
        if key.directory_id not in (bytes(16), node.key.directory_id):
            return False
        return node.mirror.has(batch) or node.raft.log.log_start_offset >= batch.next_offset

    def on_decided(self, batch: Batch) -> None:
        """Compare the state of a node with those of others at the same offset."""

    def on_state(self, name: str, state: State) -> None:
        if self.digests.setdefault(state.end_offset, state) != state:
            raise Violation(11, f"{name} has folded {state}, others {self.digests[state.end_offset]}")

    def quorum_leader(self) -> "QuorumNode | None":
        """The leader of the newest epoch, if there is one."""
        found = [it for it in self.quorum.values() if it.process.is_alive and it.raft.is_leader]
        return max(found, key=lambda it: it.raft.epoch, default=None)

    def may_lose_disk(self, node_id: int) -> bool:
        """Whether committed records must survive: a majority of every set that may be in force keeps its disks."""
        for other in self.quorum.values():
            # A node that died during a write may have a set on its disk that it never knew of.
            if other.has_died_writing and other.node_id != node_id:
                return False
            for _offset, voters in other.raft.history._sets[-3:]:
                if any(voters.key_of(it).directory_id == bytes(16) for it in voters):
                    return False
                if not self.has_majority(voters, without=node_id):
                    return False
        return True

    def has_majority(self, voters: VoterSet, *, without: int = -1) -> bool:
        """Whether a majority of a set has its disks. Without it a new set could commit nothing."""
        kept = [it for it in voters if it != without and self.quorum[it].key in voters]
        return len(kept) >= voters.majority

    # Faults -----------------------------------------------------------------------------------------------------------

    def on_lose_disk(self, fault: Fault) -> Action | None:
        """Lose the disk of a node, unless committed records might be lost with it."""
        node = self.quorum[self.host_hit(fault).node_id]
        if not self.may_lose_disk(node.node_id) or not self.may_cut_power(node):
            return None
        self.states.reach("disk lost")
        node.lose_disk()
        return node.start

    def on_snapshot(self, fault: Fault) -> None:
        """Let a node write a snapshot, even for few new records."""
        node = self.quorum[self.host_hit(fault).node_id]
        node.process.run(node.take_snapshot)

    # Strangers --------------------------------------------------------------------------------------------------------

    def forgeries(self) -> list[Callable[[int], None]]:
        votes = [partial(self._forge_vote, epoch) for epoch in (2**31 - 1, None)]
        return [*super().forgeries(), *votes, self._forge_quorum_fetch, self._forge_begin, self._forge_end]

    def _forge_to_all(self, message_to: Callable[["QuorumNode"], NamedTuple]) -> None:
        for node in self.quorum.values():
            message: Any = message_to(node)
            self.forge(node.process, Said(message), partial(node.on_message, message))

    def _forge_vote(self, epoch: int | None, number: int) -> None:
        """Ask all voters for their votes, in the last epoch that a message can name, or in the next one."""
        candidate = self._claimed(number).key
        self._forge_to_all(
            lambda it: messages.Vote(it.raft.epoch + 1 if epoch is None else epoch, candidate, it.key, 2**30, 2**60)
        )

    def _forge_quorum_fetch(self, number: int) -> None:
        """Confirm, in the name of a voter, records that it does not have."""
        leader, voter = self.quorum_leader(), self._claimed(number)
        if leader is not None:
            raft = leader.raft
            request = messages.Fetch(raft.epoch, voter.key, raft.log.log_end_offset, raft.last_epoch)
            self.forge(leader.process, Said(request), partial(leader.on_fetch, request))

    def _forge_begin(self, number: int) -> None:
        """Announce a leader that was not elected."""
        leader_id = self._claimed(number).node_id
        self._forge_to_all(lambda it: messages.BeginQuorumEpoch(it.raft.epoch + 1, leader_id, it.key))

    def _forge_end(self, _number: int) -> None:
        """Announce that the leader has resigned."""
        self._forge_to_all(lambda it: messages.EndQuorumEpoch(it.raft.epoch, it.raft.leader_id, ()))

    def _claimed(self, number: int) -> "QuorumNode":
        return self.quorum[1 + number % len(self.quorum)]

    # The voter set ----------------------------------------------------------------------------------------------------

    def look_after_voters(self, leader: "QuorumNode") -> None:
        """Remove voters that have lost their disks, and add nodes that are up, one at a time."""
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
        """Note the result of a change of the voters."""
        if code is ErrorCode.NONE:
            self.states.reach(what)
        elif code is ErrorCode.REQUEST_TIMED_OUT:
            self.states.reach("change refused: another one is under way")

    def unsettled(self) -> str:
        """What is missing in the voter set."""
        leader = self.quorum_leader()
        if leader is not None and leader.raft._may_change_voters and len(leader.raft.voters) >= self.wanted_size:
            voters = leader.raft.voters
            if all(voters.key_of(it) == self.quorum[it].key for it in voters):
                return ""
        return f"the voter set does not become stable: {self.told()}"

    def told(self) -> str:
        """The state of every node in words."""
        return "; ".join(
            f"{it.name} {it.raft.role.value} in {it.raft.epoch}, {it.raft.log.log_start_offset} to"
            f" {it.raft.log.log_end_offset}, {it.raft.high_watermark} committed, voters {list(it.raft.voters)}"
            for it in self.quorum.values()
        )


def voter_of(key: VoterKey) -> Voter:
    return Voter(key, "127.0.0.1", 9000 + key.node_id)
