"""Claims for the exercises of chapter 05: votes and commits. Messages are made by hand.

A learner sees the name of the test that failed and the message of its assertion: both name the rule.
"""

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
# A new cluster: the configuration has the addresses of the voters, but not their directories.
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
    """Let time pass, and grant every vote."""
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
    """Fetch from an offset, as a node that has everything before it."""
    last = raft.last_epoch if last_epoch is None else last_epoch
    return raft.on_fetch(Fetch(raft.epoch, OTHERS[node_id], offset, last), now_ms)


# Votes (section 5.4.1, invariants 32 and 34)


def test_a_voter_votes_once_in_an_epoch() -> None:
    raft = voter().raft
    assert raft.on_vote(vote_for(2, 7), 0).is_granted, "the first candidate got no vote"
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted, "two candidates of one epoch got the vote"
    # The response may have been lost: the same candidate gets the same answer.
    assert raft.on_vote(vote_for(2, 7), 0).is_granted, "the candidate that has the vote was refused when it asked again"
    assert raft.on_vote(vote_for(3, 8), 0).is_granted, "the vote of a new epoch is free, and was refused"


def test_a_vote_is_on_the_disk_before_the_candidate_hears_of_it() -> None:
    node = voter()
    assert node.raft.on_vote(vote_for(2, 7), 0).is_granted, "the first candidate got no vote"
    node.files.crash()
    raft = node.open(0)
    assert (raft.epoch, raft.voted) == (7, OTHERS[2]), "the vote is not on the disk after a power cut"
    assert not raft.on_vote(vote_for(3, 7), 0).is_granted, "after a power cut another candidate got the same vote"


def test_a_candidate_with_less_of_the_log_gets_no_vote() -> None:
    check_log_ends(is_pre_vote=False)


def test_a_candidate_with_less_of_the_log_gets_no_pre_vote() -> None:
    check_log_ends(is_pre_vote=True)


def check_log_ends(*, is_pre_vote: bool) -> None:
    """A later last epoch wins; in the same epoch, the longer log."""
    ends = [(2, 3, True), (2, 4, True), (3, 1, True), (2, 2, False), (1, 9, False), (-1, 0, False)]
    for last_epoch, last_offset, is_granted in ends:
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


def test_a_node_that_has_led_an_epoch_gives_no_vote_in_it() -> None:
    node = voter()
    Ballot(node.files, DIRECTORY).write(Election(7, 1, OTHERS[1]))
    raft = node.open(0)
    assert (raft.role, raft.leader_id) == (Role.RESIGNED, -1)
    assert not raft.on_vote(vote_for(2, 7), 0).is_granted, (
        "this node led epoch 7 itself, and voted for another candidate in it"
    )


def test_a_voter_restarts_its_election_timeout_when_it_votes() -> None:
    raft = voter().raft
    # The voter is in the epoch already: a new epoch would restart its timeout by itself.
    raft.on_heard(Heard(ErrorCode.NONE, 7, -1), 0)
    before_ms = raft.next_deadline_ms
    less = vote_for(3, 7, last_epoch=-1, last_offset=-1)
    assert not raft.on_vote(less, before_ms - 2).is_granted
    assert raft.next_deadline_ms == before_ms, "a refusal has restarted the election timeout"
    assert raft.on_vote(vote_for(2, 7), before_ms - 1).is_granted
    assert raft.tick(before_ms) == [], "the voter stands for election 1 ms after it has voted for another candidate"
    assert raft.next_deadline_ms == before_ms - 1 + raft.settings.election_timeout_ms


def test_a_pre_vote_is_not_a_vote() -> None:
    raft = voter().raft
    for candidate in (2, 3):
        granted = raft.on_vote(vote_for(candidate, 0, is_pre_vote=True), 0).is_granted
        assert granted, f"node {candidate} was refused a pre-vote, though the vote is free"
    assert raft.voted is None, "a pre-vote was written as a vote"
    assert (raft.epoch, raft.role) == (0, Role.UNATTACHED)


def test_a_follower_of_a_live_leader_refuses_a_pre_vote() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    asked = raft.position()
    assert asked is not None
    ask = vote_for(3, 7, is_pre_vote=True)
    assert raft.on_vote(ask, 0).is_granted, "the follower knows the leader, but the leader has not answered it yet"
    raft.on_fetched(asked, Fetched(ErrorCode.NONE, 7, 2), 0)
    assert not raft.on_vote(ask, 0).is_granted, "the leader has answered the follower, and it grants a pre-vote"


