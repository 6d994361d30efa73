"""The access table of the APIs that chapter 05 serves. A pure module."""

from collections.abc import Mapping

from minibroker.partitions.access import Access, Place, Ready
from minibroker.replicas.access import BETWEEN_NODES, CONTROLLER_ROWS
from minibroker.wire.apis import ApiKey

# An operator must be able to change the voters while no broker is ready.
_VOTER_CHANGE = Access((Place.CONTROLLER,), ready=Ready.ALWAYS)

ROWS: Mapping[ApiKey, Access] = {
    **CONTROLLER_ROWS,
    ApiKey.VOTE: BETWEEN_NODES,
    ApiKey.BEGIN_QUORUM_EPOCH: BETWEEN_NODES,
    ApiKey.END_QUORUM_EPOCH: BETWEEN_NODES,
    ApiKey.FETCH_SNAPSHOT: BETWEEN_NODES,
    ApiKey.BROKER_HEARTBEAT: BETWEEN_NODES,
    ApiKey.ENVELOPE: BETWEEN_NODES,
    ApiKey.DESCRIBE_QUORUM: Access((Place.CONTROLLER_IF_ANY,), ready=Ready.ALWAYS, is_read=True),
    ApiKey.ADD_RAFT_VOTER: _VOTER_CHANGE,
    ApiKey.REMOVE_RAFT_VOTER: _VOTER_CHANGE,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Access((Place.CONTROLLER,)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Access((Place.CONTROLLER,), is_read=True),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Access(),
    ApiKey.UNREGISTER_BROKER: Access((Place.CONTROLLER,)),
}
