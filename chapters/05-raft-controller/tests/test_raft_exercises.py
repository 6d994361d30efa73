"""Claims that the exercises of chapter 05 are tested by: votes, and what a majority has. Messages are made by hand.

What a learner sees of a failure is the name of the test and the message of the assertion: both name the rule.
"""

import pytest
from raft_nodes import DIRECTORY, QuorumNode, directory_id, voters
from replication_nodes import batch_of

from minibroker.partitions.partition import EpochEnd
from minibroker.raft.election import Ballot, Election
from minibroker.raft.messages import Fetch, Fetched, Heard, SnapshotId, Vote, Voted
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import NoSnapshots
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.wire.codes import ErrorCode

OTHERS = {node_id: VoterKey(node_id, directory_id(node_id)) for node_id in range(1, 6)}
# A new cluster: the configuration says where the voters are, and nobody knows their directories.
UNBOUND = VoterSet.of(Voter(VoterKey(node_id), "127.0.0.1", 9000 + node_id) for node_id in (1, 2, 3))


def voter(*, of: int = 3, bootstrap: VoterSet | None = None) -> QuorumNode:
    """Node 1 of a quorum, on a disk of its own."""
    node = QuorumNode(1, bootstrap or voters(*range(1, of + 1)), chance=lambda _below: 0)
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


def leader(*, of: int = 3, bootstrap: VoterSet | None = None) -> Raft:
    raft = voter(of=of, bootstrap=bootstrap).raft
    elect(raft)
    return raft


def fetch(raft: Raft, node_id: int, offset: int, last_epoch: int | None = None, *, now_ms: int = 10_001) -> Fetched:
    """A node has everything before an offset, and asks for more."""
    last = raft.last_epoch if last_epoch is None else last_epoch
    return raft.on_fetch(Fetch(raft.epoch, OTHERS[node_id], offset, last), now_ms)


# To vote (section 5.4.1, invariants 32 and 34)


def test_a_voter_votes_once_in_an_epoch() -> None:
    raft = voter().raft
    assert raft.on_vote(vote_for(2, 7), 0).is_granted, "the first who asked got no vote"
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted, "two candidates of one epoch got the vote"
    # The answer may have been lost: the same candidate is told the same.
    assert raft.on_vote(vote_for(2, 7), 0).is_granted, "the candidate that has the vote was refused when it asked again"
    assert raft.on_vote(vote_for(3, 8), 0).is_granted, "a new epoch has a new vote, and it was not given"


def test_a_vote_is_on_the_disk_before_anybody_hears_of_it() -> None:
    node = voter()
    assert node.raft.on_vote(vote_for(2, 7), 0).is_granted, "the first who asked got no vote"
    node.files.crash()
    raft = node.open(0)
    assert (raft.epoch, raft.voted) == (7, OTHERS[2]), "the power was cut, and the vote is not on the disk"
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted, "after a power cut another candidate got the same vote"


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
    theirs = f"its log ends at {last_offset} in epoch {last_epoch}, ours at 3 in epoch 2"
    assert raft.on_vote(asked, 0).is_granted is is_granted, theirs


def test_an_epoch_that_has_a_leader_has_no_votes_left() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    assert (raft.epoch, raft.leader_id) == (7, 2)
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted, "node 2 leads epoch 7, and node 3 got a vote in it"


def test_who_has_led_an_epoch_votes_for_nobody_in_it() -> None:
    node = voter()
    Ballot(node.files, DIRECTORY).write(Election(7, 1, OTHERS[1]))
    raft = node.open(0)
    assert (raft.role, raft.leader_id) == (Role.RESIGNED, -1)
    assert not raft.on_vote(vote_for(2, 7), 0).is_granted, "it led epoch 7 itself, and gave another a vote in it"


def test_who_gives_its_vote_gives_the_candidate_time() -> None:
    raft = voter().raft
    # It is in the epoch already: that somebody begins a new one is a reason of its own to wait.
    raft.on_heard(Heard(ErrorCode.NONE, 7, -1), 0)
    before_ms = raft.next_deadline_ms
    less = vote_for(3, 7, last_epoch=-1, last_offset=-1)
    assert not raft.on_vote(less, before_ms - 2).is_granted
    assert raft.next_deadline_ms == before_ms, "a refusal put off our own candidacy"
    assert raft.on_vote(vote_for(2, 7), before_ms - 1).is_granted
    assert raft.tick(before_ms) == [], "it stands itself, 1 ms after it has voted for another"
    assert raft.next_deadline_ms == before_ms - 1 + raft.settings.election_timeout_ms


