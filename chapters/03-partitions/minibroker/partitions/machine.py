"""What a node is made of before it belongs to any cluster: a port, a locked directory, threads, handlers, a server.

A `Machine` knows no cluster and no partition. `Node` starts and stops it in order together with the other parts; those
parts use its directory, its registry and its table of waiting answers, and give it the tasks that must not end.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from minibroker.log.disk import OSFiles
from minibroker.log.errors import LogError, StorageError
from minibroker.log.interfaces import Files
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.listeners import Listener
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.identity import lock
from minibroker.partitions.registry import Registry
from minibroker.partitions.server import Limits, Server, Tracer
from minibroker.partitions.waiting import Waiting
from minibroker.segments.directory import DataDirectory
from minibroker.wire.schema import Response

log = logging.getLogger(__name__)

_EVERY_ADDRESS = ("0.0.0.0", "::")
_OTHER_HANDLES = 64  # the loop, the lock, standard streams, other nodes, directories that are being flushed
_HANDLES_MIN = 256


class Machine:
    """One process: what it has, and the tasks that it cannot do without."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        tracer: Tracer | None = None,
        files: Files | None = None,
        checkpoints: Sequence[str] = (),
    ) -> None:
        """`files` is the disk, unless it is the operating system's; `checkpoints` name more files of offsets."""
        if len(config.log_dirs) > 1:
            raise BrokerFailure(f"{len(config.log_dirs)} data directories are set in log.dirs, this broker takes one")
        self.config = config
        self.path = config.log_dirs[0]
        self.waiting: Waiting[Response] = Waiting()
        self.registry = Registry()
        self.failure: BrokerFailure | None = None
        self.on_failure: list[Callable[[], None]] = []
        """Called as soon as this node cannot go on."""
        self._tracer = tracer
        self._disk = files or OSFiles()
        self._checkpoints = checkpoints
        self._cleanup = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = asyncio.Event()

    # In the order of a start ------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the port and the directory. No client is served yet, but whether both are free is known at once."""
        listener = only_listener(self.config)
        self._bound = self._cleanup.enter_context(bind(listener))
        self.port: int = self._bound.getsockname()[1]
        self._cleanup.callback(os.close, lock(self.path))

    def open(self) -> None:
        """Open the data directory, once it is known to be this node's."""
        self.endpoint = self._endpoint()
        # One thread flushes, another one compacts: a long compaction must not hold up a flush.
        self.threads = [
            concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("flush", "upkeep")
        ]
        files_max, connections_max = handles_of(self.config)
        if connections_max < self.config.max_connections:
            log.warning("at most %d connections and %d open files: see ulimit -n", connections_max, files_max)
        self.files = BoundedFiles(self._disk, handles_max=files_max)
        self.data = DataDirectory(
            self.files,
            self.path,
            background=lambda work: _submit(self.threads[0], work),
            more_checkpoints=self._checkpoints,
        )

    async def listen(self) -> None:
        """Serve. What is not to be answered yet, the access table refuses."""
        self.server = Server(self.registry, self.waiting, limits_of(self.config), tracer=self._tracer)
        await self.server.start(self._bound, backlog=self.config.socket_listen_backlog_size)

    @property
    def address(self) -> str:
        """Where clients are told to find this broker."""
        return str(Listener("", self.endpoint.host, self.endpoint.port)).removeprefix("://")

    def _endpoint(self) -> Endpoint:
        advertised = self.config.advertised_listeners[0]
        host = advertised.host or socket.getfqdn()
        if host in _EVERY_ADDRESS:
            raise BrokerFailure(
                f"clients cannot connect to {host}: say where they find this broker, such as "
                f"--set advertised.listeners=PLAINTEXT://{socket.gethostname()}:{self.port}"
            )
        return Endpoint(advertised.name, host, self.port if advertised.port == 0 else advertised.port)

    # Configuration ----------------------------------------------------------------------------------------------------

    def holding(self, image: Image) -> NodeConfig:
        """What holds now, with what was changed while brokers ran; says if not all of that can be taken."""
        try:
            return self.config.checked_dynamic(image.configs)
        except InvalidConfig as error:
            log.error("what was configured while brokers ran is not taken here: %s", error)
            return self.config.with_dynamic(image.configs)

    # Tasks ------------------------------------------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something that must not end while the node runs."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self.on_ended)

    def on_ended(self, task: asyncio.Task[None]) -> None:
        """A task of this node is over. If it was not cancelled, the node is not whole any more, and ends."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerFailure):
            self.fail(error)
        elif isinstance(error, StorageError | OSError):
            self.fail(BrokerFailure(f"node {self.config.node_id} ends, because its disk failed: {error}"))
        elif error is not None:
            log.error("something that this node needs has ended, because of a bug", exc_info=error)
            self.fail(BrokerFailure(f"node {self.config.node_id} ends because of a bug: {error!r}"))

    def fail(self, failure: BrokerFailure) -> None:
        """This node cannot go on: the first reason counts."""
        self.failure = self.failure or failure
        self._failed.set()
        for tell in self.on_failure:
            tell()

    async def watch(self) -> None:
        """Raise a `BrokerFailure` when the node cannot go on; otherwise never return."""
        await self._failed.wait()
        assert self.failure is not None
        raise self.failure

    async def unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that may wait for others; but not for ever, if this node cannot go on."""
        working, failed = asyncio.create_task(work), asyncio.create_task(self._failed.wait())
        try:
            await asyncio.wait((working, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, failed):
                if not task.done():
                    task.cancel()
                    await asyncio.wait((task,))
        if not working.cancelled():
            working.result()
        elif self.failure is not None:
            raise self.failure

    # In the order of a stop -------------------------------------------------------------------------------------------

    async def end_tasks(self) -> None:
        """End what `begin` began."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Flush and close the logs: the next start has nothing to check.

        A node whose disk has failed has said why it ends, and cannot close its logs.
        """
        try:
            for thread in reversed(self.threads):
                await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            self.data.close()
        except (LogError, OSError):
            if self.failure is None:
                raise
        finally:
            self.release()

    def release(self) -> None:
        """Give back the port and the directory."""
        self._cleanup.close()


def only_listener(config: NodeConfig) -> Listener:
    """The one place where a broker listens."""
    if len(config.listeners) > 1:
        raise BrokerFailure(f"{len(config.listeners)} listeners are set, this broker takes one")
    return config.listeners[0]


def bind(listener: Listener) -> socket.socket:
    """Take the port; no client is served yet."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    # With its protocol named, asyncio switches Nagle's algorithm off: an answer must not wait for the next.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listener.host, listener.port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        hint = (
            "is another broker running? Stop it, or give this one another port: --listen, or --port of `minibroker up`"
        )
        raise BrokerFailure(f"cannot listen on {listener.host}:{listener.port} ({error.strerror}): {hint}") from error
    return bound


def handles_of(config: NodeConfig) -> tuple[int, int]:
    """How many files of logs may be open, and how many connections: as configured, if the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection that waits to be refused has a handle, too.
    others = _OTHER_HANDLES + config.socket_listen_backlog_size
    wanted = config.open_files_max + config.max_connections + others
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return config.open_files_max, config.max_connections
    if soft < _HANDLES_MIN:
        raise BrokerFailure(
            f"this process may open {soft} files and connections, it needs {_HANDLES_MIN}: see ulimit -n"
        )
    # Where there is not enough for both, half is for files.
    files_max = max(min(config.open_files_max, soft - others - config.max_connections), (soft - others) // 2)
    return files_max, min(config.max_connections, soft - others - files_max)


def limits_of(config: NodeConfig) -> Limits:
    """What clients may ask of the server."""
    queued = config.queued_max_request_bytes
    return Limits(
        request_bytes_max=config.socket_request_max_bytes,
        queued_bytes_max=queued if queued > 0 else 2**63,
        connections_max=handles_of(config)[1],
        connections_per_ip_max=config.max_connections_per_ip,
        idle_ms_max=config.connections_max_idle_ms if config.connections_max_idle_ms >= 0 else 2**63,
    )


def _submit(thread: concurrent.futures.Executor, work: Callable[[], None]) -> None:
    try:
        thread.submit(work)
    except RuntimeError:
        # The thread has ended with the broker: what is left is done at once, while the logs are closed.
        work()
