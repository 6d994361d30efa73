"""Claims about a node of the quorum that a simulation or a review has found broken once."""

from raft_nodes import QuorumNode, directory_id, voters
from replication_nodes import batch_of

from minibroker.log.batch import BatchBuilder
from minibroker.raft.control import add_voters
from minibroker.raft.election import NO_NODE
from minibroker.raft.messages import Fetch, Heard, SnapshotId, Vote, Voted
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import Voter, VoterKey
from minibroker.wire.codes import ErrorCode


def alone() -> Raft:
    raft = QuorumNode(1, voters(1), chance=lambda _below: 0).open(0)
    raft.tick(0)
    return raft


def observer() -> Raft:
    """Node 7 knows the voters 1, 2 and 3, and is none of them."""
    return QuorumNode(7, voters(1, 2, 3), chance=lambda _below: 0).open(0)


def fetch(raft: Raft, node_id: int, offset: int, *, now_ms: int = 0) -> None:
    key = VoterKey(node_id, directory_id(node_id))
    last_epoch = -1 if offset == 0 else raft.epochs.epoch_of(offset - 1)
    assert raft.on_fetch(Fetch(raft.epoch, key, offset, last_epoch), now_ms).code is ErrorCode.NONE


def test_a_node_that_was_not_running_reads_messages_before_it_stands() -> None:
    """Opening a thousand logs takes seconds. Messages of the leader wait in the socket meanwhile."""
    raft = QuorumNode(1, voters(1, 2, 3), chance=lambda _below: 0).open(0)
    deadline_ms = raft.next_deadline_ms
    raft.on_late_tick(3000)
    assert raft.tick(deadline_ms) == []
    assert len(raft.tick(deadline_ms + 3000)) == 2


def test_a_new_voter_set_commits_itself() -> None:
    """One of two voters is not a majority: the old set could commit the change alone, the new one cannot."""
    raft = alone()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset)
    assert raft.add_voter(Voter(VoterKey(2, directory_id(2))), timestamp=0) is ErrorCode.NONE
    assert raft.high_watermark == end_offset
    fetch(raft, 2, raft.log.log_end_offset)
    assert raft.high_watermark == raft.log.log_end_offset == end_offset + 1


def test_a_node_that_has_not_caught_up_is_not_added_as_a_voter() -> None:
    raft = alone()
    voter = Voter(VoterKey(2, directory_id(2)))
    assert raft.add_voter(voter, timestamp=0) is ErrorCode.REQUEST_TIMED_OUT
    fetch(raft, 2, 0)
    assert raft.add_voter(voter, timestamp=0) is ErrorCode.REQUEST_TIMED_OUT
    assert raft.add_voter(Voter(VoterKey(1, directory_id(1, 5))), timestamp=0) is ErrorCode.DUPLICATE_VOTER
    assert raft.remove_voter(VoterKey(2), timestamp=0) is ErrorCode.VOTER_NOT_FOUND
    assert raft.remove_voter(raft.me, timestamp=0) is ErrorCode.INVALID_REQUEST


def test_a_fetch_that_is_retried_says_nothing_new() -> None:
    """A fetch waits at the leader, and is tried again after a later fetch of the same follower."""
    raft = alone()
    end_offset = raft.log.log_end_offset
    fetch(raft, 2, end_offset, now_ms=500)
    fetch(raft, 2, 0, now_ms=100)
    (known,) = raft.progress(600)[1].values()
    assert (known.end_offset, known.last_fetch_ms) == (end_offset, 500)


