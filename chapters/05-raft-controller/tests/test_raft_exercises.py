"""Claims that the exercises of chapter 05 are tested by: votes, and what a majority has. Messages are made by hand."""

import pytest
from raft_nodes import QuorumNode, batch_of, directory_id, voters

from minibroker.partitions.partition import EpochEnd
from minibroker.raft.messages import Fetch, Fetched, Vote, Voted
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import VoterKey
from minibroker.wire.codes import ErrorCode

OTHERS = {node_id: VoterKey(node_id, directory_id(node_id)) for node_id in range(1, 6)}


def voter(*, of: int = 3) -> QuorumNode:
    """Node 1 of a quorum, on a disk of its own."""
    node = QuorumNode(1, voters(*range(1, of + 1)), chance=lambda _below: 0)
    node.open(0)
    return node


def vote_for(
    candidate: int, epoch: int, *, last_epoch: int = -1, last_offset: int = 0, is_pre_vote: bool = False
) -> Vote:
    return Vote(epoch, OTHERS[candidate], OTHERS[1], last_epoch, last_offset, is_pre_vote)


def elect(raft: Raft, now_ms: int = 10_000) -> None:
    """Let time pass, and the others vote for it."""
    sends = raft.tick(now_ms)
    while sends:
        asked = [it for it in sends if isinstance(it.message, Vote)]
        sends = []
        for node_id, message in asked:
            assert isinstance(message, Vote)
            epoch = raft.epoch if message.is_pre_vote else message.epoch
            sends += raft.on_voted(node_id, message, Voted(ErrorCode.NONE, epoch, is_granted=True), now_ms)
    assert raft.is_leader


def leader(*, of: int = 3) -> Raft:
    raft = voter(of=of).raft
    elect(raft)
    return raft


def fetch(raft: Raft, node_id: int, offset: int, last_epoch: int | None = None) -> Fetched:
    """A node has everything before an offset, and asks for more."""
    last = raft.last_epoch if last_epoch is None else last_epoch
    return raft.on_fetch(Fetch(raft.epoch, OTHERS[node_id], offset, last), 10_001)


# To vote (section 5.4.1, invariants 32 and 34)


def test_a_voter_votes_once_in_an_epoch() -> None:
    raft = voter().raft
    assert raft.on_vote(vote_for(2, 7), 0).is_granted
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted
    # The answer may have been lost: the same candidate is told the same.
    assert raft.on_vote(vote_for(2, 7), 0).is_granted
    assert raft.on_vote(vote_for(3, 8), 0).is_granted


def test_a_vote_is_on_the_disk_before_anybody_hears_of_it() -> None:
    node = voter()
    assert node.raft.on_vote(vote_for(2, 7), 0).is_granted
    node.files.crash()
    raft = node.open(0)
    assert (raft.epoch, raft.voted) == (7, OTHERS[2])
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted


@pytest.mark.parametrize(
    ("last_epoch", "last_offset", "is_granted"),
    [(2, 3, True), (2, 4, True), (3, 1, True), (2, 2, False), (1, 9, False), (-1, 0, False)],
)
@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_nobody_is_voted_for_who_has_less_of_the_log(
    last_epoch: int, last_offset: int, is_granted: bool, is_pre_vote: bool
) -> None:
    raft = voter().raft
    raft.log.append(batch_of(b"a", b"b"), leader_epoch=1)
    raft.log.append(batch_of(b"c"), leader_epoch=2)
    asked = vote_for(2, 7, last_epoch=last_epoch, last_offset=last_offset, is_pre_vote=is_pre_vote)
    assert raft.on_vote(asked, 0).is_granted is is_granted


def test_an_epoch_that_has_a_leader_has_no_votes_left() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    assert (raft.epoch, raft.leader_id) == (7, 2)
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted


def test_to_say_that_one_would_vote_binds_nobody() -> None:
    raft = voter().raft
    assert raft.on_vote(vote_for(2, 0, is_pre_vote=True), 0).is_granted
    assert raft.on_vote(vote_for(3, 0, is_pre_vote=True), 0).is_granted
    assert (raft.epoch, raft.voted, raft.role) == (0, None, Role.UNATTACHED)


