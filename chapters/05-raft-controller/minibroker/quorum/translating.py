"""Translates the messages of the quorum into wire messages and back. A pure module.

Each wire message has a list of topics with a list of partitions. The quorum has one log, so both lists have one entry.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from minibroker.client.errors import known_code
from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.partition import EpochEnd
from minibroker.raft import messages
from minibroker.raft.tables.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    BegunPartition,
    BegunTopic,
    HeardPartition,
    HeardTopic,
    LeaderEndpoint,
)
from minibroker.raft.tables.end_quorum_epoch import (
    Candidate,
    EndedPartition,
    EndedTopic,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from minibroker.raft.tables.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FoundSnapshot,
    FoundTopic,
    WantedSnapshot,
    WantedTopic,
)
from minibroker.raft.tables.fetch_snapshot import LeaderIdAndEpoch as SnapshotLeader
from minibroker.raft.tables.fetch_snapshot import SnapshotId as SnapshotIdOnWire
from minibroker.raft.tables.vote import (
    VotePartition,
    VotePartitionResult,
    VoteRequest,
    VoteResponse,
    VoteTopic,
    VoteTopicResult,
)
from minibroker.raft.voters import VoterKey
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from minibroker.wire.tables.fetch import SnapshotId as WireSnapshotId
from minibroker.wire.uuids import NO_UUID

_NO_SESSION_EPOCH = -1

Heard = type[BeginQuorumEpochResponse] | type[EndQuorumEpochResponse]


class Place(NamedTuple):
    """The address of a node."""

    host: str
    port: int


def _only(topics: Sequence[Any]) -> Any:
    """The only partition of a request or response; None if it has no partition."""
    return next((it for topic in topics for it in topic.partitions), None)


# Requests -------------------------------------------------------------------------------------------------------------


def request_of(message: messages.Message, cluster_id: str, *, sender: Place | None = None) -> Request:
    """The request that carries a message of the state machine. A leader passes its own address as `sender`."""
    if isinstance(message, messages.Vote):
        return _vote_request(message, cluster_id)
    if isinstance(message, messages.BeginQuorumEpoch):
        begun = BegunPartition(
            partition_index=0,
            voter_directory_id=message.voter.directory_id,
            leader_id=message.leader_id,
            leader_epoch=message.epoch,
        )
        topics = [BegunTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[begun])]
        return BeginQuorumEpochRequest(
            cluster_id=cluster_id, voter_id=message.voter.node_id, topics=topics, leader_endpoints=_leader_at(sender)
        )
    candidates = [
        Candidate(candidate_id=it.node_id, candidate_directory_id=it.directory_id) for it in message.successors
    ]
    ended = EndedPartition(
        partition_index=0,
        leader_id=message.leader_id,
        leader_epoch=message.epoch,
        preferred_candidates=candidates,
    )
    ended_topics = [EndedTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[ended])]
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=ended_topics, leader_endpoints=_leader_at(sender))


def _leader_at(place: Place | None) -> list[LeaderEndpoint]:
    return [] if place is None else [LeaderEndpoint(name="CONTROLLER", host=place.host, port=place.port)]


def _vote_request(message: messages.Vote, cluster_id: str) -> VoteRequest:
    partition = VotePartition(
        partition_index=0,
        replica_epoch=message.epoch,
        replica_id=message.candidate.node_id,
        replica_directory_id=message.candidate.directory_id,
        voter_directory_id=message.voter.directory_id,
        last_offset_epoch=message.last_epoch,
        last_offset=message.last_offset,
        pre_vote=message.is_pre_vote,
    )
    topics = [VoteTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])]
    return VoteRequest(cluster_id=cluster_id, voter_id=message.voter.node_id, topics=topics)


def vote_of(request: VoteRequest) -> messages.Vote | None:
    """The message that a request carries to the state machine; None if the request is empty."""
    it = _only(request.topics)
    if it is None:
        return None
    return messages.Vote(
        it.replica_epoch,
        VoterKey(it.replica_id, bytes(it.replica_directory_id)),
        VoterKey(request.voter_id, bytes(it.voter_directory_id)),
        it.last_offset_epoch,
        it.last_offset,
        it.pre_vote,
    )


def begin_of(request: BeginQuorumEpochRequest) -> messages.BeginQuorumEpoch | None:
    """The message that a request carries to the state machine; None if the request is empty."""
    it = _only(request.topics)
    if it is None:
        return None
    voter = VoterKey(request.voter_id, bytes(it.voter_directory_id))
    return messages.BeginQuorumEpoch(it.leader_epoch, it.leader_id, voter)


def end_of(request: EndQuorumEpochRequest) -> messages.EndQuorumEpoch | None:
    """The message that a request carries to the state machine; None if the request is empty."""
    it = _only(request.topics)
    if it is None:
        return None
    keys = (VoterKey(one.candidate_id, bytes(one.candidate_directory_id)) for one in it.preferred_candidates)
    return messages.EndQuorumEpoch(it.leader_epoch, it.leader_id, tuple(keys))


def leader_place_of(request: BeginQuorumEpochRequest) -> Place | None:
    """The address of the leader, or None if the request has none."""
    return next((Place(it.host, it.port) for it in request.leader_endpoints), None)


# Responses ------------------------------------------------------------------------------------------------------------


def name_place(response: Response, node_id: int, place: Place, *, version: int) -> None:
    """Add the address of a node that a response names, if the version has the field."""
    field = next(it for it in response.schema.fields if it.name == "node_endpoints")
    if version in field.versions and field.struct is not None:
        endpoint = field.struct(node_id=node_id, host=place.host, port=place.port)
        response.node_endpoints = [endpoint]  # type: ignore[attr-defined]


def places_of(response: Response) -> dict[int, Place]:
    """The addresses of the nodes that a response names."""
    return {it.node_id: Place(it.host, it.port) for it in response.node_endpoints}  # type: ignore[attr-defined]


def vote_response(voted: messages.Voted) -> Response:
    """The response that carries an answer of the state machine."""
    result = VotePartitionResult(
        partition_index=0,
        error_code=voted.code,
        leader_id=voted.leader_id,
        leader_epoch=voted.epoch,
        vote_granted=voted.is_granted,
    )
    return VoteResponse(topics=[VoteTopicResult(topic_name=CLUSTER_METADATA_TOPIC, partitions=[result])])


def voted_of(response: VoteResponse) -> messages.Voted | None:
    """The answer that a response carries to the state machine; None if the response is empty."""
    it = _only(response.topics)
    return it and messages.Voted(known_code(it.error_code), it.leader_epoch, it.leader_id, it.vote_granted)


def heard_response(heard: messages.Heard, kind: Heard) -> Response:
    """The response that carries an answer of the state machine."""
    it = HeardPartition(partition_index=0, error_code=heard.code, leader_id=heard.leader_id, leader_epoch=heard.epoch)
    return kind(topics=[HeardTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[it])])


def heard_of(response: BeginQuorumEpochResponse | EndQuorumEpochResponse) -> messages.Heard | None:
    """The answer that a response carries to the state machine; None if the response is empty."""
    it = _only(response.topics)
    return it and messages.Heard(known_code(it.error_code), it.leader_epoch, it.leader_id)


# Fetches --------------------------------------------------------------------------------------------------------------


def fetch_request(fetch: messages.Fetch, cluster_id: str, *, wait_ms: int, bytes_max: int) -> FetchRequest:
    """The request that asks for the metadata log."""
    partition = FetchPartition(
        partition=0,
        current_leader_epoch=fetch.epoch,
        fetch_offset=fetch.offset,
        last_fetched_epoch=fetch.last_epoch,
        log_start_offset=0,
        partition_max_bytes=bytes_max,
        replica_directory_id=fetch.replica.directory_id,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=ReplicaState(replica_id=fetch.replica.node_id),
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        session_epoch=_NO_SESSION_EPOCH,
        topics=[FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[partition])],
    )


def fetch_of(request: FetchRequest) -> tuple[messages.Fetch, int] | None:
    """The fetch of the metadata log, and its limit in bytes; None if the request is for other topics."""
    it = _only([topic for topic in request.topics if topic.topic_id == CLUSTER_METADATA_TOPIC_ID])
    if it is None:
        return None
    key = VoterKey(request.replica_state.replica_id, bytes(it.replica_directory_id or NO_UUID))
    fetch = messages.Fetch(it.current_leader_epoch, key, it.fetch_offset, it.last_fetched_epoch)
    return fetch, min(request.max_bytes, it.partition_max_bytes)


def fetch_response(fetched: messages.Fetched) -> Response:
    """The response with records, with the diverging epoch, or with the leader."""
    data = PartitionData(
        partition_index=0,
        error_code=fetched.code,
        high_watermark=fetched.high_watermark,
        aborted_transactions=None,
        current_leader=LeaderIdAndEpoch(leader_id=fetched.leader_id, leader_epoch=fetched.epoch),
        records=bytes(fetched.records),
    )
    if fetched.snapshot is not None:
        data.snapshot_id = WireSnapshotId(end_offset=fetched.snapshot.end_offset, epoch=fetched.snapshot.epoch)
    if fetched.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=fetched.diverging.epoch, end_offset=fetched.diverging.end_offset)
    topics = [FetchableTopicResponse(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[data])]
    return FetchResponse(responses=topics)


def snapshot_request(fetch: messages.FetchSnapshot, cluster_id: str, *, bytes_max: int) -> FetchSnapshotRequest:
    """The request that asks for a piece of a snapshot."""
    wanted = WantedSnapshot(
        partition=0,
        current_leader_epoch=fetch.epoch,
        snapshot_id=SnapshotIdOnWire(end_offset=fetch.snapshot.end_offset, epoch=fetch.snapshot.epoch),
        position=fetch.position,
        replica_directory_id=fetch.replica.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=fetch.replica.node_id,
        max_bytes=bytes_max,
        topics=[WantedTopic(name=CLUSTER_METADATA_TOPIC, partitions=[wanted])],
    )


def snapshot_fetch_of(request: FetchSnapshotRequest) -> messages.FetchSnapshot | None:
    """The message that a request carries to the state machine; None if the request is empty."""
    it = _only(request.topics)
    if it is None:
        return None
    key = VoterKey(request.replica_id, bytes(it.replica_directory_id or NO_UUID))
    snapshot = messages.SnapshotId(it.snapshot_id.end_offset, it.snapshot_id.epoch)
    return messages.FetchSnapshot(it.current_leader_epoch, key, snapshot, it.position)


def snapshot_response(snapshot: messages.SnapshotId, found: messages.SnapshotFetched) -> Response:
    """The response with a piece of a snapshot."""
    it = FoundSnapshot(
        index=0,
        error_code=found.code,
        snapshot_id=SnapshotIdOnWire(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=SnapshotLeader(leader_id=found.leader_id, leader_epoch=found.epoch),
        size=found.size,
        position=found.position,
        unaligned_records=found.data,
    )
    return FetchSnapshotResponse(topics=[FoundTopic(name=CLUSTER_METADATA_TOPIC, partitions=[it])])


def snapshot_fetched_of(response: FetchSnapshotResponse) -> messages.SnapshotFetched | None:
    """The piece of a snapshot in a response; None if the response is empty."""
    it = _only(response.topics)
    if it is None:
        return None
    data = bytes(it.unaligned_records) if isinstance(it.unaligned_records, memoryview) else b""
    leader, code = it.current_leader, known_code(it.error_code)
    return messages.SnapshotFetched(code, leader.leader_epoch, leader.leader_id, it.size, it.position, data)


def fetched_of(response: FetchResponse) -> messages.Fetched | None:
    """The answer that a response carries to the state machine; None if the response is empty."""
    it = _only(response.responses)
    if it is None:
        return None
    diverging, snapshot = it.diverging_epoch, it.snapshot_id
    return messages.Fetched(
        known_code(it.error_code),
        it.current_leader.leader_epoch,
        it.current_leader.leader_id,
        it.records if isinstance(it.records, memoryview) else messages.NO_RECORDS,
        it.high_watermark,
        EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch != NO_LEADER_EPOCH else None,
        messages.SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 else None,
    )
