"""The one-node broker, assembled: a data directory, its metadata, its partitions, the handlers, the server.

    Node(config).start()   lock the directory → read the metadata log → open the partitions → serve
    Node.stop()            serve no more → end the upkeep → flush and close the logs → unlock

A node of a cluster is made of the same parts, and does some of the steps in another way: chapter 04 overrides them.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import Files
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Authority, Voter
from minibroker.metadata.commands import RegisterBroker
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.listeners import Listener
from minibroker.metadata.placement import Placing, place
from minibroker.partitions.administration import Administration
from minibroker.partitions.configs import Configurations
from minibroker.partitions.describe import Describe, api_versions
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.identity import Identity, identify, lock, new_id_bytes
from minibroker.partitions.list_offsets import ListOffsets
from minibroker.partitions.logs import DeleteRecords
from minibroker.partitions.produce import Produce
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Registry
from minibroker.partitions.server import Limits, Server, Tracer
from minibroker.partitions.store import METADATA, Store
from minibroker.partitions.upkeep import Schedule, Upkeep
from minibroker.partitions.waiting import Waiting
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

log = logging.getLogger(__name__)


_EVERY_ADDRESS = ("0.0.0.0", "::")
_OTHER_HANDLES = 64  # the loop, the lock, standard streams, other nodes, directories that are being flushed
_HANDLES_MIN = 256


class Deciding(Authority, Protocol):
    """An authority that also knows what is gone."""

    def removed_topics(self) -> Collection[bytes]:
        """The topics of which the metadata say that they were deleted. To be asked once, at the start."""


class Node:
    """One broker with all roles."""

    def __init__(self, config: NodeConfig, *, tracer: Tracer | None = None) -> None:
        self._config = config
        self._tracer = tracer
        self._cleanup = contextlib.ExitStack()
        self.waiting: Waiting[Response] = Waiting()
        self.registry = Registry()
        self.address = ""

    async def start(self) -> None:
        """Do everything until clients can be served. If anything fails, nothing is left behind."""
        try:
            await self._start()
        except BaseException:
            self._cleanup.close()
            raise

    async def _start(self) -> None:
        # The port first: whether it is free is known at once. Nobody is served before `Server.start`.
        listener = only_listener(self._config)
        bound = self._cleanup.enter_context(bind(listener))
        path = self._config.log_dirs[0]
        self._cleanup.callback(os.close, lock(path))
        identity = await self.identify(path)
        self._open(path)
        await self.join(identity, self._endpoint(bound.getsockname()[1]))
        self.store = self.make_store()
        self.store.start(self.authority.image, removed_topics=self.authority.removed_topics)
        self.authority.subscribe(self.store.follow)
        self.authority.subscribe(self._reconfigure)
        self.add_handlers()
        config = self._holding(self.authority.image)
        self.server = Server(self.registry, self.waiting, limits_of(config), tracer=self._tracer)
        self.upkeep = Upkeep(self.store, self.data, self.files, schedule_of(config), self._threads[1])
        self.upkeep.start()
        await self.server.start(bound, backlog=self._config.socket_listen_backlog_size)

    def _open(self, path: str) -> None:
        """Open the data directory."""
        # One thread flushes, another one compacts: a long compaction must not hold up a flush.
        self._threads = [
            concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("flush", "upkeep")
        ]
        files_max, connections_max = handles_of(self._config)
        if connections_max < self._config.max_connections:
            log.warning("at most %d connections and %d open files: see ulimit -n", connections_max, files_max)
        self.files = BoundedFiles(self.make_files(), handles_max=files_max)
        self.data = DataDirectory(
            self.files,
            path,
            background=lambda work: _submit(self._threads[0], work),
            more_checkpoints=self.more_checkpoints,
        )

    # What a node of a cluster does in another way ---------------------------------------------------------------------

    more_checkpoints: Sequence[str] = ()

    def make_files(self) -> Files:
        """The disk."""
        return OSFiles()

    async def identify(self, path: str) -> Identity:
        """Whose directory this is; one that is nobody's becomes this node's."""
        return identify(path, self._config.node_id)

    async def join(self, identity: Identity, endpoint: Endpoint) -> None:
        """Open the metadata log, be its only voter, and say in it where this broker is to be found."""
        metadata_log = self.open_metadata_log()
        self.authority: Deciding = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)
        registration = RegisterBroker(
            broker_id=self._config.node_id,
            incarnation_id=new_id_bytes(),
            endpoints=(endpoint,),
            rack=self._config.broker_rack,
        )
        result = self.authority.propose(registration).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {self._config.node_id} could not be registered: {result.message}")

    def open_metadata_log(self) -> SegmentedLog:
        """Open the log of all metadata. One that is empty knows none of the partitions that may be here."""
        metadata_log = self.data.open_log(METADATA, METADATA_LOG_CONFIG)
        self.check_metadata_log(metadata_log)
        return metadata_log

    def check_metadata_log(self, metadata_log: SegmentedLog) -> None:
        """Demand that the log of all metadata is there, where there are partitions."""
        orphans = [name.directory for name in self.data.partitions() if name != METADATA]
        if metadata_log.log_end_offset == 0 and orphans:
            raise BrokerFailure(
                f"{self._config.log_dirs[0]} has {len(orphans)} partitions, such as {orphans[0]}, but no metadata that "
                f"knows them: restore {METADATA.directory} from a copy, or move the whole directory away to begin anew"
            )

    def make_store(self) -> Store:
        """The partitions of this node: each has one replica."""
        return Store(
            self.data,
            self.files,
            node_id=self._config.node_id,
            topic_config=self._topic_config,
            wake=self.waiting.wake,
        )

    def placing(self) -> Placing:
        """How the brokers of a new partition are chosen."""
        return place

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics because somebody asked for them; return why some are not there yet."""
        return administration.create_on_demand(names)

    async def watch(self) -> None:
        """Raise a `BrokerFailure` if the node cannot go on; otherwise never return."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """End what needs the logs, before they are closed."""

    def _topic_config(self, image: Image, topic: str) -> TopicConfig:
        return TopicConfig.of(image.configs, topic, self._config.with_dynamic(image.configs))

    def _reconfigure(self, old: Image, new: Image) -> None:
        """Follow what can be changed while the broker runs."""
        if new.configs is not old.configs:
            config = self._holding(new)
            self.server.limits = limits_of(config)
            self.upkeep.schedule = schedule_of(config)

    def _holding(self, image: Image) -> NodeConfig:
        """What holds now; says if not all that was changed can be taken."""
        try:
            return self._config.checked_dynamic(image.configs)
        except InvalidConfig as error:
            log.error("what was configured while brokers ran is not taken here: %s", error)
            return self._config.with_dynamic(image.configs)

    def _endpoint(self, port: int) -> Endpoint:
        """Where clients are told to find this broker."""
        advertised = self._config.advertised_listeners[0]
        host = advertised.host or socket.getfqdn()
        if host in _EVERY_ADDRESS:
            raise BrokerFailure(
                f"clients cannot connect to {host}: say where they find this broker, such as "
                f"--set advertised.listeners=PLAINTEXT://{socket.gethostname()}:{port}"
            )
        port = port if advertised.port == 0 else advertised.port
        self.address = str(Listener("", host, port)).removeprefix("://")
        return Endpoint(advertised.name, host, port)

    def add_handlers(self) -> None:
        """Give every API that this node serves its handler."""
        add, store, authority = self.registry.add, self.store, self.authority
        # Some clients conclude from Produce 0 that a broker knows compression; nobody sends it any more.
        add(ApiKey.PRODUCE, Produce(store), advertised_from=0)
        add(ApiKey.FETCH, Fetch(store, bytes_max=self._config.fetch_max_bytes, clock=monotonic_ms))
        add(ApiKey.LIST_OFFSETS, ListOffsets(store))
        add(ApiKey.API_VERSIONS, api_versions(self.registry))
        add(ApiKey.INIT_PRODUCER_ID, InitProducerId(authority, self._config.node_id))
        add(ApiKey.DELETE_RECORDS, DeleteRecords(store))
        administration = Administration(authority, self._config, new_topic_id=new_id_bytes, placing=self.placing())
        add(ApiKey.CREATE_TOPICS, administration.create_topics)
        add(ApiKey.DELETE_TOPICS, administration.delete_topics)
        add(ApiKey.CREATE_PARTITIONS, administration.create_partitions)
        self.configurations = configurations = Configurations(authority, self._config)
        add(ApiKey.DESCRIBE_CONFIGS, configurations.describe)
        add(ApiKey.ALTER_CONFIGS, configurations.alter)
        add(ApiKey.INCREMENTAL_ALTER_CONFIGS, configurations.alter_incrementally)
        describe = Describe(
            authority,
            create=lambda names: self.create_on_demand(administration, names),
            is_auto_creating=lambda: self._config.auto_create_topics_enable,
        )
        add(ApiKey.METADATA, describe.metadata)
        add(ApiKey.FIND_COORDINATOR, describe.coordinator)
        add(ApiKey.DESCRIBE_CLUSTER, describe.cluster)

    async def stop(self) -> None:
        """Stop in the order in which things depend on each other; the next start has nothing to check."""
        await self.server.stop()
        await self.leave()
        await self.upkeep.stop()
        for thread in reversed(self._threads):
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
        self.data.close()
        self._cleanup.close()


def only_listener(config: NodeConfig) -> Listener:
    """The one place where a broker listens."""
    if len(config.listeners) > 1:
        raise BrokerFailure(f"{len(config.listeners)} listeners are set, this broker takes one")
    if len(config.log_dirs) > 1:
        raise BrokerFailure(f"{len(config.log_dirs)} data directories are set in log.dirs, this broker takes one")
    return config.listeners[0]


def bind(listener: Listener) -> socket.socket:
    """Take the port; nobody is served yet."""
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
    # Those who wait to be refused have a handle, too.
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


def _submit(thread: concurrent.futures.Executor, work: Callable[[], None]) -> None:
    try:
        thread.submit(work)
    except RuntimeError:
        # The thread has ended with the broker: what is left is done at once, while the logs are closed.
        work()


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


def schedule_of(config: NodeConfig) -> Schedule:
    """How often what is done."""
    return Schedule(
        initial_delay_ms=config.log_initial_task_delay_ms,
        retention_ms=config.log_retention_check_interval_ms,
        compaction_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        is_compacting=config.log_cleaner_enable,
        producer_expiration_ms=config.producer_id_expiration_ms,
        scrub_ms=config.scrub_interval_ms,
    )


async def serve(
    config: NodeConfig,
    *,
    tracer: Tracer | None = None,
    on_ready: Callable[[Node], None] = lambda _node: None,
    kind: type[Node] = Node,
) -> None:
    """Run a node until SIGTERM or SIGINT; later chapters have other kinds of nodes."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    node = kind(config, tracer=tracer)
    # A node may have to wait for others before it can start. It is told to stop all the same.
    if not await _unless(stopped, node.start()):
        return
    on_ready(node)
    try:
        await _unless(stopped, node.watch())
    finally:
        await node.stop()


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, unless the node is told to stop before it is done; return whether it is."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.wait((working,))
    return False