def test_who_hears_of_the_leader_sees_no_need_for_another() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    asked = raft.position()
    assert asked is not None
    # It knows who leads, but has not heard from it yet.
    assert raft.on_vote(vote_for(3, 7, is_pre_vote=True), 0).is_granted
    raft.on_fetched(asked, Fetched(ErrorCode.NONE, 7, 2), 0)
    assert not raft.on_vote(vote_for(3, 7, is_pre_vote=True), 0).is_granted


# What a majority has (section 5.4.2, invariants 33 and 35)


def test_what_a_majority_has_is_decided() -> None:
    raft = leader(of=5)
    end_offset = raft.append(batch_of(b"a")) + 1
    fetch(raft, 2, end_offset)
    assert raft.high_watermark == 0
    fetch(raft, 3, end_offset - 1)
    assert raft.high_watermark == end_offset - 1
    fetch(raft, 3, end_offset)
    assert raft.high_watermark == end_offset


def test_a_leader_alone_decides_nothing() -> None:
    raft = leader()
    # On the log of the leader alone, which has it on its disk: one of three.
    raft.append(batch_of(b"a"))
    assert raft.log.flushed_offset == raft.log.log_end_offset
    assert raft.high_watermark == 0


def test_a_record_of_an_earlier_epoch_is_not_decided_by_being_on_a_majority() -> None:
    """Figure 8: a node without it could still be elected. With a record of this epoch it cannot."""
    raft = leader()
    raft.append(batch_of(b"a"))
    raft.resign(20_000)
    elect(raft, 30_000)
    begin_offset = raft.epoch_start_offset
    fetch(raft, 2, begin_offset, last_epoch=1)
    assert raft.high_watermark == 0
    fetch(raft, 2, begin_offset + 1)
    assert raft.high_watermark == begin_offset + 1


def test_who_has_no_vote_is_not_counted() -> None:
    raft = leader()
    raft.on_fetch(Fetch(raft.epoch, VoterKey(9, directory_id(9)), raft.log.log_end_offset, raft.epoch), 10_001)
    # The number of a voter, on another disk than the voter's.
    raft.on_fetch(Fetch(raft.epoch, VoterKey(2, directory_id(2, 1)), raft.log.log_end_offset, raft.epoch), 10_001)
    assert raft.high_watermark == 0


def test_a_question_that_comes_late_takes_nothing_back() -> None:
    raft = leader()
    fetch(raft, 2, raft.log.log_end_offset)
    decided = raft.high_watermark
    fetch(raft, 2, 1)
    raft.append(batch_of(b"a"))
    assert raft.high_watermark == decided > 0


def test_records_are_told_with_what_is_decided() -> None:
    raft = leader()
    fetched = fetch(raft, 2, 0, last_epoch=-1)
    assert (fetched.code, fetched.leader_id, fetched.high_watermark) == (ErrorCode.NONE, 1, 0)
    assert len(fetched.records) > 0
    assert fetched.diverging is None


def test_a_log_that_goes_another_way_is_told_where_ours_leaves_it() -> None:
    raft = leader()
    raft.resign(20_000)
    elect(raft, 30_000)
    assert raft.epoch == 2
    began = raft.epoch_start_offset
    longer = fetch(raft, 2, began + 5, last_epoch=1)
    assert longer.diverging == EpochEnd(1, began)
    assert not longer.records
    # It counts for nothing while it is not known what it has.
    assert raft.high_watermark == 0


@pytest.mark.parametrize(
    ("difference", "code"), [(-1, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_who_is_in_another_epoch_is_told_so(difference: int, code: ErrorCode) -> None:
    raft = leader()
    fetched = raft.on_fetch(Fetch(raft.epoch + difference, OTHERS[2], raft.log.log_end_offset, 1), 10_001)
    assert (fetched.code, fetched.epoch, fetched.leader_id) == (code, raft.epoch, 1)
    assert raft.high_watermark == 0
