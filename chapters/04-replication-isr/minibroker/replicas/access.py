"""The access table of the APIs that chapter 04 serves. A pure module."""

from collections.abc import Callable, Mapping
from typing import Any

from minibroker.partitions.access import Access, Caller, Place, Ready, close_connection
from minibroker.wire.apis import ApiKey


def between_nodes(acts_for: Callable[[Any], int | None] | None = None) -> Access:
    """The row of an API for nodes only. `acts_for` reads a node's id from a request; only that node may send it."""
    return Access(caller=Caller.NODE, ready=Ready.ALWAYS, acts_for=acts_for)


def _broker_id(request: Any) -> int:
    broker_id: int = request.broker_id
    return broker_id


OF_A_BROKER = between_nodes(_broker_id)

LOGIN_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.SASL_HANDSHAKE: Access(ready=Ready.ALWAYS, is_before_login=True),
    ApiKey.SASL_AUTHENTICATE: Access(ready=Ready.ALWAYS, is_before_login=True),
}
"""The APIs of a login. A login must work before the two nodes are ready."""

REPLICA_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Access((Place.LEADER,)),
    ApiKey.DESCRIBE_PRODUCERS: Access(),
    ApiKey.DESCRIBE_LOG_DIRS: Access(),
    ApiKey.GET_REPLICA_LOG_INFO: between_nodes()._replace(refuse=close_connection),
}
"""The APIs that every node with replicas answers."""

CONTROLLER_ROWS: Mapping[ApiKey, Access] = {
    ApiKey.ELECT_LEADERS: Access((Place.CONTROLLER,)),
    ApiKey.ALTER_PARTITION: OF_A_BROKER,
    ApiKey.BROKER_REGISTRATION: OF_A_BROKER,
    ApiKey.ALLOCATE_PRODUCER_IDS: OF_A_BROKER,
}
"""The APIs that the controller answers. Any node forwards an operator's ElectLeaders to the controller."""
