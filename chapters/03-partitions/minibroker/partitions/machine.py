"""The process of a node without its cluster: its ports, a locked directory, threads, handlers and a server.

A `Machine` knows no cluster and no partition. `Node` starts and stops it together with the other parts. These parts
use its directory, its registry and its table of waiting requests. They also hand it the tasks that must run as long as
the node does.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from minibroker.log.disk import OSFiles
from minibroker.log.errors import LogError, StorageError
from minibroker.log.interfaces import Files
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.listeners import Listener, SecurityProtocol, parse_address_counts
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.identity import OccupiedDirectory, lock
from minibroker.partitions.registry import Registry, Session
from minibroker.partitions.server import Connect, Limits, Server, Tracer
from minibroker.partitions.streams import stream_connection
from minibroker.partitions.waiting import Waiting
from minibroker.segments.directory import DataDirectory
from minibroker.wire.schema import Response

log = logging.getLogger(__name__)

_EVERY_ADDRESS = ("0.0.0.0", "::")
_OTHER_HANDLES = 64  # for the event loop, the lock, standard streams, other nodes, and flushes of directories
_HANDLES_MIN = 256
_DIRECTORY_CHECK_S = 0.25  # half of the heartbeat interval


class Machine:
    """The resources of one process, and the tasks without which the node cannot run."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        tracer: Tracer | None = None,
        files: Files | None = None,
        checkpoints: Sequence[str] = (),
        connect: Connect = stream_connection,
    ) -> None:
        """`files` replaces the operating system's disk. `checkpoints` names more checkpoint files.

        `connect` makes the protocol of a new connection.
        """
        if len(config.log_dirs) > 1:
            raise BrokerFailure(f"log.dirs names {len(config.log_dirs)} directories, but this broker supports only one")
        self.config = config
        self.path = config.log_dirs[0]
        self.waiting: Waiting[Response] = Waiting()
        self.registry = Registry()
        self.registry.elements_max = config.request_elements_max
        self.failure: BrokerFailure | None = None
        self.on_failure: list[Callable[[], None]] = []
        """Functions to call as soon as this node cannot continue."""
        self._tracer = tracer
        self._connect = connect
        self._disk = files or OSFiles()
        self._checkpoints = checkpoints
        self._cleanup = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = asyncio.Event()

    # In the order of a start ------------------------------------------------------------------------------------------

    def bind_and_lock(self) -> None:
        """Bind the ports and lock the directory first, so that a conflict ends the start. No client is served yet."""
        self._bound = {it.name: self._cleanup.enter_context(bind(it)) for it in self.config.listeners}
        self._ports: dict[str, int] = {name: bound.getsockname()[1] for name, bound in self._bound.items()}
        self._cleanup.callback(os.close, lock(self.path))
        self._directory = OccupiedDirectory(self.path)

    def open(self) -> None:
        """Open the data directory, after its identity was checked."""
        self.endpoints = [self._endpoint(it) for it in self.config.advertised_listeners]
        # One thread flushes and another compacts, because a long compaction must not delay a flush.
        self.threads = [
            concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("flush", "upkeep")
        ]
        files_max, connections_max = handles_of(self.config)
        if connections_max < self.config.max_connections:
            log.warning("ulimit -n allows %d connections and %d open files: raise it", connections_max, files_max)
        # A flush succeeds even if the directory is lost. Then the records must not be acknowledged, so check after each
        # flush.
        self.files = BoundedFiles(self._disk, handles_max=files_max, on_flushed=self._directory.check)
        self.data = DataDirectory(
            self.files,
            self.path,
            background=lambda work: _submit(self.threads[0], work),
            more_checkpoints=self._checkpoints,
        )

    async def listen(self) -> None:
        """Accept connections. The access table refuses calls that come too early."""
        self.server = Server(self.registry, self.waiting, limits_of(self.config), self._connect, tracer=self._tracer)
        # If the start fails later, the server must not accept a connection on a port that was released.
        self._cleanup.callback(self.server.close)
        for name, bound in self._bound.items():
            new_session = partial(Session, listener=name, needs_login=self._demands_login(name))
            await self.server.start(bound, new_session, backlog=self.config.socket_listen_backlog_size)
        self.begin(self._watch_directory())

    @property
    def is_login_demanded(self) -> bool:
        """Whether a listener of this node demands a login."""
        return any(self._demands_login(it.name) for it in self.config.listeners)

    def _demands_login(self, listener: str) -> bool:
        return self.config.security_protocol(listener) is SecurityProtocol.SASL_PLAINTEXT

    def port_of(self, listener: str) -> int:
        """The port of a listener, by its name."""
        return self._ports[listener]

    def endpoint(self, listener: str) -> Endpoint:
        """The advertised address of a listener, or of the first one if this one is not advertised."""
        return next((it for it in self.endpoints if it.name == listener), self.endpoints[0])

    @property
    def address(self) -> str:
        """The advertised address of this broker's first listener."""
        return str(Listener("", self.endpoints[0].host, self.endpoints[0].port)).removeprefix("://")

    def _endpoint(self, advertised: Listener) -> Endpoint:
        host, port = advertised.host or socket.getfqdn(), advertised.port or self._ports[advertised.name]
        if host in _EVERY_ADDRESS:
            raise BrokerFailure(
                f"clients cannot connect to {host}: set an address that they can reach, such as "
                f"--set advertised.listeners={advertised.name}://{socket.gethostname()}:{port}"
            )
        protocol = self.config.security_protocol(advertised.name)
        assert protocol is not None, "a listener without a protocol was refused"
        return Endpoint(advertised.name, host, port, protocol)

    # Configuration ----------------------------------------------------------------------------------------------------

    def effective_config(self, image: Image) -> NodeConfig:
        """The configuration with its dynamic changes. Logs an error if some of them are invalid on this broker."""
        try:
            return self.config.checked_dynamic(image.configs)
        except InvalidConfig as error:
            log.error("a dynamic configuration is invalid on this broker and is ignored: %s", error)
            return self.config.with_dynamic(image.configs)

    # Tasks ------------------------------------------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that must run as long as the node."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self.on_ended)

    def on_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a task of this node has ended. If the task failed, the node ends, too."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerFailure):
            self.fail(error)
        elif isinstance(error, StorageError | OSError):
            self.fail(BrokerFailure(f"node {self.config.node_id} ends, because its disk failed: {error}"))
        elif error is not None:
            log.error("a task that this node needs has ended because of a bug", exc_info=error)
            self.fail(BrokerFailure(f"node {self.config.node_id} ends because of a bug: {error!r}"))

    async def _watch_directory(self) -> None:
        """End the node soon after its data directory is lost.

        Writes to open files still succeed in a lost directory. So a leader would stay a leader, and acknowledge
        records that no restart can find (KIP-112).
        """
        while self._directory.loss() is None:
            await asyncio.sleep(_DIRECTORY_CHECK_S)
        raise self._directory_failure()

    def _directory_failure(self) -> BrokerFailure:
        return BrokerFailure(
            f"node {self.config.node_id} ends, because its data directory {self.path} {self._directory.loss()}. Nothing"
            " more is written or acknowledged: put the directory back, then start the node again"
        )

    def fail(self, failure: BrokerFailure) -> None:
        """End the node, and keep its first failure. If the directory is lost, report that as the cause instead."""
        if self.failure is None:
            self.failure = failure if self._directory.loss() is None else self._directory_failure()
        self._failed.set()
        for call in self.on_failure:
            call()

    async def watch(self) -> None:
        """Raise a `BrokerFailure` when the node cannot continue. Never returns otherwise."""
        await self._failed.wait()
        assert self.failure is not None
        raise self.failure

    async def unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that may wait for other nodes, but only until this node fails."""
        working, failed = asyncio.create_task(work), asyncio.create_task(self._failed.wait())
        try:
            await asyncio.wait((working, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, failed):
                if not task.done():
                    task.cancel()
                    await asyncio.wait((task,))
        error = None if working.cancelled() else working.exception()
        # A full disk makes both the work and the node fail. Raise the node's failure, because it says what to do.
        if self.failure is not None:
            raise self.failure
        if error is not None:
            raise error

    # In the order of a stop -------------------------------------------------------------------------------------------

    async def end_tasks(self) -> None:
        """Cancel the tasks of `begin`."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Flush and close the logs, so that the next start need not check them.

        If the disk has failed, the logs cannot be closed. That failure was reported before.
        """
        try:
            for thread in reversed(self.threads):
                await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            # If another directory has replaced this node's directory, nothing may be written to it.
            self._directory.check()
            self.data.close()
        except (LogError, OSError):
            if self.failure is None:
                raise
        finally:
            self.release()

    def release(self) -> None:
        """Release the port and the lock."""
        self._cleanup.close()


def bind(listener: Listener) -> socket.socket:
    """Bind the port. No client is served yet."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    # Nagle's algorithm would delay small answers. asyncio disables it only for a socket with an explicit protocol.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listener.host, listener.port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        hint = "is another broker running? Stop it, or choose another port with --listen, or --port of `minibroker up`"
        raise BrokerFailure(f"cannot listen on {listener.host}:{listener.port} ({error.strerror}): {hint}") from error
    return bound


