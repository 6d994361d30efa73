"""Claims about changes of the voters: refusals, waits and commits."""

import asyncio

from quorum_driver import CLUSTER, Driven, call, driven
from raft_nodes import directory_id

from minibroker.log.clock import monotonic_ms
from minibroker.partitions.registry import Answer
from minibroker.quorum.changing import VoterChanges
from minibroker.raft.messages import Fetch, Heard
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, VoterListener
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from minibroker.raft.voters import VoterKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import NO_UUID

TWO = VoterKey(2, directory_id(2))


def adding(
    node_id: int = 2,
    *,
    directory: bytes = TWO.directory_id,
    cluster_id: str = CLUSTER,
    listeners: int = 1,
    is_awaited: bool = True,
) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=500,
        voter_id=node_id,
        voter_directory_id=directory,
        listeners=[VoterListener(name="CONTROLLER", host="127.0.0.1", port=9) for _ in range(listeners)],
        ack_when_committed=is_awaited,
    )


def removing(node_id: int, *, cluster_id: str = CLUSTER) -> RemoveRaftVoterRequest:
    directory = directory_id(node_id)
    return RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory)


def said(answer: Answer) -> tuple[ErrorCode, str]:
    assert isinstance(answer, AddRaftVoterResponse | RemoveRaftVoterResponse)
    return ErrorCode(answer.error_code), answer.error_message or ""


def add(it: Driven, request: AddRaftVoterRequest) -> Answer:
    return VoterChanges(it.quorum).on_add(call(request))


def remove(it: Driven, request: RemoveRaftVoterRequest) -> Answer:
    return VoterChanges(it.quorum).on_remove(call(request))


def fetch(it: Driven, offset: int) -> None:
    """Node 2 fetches, and the requests that wait are tried again."""
    last_epoch = it.raft.epochs.epoch_of(offset - 1) if offset else -1
    it.raft.on_fetch(Fetch(it.raft.epoch, TWO, offset, last_epoch), monotonic_ms())
    it.quorum.step()


def test_an_invalid_change_is_refused_and_the_voters_are_named() -> None:
    async def run() -> None:
        async with driven(1) as it:
            assert said(add(it, adding(listeners=0)))[0] is ErrorCode.INVALID_REQUEST
            assert said(add(it, adding(directory=NO_UUID)))[0] is ErrorCode.INVALID_REQUEST
            for answer in (add(it, adding(cluster_id="elsewhere")), remove(it, removing(1, cluster_id="elsewhere"))):
                message = "the request is for cluster elsewhere, but this node is of another cluster"
                assert said(answer) == (ErrorCode.INCONSISTENT_CLUSTER_ID, message)
            code, message = said(add(it, adding(1)))
            assert code is ErrorCode.DUPLICATE_VOTER
            assert str(it.raft.me) in message
            assert said(remove(it, removing(7)))[0] is ErrorCode.VOTER_NOT_FOUND
            assert said(remove(it, removing(1)))[0] is ErrorCode.INVALID_REQUEST
        async with driven(1, 2, 3) as it:
            assert said(add(it, adding(4)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert said(remove(it, removing(2)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(run())


def test_a_new_voter_must_catch_up_and_then_takes_part_in_its_own_commit() -> None:
    async def run() -> None:
        async with driven(1) as it:
            waits = it.park(add(it, adding()))
            fetch(it, 0)
            assert (waits, len(it.raft.voters)) == ([], 1)
            fetch(it, it.raft.log.log_end_offset)
            # The new set is written and in force, but both voters must have it.
            assert (waits, len(it.raft.voters)) == ([], 2)
            fetch(it, it.raft.log.log_end_offset)
            assert [said(answer) for answer in waits] == [(ErrorCode.NONE, "")]

    asyncio.run(run())


def test_a_caller_need_not_wait_for_the_commit() -> None:
    async def run() -> None:
        async with driven(1) as it:
            fetch(it, it.raft.log.log_end_offset)
            assert said(add(it, adding(is_awaited=False)))[0] is ErrorCode.NONE

    asyncio.run(run())


def test_a_change_that_times_out_tells_how_far_it_came() -> None:
    async def run() -> None:
        async with driven(1) as it:
            behind = it.park(add(it, adding()))
            it.waiting.expire(500)
            fetch(it, it.raft.log.log_end_offset)
            uncommitted = it.park(add(it, adding()))
            second = it.park(remove(it, removing(2)))
            it.waiting.expire(10**6)
            answers = [said(answer) for answer in (*behind, *uncommitted, *second)]
            assert [code for code, _message in answers] == [ErrorCode.REQUEST_TIMED_OUT] * 3
            assert [message.partition(":")[0].partition(";")[0] for _code, message in answers] == [
                "the change has not begun",
                "the change is not committed yet",
                "the change has not begun",
            ]

    asyncio.run(run())


def test_a_deposed_leader_refuses_its_uncommitted_change() -> None:
    async def run() -> None:
        async with driven(1) as it:
            fetch(it, it.raft.log.log_end_offset)
            waits = it.park(add(it, adding()))
            it.raft.on_heard(Heard(ErrorCode.NONE, it.raft.epoch + 1, 2), monotonic_ms())
            it.quorum.step()
            ((code, message),) = [said(answer) for answer in waits]
            assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert "check the voters, and try again" in message

    asyncio.run(run())


def test_a_change_that_cannot_be_written_is_refused() -> None:
    async def run() -> None:
        async with driven(1) as it:
            fetch(it, it.raft.log.log_end_offset)
            it.node.files.fsync_error = OSError(5, "input/output error")
            code, message = said(add(it, adding()))
            assert code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "input/output error" in message

    asyncio.run(run())