def test_nothing_is_known_of_a_voter_that_was_never_heard() -> None:
    """A new leader knows neither the log end nor a fetch time of the other voters (KIP-595, KIP-836)."""
    raft = QuorumNode(1, voters(1, 2, 3), chance=lambda _below: 0).open(0)
    sends = raft.tick(600)
    while sends:
        to, message = sends.pop(0)
        if isinstance(message, Vote):
            sends += raft.on_voted(to, message, Voted(ErrorCode.NONE, raft.epoch, is_granted=True), 600)
    assert raft.is_leader
    fetch(raft, 2, 0, now_ms=700)
    known = {key.node_id: it for key, it in raft.progress(800)[0].items()}
    end_offset = raft.log.log_end_offset
    assert (known[1].end_offset, known[1].last_fetch_ms, known[1].last_caught_up_ms) == (end_offset, 800, 800)
    assert (known[2].end_offset, known[2].last_fetch_ms, known[2].last_caught_up_ms) == (0, 700, -1)
    assert (known[3].end_offset, known[3].last_fetch_ms, known[3].last_caught_up_ms) == (-1, -1, -1)
    # Both have time for a first fetch; after that the leader has lost its majority.
    raft.tick(600 + raft.settings.check_quorum_ms)
    assert raft.is_leader


def test_a_follower_has_caught_up_when_it_reaches_the_end_of_the_leaders_log() -> None:
    """KIP-836: or, while the leader keeps writing, the end that it had at the fetch before."""
    raft = alone()
    times_ms = []
    for now_ms, missing in ((100, 1), (200, 0), (300, 1), (400, 1)):
        fetch(raft, 2, raft.log.log_end_offset - missing, now_ms=now_ms)
        times_ms.append(next(iter(raft.progress(now_ms)[1].values())).last_caught_up_ms)
        raft.append(batch_of(b"x"))
    assert times_ms == [-1, 200, 200, 300]


def test_a_wanted_snapshot_is_forgotten_with_the_leader_that_named_it() -> None:
    """A new leader does not announce itself to observers: they must ask."""
    raft = observer()
    raft.on_heard(Heard(ErrorCode.NONE, 1, 1), 0)
    raft.snapshot_wanted = SnapshotId(10, 1)
    assert raft.position() is None
    assert raft.snapshot_position(0) is not None
    raft.on_heard(Heard(ErrorCode.NONE, 2, -1), 0)
    assert raft.role is Role.UNATTACHED
    assert raft.snapshot_position(0) is None
    assert raft.position() is not None


def test_a_leader_that_is_not_among_the_known_voters_is_asked() -> None:
    """The configured voters of a node with a new disk may have been replaced (KIP-853)."""
    raft = observer()
    raft.on_unanswered()
    raft.on_heard(Heard(ErrorCode.FENCED_LEADER_EPOCH, 5, 9), 0)
    assert raft.target() == 9
    asked = set()
    for _ in range(8):
        raft.on_unanswered()
        asked.add(raft.target())
    assert asked == {1, 2, 3, 9}


def test_a_node_whose_voters_were_all_replaced_asks_the_configured_ones() -> None:
    """Its log names voters that are gone; an operator has put the new ones into its configuration."""
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


def test_a_leader_that_lost_its_quorum_does_not_name_itself() -> None:
    """Not even when it asks for votes again: a node that believed it would lose the time of a fetch."""
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
        assert (one.is_leader, one.leader_id) == (False, NO_NODE)
    assert one.role is Role.PROSPECTIVE


def test_a_removed_voter_stands_until_its_removal_is_committed() -> None:
    """A leader removed itself, and no other node has the record: its longer log makes it refuse its vote to others."""
    trio = voters(1, 2, 3)
    one, two, three = (QuorumNode(it, trio, chance=lambda _below: 0).open(0) for it in (1, 2, 3))
    others = {2: two, 3: three}

    def elect(now_ms: int) -> list[int]:
        """Deliver the votes of node 1; return the nodes that it has asked."""
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
    # It needs both votes of the two voters that are left: its own does not count.
    assert set(elect(2800)) == {2, 3}
    assert one.is_leader
    for _ in range(3):
        for it in (two, three):
            position = it.position()
            assert position is not None
            it.on_fetched(position, one.on_fetch(position, 2800), 2800)
    # The removal is committed: it resigns, and never stands again.
    one.tick(2900)
    assert one.role is Role.RESIGNED
    assert elect(9000) == []
