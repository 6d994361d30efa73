"""Claims about the driver of the quorum: whom it refuses, how long it waits, how often it asks, and when it ends."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from quorum_driver import CLUSTER, Driven, call, door, driven, until
from raft_nodes import directory_id
from replication_nodes import ENDPOINTS

from minibroker.client.errors import BrokerUnavailable
from minibroker.controller.lifecycle import RegisterFenced
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.errors import BrokerFailure, Disconnect
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.partitions.routes import Serve
from minibroker.partitions.store import METADATA
from minibroker.quorum import answering, running
from minibroker.quorum.translating import (
    Place,
    fetch_request,
    places_of,
    request_of,
    snapshot_request,
    snapshot_response,
)
from minibroker.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    Heard,
    Message,
    Send,
    SnapshotFetched,
    SnapshotId,
    Vote,
)
from minibroker.raft.tables.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotResponse
from minibroker.raft.tables.vote import VoteRequest, VoteResponse
from minibroker.raft.voters import VoterKey
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response, decode_whole
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse

ONE, TWO = (VoterKey(it, directory_id(it)) for it in (1, 2))
VOTE = Vote(5, TWO, ONE, 9, 900)


def said(message: Message, cluster_id: str = CLUSTER) -> Call[Any]:
    """What another node says, as it comes."""
    return call(request_of(message, cluster_id))


def registration() -> RegisterFenced:
    """Something to decide."""
    return RegisterFenced(broker_id=7, endpoints=ENDPOINTS, incarnation_id=bytes(16))


def fetch(it: Driven, offset: int, *, wait_ms: int = 500, cluster_id: str = CLUSTER) -> Call[FetchRequest]:
    last_epoch = it.raft.epochs.epoch_of(offset - 1) if offset else -1
    position = Fetch(it.raft.epoch, TWO, offset, last_epoch)
    return call(fetch_request(position, cluster_id, wait_ms=wait_ms, bytes_max=1 << 20))


def fetched(answer: object) -> tuple[ErrorCode, int, int]:
    """The code, how many bytes came, and the high watermark."""
    assert isinstance(answer, FetchResponse)
    (data,) = answer.responses[0].partitions
    assert isinstance(data.records, bytes)
    return ErrorCode(data.error_code), len(data.records), data.high_watermark


# Handlers -------------------------------------------------------------------------------------------------------------


def test_what_is_for_another_cluster_is_refused_and_changes_nothing() -> None:
    async def run() -> None:
        async with driven(1, 2, 3) as it:
            wanted = snapshot_request(FetchSnapshot(0, TWO, SnapshotId(1, 1), 0), "elsewhere", bytes_max=1)
            answers: list[Answer] = [
                it.handlers.on_vote(said(VOTE, "elsewhere")),
                it.handlers.on_begin(said(BeginQuorumEpoch(5, 2, ONE), "elsewhere")),
                it.handlers.on_end(said(EndQuorumEpoch(5, 2, (ONE,)), "elsewhere")),
                it.handlers.on_fetch_snapshot(call(wanted)),
                it.handlers.on_fetch(fetch(it, 0, cluster_id="elsewhere")),
            ]
            codes = {getattr(answer, "error_code", None) for answer in answers}
            assert codes == {ErrorCode.INCONSISTENT_CLUSTER_ID}
            empty = it.handlers.on_vote(call(VoteRequest(cluster_id=CLUSTER, topics=[])))
            assert isinstance(empty, VoteResponse)
            assert empty.error_code == ErrorCode.INVALID_REQUEST
            assert it.raft.epoch == 0

    asyncio.run(run())


def test_a_fetch_waits_for_news_and_is_answered_with_nothing_in_the_end() -> None:
    async def run() -> None:
        async with driven(1) as it:
            end_offset = it.raft.log.log_end_offset
            # How much is decided is news as well, once.
            assert fetched(it.handlers.on_fetch(fetch(it, end_offset))) == (ErrorCode.NONE, 0, end_offset)
            waits = it.park(it.handlers.on_fetch(fetch(it, end_offset)))
            it.quorum.controller.propose(registration())
            it.quorum.step()
            code, count, high_watermark = fetched(waits[0])
            assert (code, high_watermark) == (ErrorCode.NONE, end_offset + 1)
            assert count > 0
            in_vain = it.park(it.handlers.on_fetch(fetch(it, end_offset + 1, wait_ms=30)))
            it.waiting.expire(29)
            assert in_vain == []
            it.waiting.expire(30)
            assert fetched(in_vain[0]) == (ErrorCode.NONE, 0, end_offset + 1)

    asyncio.run(run())


def test_the_metadata_log_is_an_internal_partition_and_fetches_of_topics_stay_with_chapter_03() -> None:
    async def run() -> None:
        async with driven(1) as it:
            registry, internal = Registry(), dict[bytes, Serve]()
            store: Any = SimpleNamespace(add_internal=internal.__setitem__)
            it.handlers.add_handlers(registry, store)
            assert list(internal) == [CLUSTER_METADATA_TOPIC_ID]
            assert ApiKey.FETCH not in registry.known()
            asked = fetch(it, 0)
            assert asked.request.topics[0].topic_id in internal
            assert fetched(internal[CLUSTER_METADATA_TOPIC_ID](asked))[0] is ErrorCode.NONE
            asked.request.topics[0].partitions = []
            assert it.handlers.on_fetch(asked) == FetchResponse(responses=[])

    asyncio.run(run())


def test_who_leads_tells_how_far_all_are_and_others_tell_that_they_do_not_know() -> None:
    async def run() -> None:
        for node_ids, code, known in (((1,), ErrorCode.NONE, [1]), ((1, 2, 3), ErrorCode.NOT_LEADER_OR_FOLLOWER, [])):
            async with driven(*node_ids) as it:
                answer = it.handlers.on_describe(call(DescribeQuorumRequest(topics=[])))
                assert isinstance(answer, DescribeQuorumResponse)
                (result,) = answer.topics[0].partitions
                assert (result.error_code, [one.replica_id for one in result.current_voters]) == (code, known)
                assert [one.node_id for one in answer.nodes] == list(node_ids)

    asyncio.run(run())


def test_who_asks_is_told_where_the_leader_is_and_remembers_it() -> None:
    """A voter that was added is in nobody's configuration: a node with an empty disk could not find it."""

    async def run() -> None:
        added = Place("127.0.0.1", 9009)
        async with driven(1, 2, 3) as it:
            begin: Any = request_of(BeginQuorumEpoch(5, 9, ONE), CLUSTER, sender=added)
            it.handlers.on_begin(call(begin))
            answers = [
                it.handlers.on_vote(said(VOTE)),
                it.handlers.on_begin(said(BeginQuorumEpoch(4, 2, ONE))),
                it.handlers.on_end(said(EndQuorumEpoch(4, 2, (ONE,)))),
                it.handlers.on_fetch_snapshot(
                    call(snapshot_request(FetchSnapshot(0, TWO, SnapshotId(1, 1), 0), CLUSTER, bytes_max=1))
                ),
                it.handlers.on_fetch(fetch(it, 0)),
            ]
            assert all(isinstance(answer, Response) and places_of(answer) == {9: added} for answer in answers)
        async with driven(1, 2, 3) as other:
            assert isinstance(answers[0], VoteResponse)
            other.quorum._hear(Send(2, VOTE), answers[0], 0)
            assert other.quorum.places == {9: added}
        # Of a voter that is in the log everybody knows where it is.
        async with driven(1) as alone:
            answer = alone.handlers.on_fetch(fetch(alone, 0))
            assert isinstance(answer, FetchResponse)
            assert places_of(answer) == {1: Place("127.0.0.1", 9001)}

    asyncio.run(run())


