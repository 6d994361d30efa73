"""Connections to the other nodes, by node id.

A node answers the requests of a connection in order, and a fetch may wait there for half a second. So each peer has one
connection for each purpose, a *line*: requests on another line do not wait for the fetch. A forwarded request of a
client may take long, and must not delay the heartbeats of a node.

Nodes name themselves in the client id of every request, with a name that no client has by chance. A request with such a
name comes from a node, so it is answered here and not forwarded again.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from minibroker.client.addresses import Address
from minibroker.client.aio import AsyncClient
from minibroker.client.errors import BrokerUnavailable, ClientClosed
from minibroker.wire.schema import Request

Line = Literal["fetch", "metadata", "quorum", "control", "clients"]

CONNECT_MS_MAX = 2000
_NAME_OF_NODES = "__minibroker-node-"
_IS_A_NODE = re.compile(f"{_NAME_OF_NODES}(0|[1-9][0-9]{{0,9}})").fullmatch


def client_id_of(node_id: int) -> str:
    """The client id of a node's requests to other nodes."""
    return f"{_NAME_OF_NODES}{node_id}"


def node_of(client_id: str | None) -> int | None:
    """The node that has this client id; None for a client."""
    found = _IS_A_NODE(client_id or "")
    return None if found is None else int(found[1])


class Peers:
    """A node's connections to the other nodes. `address_of` returns the current address of a node."""

    def __init__(self, address_of: Callable[[int], Address | None], *, client_id: str) -> None:
        self._address_of = address_of
        self._client_id = client_id
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
        client = await self._client(node_id, line)
        return await client.send(message, timeout_ms=timeout_ms, version_max=version_max)

    async def _client(self, node_id: int, line: Line) -> AsyncClient:
        address = self._address_of(node_id)
        if address is None:
            raise BrokerUnavailable(f"node {node_id} is not registered, so its address is unknown")
        known = self._clients.get((node_id, line))
        if known is not None and known[0] == address:
            return known[1]
        if self._is_closed:
            raise ClientClosed("this node is stopping")
        client = AsyncClient(address, client_id=self._client_id, connect_timeout_ms=CONNECT_MS_MAX)
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