def test_a_leader_refuses_a_pre_vote() -> None:
    raft = voter().raft
    raft.role = Role.LEADER
    ask = vote_for(2, raft.epoch, last_epoch=raft.epoch, last_offset=99, is_pre_vote=True)
    assert not raft.on_vote(ask, 10_001).is_granted, "the leader grants a pre-vote"


# Commits (section 5.4.2, invariants 33 and 35)


def test_a_record_on_a_majority_is_committed() -> None:
    raft = leader(of=5)
    end_offset = raft.append(batch_of(b"a")) + 1
    fetch(raft, 2, end_offset)
    assert raft.high_watermark == 0, "two of five are not a majority"
    fetch(raft, 3, end_offset - 1)
    assert raft.high_watermark == end_offset - 1, "three of five have everything but the last record"
    fetch(raft, 3, end_offset)
    assert raft.high_watermark == end_offset, "three of five have everything"


def test_the_high_watermark_does_not_go_back_when_a_voter_is_removed() -> None:
    """Nodes 1 and 2 were a majority of three. Of nodes 1 and 3, only node 1 has the last record."""
    raft = leader()
    end_offset = raft.append(batch_of(b"a")) + 1
    fetch(raft, 2, end_offset)
    fetch(raft, 3, end_offset - 1)
    assert raft.high_watermark == end_offset, "two of three have everything"
    raft._change(raft.voters.without(2), timestamp=0)
    assert raft.high_watermark == end_offset, "a committed record is not committed any more, after node 2 was removed"


def test_the_voters_of_a_new_cluster_count_from_their_first_fetch_on() -> None:
    """Their directories are not known yet: the first fetch of each voter names its directory."""
    raft = leader(bootstrap=UNBOUND)
    fetch(raft, 2, 0, last_epoch=-1)
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, (
        "node 2 has everything, and is not counted: it is known by its directory, see Followers.heard_from"
    )
    raft.bind_voters(timestamp=0)
    assert raft.voters.key_of(2) == OTHERS[2], "node 2 has fetched, and is not bound to its directory"
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, "node 2 is not counted since it is bound to its directory"


def test_a_leader_alone_commits_nothing() -> None:
    raft = leader()
    # One of three voters has the record on its disk.
    raft.append(batch_of(b"a"))
    assert raft.log.flushed_offset == raft.log.log_end_offset
    assert raft.high_watermark == 0, "only the leader has the record, one of three voters"


def test_an_unflushed_record_of_the_leader_does_not_count() -> None:
    raft = leader()
    flushed_offset = raft.log.log_end_offset
    raft.log.append(batch_of(b"a"), leader_epoch=raft.epoch)
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == flushed_offset, "the leader counts a record that is not on its disk yet"


def test_a_leader_that_is_no_voter_does_not_count_itself() -> None:
    """A leader that removes itself leads until its removal is committed: both voters, 2 and 3, must have it."""
    raft = leader()
    for node_id in (2, 3):
        fetch(raft, node_id, raft.log.log_end_offset)
    committed = raft.high_watermark
    raft.history.start_with(voters(2, 3))
    raft.append(batch_of(b"a"))
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == committed, "one of two voters has it; the leader is no voter, and counted itself"
    fetch(raft, 3, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset, "both voters have it"


def test_a_record_of_an_earlier_epoch_is_not_committed_by_being_on_a_majority() -> None:
    """Figure 8: a node without the record could still be elected, until a record of this epoch is on a majority."""
    raft = leader()
    raft.append(batch_of(b"a"))
    raft.resign(20_000)
    elect(raft, 30_000)
    begin_offset = raft.epoch_start_offset
    fetch(raft, 2, begin_offset, last_epoch=1)
    assert raft.high_watermark == 0, "no record of the leader's own epoch is on a majority yet"
    fetch(raft, 2, begin_offset + 1)
    assert raft.high_watermark == begin_offset + 1, "a record of the leader's epoch is on a majority"


def test_an_observer_does_not_count() -> None:
    raft = leader()
    raft.on_fetch(Fetch(raft.epoch, VoterKey(9, directory_id(9)), raft.log.log_end_offset, raft.epoch), 10_001)
    assert raft.high_watermark == 0, "node 9 is not a voter, and was counted"
    raft.on_fetch(Fetch(raft.epoch, VoterKey(2, directory_id(2, 1)), raft.log.log_end_offset, raft.epoch), 10_001)
    assert raft.high_watermark == 0, "the replica has the id of a voter but another directory, and was counted"


def test_a_replica_that_fetches_is_alive() -> None:
    raft = leader()
    fetch(raft, 2, 0, last_epoch=-1, now_ms=11_400)
    raft.tick(12_000)
    assert raft.is_leader, "node 2 has fetched 600 ms ago, a majority is alive, and the leader resigned"


def test_a_late_fetch_does_not_undo_a_newer_one() -> None:
    raft = leader()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset, now_ms=10_500)
    fetch(raft, 2, 1, now_ms=10_400)
    known = raft.progress(10_600)[0][OTHERS[2]]
    told = (known.end_offset, known.last_fetch_ms)
    assert told == (end_offset, 10_500), "an older fetch of node 2 has replaced a newer one"
    assert raft.high_watermark == end_offset


