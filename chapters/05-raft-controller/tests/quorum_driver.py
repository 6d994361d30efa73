"""A node of the quorum with its driver, for tests: the state machine is on a disk in memory, connections are real."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raft_nodes import DIRECTORY, QuorumNode, voters

from minibroker.client.addresses import Address
from minibroker.controller.deciding import Controller
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call, Session
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.quorum.answering import QuorumHandlers
from minibroker.quorum.running import Quorum
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.state import RaftSettings
from minibroker.replicas.peers import Peers
from minibroker.wire.apis import APIS
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request, Response

CLUSTER = "here"
SECONDS_MAX = 20
# No timeout passes in a test.
NO_TIMEOUTS = RaftSettings(election_timeout_ms=10**7, fetch_timeout_ms=10**7)

M = TypeVar("M", bound=Request)


class Driven:
    """Node 1 of the given voters. As the only voter it leads at once."""

    def __init__(self, *node_ids: int, addresses: dict[int, Address] | None = None) -> None:
        self.node = QuorumNode(1, voters(*node_ids), chance=lambda _below: 0, settings=NO_TIMEOUTS)
        self.raft = self.node.open(monotonic_ms())
        self.waiting: Waiting[Response] = Waiting()
        self.peers = Peers(lambda node_id, _line: (addresses or {}).get(node_id), node_id=1)
        self.tasks: list[asyncio.Task[None]] = []
        self.quorum = Quorum(
            self.raft,
            Controller(self.raft, Image(cluster_id=CLUSTER), clock=lambda: 7),
            self.peers,
            self.waiting,
            cluster_id=CLUSTER,
            begin=self._begin,
            snapshots=SnapshotFiles(self.node.files, DIRECTORY),
        )
        self.handlers = QuorumHandlers(self.quorum)
        self.quorum.step(self.raft.tick(monotonic_ms()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self.peers.close()

    def park(self, answer: Answer) -> list[Response]:
        """Let a response wait; it is in the list once it is there."""
        assert isinstance(answer, Wait)
        found: list[Response] = []
        self.waiting.park(answer, found.append, now_ms=0)
        return found


@asynccontextmanager
async def driven(*node_ids: int, addresses: dict[int, Address] | None = None) -> AsyncIterator[Driven]:
    """A driver that is stopped at the end."""
    it = Driven(*node_ids, addresses=addresses)
    try:
        yield it
    finally:
        await it.close()


def call(request: M) -> Call[M]:
    """A request as it arrives from another node."""
    schema = type(request).schema
    assert schema.key is not None
    version = APIS[schema.key].max_version
    return Call(
        request, version, RequestHeader(schema.key, version, 0, "test"), monotonic_ms(), Session("test", node_id=2)
    )


@dataclass
class Listener:
    """A listener in place of a node: it accepts every connection, and then closes it or sends nothing."""

    closes: bool
    address: Address
    came_s: list[float] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def on_came(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came_s.append(asyncio.get_running_loop().time())
        self.writers.append(writer)
        if self.closes:
            writer.close()


@asynccontextmanager
async def listener(*, closes: bool) -> AsyncIterator[Listener]:
    it = Listener(closes, Address("127.0.0.1", 0))
    server = await asyncio.start_server(it.on_came, it.address.host, it.address.port)
    it.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield it
    finally:
        server.close()
        for writer in it.writers:
            writer.close()


async def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + SECONDS_MAX
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {SECONDS_MAX} s: {what}"
        await asyncio.sleep(0.005)
