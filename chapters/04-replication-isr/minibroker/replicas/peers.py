"""Connections to the other nodes, by node id.

A node answers the requests of a connection in order, and a fetch may wait there for half a second. So each peer has one
connection for each purpose, a *line*: requests on another line do not wait for the fetch. A forwarded request of a
client may take long, and must not delay the heartbeats of a node.

Each connection logs in first (`login`), so that the other node knows who asks. If the login is refused, the secrets of
the two nodes differ. That needs an operator, so the next attempt waits a second. The client id names the node only for
traces: a client id proves nothing.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

from minibroker.client.addresses import Address
from minibroker.client.aio import AsyncClient
from minibroker.client.connection import Authenticator
from minibroker.client.errors import BrokerUnavailable, ClientClosed, LoginFailed
from minibroker.log.clock import monotonic_ms
from minibroker.wire.schema import Request

Line = Literal["fetch", "metadata", "quorum", "control", "clients", "markers", "verification"]

log = logging.getLogger(__name__)

CONNECT_MS_MAX = 2000
_REFUSED_MS = 1000


def client_id_of(node_id: int) -> str:
    """The client id of a node's requests to other nodes."""
    return f"__minibroker-node-{node_id}"


class Peers:
    """The connections of the node `node_id` to the other nodes. `address_of` returns a node's current address."""

    def __init__(
        self,
        address_of: Callable[[int, Line], Address | None],
        *,
        node_id: int,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._address_of = address_of
        self._node_id = node_id
        self._authenticator = authenticator
        self._refused_until_ms: dict[int, int] = {}
        """The nodes that have refused a login of this node, and the time of the next attempt."""
        self._clients: dict[tuple[int, Line], tuple[Address, AsyncClient]] = {}
        self._is_closed = False

    async def send(
        self,
        node_id: int,
        message: Request,
        *,
        line: Line = "control",
        timeout_ms: int,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to a node and return its response; raises a `ClientError` if no response comes in time."""
        if monotonic_ms() < self._refused_until_ms.get(node_id, 0):
            raise LoginFailed(f"node {node_id} has refused the login of this node, and is asked again in a second")
        client = await self._client(node_id, line)
        try:
            response = await client.send(message, timeout_ms=timeout_ms, version_max=version_max)
        except LoginFailed as error:
            raise self._on_refused(node_id, error) from error
        self._refused_until_ms.pop(node_id, None)
        return response

    def _on_refused(self, node_id: int, error: LoginFailed) -> LoginFailed:
        line = f"node {self._node_id} could not log in at node {node_id}: {error}"
        if node_id not in self._refused_until_ms:
            log.warning("%s", line)
        self._refused_until_ms[node_id] = monotonic_ms() + _REFUSED_MS
        return LoginFailed(line)

    async def _client(self, node_id: int, line: Line) -> AsyncClient:
        address = self._address_of(node_id, line)
        if address is None:
            raise BrokerUnavailable(f"node {node_id} is not registered, so its address is unknown")
        known = self._clients.get((node_id, line))
        if known is not None and known[0] == address:
            return known[1]
        if self._is_closed:
            raise ClientClosed("this node is stopping")
        client = AsyncClient(
            address,
            client_id=client_id_of(self._node_id),
            connect_timeout_ms=CONNECT_MS_MAX,
            authenticator=self._authenticator,
        )
        self._clients[node_id, line] = (address, client)
        # A connection to another address is outdated: the node has restarted at a new address.
        if known is not None:
            await known[1].close()
        return client

    def hang_up(self, node_id: int, *lines: Line) -> None:
        """Cancel the requests to a node that are under way on some lines; their callers get a `ClientError`."""
        for line in lines:
            known = self._clients.get((node_id, line))
            if known is not None:
                known[1].hang_up()

    async def close(self) -> None:
        """Close all connections for good."""
        self._is_closed = True
        clients, self._clients = self._clients, {}
        for _address, client in clients.values():
            await client.close()
