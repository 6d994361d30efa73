"""Claims about what nodes of the quorum say to each other on the wire: whatever is said arrives, and nothing else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
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
    """What arrives at the other end."""
    schema = type(message).schema
    key = next(it.key for it in APIS.values() if isinstance(message, it.request | it.response))
    version = schema.versions.last if schema.versions is not None else APIS[key].max_version
    kind: type[WireMessage] = type(message)
    return decode_whole(kind, memoryview(message.encode(version)), 0, version)


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (messages.Vote(7, ONE, TWO, 5, 400), to.vote_of),
        (messages.Vote(7, ONE, VoterKey(2), -1, 0, is_pre_vote=True), to.vote_of),
        (messages.BeginQuorumEpoch(7, 1, TWO), to.begin_of),
        (messages.EndQuorumEpoch(7, 1, (TWO, VoterKey(3))), to.end_of),
        (messages.EndQuorumEpoch(7, 1, ()), to.end_of),
    ],
)
def test_a_message_arrives_as_it_was_said(
    message: messages.Message, read: Callable[[Any], messages.Message | None]
) -> None:
    request = to.request_of(message, "here")
    arrived = carried(request)
    assert arrived.cluster_id == "here"
    assert read(arrived) == message


@pytest.mark.parametrize(
    ("answer", "write", "read"),
    [
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
    ],
)
def test_an_answer_arrives_as_it_was_given(
    answer: Any, write: Callable[[Any], Any], read: Callable[[Any], object]
) -> None:
    assert read(carried(write(answer))) == answer


@pytest.mark.parametrize("bytes_max", [1, 8 << 20])
def test_a_fetch_arrives_with_who_asks_and_how_much_it_takes(bytes_max: int) -> None:
    fetch = messages.Fetch(7, TWO, 40, 5)
    request = carried(to.fetch_request(fetch, "here", wait_ms=300, bytes_max=bytes_max))
    assert (request.cluster_id, request.max_wait_ms) == ("here", 300)
    assert to.fetch_of(request) == (fetch, bytes_max)


def test_a_piece_of_a_snapshot_is_asked_for_and_comes() -> None:
    wanted = messages.FetchSnapshot(7, TWO, SNAPSHOT, 1024)
    request = carried(to.snapshot_request(wanted, "here", bytes_max=100))
    assert (request.cluster_id, request.max_bytes) == ("here", 100)
    assert to.snapshot_fetch_of(request) == wanted
    for found in (
        messages.SnapshotFetched(ErrorCode.NONE, 7, 1, 5000, 1024, b"a piece"),
        messages.SnapshotFetched(ErrorCode.SNAPSHOT_NOT_FOUND, 7, 1, 0, 1024),
    ):
        assert to.snapshot_fetched_of(carried(to.snapshot_response(SNAPSHOT, found))) == found


def test_what_says_nothing_is_nothing() -> None:
    """A node that is of another cluster, or that is none, answers with an error and no topic."""
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


@pytest.mark.parametrize(
    ("response", "first_version"),
    [
        (to.fetch_response(messages.Fetched(NOT_LEADER, 9, 3)), 16),
        (to.vote_response(messages.Voted(ErrorCode.NONE, 7, 3)), 1),
        (begun(messages.Heard(ErrorCode.NONE, 7, 3)), 1),
        (ended(messages.Heard(ErrorCode.NONE, 7, 3)), 1),
        (to.snapshot_response(SNAPSHOT, messages.SnapshotFetched(NOT_LEADER, 7, 3)), 1),
    ],
)
def test_where_the_leader_is_arrives_with_its_number(response: Any, first_version: int) -> None:
    """Kafka's NodeEndpoints (KIP-853). An older version has no room for them, and must still be understood."""
    to.name_place(response, 3, PLACE, version=first_version - 1)
    assert to.places_of(carried(response)) == {}
    to.name_place(response, 3, PLACE, version=first_version)
    assert to.places_of(carried(response)) == {3: PLACE}


def test_who_begins_to_lead_says_where_it_is() -> None:
    request = carried(to.request_of(messages.BeginQuorumEpoch(7, 1, TWO), "here", sender=PLACE))
    assert to.leader_place_of(request) == PLACE
    assert to.leader_place_of(carried(to.request_of(messages.BeginQuorumEpoch(7, 1, TWO), "here"))) is None
