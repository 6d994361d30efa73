"""The access table of the APIs that chapter 04 serves. A pure module."""

from collections.abc import Mapping

from minibroker.partitions.access import Access, Caller, Place, Ready
from minibroker.wire.apis import ApiKey

BETWEEN_NODES = Access(caller=Caller.NODE, ready=Ready.ALWAYS)

REPLICA_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Access((Place.LEADER,)),
    ApiKey.DESCRIBE_PRODUCERS: Access(),
    ApiKey.DESCRIBE_LOG_DIRS: Access(),
    ApiKey.GET_REPLICA_LOG_INFO: BETWEEN_NODES,
}
"""The APIs that every node with replicas answers."""

CONTROLLER_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.ELECT_LEADERS: Access((Place.CONTROLLER,)),
    ApiKey.ALTER_PARTITION: BETWEEN_NODES,
    ApiKey.BROKER_REGISTRATION: BETWEEN_NODES,
    ApiKey.ALLOCATE_PRODUCER_IDS: BETWEEN_NODES,
}
"""The APIs that the controller answers. Any node forwards an operator's ElectLeaders to the controller."""