def test_to_say_that_one_would_vote_binds_nobody() -> None:
    raft = voter().raft
    for candidate in (2, 3):
        granted = raft.on_vote(vote_for(candidate, 0, is_pre_vote=True), 0).is_granted
        assert granted, f"node {candidate} was told that it would not get the vote, which is free"
    assert raft.voted is None, "it was only asked whether it would vote, and has voted"
    assert (raft.epoch, raft.role) == (0, Role.UNATTACHED)


def test_who_hears_of_the_leader_sees_no_need_for_another() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    asked = raft.position()
    assert asked is not None
    ask = vote_for(3, 7, is_pre_vote=True)
    assert raft.on_vote(ask, 0).is_granted, "it knows who leads, but the leader has not answered it yet"
    raft.on_fetched(asked, Fetched(ErrorCode.NONE, 7, 2), 0)
    assert not raft.on_vote(ask, 0).is_granted, "its leader has answered it, and it would vote for another"


def test_who_leads_sees_no_need_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is decided is the next exercise, and does not matter here.
    monkeypatch.setattr(Raft, "_advance", lambda _raft: None)
    raft = leader()
    ask = vote_for(2, raft.epoch, last_epoch=raft.epoch, last_offset=99, is_pre_vote=True)
    assert not raft.on_vote(ask, 10_001).is_granted, "the leader itself would vote for another"


# What a majority has (section 5.4.2, invariants 33 and 35)


def test_what_a_majority_has_is_decided() -> None:
    raft = leader(of=5)
    end_offset = raft.append(batch_of(b"a")) + 1
    fetch(raft, 2, end_offset)
    assert raft.high_watermark == 0, "two of five are no majority"
    fetch(raft, 3, end_offset - 1)
    assert raft.high_watermark == end_offset - 1, "three of five have everything but the last record"
    fetch(raft, 3, end_offset)
    assert raft.high_watermark == end_offset, "three of five have everything"


def test_the_voters_of_a_new_cluster_count_from_their_first_question_on() -> None:
    """Nobody knows their directories yet: with its first fetch each says which it has, and is that one."""
    raft = leader(bootstrap=UNBOUND)
    fetch(raft, 2, 0, last_epoch=-1)
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, (
        "node 2 has everything, and is not counted: its number alone is not who it is, see Followers.heard_from"
    )
    raft.bind_voters(timestamp=0)
    assert raft.voters.key_of(2) == OTHERS[2], "node 2 has asked, and is not bound to its directory"
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, "node 2 is not counted since it is bound to its directory"


def test_a_leader_alone_decides_nothing() -> None:
    raft = leader()
    # On the log of the leader alone, which has it on its disk: one of three.
    raft.append(batch_of(b"a"))
    assert raft.log.flushed_offset == raft.log.log_end_offset
    assert raft.high_watermark == 0, "only the leader has it, one of three"


def test_what_a_leader_has_not_flushed_does_not_count() -> None:
    raft = leader()
    flushed_offset = raft.log.log_end_offset
    raft.log.append(batch_of(b"a"), leader_epoch=raft.epoch)
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == flushed_offset, "the leader counts what is not on its disk yet"


