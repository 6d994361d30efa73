"""The access table of the APIs that chapter 06 serves. A pure module.

The coordinator of a group is the leader of one partition of `__consumer_offsets`, and that of a transactional id the
leader of one of `__transaction_state`. Any other node answers NOT_COORDINATOR, and the client sends FindCoordinator
again. No call is forwarded.
"""

from collections.abc import Mapping

from minibroker.partitions.access import Access, Place
from minibroker.wire.apis import ApiKey

_COORDINATOR = Access((Place.COORDINATOR,))

GROUP_ROWS: Mapping[ApiKey, Access] = {
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
    ApiKey.TXN_OFFSET_COMMIT: _COORDINATOR,
}

TRANSACTION_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.INIT_PRODUCER_ID: _COORDINATOR,
    # Clients send versions up to 3, and nodes later ones. The handler refuses a later version from a client.
    ApiKey.ADD_PARTITIONS_TO_TXN: _COORDINATOR,
    ApiKey.ADD_OFFSETS_TO_TXN: _COORDINATOR,
    ApiKey.END_TXN: _COORDINATOR,
    ApiKey.DESCRIBE_TRANSACTIONS: _COORDINATOR,
    ApiKey.LIST_TRANSACTIONS: Access(),
}

ROWS: Mapping[ApiKey, Access] = {**GROUP_ROWS, **TRANSACTION_ROWS}
"""The rows of all APIs that coordinators answer."""
