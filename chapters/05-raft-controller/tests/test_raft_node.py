"""Claims about a node of the quorum that a simulation or a second reading has found broken once."""

from raft_nodes import QuorumNode, directory_id, voters

from minibroker.log.batch import BatchBuilder
from minibroker.raft.control import add_voters
from minibroker.raft.election import NOBODY
from minibroker.raft.messages import Fetch, Heard, SnapshotId, Vote
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import Voter, VoterKey
from minibroker.wire.codes import ErrorCode


def alone() -> Raft:
    raft = QuorumNode(1, voters(1), chance=lambda _below: 0).open(0)
    raft.tick(0)
    return raft


def observer() -> Raft:
    """Node 7 knows of the voters 1, 2 and 3, and is none of them."""
    return QuorumNode(7, voters(1, 2, 3), chance=lambda _below: 0).open(0)


def fetch(raft: Raft, node_id: int, offset: int, *, now_ms: int = 0) -> None:
    key = VoterKey(node_id, directory_id(node_id))
    last_epoch = -1 if offset == 0 else raft.epochs.epoch_of(offset - 1)
    assert raft.on_fetch(Fetch(raft.epoch, key, offset, last_epoch), now_ms).code is ErrorCode.NONE


def test_who_was_stuck_itself_hears_first_what_others_have_said() -> None:
    """To open a thousand logs takes seconds. What the leader has said meanwhile waits in the socket."""
    raft = QuorumNode(1, voters(1, 2, 3), chance=lambda _below: 0).open(0)
    deadline_ms = raft.next_deadline_ms
    raft.on_stuck(3000)
    assert raft.tick(deadline_ms) == []
    assert len(raft.tick(deadline_ms + 3000)) == 2


def test_a_new_set_of_voters_decides_about_itself() -> None:
    """Of one voter and one more, one is no majority: what the old set could decide alone, the new one cannot."""
    raft = alone()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset)
    assert raft.add_voter(Voter(VoterKey(2, directory_id(2))), timestamp=0) is ErrorCode.NONE
    assert raft.high_watermark == end_offset
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset == end_offset + 1


def test_who_is_far_behind_is_not_taken_in() -> None:
    raft = alone()
    voter = Voter(VoterKey(2, directory_id(2)))
    assert raft.add_voter(voter, timestamp=0) is ErrorCode.REQUEST_TIMED_OUT
    fetch(raft, 2, 0)
    assert raft.add_voter(voter, timestamp=0) is ErrorCode.REQUEST_TIMED_OUT
    assert raft.add_voter(Voter(VoterKey(1, directory_id(1, 5))), timestamp=0) is ErrorCode.DUPLICATE_VOTER
    assert raft.remove_voter(VoterKey(2), timestamp=0) is ErrorCode.VOTER_NOT_FOUND
    assert raft.remove_voter(raft.me, timestamp=0) is ErrorCode.INVALID_REQUEST


def test_a_question_that_is_looked_at_again_says_nothing_new() -> None:
    """A fetch waits at the leader, and is looked at again after a later one of the same follower."""
    raft = alone()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset, now_ms=500)
    fetch(raft, 2, 0, now_ms=100)
    _voters, observers = raft.progress()
    assert observers == [(VoterKey(2, directory_id(2)), end_offset, 500)]


def test_what_must_be_fetched_is_forgotten_with_the_leader_that_said_so() -> None:
    """An observer hears of no new leader by itself: it must go on asking."""
    raft = observer()
    raft.on_heard(Heard(ErrorCode.NONE, 1, 1), 0)
    raft.snapshot_wanted = SnapshotId(10, 1)
    assert raft.position() is None
    assert raft.snapshot_position(0) is not None
    raft.on_heard(Heard(ErrorCode.NONE, 2, -1), 0)
    assert raft.role is Role.UNATTACHED
    assert raft.snapshot_position(0) is None
    assert raft.position() is not None


def test_a_leader_that_is_none_of_the_voters_one_knows_is_asked() -> None:
    """The voters that a new disk knows of may have been replaced since (KIP-853)."""
    raft = observer()
    raft.on_unanswered()
    raft.on_heard(Heard(ErrorCode.FENCED_LEADER_EPOCH, 5, 9), 0)
    assert raft.target() == 9
    asked = set()
    for _ in range(8):
        raft.on_unanswered()
        asked.add(raft.target())
    assert asked == {1, 2, 3, 9}


def test_who_was_away_while_all_voters_were_replaced_asks_those_in_its_configuration() -> None:
    """Its log names voters that are gone; an operator has named the new ones in its file since."""
    node = QuorumNode(7, voters(1, 2), chance=lambda _below: 0)
    raft = node.open(0)
    raft.log.append(add_voters(BatchBuilder(is_control=True), voters(1, 2), timestamp=0).build(), leader_epoch=1)
    node.bootstrap = voters(2, 5)
    again = node.open(0)
    assert list(again.voters) == [1, 2]
    asked = set()
    for _ in range(3):
        asked.add(again.target())
        again.on_unanswered()
    assert asked == {1, 2, 5}


def test_who_led_and_was_left_alone_does_not_say_that_it_leads() -> None:
    """Not even when it asks for votes again: whoever believes it loses the time of a fetch."""
    trio = voters(1, 2, 3)
    one, two = (QuorumNode(it, trio, chance=lambda _below: 0).open(0) for it in (1, 2))
    sends = one.tick(600)
    while sends:
        to, message = sends.pop(0)
        if to == 2 and isinstance(message, Vote):
            sends += one.on_voted(2, message, two.on_vote(message, 600), 600)
    assert (one.is_leader, one.leader_id) == (True, 1)
    for now_ms in (2200, 2800):
        one.tick(now_ms)
        assert (one.is_leader, one.leader_id) == (False, NOBODY)
    assert one.role is Role.PROSPECTIVE


def test_who_was_let_go_stands_as_long_as_that_may_not_be_decided() -> None:
    """The leader lets itself go, and nobody else has the record: with its longer log it refuses its vote to others."""
    trio = voters(1, 2, 3)
    one, two, three = (QuorumNode(it, trio, chance=lambda _below: 0).open(0) for it in (1, 2, 3))
    others = {2: two, 3: three}

    def elect(now_ms: int) -> list[int]:
        """Carries what node 1 asks for; returns whom it has asked."""
        asked, sends = [], one.tick(now_ms)
        while sends:
            to, message = sends.pop(0)
            if isinstance(message, Vote):
                asked.append(to)
                sends += one.on_voted(to, message, others[to].on_vote(message, now_ms), now_ms)
        return asked

    elect(600)
    for _ in range(2):
        for it in (two, three):
            position = it.position()
            assert position is not None
            it.on_fetched(position, one.on_fetch(position, 600), 600)
    assert one.remove_voter(one.me, timestamp=0) is ErrorCode.NONE
    one.tick(2200)
    assert (one.role, one.is_voter) == (Role.RESIGNED, False)
    for it in (two, three):
        it.tick(2200)
    # Two votes of the two that are left: its own does not count.
    assert set(elect(2800)) == {2, 3}
    assert one.is_leader
    for _ in range(3):
        for it in (two, three):
            position = it.position()
            assert position is not None
            it.on_fetched(position, one.on_fetch(position, 2800), 2800)
    # It is decided now: it goes, and stands no more.
    one.tick(2900)
    assert one.role is Role.RESIGNED
    assert elect(9000) == []