def test_a_voter_that_fetches_needs_no_announcement_of_the_leader() -> None:
    raft = leader()
    fetch(raft, 2, 0, last_epoch=-1, now_ms=10_100)
    told = [it.node_id for it in raft.tick(10_600)]
    assert told == [3], "node 2 has fetched, so it knows the leader; node 3 has not"


def test_a_leader_announces_itself_again_only_after_an_election_timeout() -> None:
    raft = leader()
    fetch(raft, 2, 0, last_epoch=-1, now_ms=10_100)
    timeout_ms = raft.settings.election_timeout_ms
    for now_ms, told in ((10_600, [3]), (10_601, []), (10_599 + timeout_ms, []), (10_600 + timeout_ms, [3])):
        fetch(raft, 2, raft.log.log_end_offset, now_ms=now_ms)
        assert [it.node_id for it in raft.tick(now_ms)] == told, f"at {now_ms} ms, {timeout_ms} ms is the timeout"


def test_the_response_to_a_fetch_has_records_and_the_high_watermark() -> None:
    raft = leader()
    fetched = fetch(raft, 2, 0, last_epoch=-1)
    assert (fetched.code, fetched.leader_id, fetched.high_watermark) == (ErrorCode.NONE, 1, 0)
    assert len(fetched.records) > 0, "the log of the replica is empty, and it got no records"
    assert fetched.diverging is None, "an empty log cannot diverge"
    fetched = fetch(raft, 2, raft.log.log_end_offset)
    assert fetched.high_watermark == raft.log.log_end_offset, (
        "its fetch commits the record, and the response has an older high watermark"
    )


def test_a_diverging_follower_is_told_where_our_log_ends_its_epoch() -> None:
    raft = leader()
    raft.resign(20_000)
    elect(raft, 30_000)
    assert raft.epoch == 2
    began = raft.epoch_start_offset
    longer = fetch(raft, 2, began + 5, last_epoch=1)
    assert longer.diverging == EpochEnd(1, began), f"our epoch 1 ends at {began}, the follower has more of that epoch"
    assert not longer.records, "a diverging follower got records"
    assert raft.high_watermark == 0, "a diverging follower was counted"


def test_a_fetch_of_deleted_records_is_answered_with_the_snapshot() -> None:
    raft = leader()
    fetch(raft, 2, raft.log.log_end_offset)
    snapshot, snapshots = SnapshotId(raft.high_watermark, raft.epoch), NoSnapshots()
    snapshots.latest = snapshot
    raft.snapshots = snapshots
    raft.forget_before(snapshot)
    fetched = fetch(raft, 3, 0, last_epoch=-1)
    assert fetched.code is ErrorCode.NONE
    assert fetched.snapshot == snapshot, "the records are only in a snapshot, and the response does not name it"
    assert not fetched.records


def test_a_fetch_of_another_epoch_is_refused() -> None:
    for difference, code in ((-1, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        raft = leader()
        epoch = raft.epoch + difference
        fetched = raft.on_fetch(Fetch(epoch, OTHERS[2], raft.log.log_end_offset, 1), 10_001)
        told = (fetched.code, fetched.epoch, fetched.leader_id)
        assert told == (code, raft.epoch, 1), (
            f"a fetch of epoch {epoch} is refused with {code.name}, and told that node 1 leads epoch {raft.epoch}"
        )
        assert raft.high_watermark == 0, f"a fetch of epoch {epoch} was counted in epoch {raft.epoch}"


def test_an_offset_after_the_end_is_out_of_range() -> None:
    raft = leader()
    fetched = fetch(raft, 2, raft.log.log_end_offset + 5, last_epoch=-1)
    assert fetched.code is ErrorCode.OFFSET_OUT_OF_RANGE, (
        "the fetch names no epoch, and an offset after the end of the log"
    )
    assert raft.high_watermark == 0, "an offset after the end of the log was counted"
