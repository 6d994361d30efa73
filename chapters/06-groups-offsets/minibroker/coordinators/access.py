"""The access table of the APIs that chapter 06 serves. A pure module.

A group's coordinator is the leader of one partition of `__consumer_offsets`. Any other node answers NOT_COORDINATOR,
and the client sends FindCoordinator again. No call is forwarded.
"""

from collections.abc import Mapping

from minibroker.partitions.access import Access, Place
from minibroker.wire.apis import ApiKey

_COORDINATOR = Access((Place.COORDINATOR,))

ROWS: Mapping[ApiKey, Access] = {
    ApiKey.FIND_COORDINATOR: Access(),
    ApiKey.LIST_GROUPS: Access(),
    ApiKey.JOIN_GROUP: _COORDINATOR,
    ApiKey.SYNC_GROUP: _COORDINATOR,
    ApiKey.HEARTBEAT: _COORDINATOR,
    ApiKey.LEAVE_GROUP: _COORDINATOR,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _COORDINATOR,
    ApiKey.OFFSET_COMMIT: _COORDINATOR,
    ApiKey.OFFSET_FETCH: _COORDINATOR,
    ApiKey.OFFSET_DELETE: _COORDINATOR,
    ApiKey.DESCRIBE_GROUPS: _COORDINATOR,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _COORDINATOR,
    ApiKey.DELETE_GROUPS: _COORDINATOR,
}