# Asking ---------------------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_answer_is_asked_again_after_a_pause_and_others_are_asked_too() -> None:
    async def run() -> None:
        async with door(is_slammed=True) as two, door(is_slammed=True) as three:
            async with driven(1, 2, 3, addresses={2: two.address, 3: three.address}) as it:
                it.quorum.start()
                await until(lambda: min(len(two.came_s), len(three.came_s)) >= 4, "both are asked again and again")
            came_s = sorted(two.came_s + three.came_s)
        # A clock may be a little coarse.
        assert min(after - before for before, after in pairwise(came_s)) > running._RETRY_S / 2

    asyncio.run(run())


def test_who_says_nothing_is_given_up_in_time_and_another_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATIENCE_MS", 50)
    monkeypatch.setattr(running, "_FETCH_WAIT_MS", 10)

    async def run() -> None:
        async with (
            door(is_slammed=False) as two,
            door(is_slammed=False) as three,
            driven(1, 2, 3, addresses={2: two.address, 3: three.address}) as it,
        ):
            it.quorum.start()
            await until(lambda: two.came_s and three.came_s, "both are asked")
            assert not any(task.done() for task in it.tasks)

    asyncio.run(run())


@pytest.mark.parametrize(("code", "kept"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 500), (ErrorCode.SNAPSHOT_NOT_FOUND, 0)])
def test_pieces_of_a_snapshot_are_of_use_until_it_is_gone(
    code: ErrorCode, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that steps down may lead again, and has the same file. What was fetched of it is not fetched anew."""
    wanted = SnapshotId(10, 1)

    async def run() -> None:
        async with driven(1, 2, 3) as it:
            it.raft.on_heard(Heard(ErrorCode.NONE, 1, 2), 0)
            it.raft.snapshot_wanted = wanted
            answers = [
                SnapshotFetched(ErrorCode.NONE, 1, 2, 5000, 0, bytes(500)),
                SnapshotFetched(code, 1, 2, 0, 500),
            ]

            async def ask(node_id: int, _request: object, **_how: object) -> Response:
                assert node_id == 2
                return decoded(snapshot_response(wanted, answers.pop(0)))

            monkeypatch.setattr(it.quorum, "ask", ask)
            while answers:
                await it.quorum._fetch_once()
            assert it.quorum.snapshots.received(wanted, 2) == kept

    asyncio.run(run())


def decoded(response: Response) -> Response:
    """A response as it comes from the wire."""
    version = APIS[ApiKey.FETCH_SNAPSHOT].max_version
    return decode_whole(FetchSnapshotResponse, memoryview(response.encode(version)), 0, version)


def test_nobody_waits_for_a_leader_that_is_none_any_more() -> None:
    async def run() -> None:
        async with door(is_slammed=False) as two, driven(1, 2, 3, addresses={2: two.address}) as it:
            it.raft.on_heard(Heard(ErrorCode.NONE, 1, 2), 0)
            it.quorum.step()
            asked = asyncio.create_task(it.quorum.ask(2, VoteRequest(topics=[]), timeout_ms=10**6))
            await until(lambda: two.came_s, "it is asked")
            it.raft.on_heard(Heard(ErrorCode.NONE, 2, 3), 0)
            it.quorum.step()
            with pytest.raises(BrokerUnavailable, match="node 2 was asked, and is not whom to ask any more"):
                await asyncio.wait_for(asked, 20)

    asyncio.run(run())


def test_one_stranger_may_be_in_the_wrong_place_but_if_most_are_this_node_is() -> None:
    async def run() -> None:
        async with driven(1, 2, 3) as it:
            it.quorum._note_stranger(2, ErrorCode.INCONSISTENT_CLUSTER_ID)
            it.quorum._note_stranger(3, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            with pytest.raises(BrokerFailure, match=r"of cluster here, and the nodes \[2, 3\] .* are of another one"):
                it.quorum._note_stranger(3, ErrorCode.INCONSISTENT_CLUSTER_ID)

    asyncio.run(run())


# Ending ---------------------------------------------------------------------------------------------------------------


def refused_by_the_disk(it: Driven) -> None:
    it.node.files.fsync_error = OSError(5, "input/output error")


def test_a_leader_whose_disk_fails_ends_and_says_why() -> None:
    async def run() -> None:
        async with driven(1) as it:
            it.quorum.start()
            refused_by_the_disk(it)
            proposal = it.quorum.controller.propose(registration())
            assert proposal.result.code is ErrorCode.KAFKA_STORAGE_ERROR
            ended, _ = await asyncio.wait(it.tasks, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            (task,) = ended
            with pytest.raises(BrokerFailure, match=r"node 1 ends, because its metadata cannot be written: .*output"):
                task.result()

    asyncio.run(run())


def test_a_vote_that_cannot_be_written_down_is_not_answered_and_the_node_ends() -> None:
    async def run() -> None:
        async with driven(1, 2, 3) as it:
            refused_by_the_disk(it)
            handler = answering._or_hang_up(it.handlers.on_vote)
            with pytest.raises(Disconnect, match="could not be written"):
                handler(said(VOTE))
            it.quorum.start()
            ended, _ = await asyncio.wait(it.tasks, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            assert isinstance(ended.pop().exception(), BrokerFailure)

    asyncio.run(run())


def test_whoever_waits_is_answered_by_a_driver_that_resigns() -> None:
    async def run() -> None:
        async with driven(1) as it:
            was_active = it.quorum.controller.is_active
            end_offset = it.raft.log.log_end_offset
            it.handlers.on_fetch(fetch(it, end_offset))
            waits: list[Response] = it.park(it.handlers.on_fetch(fetch(it, end_offset)))
            await it.quorum.resign()
            assert (was_active, it.quorum.controller.is_active) == (True, False)
            it.waiting.wake(METADATA)
            it.waiting.settle()
            assert fetched(waits[0])[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(run())
