"""Connections to the other nodes, by their number.

A node answers the requests of a connection in order, and a fetch may wait there for half a second. So what must not
wait behind a fetch takes another line: each peer has one for every purpose. What clients ask, and is passed on, may
take as long as they like; it must not hold up what a node says to be alive.

Nodes say who they are in the client id of every request. It is a name that nobody gives a client by chance: what comes
under it is taken for a node's own word, and is not passed on.
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
    """The client id under which a node asks others."""
    return f"{_NAME_OF_NODES}{node_id}"


def node_of(client_id: str | None) -> int | None:
    """Which node asks under a client id; none if a client does."""
    found = _IS_A_NODE(client_id or "")
    return None if found is None else int(found[1])


class Peers:
    """The other nodes, as one node reaches them. `address_of` says where a node is at this moment."""

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
        """Ask a node, and wait for its answer; raises a `ClientError` if there is none in time."""
        client = await self._client(node_id, line)
        return await client.send(message, timeout_ms=timeout_ms, version_max=version_max)

    async def _client(self, node_id: int, line: Line) -> AsyncClient:
        address = self._address_of(node_id)
        if address is None:
            raise BrokerUnavailable(f"node {node_id} is not registered, so nobody knows where it is")
        known = self._clients.get((node_id, line))
        if known is not None and known[0] == address:
            return known[1]
        if self._is_closed:
            raise ClientClosed("this node is stopping")
        client = AsyncClient(address, client_id=self._client_id, connect_timeout_ms=CONNECT_MS_MAX)
        self._clients[node_id, line] = (address, client)
        # It came back somewhere else.
        if known is not None:
            await known[1].close()
        return client

    def hang_up(self, node_id: int, *lines: Line) -> None:
        """Wait no longer for what a node was asked on some lines: somebody else knows better by now."""
        for line in lines:
            known = self._clients.get((node_id, line))
            if known is not None:
                known[1].hang_up()

    async def close(self) -> None:
        """Close all connections, and open none any more."""
        self._is_closed = True
        clients, self._clients = self._clients, {}
        for _address, client in clients.values():
            await client.close()
