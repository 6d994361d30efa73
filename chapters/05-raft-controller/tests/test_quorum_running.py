"""Claims about the driver of the quorum: its refusals, its waits and retries, and its end after a disk failure."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from quorum_driver import CLUSTER, Driven, call, driven, listener, until
from raft_nodes import directory_id
from replication_nodes import ENDPOINTS

from minibroker.client.errors import BrokerUnavailable
from minibroker.controller.lifecycle import RegisterFenced
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.errors import BrokerFailure, Disconnect
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.partitions.routes import Serve
from minibroker.partitions.store import METADATA
from minibroker.quorum import answering, asking, running
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
from minibroker.raft.roles import Role
from minibroker.raft.tables.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotResponse
from minibroker.raft.tables.vote import VoteRequest, VoteResponse
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response, decode_whole
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse

ONE, TWO = (VoterKey(it, directory_id(it)) for it in (1, 2))
VOTE = Vote(5, TWO, ONE, 9, 900)


def said(message: Message, cluster_id: str = CLUSTER) -> Call[Any]:
    """A request of another node, as it arrives."""
    return call(request_of(message, cluster_id))


def registration() -> RegisterFenced:
    """A command that writes a record."""
    return RegisterFenced(broker_id=7, endpoints=ENDPOINTS, incarnation_id=bytes(16))


def fetch(it: Driven, offset: int, *, wait_ms: int = 500, cluster_id: str = CLUSTER) -> Call[FetchRequest]:
    last_epoch = it.raft.epochs.epoch_of(offset - 1) if offset else -1
    position = Fetch(it.raft.epoch, TWO, offset, last_epoch)
    return call(fetch_request(position, cluster_id, wait_ms=wait_ms, bytes_max=1 << 20))


def fetched(answer: object) -> tuple[ErrorCode, int, int]:
    """The error code, the number of bytes, and the high watermark."""
    assert isinstance(answer, FetchResponse)
    (data,) = answer.responses[0].partitions
    assert isinstance(data.records, bytes)
    return ErrorCode(data.error_code), len(data.records), data.high_watermark


# Handlers -------------------------------------------------------------------------------------------------------------


def test_a_request_for_another_cluster_is_refused_and_changes_nothing() -> None:
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


def test_a_forged_vote_is_refused_and_logged_but_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        async with driven(1, 2) as it:
            it.quorum.start()
            raft = it.raft
            forged = Vote(2**31 - 1, VoterKey(9), raft.me, last_epoch=7, last_offset=10**9)
            for _ in range(2):
                answer = it.handlers.on_vote(said(forged))
                assert isinstance(answer, VoteResponse)
                (partition,) = answer.topics[0].partitions
                assert (partition.error_code, partition.vote_granted) == (ErrorCode.INVALID_REQUEST, False)
                await until(lambda: raft.refused is None, "the driver has seen the refusal")
            assert raft.epoch == 0

    asyncio.run(talk())
    assert len([it for it in caplog.messages if "a message with epoch 2147483647 is refused" in it]) == 1


def test_a_fetch_waits_for_news_and_is_answered_with_nothing_in_the_end() -> None:
    async def run() -> None:
        async with driven(1) as it:
            end_offset = it.raft.log.log_end_offset
            # A higher high watermark is news as well, once.
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


def test_only_the_leader_describes_the_progress_of_all_replicas() -> None:
    async def run() -> None:
        for node_ids, code, known in (((1,), ErrorCode.NONE, [1]), ((1, 2, 3), ErrorCode.NOT_LEADER_OR_FOLLOWER, [])):
            async with driven(*node_ids) as it:
                answer = it.handlers.on_describe(call(DescribeQuorumRequest(topics=[])))
                assert isinstance(answer, DescribeQuorumResponse)
                (result,) = answer.topics[0].partitions
                assert (result.error_code, [one.replica_id for one in result.current_voters]) == (code, known)
                assert [one.node_id for one in answer.nodes] == list(node_ids)

    asyncio.run(run())


def test_the_address_of_an_only_voter_is_that_of_its_broker() -> None:
    """An only voter is in no configuration, so the voter set has no address for it."""

    async def run() -> None:
        async with driven(1) as it:
            it.raft.history.start_with(VoterSet.of([Voter(it.raft.me)]))

            def listeners() -> list[tuple[str, int]]:
                answer = it.handlers.on_describe(call(DescribeQuorumRequest(topics=[])))
                assert isinstance(answer, DescribeQuorumResponse)
                assert [one.node_id for one in answer.nodes] == [1]
                return [(one.host, one.port) for one in answer.nodes[0].listeners]

            assert listeners() == [], "an address was invented"
            it.quorum.places[1] = Place("127.0.0.1", 9092)
            assert listeners() == [("127.0.0.1", 9092)]

    asyncio.run(run())


def test_responses_have_the_address_of_the_leader_and_nodes_remember_it() -> None:
    """An added voter is in no configuration: a node with an empty disk could not find it."""

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
        # The voter set in the log has the addresses of its voters.
        async with driven(1) as alone:
            answer = alone.handlers.on_fetch(fetch(alone, 0))
            assert isinstance(answer, FetchResponse)
            assert places_of(answer) == {1: Place("127.0.0.1", 9001)}

    asyncio.run(run())


# Requests -------------------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_answer_is_asked_again_after_a_pause_and_others_are_asked_too() -> None:
    async def run() -> None:
        async with listener(closes=True) as two, listener(closes=True) as three:
            async with driven(1, 2, 3, addresses={2: two.address, 3: three.address}) as it:
                it.quorum.start()
                await until(lambda: min(len(two.came_s), len(three.came_s)) >= 4, "both are asked again and again")
            came_s = sorted(two.came_s + three.came_s)
        # The clock may be coarse.
        assert min(after - before for before, after in pairwise(came_s)) > running._RETRY_S / 2

    asyncio.run(run())


def test_after_a_timeout_another_node_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_TIMEOUT_MS", 50)
    monkeypatch.setattr(running, "_FETCH_WAIT_MS", 10)

    async def run() -> None:
        async with (
            listener(closes=False) as two,
            listener(closes=False) as three,
            driven(1, 2, 3, addresses={2: two.address, 3: three.address}) as it,
        ):
            it.quorum.start()
            await until(lambda: two.came_s and three.came_s, "both are asked")
            assert not any(task.done() for task in it.tasks)

    asyncio.run(run())


@pytest.mark.parametrize(("code", "kept"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 500), (ErrorCode.SNAPSHOT_NOT_FOUND, 0)])
def test_pieces_of_a_snapshot_are_kept_until_it_is_gone(
    code: ErrorCode, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that steps down may lead again with the same file, so its pieces are not fetched again."""
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
    """A response as it arrives."""
    version = APIS[ApiKey.FETCH_SNAPSHOT].max_version
    return decode_whole(FetchSnapshotResponse, memoryview(response.encode(version)), 0, version)


