"""Claims about elections: when a node stands, how it counts the answers, and what it does when it has lost.

What a node does after an election is won does not matter here: `begin_leading` is replaced.
"""

import pytest
from raft_nodes import QuorumNode, voters
from test_raft_exercises import OTHERS, vote_for, voter

from minibroker.raft.leading import Leading
from minibroker.raft.messages import Fetch, Fetched, Send, Vote, Voted
from minibroker.raft.node import Raft
from minibroker.raft.roles import Cause, Role
from minibroker.wire.codes import ErrorCode


@pytest.fixture
def elected(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The nodes that granted their votes, for each election that was won."""
    won: list[list[int]] = []

    def begin_leading(raft: Leading, granting: list[int], now_ms: int) -> list[Send]:
        raft._become(Cause.WON, now_ms)
        won.append(granting)
        return []

    monkeypatch.setattr(Leading, "begin_leading", begin_leading)
    return won


def stand(raft: Raft) -> dict[int, Vote]:
    """Let the election timeout pass; return the question for each voter."""
    return questions(raft.tick(raft.next_deadline_ms))


def questions(sends: list[Send]) -> dict[int, Vote]:
    return {node_id: message for node_id, message in sends if isinstance(message, Vote)}


def answer(raft: Raft, asked: dict[int, Vote], node_id: int, *, is_granted: bool, now_ms: int = 600) -> dict[int, Vote]:
    """A voter answers; return the questions that follow."""
    voted = Voted(ErrorCode.NONE, raft.epoch, is_granted=is_granted)
    return questions(raft.on_voted(node_id, asked[node_id], voted, now_ms))


def test_a_node_asks_for_pre_votes_before_it_begins_an_epoch() -> None:
    raft = voter(of=5).raft
    asked = stand(raft)
    assert sorted(asked) == [2, 3, 4, 5], "it asks every other voter"
    assert all(it.is_pre_vote and it.epoch == 0 for it in asked.values()), "it asks for pre-votes, in the present epoch"
    assert (raft.role, raft.epoch, raft.voted) == (Role.PROSPECTIVE, 0, None), "a pre-vote changes the epoch of no node"


def test_a_majority_of_pre_votes_begins_an_epoch_with_a_vote_for_itself() -> None:
    node = voter(of=5)
    asked = stand(node.raft)
    assert answer(node.raft, asked, 2, is_granted=True) == {}, "two of five would vote for it, and it began an epoch"
    asked = answer(node.raft, asked, 3, is_granted=True)
    assert sorted(asked) == [2, 3, 4, 5], "three of five would vote for it, and it asked for no votes"
    assert all(not it.is_pre_vote and it.epoch == 1 for it in asked.values())
    assert (node.raft.role, node.raft.epoch) == (Role.CANDIDATE, 1)
    node.files.crash()
    assert node.open(0).voted == OTHERS[1], "its vote for itself is not on the disk after a power cut"


def test_a_majority_of_votes_elects_and_each_voter_counts_once(elected: list[list[int]]) -> None:
    raft = voter(of=5).raft
    asked = stand(raft)
    for node_id in (2, 2, 2):
        answer(raft, asked, node_id, is_granted=True)
    assert raft.role is Role.PROSPECTIVE, "one voter was counted three times"
    votes = answer(raft, asked, 3, is_granted=True)
    answer(raft, votes, 4, is_granted=True)
    assert answer(raft, asked, 5, is_granted=True) == {}
    assert elected == [], "a late answer to a pre-vote was counted as a vote"
    answer(raft, votes, 2, is_granted=True)
    assert elected == [[1, 4, 2]], "three of five have voted for it: it leads, by the votes of these nodes"
    answer(raft, votes, 3, is_granted=True)
    assert len(elected) == 1, "a vote after the election has elected it again"


def test_the_only_voter_elects_itself_and_asks_no_node(elected: list[list[int]]) -> None:
    raft = voter(of=1).raft
    assert raft.tick(0) == []
    assert elected == [[1]]
    assert raft.epoch == 1


def test_a_candidate_that_has_lost_waits_for_a_random_time() -> None:
    node = QuorumNode(1, voters(1, 2, 3), chance=lambda below: below - 100)
    raft = node.open(0)
    asked = answer(raft, stand(raft), 2, is_granted=True, now_ms=1000)
    answer(raft, asked, 2, is_granted=False, now_ms=1000)
    assert raft.role is Role.CANDIDATE, "one of three has refused: the other one may still vote for it"
    answer(raft, asked, 3, is_granted=False, now_ms=1000)
    backoff_ms = raft.settings.election_backoff_ms_max - 100
    assert (raft.role, raft.next_deadline_ms) == (Role.PROSPECTIVE, 1000 + backoff_ms), "it has lost, and waits"


def test_a_node_that_gets_no_pre_votes_follows_its_leader_again() -> None:
    raft = voter().raft
    raft.on_fetched(Fetch(0, OTHERS[1], 0, -1), Fetched(ErrorCode.NONE, 7, 2), 0)
    asked = stand(raft)
    assert (raft.role, raft.epoch) == (Role.PROSPECTIVE, 7)
    for node_id in (2, 3):
        answer(raft, asked, node_id, is_granted=False, now_ms=2000)
    assert (raft.role, raft.leader_id) == (Role.FOLLOWER, 2), "the others still hear the leader: it follows, too"
    assert raft.next_deadline_ms == 2000 + raft.settings.fetch_timeout_ms


def test_an_answer_with_a_newer_epoch_ends_a_candidacy(elected: list[list[int]]) -> None:
    raft = voter().raft
    votes = answer(raft, stand(raft), 2, is_granted=True)
    assert raft.on_voted(2, votes[2], Voted(ErrorCode.FENCED_LEADER_EPOCH, 9, 3), 700) == []
    assert (raft.role, raft.epoch, raft.leader_id) == (Role.FOLLOWER, 9, 3)
    answer(raft, votes, 3, is_granted=True)
    assert elected == [], "a vote of an older epoch elected it"


def test_a_late_vote_does_not_count_as_a_pre_vote() -> None:
    """A yes to a request for a vote does not say that the voter would vote in the *next* epoch, too."""
    raft = voter().raft
    votes = answer(raft, stand(raft), 2, is_granted=True)
    stand(raft)
    assert raft.role is Role.PROSPECTIVE, "it has asked for pre-votes again"
    assert answer(raft, votes, 2, is_granted=True) == {}
    assert (raft.role, raft.epoch) == (Role.PROSPECTIVE, 1)


def test_a_vote_of_an_older_epoch_does_not_count(elected: list[list[int]]) -> None:
    raft = voter().raft
    older = answer(raft, stand(raft), 2, is_granted=True)
    answer(raft, stand(raft), 2, is_granted=True)
    assert (raft.role, raft.epoch) == (Role.CANDIDATE, 2)
    answer(raft, older, 3, is_granted=True)
    assert elected == [], "node 3 has voted for it in epoch 1, and perhaps for another node in epoch 2"


def test_a_voter_in_an_older_epoch_is_told_the_newer_one_and_gets_no_vote() -> None:
    raft = voter().raft
    assert raft.on_vote(vote_for(2, 7), 0).is_granted
    voted = raft.on_vote(vote_for(3, 6), 0)
    assert (voted.code, voted.epoch, voted.is_granted) == (ErrorCode.FENCED_LEADER_EPOCH, 7, False)


def test_a_node_that_is_no_voter_does_not_stand_and_asks_another_node_for_the_leader() -> None:
    raft = QuorumNode(9, voters(1, 2, 3), chance=lambda _below: 0).open(0)
    first = raft.target()
    assert raft.tick(raft.next_deadline_ms) == [], "node 9 is no voter, and asks for votes"
    assert raft.role is Role.UNATTACHED
    assert raft.target() != first, "the node that it asked names no leader, and it asks the same one again"
