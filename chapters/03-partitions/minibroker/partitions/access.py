"""The access table: which callers may use each API, which node answers it, and when. A pure module.

One row per API key. Every package declares the rows of the APIs that it serves, and `Gate` puts the checks and filters
of the row before each handler:

    call ──▶ node ready? ──▶ caller allowed? ──▶ places, in order ──▶ handler
                 │                  │                 └ forwarded to the node that must answer
                 │                  └──▶ CLUSTER_AUTHORIZATION_FAILED
                 └──▶ the connection is closed

A caller is a node if its connection has proved it, by a login (chapter 04). A request that acts for a node, such as a
follower's fetch, is accepted only from that node. Otherwise any client could confirm records that no follower has.

Chapter 03's node is alone, so it answers everything itself. Chapters 04 and 05 add filters that forward a call to the
node that must answer it. Access control lists would be one more column.
"""

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minibroker.partitions.errors import Disconnect
from minibroker.partitions.rare_warning import RareWarning
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

log = logging.getLogger(__name__)


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


def _with_code(call: Call[Any]) -> Response:
    """The refusal of most APIs: a code for the whole request."""
    return APIS[call.header.api_key].response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def close_connection(call: Call[Any]) -> Response:
    """The refusal of an API whose response has no code for the whole request."""
    raise Disconnect(f"{call.session.peer} sent {type(call.request).__name__}, which only other nodes may send")


class Access(NamedTuple):
    """One row of the table."""

    places: tuple[Place, ...] = (Place.HERE,)
    """Where the call is answered. With two places, the filters of both see the call, in this order."""
    caller: Caller = Caller.ANYONE
    ready: Ready = Ready.WHEN_READY
    is_before_login: bool = False
    """Whether a caller may use the API before it has logged in, on a listener that demands a login."""
    is_read: bool = False
    """Whether the call only reads from the controller. Such a call may be retried."""
    acts_for: Callable[[Any], int | None] | None = None
    """Finds the node for which a request acts, or None if it acts for no node. Only that node may send the request."""
    refuse: Callable[[Call[Any]], Response] = _with_code
    """Makes the answer to a caller that may not send the request."""


def follower_of(request: FetchRequest) -> int | None:
    """The follower that fetches, or None for a consumer.

    Its id is in `replica_id` before version 15, and in `replica_state` from then on. The field that is not used is -1.
    """
    replica_id = max(request.replica_id, request.replica_state.replica_id)
    return replica_id if replica_id >= 0 else None


def _refused_fetch(call: Call[FetchRequest]) -> Response:
    """Old versions of Fetch have no code for the whole request, so each partition gets the code."""
    topics = [
        FetchableTopicResponse(
            topic=it.topic, topic_id=it.topic_id, partitions=list(map(_refused_partition, it.partitions))
        )
        for it in call.request.topics
    ]
    return FetchResponse(responses=topics)


def _refused_partition(wanted: FetchPartition) -> PartitionData:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    index = wanted.partition
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None, records=b""
    )


ROWS: Mapping[ApiKey, Access] = {
    ApiKey.PRODUCE: Access((Place.LEADER,)),
    # Other nodes may always fetch, because a voter fetches the metadata log before it is ready for anything else.
    ApiKey.FETCH: Access((Place.LEADER,), ready=Ready.NODES_ALWAYS, acts_for=follower_of, refuse=_refused_fetch),
    ApiKey.LIST_OFFSETS: Access((Place.LEADER,)),
    ApiKey.DELETE_RECORDS: Access((Place.LEADER,)),
    ApiKey.API_VERSIONS: Access(ready=Ready.NODES_ALWAYS, is_before_login=True),
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

    filters: Mapping[Place, Filter]
    """The filter for each place. A call for a place without a filter is answered by this node."""
    is_login_demanded: bool = False
    """Whether a listener of this node demands a login."""
    is_joined: bool = False
    """Whether this node follows the metadata of its cluster, so that other nodes can rely on it."""
    is_open: bool = False
    """Whether this node also serves clients."""
    _warning: RareWarning = field(default_factory=lambda: RareWarning(log), init=False)

    def guard(self, row: Access, handler: Handler) -> Handler:
        """Wrap a handler in the checks and filters of its row."""
        for place in reversed(row.places):
            if place in self.filters:
                handler = _filtered(self.filters[place], handler)
        if row.caller is Caller.NODE or row.acts_for is not None:
            handler = self._if_allowed(row, handler)
        if row.ready is not Ready.ALWAYS:
            handler = self._when_ready(row, handler)
        return _after_login(handler) if self.is_login_demanded and not row.is_before_login else handler

    def _if_allowed(self, row: Access, handler: Handler) -> Handler:
        acts_for, is_for_nodes = row.acts_for, row.caller is Caller.NODE

        def answer(call: Call[Any]) -> Answer:
            acting = None if acts_for is None else acts_for(call.request)
            proved = call.session.node_id
            if (acting is None or acting == proved) and (proved is not None or not is_for_nodes):
                return handler(call)
            what = type(call.request).__name__ + ("" if acting is None else f" as node {acting}")
            who = "not logged in as a node" if proved is None else f"logged in as node {proved}"
            self._warning.say(call.now_ms, f"refused: {call.session.peer} sent {what}, but is {who}")
            return row.refuse(call)

        return answer

    def _when_ready(self, row: Access, handler: Handler) -> Handler:
        nodes_always = row.ready is Ready.NODES_ALWAYS

        def answer(call: Call[Any]) -> Answer:
            if not self.is_open and not ((self.is_joined or nodes_always) and call.session.node_id is not None):
                raise Disconnect("this node has not joined its cluster yet")
            return handler(call)

        return answer


def _after_login(handler: Handler) -> Handler:
    def answer(call: Call[Any]) -> Answer:
        if call.session.needs_login:
            raise Disconnect(
                f"{type(call.request).__name__} came before a login, which the listener {call.session.listener} demands"
            )
        return handler(call)

    return answer


def _filtered(around: Filter, inner: Handler) -> Handler:
    return lambda call: around(call, inner)
