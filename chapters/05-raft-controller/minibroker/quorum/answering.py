"""The handlers of the quorum: votes, epochs, fetches of the metadata log and its snapshots, and DescribeQuorum.

Each handler of `QuorumHandlers` translates a request into a message, passes it to `Raft`, and calls `Quorum.step`. The
metadata log is an internal partition: chapter 03's handler of Fetch passes to this module only the fetches of nodes,
never those of consumers.
"""

from typing import Any

from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.errors import StorageError
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.store import METADATA, Store
from minibroker.partitions.waiting import Wait
from minibroker.quorum.running import Quorum
from minibroker.quorum.translating import (
    Place,
    begin_of,
    end_of,
    fetch_of,
    fetch_response,
    heard_response,
    leader_place_of,
    name_place,
    snapshot_fetch_of,
    snapshot_response,
    vote_of,
    vote_response,
)
from minibroker.raft.messages import Fetched
from minibroker.raft.progress import NEVER_MS, Progress
from minibroker.raft.tables.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionResult,
    QuorumTopicResult,
    ReplicaState,
)
from minibroker.raft.tables.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from minibroker.raft.tables.vote import VoteRequest, VoteResponse
from minibroker.raft.voters import VoterKey
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse


class QuorumHandlers:
    """The handlers of one node of the quorum."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._raft = quorum.raft
        self._told: dict[VoterKey, int] = {}
        """The high watermark in the last response to each replica."""

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Register the handlers."""
        registry.add(ApiKey.VOTE, _or_hang_up(self.on_vote))
        registry.add(ApiKey.BEGIN_QUORUM_EPOCH, _or_hang_up(self.on_begin))
        registry.add(ApiKey.END_QUORUM_EPOCH, _or_hang_up(self.on_end))
        registry.add(ApiKey.DESCRIBE_QUORUM, self.on_describe)
        registry.add(ApiKey.FETCH_SNAPSHOT, self.on_fetch_snapshot)
        store.add_internal(CLUSTER_METADATA_TOPIC_ID, self.on_fetch)

    # Votes and epochs -------------------------------------------------------------------------------------------------

    def on_vote(self, call: Call[VoteRequest]) -> Answer:
        """The handler of Vote."""
        vote = vote_of(call.request)
        if self._quorum.is_foreign(call.request.cluster_id) or vote is None:
            return VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID if vote else ErrorCode.INVALID_REQUEST)
        voted = self._raft.on_vote(vote, monotonic_ms())
        self._quorum.step()
        return self._with_place(vote_response(voted), voted.leader_id, call)

    def on_begin(self, call: Call[BeginQuorumEpochRequest]) -> Answer:
        """The handler of BeginQuorumEpoch."""
        begin = begin_of(call.request)
        if self._quorum.is_foreign(call.request.cluster_id) or begin is None:
            return BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        place = leader_place_of(call.request)
        if place is not None:
            self._quorum.places[begin.leader_id] = place
        heard = self._raft.on_begin(begin, monotonic_ms())
        self._quorum.step()
        return self._with_place(heard_response(heard, BeginQuorumEpochResponse), heard.leader_id, call)

    def on_end(self, call: Call[EndQuorumEpochRequest]) -> Answer:
        """The handler of EndQuorumEpoch."""
        end = end_of(call.request)
        if self._quorum.is_foreign(call.request.cluster_id) or end is None:
            return EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        heard = self._raft.on_end(end, monotonic_ms())
        self._quorum.step()
        return self._with_place(heard_response(heard, EndQuorumEpochResponse), heard.leader_id, call)

    def _with_place(self, response: Response, leader_id: int, call: Call[Any]) -> Response:
        """Add the leader's address to a response, because a node with an empty disk knows only configured addresses."""
        place = self._quorum.place_of(leader_id)
        if place is not None:
            name_place(response, leader_id, place, version=call.version)
        return response

    # The metadata log -------------------------------------------------------------------------------------------------

    def on_fetch(self, call: Call[FetchRequest]) -> Answer:
        """Answer a node that fetches the metadata log."""
        asked = fetch_of(call.request)
        if asked is None:
            return FetchResponse(responses=[])
        if self._quorum.is_foreign(call.request.cluster_id):
            # A node of another cluster must not copy this cluster's log.
            return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
        fetch, bytes_max = asked
        # The arrival of the fetch shows that the replica is alive. A later attempt to answer it does not.
        now_ms = monotonic_ms()

        def attempt() -> Response | None:
            fetched = self._raft.on_fetch(fetch, now_ms, bytes_max=bytes_max)
            # The fetch may have advanced the high watermark, so waiting fetches must be retried. That happens after
            # this attempt returns, because this fetch may be one of them.
            self._quorum.step_soon()
            return respond(fetched) if self._is_news(fetch.replica, fetched) else None

        def expire() -> Response:
            return respond(self._raft.on_fetch(fetch, now_ms, bytes_max=bytes_max))

        def respond(fetched: Fetched) -> Response:
            return self._with_place(fetch_response(fetched), fetched.leader_id, call)

        response = attempt()
        if response is not None:
            return response
        return Wait(keys=(METADATA,), timeout_ms=call.request.max_wait_ms, attempt=attempt, expire=expire)

    def _is_news(self, replica: VoterKey, fetched: Fetched) -> bool:
        """Whether to respond now: there are records, an error, or a higher high watermark than in the last response."""
        is_news = (
            fetched.code is not ErrorCode.NONE
            or len(fetched.records) > 0
            or fetched.diverging is not None
            or fetched.snapshot is not None
            or fetched.high_watermark > self._told.get(replica, -1)
        )
        if is_news:
            self._told[replica] = fetched.high_watermark
        return is_news

    def on_fetch_snapshot(self, call: Call[FetchSnapshotRequest]) -> Answer:
        """The handler of FetchSnapshot."""
        wanted = snapshot_fetch_of(call.request)
        if self._quorum.is_foreign(call.request.cluster_id) or wanted is None:
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        found = self._quorum.snapshotting.piece(wanted, monotonic_ms(), bytes_max=call.request.max_bytes)
        return self._with_place(snapshot_response(wanted.snapshot, found), found.leader_id, call)

    # The state of the quorum ------------------------------------------------------------------------------------------

    def on_describe(self, call: Call[DescribeQuorumRequest]) -> Answer:  # noqa: ARG002
        """The handler of DescribeQuorum. Only the leader knows the log end offset of every replica."""
        raft = self._raft
        result = QuorumPartitionResult(
            partition_index=0,
            error_code=ErrorCode.NONE if raft.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            leader_id=raft.leader_id,
            leader_epoch=raft.epoch,
            high_watermark=raft.high_watermark,
        )
        if raft.is_leader:
            now_ms = monotonic_ms()
            voters, observers = raft.progress(now_ms)
            result.current_voters = [_replica(key, it, now_ms) for key, it in voters.items()]
            result.observers = [_replica(key, it, now_ms) for key, it in observers.items()]
        topic = QuorumTopicResult(topic_name=METADATA.topic, partitions=[result])
        nodes = [QuorumNode(node_id=it, listeners=self._listeners(it)) for it in raft.voters]
        return DescribeQuorumResponse(topics=[topic], nodes=nodes)

    def _listeners(self, node_id: int) -> list[QuorumListener]:
        """The address of a voter, or an empty list if no address is known."""
        voter = self._raft.voters.voters[node_id]
        # Without controller.quorum.voters, a node is the only voter. Then the voter set has no address for it, but its
        # registration as a broker has one.
        place = Place(voter.host, voter.port) if voter.host else self._quorum.place_of(node_id)
        return [] if place is None else [QuorumListener(name="CONTROLLER", host=place.host, port=place.port)]


def _or_hang_up(handler: Handler) -> Handler:
    """Disconnect instead of answering when the disk fails: no node may rely on a vote that is not flushed."""

    def answer(call: Call[Any]) -> Answer:
        try:
            return handler(call)
        except StorageError as error:
            raise Disconnect(str(error)) from error

    return answer


def _replica(key: VoterKey, progress: Progress, now_ms: int) -> ReplicaState:
    def timestamp(moment_ms: int) -> int:
        # Convert the monotonic time of the state machine. A replica that has never fetched has no timestamp.
        return NEVER_MS if moment_ms == NEVER_MS else wall_clock_ms() - (now_ms - moment_ms)

    return ReplicaState(
        replica_id=key.node_id,
        replica_directory_id=key.directory_id,
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=timestamp(progress.last_fetch_ms),
        last_caught_up_timestamp=timestamp(progress.last_caught_up_ms),
    )