def handles_of(config: NodeConfig) -> tuple[int, int]:
    """How many log files and how many connections may be open: as configured, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection in the backlog has a descriptor, too.
    others = _OTHER_HANDLES + config.socket_listen_backlog_size
    wanted = config.open_files_max + config.max_connections + others
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return config.open_files_max, config.max_connections
    if soft < _HANDLES_MIN:
        raise BrokerFailure(
            f"this process may open {soft} files and connections, and needs {_HANDLES_MIN}: raise ulimit -n"
        )
    # If there are too few handles for both, files get half of them.
    files_max = max(min(config.open_files_max, soft - others - config.max_connections), (soft - others) // 2)
    return files_max, min(config.max_connections, soft - others - files_max)


def limits_of(config: NodeConfig) -> Limits:
    """The limits of the server, from the configuration."""
    queued = config.queued_max_request_bytes
    return Limits(
        request_bytes_max=config.socket_request_max_bytes,
        queued_bytes_max=queued if queued > 0 else 2**63,
        connections_max=handles_of(config)[1],
        connections_per_ip_max=config.max_connections_per_ip,
        per_ip_overrides=parse_address_counts(config.max_connections_per_ip_overrides),
        idle_ms_max=config.connections_max_idle_ms if config.connections_max_idle_ms >= 0 else 2**63,
    )


def _submit(thread: concurrent.futures.Executor, work: Callable[[], None]) -> None:
    try:
        thread.submit(work)
    except RuntimeError:
        # The thread has ended, because the broker is stopping and closing its logs. Do the work here.
        work()
