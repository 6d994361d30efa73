"""Claims about the start: an only voter leads at once and continues an existing log; other voters ask for votes."""

from raft_nodes import DIRECTORY, QuorumNode, voters
from replication_nodes import batch_of, contents

from minibroker.raft.messages import Vote, Voted
from minibroker.raft.roles import Role
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode


def longest(upto: int) -> int:
    """The longest random timeout."""
    return upto - 1


def test_an_only_voter_leads_at_once() -> None:
    node = QuorumNode(1, voters(1), chance=longest)
    raft = node.open(0)
    assert raft.tick(0) == []
    assert (raft.role, raft.epoch, raft.leader_id) == (Role.LEADER, 1, 1)
    assert raft.high_watermark == raft.log.log_end_offset > 0
    # After a restart it leads again, though it led before.
    raft = node.open(7)
    raft.tick(7)
    assert (raft.role, raft.epoch) == (Role.LEADER, 2)


def test_one_of_several_voters_waits_for_its_election_timeout() -> None:
    raft = QuorumNode(1, voters(1, 2, 3), chance=longest).open(0)
    assert raft.tick(0) == []
    assert raft.role is Role.UNATTACHED
    assert raft.next_deadline_ms >= raft.settings.election_timeout_ms


def test_an_observer_of_an_only_voter_does_not_lead() -> None:
    raft = QuorumNode(2, voters(1), chance=longest).open(0)
    raft.tick(0)
    assert not raft.is_leader


def test_epochs_continue_after_those_of_a_log_without_a_quorum() -> None:
    """Chapter 03's only voter writes epoch 1, and has no ballot."""
    node = QuorumNode(1, voters(1), chance=longest)
    with_one = SegmentedLog.open(node.files, DIRECTORY)
    with_one.append(batch_of(b"a", b"b"), leader_epoch=1)
    with_one.close()
    raft = node.open(0)
    raft.tick(0)
    assert raft.epoch == 2
    assert [(epoch, value) for _offset, epoch, value in contents(raft)][:3] == [(1, b"a"), (1, b"b"), (2, b"*")]
    assert raft.high_watermark == raft.log.log_end_offset


def test_a_candidate_with_an_empty_log_needs_every_vote() -> None:
    """Two of three voters that have lost their disks would be a majority without the records that the third one has."""
    configured = VoterSet.of(Voter(VoterKey(it), "127.0.0.1", 9000 + it) for it in (1, 2, 3))
    raft = QuorumNode(1, configured, chance=lambda _below: 0).open(0)
    asked = [it for it in raft.tick(raft.next_deadline_ms) if isinstance(it.message, Vote)]
    assert [it.node_id for it in asked] == [2, 3]
    for node_id, is_last in ((2, False), (3, True)):
        request = next(it.message for it in asked if it.node_id == node_id)
        assert isinstance(request, Vote)
        raft.on_voted(node_id, request, Voted(ErrorCode.NONE, 0, -1, is_granted=True), raft.next_deadline_ms - 1)
        assert (raft.role is Role.CANDIDATE) == is_last
