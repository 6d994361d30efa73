"""A node: a machine, its membership in a cluster, its partitions, and further parts, started and stopped in order.

    start   port and lock → identify the directory → open the logs → serve nodes → join the cluster
            → follow the metadata → serve clients
    stop    hand over to other nodes → close the connections → stop the parts → flush and close the logs → unlock

Chapters 04 and 05 assemble their nodes from the same machine and the same partitions, with another `ClusterPort` and
more parts. No node is a subclass of another.
"""

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions import access
from minibroker.partitions.access import Access, Gate
from minibroker.partitions.cluster import Alone, ClusterPort
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Registry
from minibroker.partitions.server import Tracer
from minibroker.partitions.serving import Partitions
from minibroker.partitions.store import Store
from minibroker.wire.apis import ApiKey


class Part(Protocol):
    """A further subsystem of a node. It has handlers, and their rows of the access table."""

    @property
    def rows(self) -> Mapping[ApiKey, Access]:
        """The access table of its APIs."""

    def open(self) -> None:
        """Called when the data directory is open and there is an authority."""

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Add the handlers of the APIs in `rows`."""

    def start(self) -> None:
        """Called when the node has joined its cluster and follows the metadata."""

    async def stop(self) -> None:
        """Stop everything that uses the logs, before they are closed."""


class Node:
    """One node. The function that assembles it chooses its parts."""

    def __init__(
        self, machine: Machine, cluster: ClusterPort, partitions: Partitions, parts: Sequence[Part] = ()
    ) -> None:
        self.machine = machine
        self.cluster = cluster
        self.partitions = partitions
        self.parts = parts
        self.gate = Gate({}, is_login_demanded=machine.is_login_demanded)

    @property
    def address(self) -> str:
        """The advertised address of this node."""
        return self.machine.address

    async def start(self) -> None:
        """Return when clients are served. If a step fails, everything is released."""
        try:
            await self.machine.unless_failed(self._start())
        except BaseException:
            await self._end()
            self.machine.release()
            raise

    async def _start(self) -> None:
        machine, cluster = self.machine, self.cluster
        machine.bind_and_lock()
        identity = await cluster.identify()
        machine.open()
        cluster.open(identity)
        for part in self.parts:
            part.open()
        self.partitions.open()
        self._add_handlers()
        # From here on, other nodes can reach this node. Calls of clients are refused until the start is complete.
        await machine.listen()
        await cluster.join()
        await cluster.follow(self.partitions.store)
        self.gate.is_joined = True
        self.partitions.start()
        for part in self.parts:
            part.start()
        await cluster.announce()
        self.gate.is_open = True

    def _add_handlers(self) -> None:
        registry, cluster = self.machine.registry, self.cluster
        rows = {**access.ROWS, **cluster.rows}
        for part in self.parts:
            rows |= part.rows
        cluster.table = rows
        self.partitions.add_handlers(registry)
        cluster.add_handlers(registry, self.partitions.store)
        for part in self.parts:
            part.add_handlers(registry, self.partitions.store)
        self.gate.filters = cluster.filters(self.partitions.configurations.judge)
        registry.guard(lambda key, handler: self.gate.guard(rows[key], handler))

    async def watch(self) -> None:
        """Raise a `BrokerFailure` when the node cannot continue. Never returns otherwise."""
        await self.machine.watch()

    async def stop(self) -> None:
        """Stop each part before the parts that it uses. After a clean stop the next start need not check the logs."""
        await self.cluster.leave()
        await self.machine.server.stop()
        await self._end()
        await self.partitions.stop()
        await self.machine.close()

    async def _end(self) -> None:
        for part in reversed(self.parts):
            await part.stop()
        await self.machine.end_tasks()
        await self.cluster.stop()


def alone(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a broker of one node."""
    machine = Machine(config, tracer=tracer)
    cluster = Alone(machine)
    return Node(machine, cluster, Partitions(machine, cluster))


async def serve(node: Node, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run a node until SIGTERM or SIGINT. If the node cannot continue, raise `BrokerFailure`."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # A node may wait for other nodes during its start. A signal must stop it then, too.
    if not await _unless(stopped, node.start()):
        return
    # The objects of the metadata and of the logs live as long as the node. Without this call, each full garbage
    # collection would look at all of them, and stop the broker for a fifth of a second if there are 5,000 topics.
    gc.freeze()
    on_ready()
    try:
        await _unless(stopped, node.watch())
    finally:
        await node.stop()


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Await the work until it is done or `stopped` is set. Return whether the work is done."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.wait((working,))
    return False
