"""Claims about epochs that no election can have begun: no message makes a node enter one, and elections go on."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from cases import case
from controller_nodes import Trio
from raft_nodes import DIRECTORY, QuorumNode, directory_id, voters

from minibroker.log.errors import LogError
from minibroker.raft.election import EPOCH_MAX, QUORUM_STATE, Ballot, Election, encode
from minibroker.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchSnapshot,
    Heard,
    SnapshotFetched,
    SnapshotId,
    Vote,
    Voted,
)
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import VoterKey
from minibroker.wire.codes import ErrorCode

INT32_MAX = 2**31 - 1
ONE, TWO, THREE = (VoterKey(it, directory_id(it)) for it in (1, 2, 3))
SNAPSHOT = SnapshotId(10, 1)


def led() -> Trio:
    trio = Trio()
    trio.elect(1)
    trio.pump()
    return trio


def complaint(raft: Raft) -> str:
    """What the driver is to log."""
    refused, raft.refused = raft.refused, None
    return refused or ""


def test_a_forged_request_does_not_use_up_the_epochs() -> None:
    trio = led()
    for epoch in (INT32_MAX, EPOCH_MAX + 1, EPOCH_MAX):
        for node_id, node in trio.nodes.items():
            raft, before = node.raft, node.raft.epoch
            answers = (
                raft.on_vote(Vote(epoch, VoterKey(9), node.key, epoch, 10**9), trio.now_ms),
                raft.on_vote(Vote(epoch, VoterKey(9), node.key, epoch, 10**9, is_pre_vote=True), trio.now_ms),
                raft.on_begin(BeginQuorumEpoch(epoch, 2, node.key), trio.now_ms),
                raft.on_end(EndQuorumEpoch(epoch, 1, (TWO, THREE)), trio.now_ms),
            )
            for answer in answers:
                with case(f"epoch {epoch}, node {node_id}, {answer}"):
                    assert answer.code is ErrorCode.INVALID_REQUEST
                    assert answer.epoch == raft.epoch == before
            assert f"epoch {epoch} is refused" in complaint(raft)
    # The leader still leads, and another one can be elected.
    assert trio.nodes[1].raft.is_leader
    trio.elect(2)
    assert (trio.nodes[2].raft.role, trio.nodes[2].raft.epoch) == (Role.LEADER, 2)


def test_a_fetch_with_an_epoch_that_is_too_large_is_refused() -> None:
    trio = led()
    leader = trio.nodes[1].raft
    for epoch in (INT32_MAX, EPOCH_MAX + 1):
        with case(epoch):
            fetched = leader.on_fetch(Fetch(epoch, TWO, 0, 0), trio.now_ms)
            assert (fetched.code, fetched.epoch) == (ErrorCode.INVALID_REQUEST, leader.epoch)
            assert complaint(leader)
            wanted = FetchSnapshot(epoch, TWO, SNAPSHOT, 0)
            assert leader.on_fetch_snapshot(wanted, trio.now_ms) is ErrorCode.INVALID_REQUEST
            assert complaint(leader)


def test_a_response_with_an_epoch_that_is_too_large_is_ignored() -> None:
    for epoch in (INT32_MAX, EPOCH_MAX + 1):
        trio = led()
        raft, now_ms = trio.nodes[2].raft, trio.now_ms
        before, position = raft.epoch, raft.position()
        assert position is not None
        vote = Vote(before, TWO, THREE, before, 0)
        snapshot = SnapshotId(10, epoch)
        answers: dict[str, Callable[[int], object]] = {
            "Vote": partial(raft.on_voted, 3, vote, Voted(ErrorCode.NONE, epoch, 3, is_granted=True)),
            "BeginQuorumEpoch": partial(raft.on_heard, Heard(ErrorCode.NONE, epoch, 3)),
            "Fetch": partial(raft.on_fetched, position, Fetched(ErrorCode.NONE, epoch, 3)),
            "Fetch, in a snapshot": partial(
                raft.on_fetched, position, Fetched(ErrorCode.NONE, before, 1, snapshot=snapshot)
            ),
            "FetchSnapshot": partial(raft.on_snapshot_fetched, SnapshotFetched(ErrorCode.NONE, epoch, 3)),
        }
        for name, answer in answers.items():
            with case(f"epoch {epoch} in the response to {name}"):
                answer(now_ms)
                assert (raft.epoch, raft.leader_id, raft.snapshot_wanted) == (before, 1, None)
                assert f"epoch {epoch} is refused" in complaint(raft)


def test_a_voter_that_was_away_for_100_000_elections_returns() -> None:
    """Announcements and votes would raise its epoch by too much, but the voters that it asks name the epoch."""
    for away in (1, 3):
        with case(f"node {away} is away"):
            trio = led()
            there = [it for it in trio.nodes if it != away]
            for node_id in there:
                Ballot(trio.nodes[node_id].files, DIRECTORY).write(Election(100_001))
                trio.nodes[node_id].open(trio.now_ms)
            returned = trio.nodes[away].open(trio.now_ms)
            leader = _elect(trio, *there)
            assert leader.epoch > 100_001
            announced = returned.on_begin(BeginQuorumEpoch(leader.epoch, leader.me.node_id, returned.me), trio.now_ms)
            assert announced.code is ErrorCode.INVALID_REQUEST
            # Its election timeout passes, and it asks for pre-votes.
            now_ms = returned.next_deadline_ms
            for other, message in returned.tick(now_ms):
                assert isinstance(message, Vote)
                assert message.is_pre_vote
                returned.on_voted(other, message, trio.nodes[other].raft.on_vote(message, now_ms), now_ms)
            assert (returned.epoch, returned.leader_id) == (leader.epoch, leader.me.node_id)
            for _ in range(3):
                position = returned.position()
                assert position is not None
                returned.on_fetched(position, leader.on_fetch(position, now_ms), now_ms)
            assert returned.log.log_end_offset == leader.log.log_end_offset


def _elect(trio: Trio, chosen: int, other: int) -> Raft:
    """Let a node win the vote of one other node."""
    raft, voter = trio.nodes[chosen].raft, trio.nodes[other].raft
    trio.now_ms = max(raft.next_deadline_ms, voter.next_deadline_ms)
    voter.tick(trio.now_ms)
    sends = raft.tick(trio.now_ms)
    while sends:
        node_id, message = sends.pop(0)
        if node_id == other and isinstance(message, Vote):
            sends += raft.on_voted(other, message, voter.on_vote(message, trio.now_ms), trio.now_ms)
    assert raft.is_leader
    return raft


def test_after_the_last_epoch_no_election_is_held() -> None:
    node = QuorumNode(1, voters(1, 2, 3), chance=lambda _below: 0)
    node.files.mkdir(DIRECTORY)
    Ballot(node.files, DIRECTORY).write(Election(EPOCH_MAX))
    raft = node.open(0)
    for _ in range(3):
        assert raft.tick(raft.next_deadline_ms) == []
        assert "epoch 1073741824 is the last one" in complaint(raft)
    assert raft.epoch == EPOCH_MAX


def test_a_file_with_an_epoch_that_is_too_large_is_refused_at_start() -> None:
    node = QuorumNode(1, voters(1), chance=lambda _below: 0)
    node.files.mkdir(DIRECTORY)
    path = f"{DIRECTORY}/{QUORUM_STATE}"
    Ballot(node.files, DIRECTORY).write(Election(INT32_MAX))
    with pytest.raises(LogError, match=f"{path} has epoch {INT32_MAX}") as caught:
        node.open(0)
    # The message has the text of a file that can replace it.
    told = str(caught.value)
    text = told[told.index("{") : told.index("}") + 1].replace("E,", "7,")
    assert json.loads(text) == json.loads(encode(Election(7)))
