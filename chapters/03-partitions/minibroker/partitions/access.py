"""The access table: which callers may use each API, which node answers it, and when. A pure module.

One row per API key. Every package declares the rows of the APIs that it serves, and `Gate` puts the checks and filters
of the row before each handler:

    call ──▶ caller allowed? ──▶ node ready? ──▶ places, in order ──▶ handler
                   │                  │               └ forwarded to the node that must answer
                   └──────────────────┴──▶ the connection is closed

Chapter 03's node is alone, so it answers everything itself. Chapters 04 and 05 add filters that forward a call to the
node that must answer it. Access control lists would be one more column.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.wire.apis import ApiKey


class Caller(enum.Enum):
    """The callers that may use an API."""

    ANYONE = "anyone"
    NODE = "nodes only"


class Place(enum.Enum):
    """Where a call is answered. Only a call for the controller, or for a named broker, is forwarded."""

    HERE = "any node"
    LEADER = "leader"  # another replica answers NOT_LEADER_OR_FOLLOWER
    COORDINATOR = "coordinator"  # another broker answers NOT_COORDINATOR
    CONTROLLER = "controller"
    CONTROLLER_IF_ANY = "controller if any"  # while there is no controller, the receiving node answers
    NAMED_BROKER = "named broker"


class Ready(enum.Enum):
    """The state that the node must have reached before it answers a call."""

    WHEN_READY = "when ready"
    NODES_ALWAYS = "nodes: always"
    ALWAYS = "always"


class Access(NamedTuple):
    """One row of the table."""

    places: tuple[Place, ...] = (Place.HERE,)
    """Where the call is answered. With two places, the filters of both see the call, in this order."""
    caller: Caller = Caller.ANYONE
    ready: Ready = Ready.WHEN_READY
    is_read: bool = False
    """Whether the call only reads from the controller. Such a call may be retried."""


ROWS: Mapping[ApiKey, Access] = {
    ApiKey.PRODUCE: Access((Place.LEADER,)),
    # Other nodes may always fetch, because a voter fetches the metadata log before it is ready for anything else.
    ApiKey.FETCH: Access((Place.LEADER,), ready=Ready.NODES_ALWAYS),
    ApiKey.LIST_OFFSETS: Access((Place.LEADER,)),
    ApiKey.DELETE_RECORDS: Access((Place.LEADER,)),
    ApiKey.API_VERSIONS: Access(ready=Ready.NODES_ALWAYS),
    ApiKey.METADATA: Access(),
    ApiKey.DESCRIBE_CLUSTER: Access(),
    ApiKey.FIND_COORDINATOR: Access(),
    ApiKey.OFFSET_FETCH: Access(),
    ApiKey.INIT_PRODUCER_ID: Access(),
    ApiKey.CREATE_TOPICS: Access((Place.CONTROLLER,)),
    ApiKey.DELETE_TOPICS: Access((Place.CONTROLLER,)),
    ApiKey.CREATE_PARTITIONS: Access((Place.CONTROLLER,)),
    ApiKey.DESCRIBE_CONFIGS: Access((Place.NAMED_BROKER,)),
    ApiKey.ALTER_CONFIGS: Access((Place.NAMED_BROKER, Place.CONTROLLER)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Access((Place.NAMED_BROKER, Place.CONTROLLER)),
    ApiKey.LIST_CONFIG_RESOURCES: Access(),
}
"""The rows of the APIs that chapter 03 serves."""

Filter = Callable[[Call[Any], Handler], Answer]
"""A filter gets a call before the handler. It answers the call, forwards it to another node, or calls the handler."""


@dataclass
class Gate:
    """Guards a node's handlers: it checks the caller and the node's state, and forwards calls to other nodes."""

    is_node: Callable[[Call[Any]], bool]
    """Whether the caller is another node."""
    filters: Mapping[Place, Filter]
    """The filter for each place. A call for a place without a filter is answered by this node."""
    is_joined: bool = False
    """Whether this node follows the metadata of its cluster, so that other nodes can rely on it."""
    is_open: bool = False
    """Whether this node also serves clients."""

    def guard(self, row: Access, handler: Handler) -> Handler:
        """Wrap a handler in the checks and filters of its row."""
        for place in reversed(row.places):
            if place in self.filters:
                handler = _filtered(self.filters[place], handler)
        if row.caller is Caller.NODE:
            return self._for_nodes(row, handler)
        return handler if row.ready is Ready.ALWAYS else self._when_ready(row, handler)

    def _for_nodes(self, row: Access, handler: Handler) -> Handler:
        assert row.ready is Ready.ALWAYS, "a row for nodes must have Ready.ALWAYS"

        def answer(call: Call[Any]) -> Answer:
            if not self.is_node(call):
                raise Disconnect(f"{call.peer} sent {type(call.request).__name__}, which only other nodes may send")
            return handler(call)

        return answer

    def _when_ready(self, row: Access, handler: Handler) -> Handler:
        nodes_always = row.ready is Ready.NODES_ALWAYS

        def answer(call: Call[Any]) -> Answer:
            if not self.is_open and not ((self.is_joined or nodes_always) and self.is_node(call)):
                raise Disconnect("this node has not joined its cluster yet")
            return handler(call)

        return answer


def _filtered(around: Filter, inner: Handler) -> Handler:
    return lambda call: around(call, inner)
