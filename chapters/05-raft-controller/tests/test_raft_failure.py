"""Claims about a voter whose disk fails: it resigns, gives no vote, does not count, and never uses the disk again."""

from typing import Any

import pytest
from cases import case
from controller_nodes import Trio
from raft_nodes import DIRECTORY, QuorumNode, directory_id, voters
from replication_nodes import ENDPOINTS, batch_of

from minibroker.controller.lifecycle import RegisterFenced
from minibroker.log.batch import batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.errors import LogOffline, StorageError
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.decision import Command
from minibroker.raft.leading import NotLeader
from minibroker.raft.messages import EndQuorumEpoch, Fetch, Heard, Vote
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import VoterKey
from minibroker.wire.codes import ErrorCode

EIO = OSError(5, "input/output error")


def refuse_flushes(files: MemoryFiles) -> None:
    files.fsync_error = EIO


def fill(files: MemoryFiles) -> None:
    files.room_bytes = 0


def led() -> Trio:
    trio = Trio()
    trio.elect(1)
    trio.pump()
    return trio


def registration(broker_id: int) -> Command[Any]:
    return RegisterFenced(broker_id=broker_id, endpoints=ENDPOINTS, incarnation_id=bytes([broker_id] * 16))


def test_a_leader_whose_disk_fails_resigns_and_tells_the_others() -> None:
    for fail in (refuse_flushes, fill):
        with case(fail.__name__):
            trio = led()
            leader, controller = trio.nodes[1].raft, trio.controllers[1]
            fail(trio.nodes[1].files)
            assert controller.propose(registration(7)).result.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert leader.failure is not None
            assert not leader.is_leader
            # A controller may propose more than one command before it catches up: it fences several silent brokers.
            assert controller.propose(registration(8)).result.code is ErrorCode.NOT_CONTROLLER
            trio.catch_up()
            assert not controller.is_active
            # Fetches are refused, and the other voters are told once to elect a leader.
            position = trio.nodes[2].raft.position()
            assert position is not None
            assert leader.on_fetch(position, trio.now_ms).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            ends = leader.tick(trio.now_ms)
            assert {it.node_id for it in ends} == {2, 3}
            assert all(isinstance(it.message, EndQuorumEpoch) for it in ends)
            assert leader.role is Role.RESIGNED
            # However long it runs, it neither stands nor writes again, even if the disk works again.
            trio.nodes[1].files.fsync_error, trio.nodes[1].files.room_bytes = None, None
            assert leader.tick(trio.now_ms + 60_000) == []
            with pytest.raises(NotLeader):
                leader.append(batch_of(b"late"))
            # Another leader is elected without its vote, and the record that it could not write was never committed.
            for node_id, message in ends:
                assert isinstance(message, EndQuorumEpoch)
                trio.nodes[node_id].raft.on_end(message, trio.now_ms)
            trio.elect(2)
            trio.pump()
            assert trio.controllers[2].is_active
            assert 7 not in trio.controllers[2].image.brokers


def voter() -> QuorumNode:
    node = QuorumNode(2, voters(1, 2, 3), chance=lambda _below: 0)
    node.open(0)
    return node


def vote(raft: Raft, candidate: int, *, epoch: int, is_pre_vote: bool = False) -> Vote:
    return Vote(epoch, VoterKey(candidate, directory_id(candidate)), raft.me, -1, 0, is_pre_vote)


def test_a_voter_that_cannot_write_its_vote_gives_none_and_never_tries_again() -> None:
    node = voter()
    node.files.fsync_error = EIO
    with pytest.raises(LogOffline, match=f"{DIRECTORY}/quorum-state could not be written"):
        node.raft.on_vote(vote(node.raft, 1, epoch=4), 0)
    assert node.raft.epoch == 0
    node.files.fsync_error = None
    for is_pre_vote in (False, True):
        voted = node.raft.on_vote(vote(node.raft, 1, epoch=4, is_pre_vote=is_pre_vote), 0)
        assert (voted.code, voted.is_granted) == (ErrorCode.KAFKA_STORAGE_ERROR, False)
    node.raft.on_heard(Heard(ErrorCode.NONE, 9, 3), 0)
    assert node.raft.epoch == 0
    assert node.raft.position() is None
    assert node.raft.tick(node.raft.next_deadline_ms) == []
    # After a restart it reads the disk, and works again.
    node.files.crash()
    node.open(0)
    assert node.raft.failure is None
    assert node.raft.on_vote(vote(node.raft, 1, epoch=5), 0).is_granted


def test_a_follower_whose_disk_fails_does_not_count() -> None:
    for fail in (refuse_flushes, fill):
        with case(fail.__name__):
            trio = led()
            leader, follower = trio.nodes[1].raft, trio.nodes[2].raft
            committed = leader.high_watermark
            fail(trio.nodes[2].files)
            trio.controllers[1].propose(registration(7))
            position = follower.position()
            assert position is not None
            with pytest.raises(StorageError):
                follower.on_fetched(position, leader.on_fetch(position, trio.now_ms), trio.now_ms)
            assert follower.position() is None
            assert leader.high_watermark == committed
            trio.fetch(3)
            trio.fetch(3)
            assert leader.high_watermark == committed + 1


def test_control_records_have_wall_clock_timestamps() -> None:
    """`now_ms` may be any steady clock, such as the time since the machine was started."""
    node = QuorumNode(1, voters(1), chance=lambda _below: 0, clock=lambda: 1_700_000_000_000)
    raft = node.open(55)
    raft.tick(55)
    key = VoterKey(2, directory_id(2))
    found = raft.on_fetch(Fetch(raft.epoch, key, 0, -1), 55).records
    times = {control_type(it): it.timestamp for batch in batches(found) for it in batch.records()}
    assert times[ControlType.LEADER_CHANGE] == times[ControlType.KRAFT_VOTERS] == 1_700_000_000_000


def test_a_node_that_cannot_write_its_vote_is_no_candidate() -> None:
    """The role of a candidate means a vote for itself in its epoch, and that vote must be on the disk."""
    node = QuorumNode(1, voters(1), chance=lambda _below: 0)
    raft = node.open(0)
    fill(node.files)
    with pytest.raises(StorageError):
        raft.tick(raft.next_deadline_ms)
    assert (raft.role, raft.epoch, raft.voted) == (Role.PROSPECTIVE, 0, None)
    assert raft.failure is not None