def test_a_request_to_a_deposed_leader_is_cancelled() -> None:
    async def run() -> None:
        async with listener(closes=False) as two, driven(1, 2, 3, addresses={2: two.address}) as it:
            it.raft.on_heard(Heard(ErrorCode.NONE, 1, 2), 0)
            it.quorum.step()
            asked = asyncio.create_task(it.quorum.ask(2, VoteRequest(topics=[]), timeout_ms=10**6))
            await until(lambda: two.came_s, "it is asked")
            it.raft.on_heard(Heard(ErrorCode.NONE, 2, 3), 0)
            it.quorum.step()
            with pytest.raises(BrokerUnavailable, match="request to node 2 was cancelled: that node is no longer"):
                await asyncio.wait_for(asked, 20)

    asyncio.run(run())


def test_a_node_ends_if_a_majority_of_the_voters_is_of_another_cluster() -> None:
    async def run() -> None:
        async with driven(1, 2, 3) as it:
            it.quorum._note_foreign_node(2, ErrorCode.INCONSISTENT_CLUSTER_ID)
            it.quorum._note_foreign_node(3, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            with pytest.raises(
                BrokerFailure, match=r"of cluster here, but the nodes \[2, 3\] .* are of another cluster"
            ):
                it.quorum._note_foreign_node(3, ErrorCode.INCONSISTENT_CLUSTER_ID)

    asyncio.run(run())


# Failures -------------------------------------------------------------------------------------------------------------


def refused_by_the_disk(it: Driven) -> None:
    it.node.files.fsync_error = OSError(5, "input/output error")


def test_a_leader_whose_disk_fails_ends_and_tells_why() -> None:
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


def test_a_vote_that_cannot_be_written_is_not_answered_and_the_node_ends() -> None:
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


def test_waiting_requests_are_answered_when_the_leader_resigns() -> None:
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


# Two processes with one node.id ---------------------------------------------------------------------------------------


def test_a_node_id_counts_as_taken_only_in_the_epoch_in_which_another_process_leads() -> None:
    async def run() -> None:
        async with driven(1, 2, 3) as it:
            it.quorum._taken_epoch = VOTE.epoch
            for epoch, is_taken in ((VOTE.epoch, True), (VOTE.epoch + 1, False)):
                it.raft.on_vote(Vote(epoch, TWO, ONE, 9, 900), 0)
                assert it.quorum.is_node_id_taken == is_taken
        # A leader that was restarted is still named by the others, until they elect one in a new epoch.
        async with driven(1) as it:
            await until(lambda: it.raft.is_leader, "node 1 leads")
            it.quorum._taken_epoch = it.raft.epoch
            for role in (Role.LEADER, Role.RESIGNED, Role.PROSPECTIVE):
                it.raft.role = role
                assert not it.quorum.is_node_id_taken

    asyncio.run(run())


def test_only_time_in_which_a_node_runs_makes_a_conflict_of_node_ids_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0
    monkeypatch.setattr(asking, "monotonic_ms", lambda: now_ms)
    conflict = asking.NodeIdConflict(1000)
    for step_ms in (0, 60_000, 60_000, 100, 100, 100, 100, 100):
        now_ms += step_ms
        conflict.tolerate("a pause of a minute counts as 200 ms")
    now_ms += 200
    with pytest.raises(BrokerFailure, match="this node ends"):
        conflict.tolerate("1,100 ms")
    conflict.clear()
    conflict.tolerate("again")
