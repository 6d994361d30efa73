"""Claims about the messages of the quorum on the wire: each arrives as it was sent."""

from collections.abc import Callable
from functools import partial
from typing import Any

from cases import case
from raft_nodes import directory_id
from replication_nodes import batch_of

from minibroker.partitions.partition import EpochEnd
from minibroker.quorum import translating as to
from minibroker.raft import messages
from minibroker.raft.tables.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from minibroker.raft.tables.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from minibroker.raft.tables.vote import VoteRequest, VoteResponse
from minibroker.raft.voters import VoterKey
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Message as WireMessage
from minibroker.wire.schema import decode_whole
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse

ONE, TWO = VoterKey(1, directory_id(1)), VoterKey(2, directory_id(2))
SNAPSHOT = messages.SnapshotId(300, 4)
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
begun = partial(to.heard_response, kind=BeginQuorumEpochResponse)
ended = partial(to.heard_response, kind=EndQuorumEpochResponse)


def carried(message: Any) -> Any:
    """The message as it arrives."""
    schema = type(message).schema
    key = next(it.key for it in APIS.values() if isinstance(message, it.request | it.response))
    version = schema.versions.last if schema.versions is not None else APIS[key].max_version
    kind: type[WireMessage] = type(message)
    return decode_whole(kind, memoryview(message.encode(version)), 0, version)


def test_a_message_arrives_as_it_was_sent() -> None:
    cases: list[tuple[messages.Message, Callable[[Any], messages.Message | None]]] = [
        (messages.Vote(7, ONE, TWO, 5, 400), to.vote_of),
        (messages.Vote(7, ONE, VoterKey(2), -1, 0, is_pre_vote=True), to.vote_of),
        (messages.BeginQuorumEpoch(7, 1, TWO), to.begin_of),
        (messages.EndQuorumEpoch(7, 1, (TWO, VoterKey(3))), to.end_of),
        (messages.EndQuorumEpoch(7, 1, ()), to.end_of),
    ]
    for message, read in cases:
        with case(message):
            request = to.request_of(message, "here")
            arrived = carried(request)
            assert arrived.cluster_id == "here"
            assert read(arrived) == message


def test_an_answer_arrives_as_it_was_given() -> None:
    cases: list[tuple[Any, Callable[[Any], Any], Callable[[Any], object]]] = [
        (messages.Voted(ErrorCode.NONE, 7, -1, is_granted=True), to.vote_response, to.voted_of),
        (messages.Voted(ErrorCode.KAFKA_STORAGE_ERROR, 7, 3), to.vote_response, to.voted_of),
        (messages.Heard(ErrorCode.NONE, 7, 1), begun, to.heard_of),
        (
            messages.Heard(ErrorCode.FENCED_LEADER_EPOCH, 9, -1),
            ended,
            to.heard_of,
        ),
        (messages.Fetched(ErrorCode.NONE, 7, 1, memoryview(batch_of(b"a")), 12), to.fetch_response, to.fetched_of),
        (messages.Fetched(ErrorCode.NONE, 7, 1, high_watermark=0), to.fetch_response, to.fetched_of),
        (
            messages.Fetched(ErrorCode.NONE, 7, 1, high_watermark=3, diverging=EpochEnd(5, 40)),
            to.fetch_response,
            to.fetched_of,
        ),
        (messages.Fetched(ErrorCode.NONE, 7, 1, high_watermark=3, snapshot=SNAPSHOT), to.fetch_response, to.fetched_of),
        (messages.Fetched(NOT_LEADER, 9, 3), to.fetch_response, to.fetched_of),
    ]
    for answer, write, read in cases:
        with case(answer):
            assert read(carried(write(answer))) == answer


def test_a_fetch_arrives_with_its_replica_and_its_limit() -> None:
    for bytes_max in (1, 8 << 20):
        with case(bytes_max):
            fetch = messages.Fetch(7, TWO, 40, 5)
            request = carried(to.fetch_request(fetch, "here", wait_ms=300, bytes_max=bytes_max))
            assert (request.cluster_id, request.max_wait_ms) == ("here", 300)
            assert to.fetch_of(request) == (fetch, bytes_max)


def test_a_piece_of_a_snapshot_is_requested_and_sent() -> None:
    wanted = messages.FetchSnapshot(7, TWO, SNAPSHOT, 1024)
    request = carried(to.snapshot_request(wanted, "here", bytes_max=100))
    assert (request.cluster_id, request.max_bytes) == ("here", 100)
    assert to.snapshot_fetch_of(request) == wanted
    for found in (
        messages.SnapshotFetched(ErrorCode.NONE, 7, 1, 5000, 1024, b"a piece"),
        messages.SnapshotFetched(ErrorCode.SNAPSHOT_NOT_FOUND, 7, 1, 0, 1024),
    ):
        assert to.snapshot_fetched_of(carried(to.snapshot_response(SNAPSHOT, found))) == found


def test_a_message_without_a_topic_is_none() -> None:
    """A node of another cluster answers with an error and no topic."""
    assert to.vote_of(VoteRequest(cluster_id="here", topics=[])) is None
    assert to.begin_of(BeginQuorumEpochRequest(cluster_id="here", topics=[])) is None
    assert to.end_of(EndQuorumEpochRequest(cluster_id="here", topics=[])) is None
    assert to.fetch_of(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[])) is None
    assert to.snapshot_fetch_of(FetchSnapshotRequest(topics=[])) is None
    code = ErrorCode.INCONSISTENT_CLUSTER_ID
    assert to.voted_of(carried(VoteResponse(error_code=code))) is None
    assert to.heard_of(carried(BeginQuorumEpochResponse(error_code=code))) is None
    assert to.heard_of(carried(EndQuorumEpochResponse(error_code=code))) is None
    assert to.fetched_of(carried(FetchResponse(error_code=code, responses=[]))) is None
    assert to.snapshot_fetched_of(carried(FetchSnapshotResponse(error_code=code))) is None


PLACE = to.Place("b.example.org", 9092)


def test_the_address_of_the_leader_arrives_with_its_id() -> None:
    """Kafka's NodeEndpoints (KIP-853). Older versions have no such field."""
    cases: list[tuple[Any, int]] = [
        (to.fetch_response(messages.Fetched(NOT_LEADER, 9, 3)), 16),
        (to.vote_response(messages.Voted(ErrorCode.NONE, 7, 3)), 1),
        (begun(messages.Heard(ErrorCode.NONE, 7, 3)), 1),
        (ended(messages.Heard(ErrorCode.NONE, 7, 3)), 1),
        (to.snapshot_response(SNAPSHOT, messages.SnapshotFetched(NOT_LEADER, 7, 3)), 1),
    ]
    for response, first_version in cases:
        with case(type(response).__name__):
            to.name_place(response, 3, PLACE, version=first_version - 1)
            assert to.places_of(carried(response)) == {}
            to.name_place(response, 3, PLACE, version=first_version)
            assert to.places_of(carried(response)) == {3: PLACE}


def test_a_new_leader_sends_its_address() -> None:
    request = carried(to.request_of(messages.BeginQuorumEpoch(7, 1, TWO), "here", sender=PLACE))
    assert to.leader_place_of(request) == PLACE
    assert to.leader_place_of(carried(to.request_of(messages.BeginQuorumEpoch(7, 1, TWO), "here"))) is None