def test_a_leader_that_does_not_vote_does_not_count_itself() -> None:
    """It leads on until it is decided that it has gone: of voters 2 and 3 both must have that."""
    raft = leader()
    for node_id in (2, 3):
        fetch(raft, node_id, raft.log.log_end_offset)
    decided = raft.high_watermark
    assert raft.remove_voter(raft.me, timestamp=0) is ErrorCode.NONE, "two of three have everything: it is decided"
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == decided, "one of two voters has it; the leader votes no more, and counted itself"
    fetch(raft, 3, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, "both voters have it"


def test_a_record_of_an_earlier_epoch_is_not_decided_by_being_on_a_majority() -> None:
    """Figure 8: a node without it could still be elected. With a record of this epoch it cannot."""
    raft = leader()
    raft.append(batch_of(b"a"))
    raft.resign(20_000)
    elect(raft, 30_000)
    begin_offset = raft.epoch_start_offset
    fetch(raft, 2, begin_offset, last_epoch=1)
    assert raft.high_watermark == 0, "nothing of the leader's own epoch is on a majority yet"
    fetch(raft, 2, begin_offset + 1)
    assert raft.high_watermark == begin_offset + 1, "a record of the leader's epoch is on a majority"


def test_who_has_no_vote_is_not_counted() -> None:
    raft = leader()
    raft.on_fetch(Fetch(raft.epoch, VoterKey(9, directory_id(9)), raft.log.log_end_offset, raft.epoch), 10_001)
    assert raft.high_watermark == 0, "node 9 is no voter, and was counted"
    raft.on_fetch(Fetch(raft.epoch, VoterKey(2, directory_id(2, 1)), raft.log.log_end_offset, raft.epoch), 10_001)
    assert raft.high_watermark == 0, "it has the number of a voter, but another disk, and was counted"


def test_who_asks_lives() -> None:
    raft = leader()
    fetch(raft, 2, 0, last_epoch=-1, now_ms=11_400)
    raft.tick(12_000)
    assert raft.is_leader, "node 2 has asked 600 ms ago, two of three are there, and the leader gave up"


def test_a_question_that_comes_late_takes_nothing_back() -> None:
    raft = leader()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset, now_ms=10_500)
    fetch(raft, 2, 1, now_ms=10_400)
    known = {key.node_id: (end, last_ms) for key, end, last_ms in raft.progress()[0]}
    assert known[2] == (end_offset, 10_500), "an older question of node 2 was believed after a newer one"
    assert raft.high_watermark == end_offset


def test_who_asks_need_not_be_told_who_leads() -> None:
    raft = leader()
    fetch(raft, 2, 0, last_epoch=-1, now_ms=10_100)
    told = [it.node_id for it in raft.tick(10_600)]
    assert told == [3], "node 2 has asked the leader, so it knows; node 3 has not"


def test_records_are_told_with_what_is_decided() -> None:
    raft = leader()
    fetched = fetch(raft, 2, 0, last_epoch=-1)
    assert (fetched.code, fetched.leader_id, fetched.high_watermark) == (ErrorCode.NONE, 1, 0)
    assert len(fetched.records) > 0, "it has nothing, and was given no records"
    assert fetched.diverging is None, "it has nothing, so its log goes no other way"
    fetched = fetch(raft, 2, raft.log.log_end_offset)
    assert fetched.high_watermark == raft.log.log_end_offset, "its own question decides it, and the answer does not say"


def test_a_log_that_goes_another_way_is_told_where_ours_leaves_it() -> None:
    raft = leader()
    raft.resign(20_000)
    elect(raft, 30_000)
    assert raft.epoch == 2
    began = raft.epoch_start_offset
    longer = fetch(raft, 2, began + 5, last_epoch=1)
    assert longer.diverging == EpochEnd(1, began), f"our epoch 1 ends at {began}, it has more of that epoch"
    assert not longer.records, "records do not fit behind a log that goes another way"
    assert raft.high_watermark == 0, "it was counted, though its offset does not say what it has"


def test_what_is_forgotten_is_in_a_snapshot() -> None:
    raft = leader()
    fetch(raft, 2, raft.log.log_end_offset)
    snapshot, snapshots = SnapshotId(raft.high_watermark, raft.epoch), NoSnapshots()
    snapshots.latest = snapshot
    raft.snapshots = snapshots
    raft.forget_before(snapshot)
    fetched = fetch(raft, 3, 0, last_epoch=-1)
    assert fetched.code is ErrorCode.NONE
    assert fetched.snapshot == snapshot, "what it asks for is only in a snapshot, and it was not told in which"
    assert not fetched.records


@pytest.mark.parametrize(
    ("difference", "code"), [(-1, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_who_is_in_another_epoch_is_told_so(difference: int, code: ErrorCode) -> None:
    raft = leader()
    fetched = raft.on_fetch(Fetch(raft.epoch + difference, OTHERS[2], raft.log.log_end_offset, 1), 10_001)
    told = (fetched.code, fetched.epoch, fetched.leader_id)
    assert told == (code, raft.epoch, 1), (
        f"it is to be refused with {code.name}, and told that node 1 leads {raft.epoch}"
    )
    assert raft.high_watermark == 0, "it is in another epoch, and was counted"


def test_what_is_behind_the_end_is_out_of_range() -> None:
    raft = leader()
    fetched = fetch(raft, 2, raft.log.log_end_offset + 5, last_epoch=-1)
    assert fetched.code is ErrorCode.OFFSET_OUT_OF_RANGE, "it names no epoch, and asks for what nobody has"
    assert raft.high_watermark == 0, "it was counted with what nobody has"
