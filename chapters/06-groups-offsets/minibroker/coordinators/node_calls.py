"""Requests of this node to any node, itself included.

A coordinator often leads the partitions of its transactions, too. Then its request is answered by this node's own
handler, without a connection.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from minibroker.client.errors import ClientError
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Call, Session
from minibroker.partitions.waiting import Wait
from minibroker.replicas.membership import Membership
from minibroker.replicas.peers import Line, client_id_of
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request, Response

log = logging.getLogger(__name__)

Done = Callable[[Any], None]
"""Called once with the response, or with None if there is none."""


class NodeCalls:
    """The requests of one node."""

    def __init__(
        self,
        machine: Machine,
        cluster: Membership,
        *,
        clock: Callable[[], int] = monotonic_ms,
        wall_clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._machine = machine
        self._cluster = cluster
        self._clock = clock
        self._wall_clock = wall_clock
        self._node_id = machine.config.node_id
        self._session = Session(f"node {self._node_id} itself", node_id=self._node_id)
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, node_id: int, request: Request, done: Done, *, line: Line, timeout_ms: int) -> None:
        """Send a request to a node in the newest version. `done` may be called before this function returns."""
        loop = asyncio.get_running_loop()
        if node_id == self._node_id:
            self._ask_self(request, done)
            # The request may have woken waits, such as the fetches of followers. The server settles them after
            # requests that it has received, but it has not received this one.
            loop.call_soon(self._machine.waiting.settle)
            return
        task = loop.create_task(self._ask(node_id, request, done, line, timeout_ms))
        self._asking.add(task)
        task.add_done_callback(self._on_ended)

    async def _ask(self, node_id: int, request: Request, done: Done, line: Line, timeout_ms: int) -> None:
        try:
            response = await self._cluster.peers.send(node_id, request, line=line, timeout_ms=timeout_ms)
        except ClientError as error:
            log.debug("no answer of node %d to %s: %s", node_id, type(request).__name__, error)
            response = None
        done(response)
        self._machine.waiting.settle()

    def _ask_self(self, request: Request, done: Done) -> None:
        key = request.schema.key
        assert key is not None
        version = APIS[key].max_version
        header = RequestHeader(key, version, 0, client_id_of(self._node_id))
        try:
            answer = self._machine.registry.answer(Call(request, version, header, self._wall_clock(), self._session))
        except Disconnect as error:
            log.debug("this node does not answer %s: %s", ApiKey(key).name, error)
            done(None)
            return
        if isinstance(answer, Wait):
            self._machine.waiting.park(answer, done, now_ms=self._clock(), fail=lambda error: self._fail(error, done))
        else:
            assert isinstance(answer, Response)
            done(answer)

    def _fail(self, error: Exception, done: Done) -> None:
        if not isinstance(error, Disconnect):
            raise error
        done(None)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._machine.on_ended(task)

    async def stop(self) -> None:
        """Cancel the requests that are under way."""
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
