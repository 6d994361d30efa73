"""Claims about beginning: a quorum of one waits for nobody, and takes up a log that was there before; others ask."""

from raft_nodes import DIRECTORY, QuorumNode, voters
from replication_nodes import batch_of, contents

from minibroker.raft.messages import Vote, Voted
from minibroker.raft.roles import Role
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode


def patient(upto: int) -> int:
    """The longest patience that chance can give."""
    return upto - 1


def test_who_votes_alone_leads_at_once() -> None:
    node = QuorumNode(1, voters(1), chance=patient)
    raft = node.open(0)
    assert raft.tick(0) == []
    assert (raft.role, raft.epoch, raft.leader_id) == (Role.LEADER, 1, 1)
    assert raft.high_watermark == raft.log.log_end_offset > 0
    # It does so again when it is started again, though it led before.
    raft = node.open(7)
    raft.tick(7)
    assert (raft.role, raft.epoch) == (Role.LEADER, 2)


def test_one_of_several_waits_to_hear_of_the_others() -> None:
    raft = QuorumNode(1, voters(1, 2, 3), chance=patient).open(0)
    assert raft.tick(0) == []
    assert raft.role is Role.UNATTACHED
    assert raft.next_deadline_ms >= raft.settings.election_timeout_ms


def test_who_is_not_the_voter_does_not_lead() -> None:
    raft = QuorumNode(2, voters(1), chance=patient).open(0)
    raft.tick(0)
    assert not raft.is_leader


def test_epochs_go_on_above_those_of_a_log_that_was_written_without_a_quorum() -> None:
    """Chapter 03's only voter stamps epoch 1, and keeps no ballot."""
    node = QuorumNode(1, voters(1), chance=patient)
    with_one = SegmentedLog.open(node.files, DIRECTORY)
    with_one.append(batch_of(b"a", b"b"), leader_epoch=1)
    with_one.close()
    raft = node.open(0)
    raft.tick(0)
    assert raft.epoch == 2
    assert [(epoch, value) for _offset, epoch, value in contents(raft)][:3] == [(1, b"a"), (1, b"b"), (2, b"*")]
    assert raft.high_watermark == raft.log.log_end_offset


def test_who_has_nothing_but_a_configuration_needs_every_vote() -> None:
    """Two of three that have lost their disks would be a majority that knows of nothing; the third one does."""
    configured = VoterSet.of(Voter(VoterKey(it), "127.0.0.1", 9000 + it) for it in (1, 2, 3))
    raft = QuorumNode(1, configured, chance=lambda _below: 0).open(0)
    asked = [it for it in raft.tick(raft.next_deadline_ms) if isinstance(it.message, Vote)]
    assert [it.node_id for it in asked] == [2, 3]
    for node_id, is_last in ((2, False), (3, True)):
        request = next(it.message for it in asked if it.node_id == node_id)
        assert isinstance(request, Vote)
        raft.on_voted(node_id, request, Voted(ErrorCode.NONE, 0, -1, is_granted=True), raft.next_deadline_ms - 1)
        assert (raft.role is Role.CANDIDATE) == is_last
