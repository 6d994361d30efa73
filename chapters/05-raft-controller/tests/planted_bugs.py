"""Bugs that a quorum or a controller could have, each as a patch of the code, and the seed or scenario that finds it.

    PYTHONPATH=chapters/04-replication-isr/tests:chapters/05-raft-controller/tests python -m planted_bugs [NAME…]

looks for every bug again, in 500 seeds at most, and prints the table. The cores have no switches for bugs: the wrong
code is only here.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import controller_world
import raft_world
from raft_cluster import QuorumNode
from raft_stage import Stage
from simulation_planted import Bug, open_to, print_table

from minibroker.controller import fencing, lifecycle, reassignment
from minibroker.metadata.image import NO_LEADER
from minibroker.partitions.access import Gate
from minibroker.raft.election import NO_NODE, Ballot, Election
from minibroker.raft.messages import Send, SnapshotId
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.tables.vote import VoteRequest
from minibroker.replicas import disk
from minibroker.replication import authority, eligible
from minibroker.replication.leader import Leadership
from minibroker.wire.tables.fetch import FetchRequest

SCENARIOS = Path(__file__).parent / "scenarios"


# The wrong code -------------------------------------------------------------------------------------------------------


def _write_in_memory(self: Ballot, election: Election) -> None:
    self.election = election


def _same_directory(self: QuorumNode) -> None:
    key = getattr(self, "key", None)
    _NEW_DISK(self)
    self.key = key or self.key


_NEW_DISK = QuorumNode.new_disk


def _advance_without_epoch(self: Raft) -> None:
    _advance(self, self.log.flushed_offset, 0)


def _advance_before_flush(self: Raft) -> None:
    _advance(self, self.log.log_end_offset, self.epoch_start_offset)


def _advance(raft: Raft, own_end: int, epoch_start_offset: int) -> None:
    ends = raft._followers.end_offsets(raft.voters, leader_id=raft.me.node_id)
    ends += [own_end] if raft.is_voter else []
    agreed = sorted(ends, reverse=True)[raft.voters.majority - 1]
    if agreed > epoch_start_offset and agreed > raft.high_watermark:
        raft.high_watermark = agreed


def _write_without_flush(self: Raft, batch: bytearray) -> int:
    return self.log.append(batch, leader_epoch=self.epoch)


def _start_election_at_once(self: Raft, now_ms: int) -> list[Send]:
    _PRE_VOTE(self, now_ms)
    return self._start_election(now_ms)


_PRE_VOTE = Raft._start_pre_vote


def _lead_without_quorum(self: Raft, now_ms: int) -> list[Send]:
    self._announce_ms = now_ms + self.settings.election_timeout_ms
    return []


def _delete_all(self: Raft, snapshot: SnapshotId) -> None:
    self.log.roll()
    self.log.delete_before(self.log.log_end_offset)


def _is_leader(raft: Raft) -> bool:
    return raft.is_leader


def _target_among_voters(self: Raft) -> int:
    leader_id, others = self._ballot.election.leader_id, self._others()
    if self.role is Role.FOLLOWER and leader_id in others and (self.is_voter or self._asked == 0):
        return leader_id
    return others[self._asked % len(others)] if others else NO_NODE


def _change_as_if_whole(*arguments: Any) -> Any:
    return _CHANGE(*arguments[:-1], True)  # type: ignore[call-arg]


_CHANGE = fencing.change_when_fenced


def _nothing(*_arguments: object) -> None:
    pass


def _without_but_the_last(topic: Any, number: int, partition: Any, *, gone: int, live: Any) -> Any:
    change = _WITHOUT(topic, number, partition, gone=gone, live=live)
    if change is not None and change.leader == NO_LEADER:
        change.leader = gone
    return change


_WITHOUT = fencing.without


def _as_it_is(change: Any, _partition: Any) -> Any:
    return change


def _never(*_arguments: object, **_named: object) -> bool:
    return False


def _always(*_arguments: object, **_named: object) -> bool:
    return True


# The bugs -------------------------------------------------------------------------------------------------------------


_quorum = partial(Bug.in_world, raft_world.World)
_cluster = partial(Bug.in_world, controller_world.World)
_shown = partial(Bug.in_scenario, Stage, SCENARIOS)

BUGS = (
    _quorum("a vote is not on the disk", (Ballot, "write", _write_in_memory), seed=19, invariant=10),
    _quorum("a lost disk keeps its voter's key", (QuorumNode, "new_disk", _same_directory), seed=24, invariant=10),
    _shown("old epochs are committed by counting", (Raft, "_advance", _advance_without_epoch), by="raft-figure-8"),
    _quorum(
        "a leader counts itself before its flush",
        (Raft, "_advance", _advance_before_flush),
        (Raft, "_write", _write_without_flush),
        seed=4,
        invariant=11,
    ),
    _shown("no pre-vote", (Raft, "_start_pre_vote", _start_election_at_once), by="raft-disruptive-node"),
    _quorum("a vote for a shorter log", (Raft, "_is_up_to_date", _always), seed=1, invariant=11),
    _quorum(
        "a leader without a quorum goes on leading",
        (Raft, "tick_as_leader", _lead_without_quorum),
        seed=1,
        invariant=0,
    ),
    _shown(
        "two changes of voters at once",
        (Raft, "_may_change_voters", property(_is_leader)),
        by="raft-one-change-at-a-time",
    ),
    _quorum("the log deletes uncommitted records", (Raft, "forget_before", _delete_all), seed=3, invariant=None),
    _quorum("only known voters are asked for the leader", (Raft, "target", _target_among_voters), seed=11, invariant=0),
    _cluster("a stale leader's order is accepted", (authority, "_check_epochs", _nothing), seed=5, invariant=13),
    _cluster(
        "an old incarnation is accepted",
        (Leadership, "is_stale", _never),
        (lifecycle, "change_when_fenced", _change_as_if_whole),
        seed=25,
        invariant=1,
    ),
    _cluster(
        "a removed replica counts as in sync",
        (reassignment, "_with_new_leader_epoch", _as_it_is),
        seed=33,
        invariant=12,
    ),
    _cluster("a fenced broker is elected", (fencing, "without", _without_but_the_last), seed=10, invariant=10),
    _quorum("a stranger counts as a voter", (Gate, "_if_allowed", open_to(FetchRequest)), seed=54, invariant=12),
    _quorum(
        "a vote in epoch 2³¹−1 is granted",
        (Gate, "_if_allowed", open_to(VoteRequest)),
        (Raft, "_refuses", _never),
        seed=2,
        invariant=None,
    ),
    _cluster("a full disk costs a node its place", (disk, "loses_records", _always), seed=40, invariant=0),
    _cluster(
        "no replica is eligible after the last one in sync",
        (eligible, "is_enabled", _never),
        (fencing, "is_enabled", _never),
        seed=2,
        invariant=0,
    ),
)


if __name__ == "__main__":
    print_table(BUGS, sys.argv[1:])
