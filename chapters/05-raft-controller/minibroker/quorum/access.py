"""The access table of the APIs that chapter 05 serves. A pure module."""

from collections.abc import Mapping

from minibroker.partitions.access import Access, Place, Ready
from minibroker.quorum.translating import begin_of, end_of, vote_of
from minibroker.raft.tables.begin_quorum_epoch import BeginQuorumEpochRequest
from minibroker.raft.tables.end_quorum_epoch import EndQuorumEpochRequest
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotRequest
from minibroker.raft.tables.vote import VoteRequest
from minibroker.replicas.access import CONTROLLER_ROWS, LOGIN_ROWS, OF_A_BROKER, between_nodes
from minibroker.wire.apis import ApiKey


def _candidate(request: VoteRequest) -> int | None:
    vote = vote_of(request)
    return None if vote is None else vote.candidate.node_id


def _new_leader(request: BeginQuorumEpochRequest) -> int | None:
    begin = begin_of(request)
    return None if begin is None else begin.leader_id


def _old_leader(request: EndQuorumEpochRequest) -> int | None:
    end = end_of(request)
    return None if end is None else end.leader_id


def _reader(request: FetchSnapshotRequest) -> int:
    return request.replica_id


# An operator must be able to change the voters while no broker is ready.
_VOTER_CHANGE = Access((Place.CONTROLLER,), ready=Ready.ALWAYS)

ROWS: Mapping[ApiKey, Access] = {
    **LOGIN_ROWS,
    **CONTROLLER_ROWS,
    ApiKey.VOTE: between_nodes(_candidate),
    ApiKey.BEGIN_QUORUM_EPOCH: between_nodes(_new_leader),
    ApiKey.END_QUORUM_EPOCH: between_nodes(_old_leader),
    ApiKey.FETCH_SNAPSHOT: between_nodes(_reader),
    ApiKey.BROKER_HEARTBEAT: OF_A_BROKER,
    # The controller treats an envelope as a request of the client that it names, so any node may send one.
    ApiKey.ENVELOPE: between_nodes(),
    ApiKey.DESCRIBE_QUORUM: Access((Place.CONTROLLER_IF_ANY,), ready=Ready.ALWAYS, is_read=True),
    ApiKey.ADD_RAFT_VOTER: _VOTER_CHANGE,
    ApiKey.REMOVE_RAFT_VOTER: _VOTER_CHANGE,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Access((Place.CONTROLLER,)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Access((Place.CONTROLLER,), is_read=True),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Access(),
    ApiKey.UNREGISTER_BROKER: Access((Place.CONTROLLER,)),
}
