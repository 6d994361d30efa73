"""A node of several: chapter 03's broker with replicas for partitions, and with other nodes to talk to.

Until chapter 05 brings a quorum, one node decides: the one that `controller.quorum.voters` names. Its metadata log is
the cluster's; the others follow it, and ask it for what must be decided.

    start   who is the cluster? → open the logs → register (and say whether everything is still here) → follow the
            metadata up to that registration → lead and follow what it says → serve
    stop    serve no more → follow no more → write down the watermarks → close the logs

A node leads nothing before it has seen its own registration in the metadata: what it knows of an earlier life may be
over.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any

from minibroker.client.errors import ClientError, known_code
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.errors import LogError, StorageError
from minibroker.log.interfaces import Files
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.image import BrokerImage, Endpoint, Image, PartitionImage
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID, check_topic_name
from minibroker.partitions.administration import Administration
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity, identify, new_id_bytes
from minibroker.partitions.node import Node
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.server import Tracer
from minibroker.partitions.store import METADATA, Store
from minibroker.replicas import life
from minibroker.replicas.configuring import BrokerConfigs
from minibroker.replicas.disk import WatchedFiles, disk_usage
from minibroker.replicas.fetching import Fetchers, FetchSettings, Self
from minibroker.replicas.forwarding import Forward
from minibroker.replicas.observer import MetadataPartition, Observer
from minibroker.replicas.peers import PeerAddress, Peers, client_id_of
from minibroker.replicas.proposing import Outbox, Proposer
from minibroker.replication.answering import Decisions, DescribeProducers, OffsetForLeaderEpoch, Replicas
from minibroker.replication.authority import RegisterReplicas
from minibroker.replication.keys import (
    HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS,
    REPLICA_FETCH_BACKOFF_MS,
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
    REPLICA_LAG_TIME_MAX_MS,
    quorum_voters,
)
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.log_dirs import DescribeLogDirs
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import Replica, ReplicaSettings
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.replication.tables.broker_registration import Listener as RegisteredListener
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker.wire.tables.fetch import FetchRequest
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse
from minibroker.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

SILENT_MS_MAX = 3000
"""A node that has not asked for metadata for so long is not alive. They ask at least twice a second."""
_TICK_MS_MAX = 500
_RETRY_S = 0.2
_ASK_MS = 5000
_ALL_DEFAULTS: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}

# What only the authority can do, wherever a client asks for it.
FORWARDED = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
)


class ReplicatedNode(Node):
    """One broker of several. The first voter decides about metadata for all."""

    more_checkpoints = (HIGH_WATERMARKS,)
    voters_max = 1

    def __init__(self, config: NodeConfig, *, tracer: Tracer | None = None) -> None:
        super().__init__(config, tracer=tracer)
        voters = quorum_voters(config)
        if len(voters) > self.voters_max:
            raise BrokerFailure(f"{len(voters)} nodes in controller.quorum.voters: before chapter 05 one node decides")
        self._node_id = config.node_id
        self._authority_id = voters[0].node_id if voters else config.node_id
        self._authority_address = PeerAddress(voters[0].host, voters[0].port) if voters else None
        self._settings = ReplicaSettings(lag_ms_max=REPLICA_LAG_TIME_MAX_MS.of(config))
        self._peers = Peers(self._address_of, client_id=client_id_of(config.node_id))
        self._outbox = Outbox()
        self._replicas: dict[TopicPartition, Replica] = {}
        self._seen_ms: dict[int, int] = {}
        self._creating: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BrokerFailure | None = None
        self._failed = asyncio.Event()
        self._registration: BrokerRegistrationRequest | None = None
        self._is_registering = False

    @property
    def is_authority(self) -> bool:
        """Whether this node decides."""
        return self._node_id == self._authority_id

    def _address_of(self, node_id: int) -> PeerAddress | None:
        if node_id == self._authority_id and self._authority_address is not None:
            return self._authority_address
        broker = self.authority.image.brokers.get(node_id)
        return None if broker is None else PeerAddress(broker.host, broker.port)

    # Joining ----------------------------------------------------------------------------------------------------------

    async def identify(self, path: str) -> Identity:
        """Whose directory this is. A new one becomes part of the cluster of the node that decides."""
        if self.is_authority:
            return identify(path, self._node_id)
        response: MetadataResponse = await self._ask_who_decides(MetadataRequest(topics=[]))
        found = sorted(it.node_id for it in response.brokers)
        if self._authority_id not in found:
            raise BrokerFailure(
                f"controller.quorum.voters leads to a cluster of the nodes {found}, and node {self._authority_id} is"
                " none of them: correct it"
            )
        return identify(path, self._node_id, cluster_id=response.cluster_id)

    async def _ask_who_decides(self, request: Any) -> Any:
        """Ask the node that decides; nodes of a cluster may be started in any order."""
        is_told = False
        while True:
            try:
                return await self._peers.send(self._authority_id, request, timeout_ms=_ASK_MS)
            except ClientError as error:
                if not is_told:
                    log.warning("waiting for node %d, which decides: %s", self._authority_id, error)
                is_told = True
                await asyncio.sleep(_RETRY_S)

    async def join(self, identity: Identity, endpoint: Endpoint) -> None:
        """Register, and know the metadata at least up to there."""
        if self.is_authority:
            self.me = Self(self._node_id, self._decide(identity, endpoint))
        else:
            await self._observe(identity, endpoint)

    def _previous_broker_epoch(self, image: Image) -> int:
        """The epoch that our logs are certain to be of."""
        if self._is_something_lost(image):
            return NO_BROKER_EPOCH
        path, boot = self._config.log_dirs[0], life.boot_id()
        return life.previous_broker_epoch(self.files, path, boot=boot, is_clean=self.data.is_clean)

    def _is_something_lost(self, image: Image) -> bool:
        """Whether somebody has removed logs that counted. Nobody misses those of deleted topics."""
        lost = [name.directory for name in self.data.missing if image.partition(name) is not None]
        if lost:
            log.error(
                "%s, and %d more, were here and are gone: this node is in sync with nothing", lost[0], len(lost) - 1
            )
        return bool(lost)

    def _remember(self, broker_epoch: int) -> None:
        # At once: who dies between being registered and this is taken for one that has lost something.
        life.remember_broker_epoch(self.files, self._config.log_dirs[0], broker_epoch, life.boot_id())

    def _decide(self, identity: Identity, endpoint: Endpoint) -> int:
        metadata_log = self.open_metadata_log()
        self.authority = voter = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)
        # Other nodes read the log of metadata like any partition.
        self._metadata = MetadataPartition(
            METADATA,
            metadata_log,
            ProducerStates(self.files, self.data.directory_of(METADATA)),
            TopicConfig({}, self._config),
            leader_epoch=0,
            wake=self.waiting.wake,
        )
        command = RegisterReplicas(
            broker_id=self._node_id,
            endpoints=(endpoint,),
            incarnation_id=new_id_bytes(),
            rack=self._config.broker_rack,
            previous_broker_epoch=self._previous_broker_epoch(voter.image),
            log_dirs=_directories(identity),
        )
        result = voter.propose(command).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {self._node_id} could not be registered: {result.message}")
        self._remember(result.epoch)
        return result.epoch

    async def _observe(self, identity: Identity, endpoint: Endpoint) -> None:
        metadata_log = self.data.open_log(METADATA, METADATA_LOG_CONFIG)
        self.authority = observer = Observer(
            metadata_log,
            self._peers,
            node_id=self._node_id,
            authority_id=self._authority_id,
            cluster_id=identity.cluster_id,
        )
        observer.on_done = self._on_done
        broker_epoch = await self._register_as(identity, endpoint, self._previous_broker_epoch(observer.image))
        observer.me = self.me = Self(self._node_id, broker_epoch)
        self._begin(observer.run())
        await observer.reach(broker_epoch)

    async def _register_as(self, identity: Identity, endpoint: Endpoint, previous_broker_epoch: int) -> int:
        """Be registered in this life, and return its epoch."""
        self._registration = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=new_id_bytes(),
            listeners=[RegisteredListener(**endpoint._asdict())],
            rack=self._config.broker_rack,
            log_dirs=_directories(identity),
        )
        return await self._register(previous_broker_epoch)

    async def _register(self, previous_broker_epoch: int) -> int:
        assert self._registration is not None
        self._registration.previous_broker_epoch = previous_broker_epoch
        response = await self._ask_for_registration(self._registration)
        if response.error_code:
            code = known_code(response.error_code)
            raise BrokerFailure(f"node {self._node_id} could not be registered: {code.name}: {code.message}")
        self._remember(response.broker_epoch)
        return response.broker_epoch

    async def _ask_for_registration(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        response: BrokerRegistrationResponse = await self._ask_who_decides(request)
        return response

    async def _register_again(self, late_epoch: int) -> None:
        """What an earlier life of this node had sent was heard after our own word, so ours does not count any more.

        Nothing was counted in the name of that registration but what we have: our logs are of it.
        """
        self._is_registering = True
        try:
            self.me.broker_epoch = await self._register(late_epoch)
        finally:
            self._is_registering = False
        # Another one may have come in between.
        self._check_that_we_are_we(self.authority.image)

    def _on_done(self, proposal: object) -> None:
        self.waiting.wake(proposal)
        self.waiting.settle()

    # Partitions -------------------------------------------------------------------------------------------------------

    def make_store(self) -> Store:
        """The partitions of this node, each with a replica here and others elsewhere."""
        config = self._config
        self.fetchers = Fetchers(
            self.me,
            self._peers,
            FetchSettings(
                wait_ms_max=REPLICA_FETCH_WAIT_MAX_MS.of(config),
                bytes_min=REPLICA_FETCH_MIN_BYTES.of(config),
                bytes_max=REPLICA_FETCH_RESPONSE_MAX_BYTES.of(config),
                partition_bytes_max=REPLICA_FETCH_MAX_BYTES.of(config),
                backoff_ms=REPLICA_FETCH_BACKOFF_MS.of(config),
            ),
            topic_id_of=self._topic_id_of,
            settle=self.waiting.settle,
            on_ended=self._on_ended,
        )
        store = Store(
            self.data,
            self.files,
            node_id=self._node_id,
            topic_config=self._topic_config,
            wake=self.waiting.wake,
            open_partition=self._open_partition,
            on_changed=self._on_changed,
        )
        if self.is_authority:
            store.add_internal(METADATA, CLUSTER_METADATA_TOPIC_ID, self._metadata)
        self.authority.subscribe(self._on_image)
        return store

    def _topic_id_of(self, topic: str) -> bytes | None:
        # Of the topic whose replicas are here. What is decided may be ahead of that: another topic of the same name.
        found = self.store.image.topics.get(topic)
        return None if found is None else found.topic_id

    def _open_partition(
        self, name: TopicPartition, _topic_id: bytes, _image: PartitionImage, config: TopicConfig
    ) -> Replica:
        # One that is opened anew takes the place of the old one.
        replica = self._replicas[name] = open_replica(
            self.data,
            self.files,
            name,
            config,
            node_id=self._node_id,
            outbox=self._outbox,
            wake=self.waiting.wake,
            settings=self._settings,
        )
        return replica

    def _on_changed(self, name: TopicPartition, _old: PartitionImage | None, new: PartitionImage | None) -> None:
        """The authority has decided something about a partition of this node."""
        if new is None:
            replica = self._replicas.pop(name)
            self.fetchers.forget(name)
            self._outbox.forget(name)
            replica.retire()
            return
        if self._failure is not None:
            # This node is about to end.
            return
        replica = self._replicas[name]
        # To take a role needs no disk, so none can refuse it.
        replica.on_partition(new, self._broker_epochs(self.authority.image), monotonic_ms())
        self.fetchers.follow(replica)

    def _on_image(self, old: Image, new: Image) -> None:
        """Leaders must know in which life the other nodes are."""
        if self.is_authority:
            # Those who wait for metadata.
            self.waiting.wake(METADATA)
        if new.brokers is not old.brokers:
            self._check_that_we_are_we(new)
            broker_epochs, now_ms = self._broker_epochs(new), monotonic_ms()
            for replica in self.replicas():
                # What the replica knows already is no news to it. What is, the store tells it.
                partition = self.store.image.partition(replica.name)
                if replica.leading is not None and partition is not None:
                    replica.on_partition(partition, broker_epochs, now_ms)
        # Somebody else's news has no request behind it that would let those go on who waited for it.
        asyncio.get_running_loop().call_soon(self.waiting.settle)

    def _check_that_we_are_we(self, image: Image) -> None:
        """Two nodes of one number would both lead what the metadata give to that number: the older one ends.

        Nobody else can be where this node listens: who is registered there is an earlier life of it.
        """
        known = image.brokers.get(self._node_id)
        if known is None or known.epoch <= self.me.broker_epoch or self._is_registering:
            return
        if self._is_our_address(known):
            log.warning("an earlier life of node %d was heard late: it registers again", self._node_id)
            self._begin(self._register_again(known.epoch))
        else:
            self._fail(
                BrokerFailure(
                    f"another process was registered as node {self._node_id}, at {known.host}:{known.port}: this one"
                    " ends. Give one of them another node.id"
                )
            )

    def _is_our_address(self, known: BrokerImage) -> bool:
        ours = self._registration.listeners if self._registration is not None else []
        return any((it.host, it.port) == (known.host, known.port) for it in ours)

    def _broker_epochs(self, image: Image) -> dict[int, int]:
        return {node_id: broker.epoch for node_id, broker in image.brokers.items()}

    def replica(self, name: TopicPartition) -> Replica | None:
        """The replica of a partition on this node, if there is one."""
        return self._replicas.get(name)

    def replicas(self) -> list[Replica]:
        """All replicas on this node."""
        return list(self._replicas.values())

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self) -> None:
        """What chapter 03 serves, and what nodes say to each other."""
        super().add_handlers()
        add = self.registry.add
        replicas = self.replica_routes()
        add(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpoch(replicas))
        add(ApiKey.DESCRIBE_PRODUCERS, DescribeProducers(replicas))
        add(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs(self.store.logs, lambda: disk_usage(self._config.log_dirs[0])))
        decisions = Decisions(self.authority, self._config, live=self._live)
        add(ApiKey.ELECT_LEADERS, decisions.elect_leaders)
        if self.is_authority:
            add(ApiKey.ALTER_PARTITION, decisions.alter_partition)
            add(ApiKey.BROKER_REGISTRATION, decisions.register)
            self.registry.wrap(ApiKey.BROKER_REGISTRATION, self._refuse_our_own_number)
            add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.allocate_producer_ids)
            self.registry.wrap(ApiKey.FETCH, self._note_who_is_alive)
        else:
            self._forward = Forward(self._peers, self.waiting, authority_id=lambda: self._authority_id)
            for key in FORWARDED:
                self.registry.wrap(key, lambda call, _inner: self._forward(call))
        self.wrap_configurations()

    def wrap_configurations(self) -> None:
        """Let each broker tell of its own configuration, and judge changes to it. To be called when all else is."""
        configs = BrokerConfigs(
            self._node_id,
            self._peers,
            self.waiting,
            brokers=lambda: self.authority.image.brokers,
            judge=self.configurations.judge,
        )
        self.registry.wrap(ApiKey.DESCRIBE_CONFIGS, configs.describe)
        for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            self.registry.wrap(key, configs.alter)

    def replica_routes(self) -> Replicas:
        """The replicas of this node, for handlers that need more than chapter 03's port."""
        return _Replicas(self)

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Where another node decides, a topic that is asked for is asked for there; the client asks again."""
        if self.is_authority:
            return super().create_on_demand(administration, names)
        possible = [name for name in names if _is_possible(name)]
        topics = [CreatableTopic(name=name, **_ALL_DEFAULTS) for name in possible if name not in self._creating]
        if topics:
            # A client asks again and again until the topic is there.
            self._creating |= {topic.name for topic in topics}
            task = self._forward.begin(CreateTopicsRequest(topics=topics, timeout_ms=_ASK_MS))
            task.add_done_callback(lambda _task: self._creating.difference_update(it.name for it in topics))
        return dict.fromkeys(possible, ErrorCode.LEADER_NOT_AVAILABLE)

    def _refuse_our_own_number(self, call: Call[BrokerRegistrationRequest], inner: Handler) -> Answer:
        if call.request.broker_id == self._node_id:
            return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        return inner(call)

    def _note_who_is_alive(self, call: Call[FetchRequest], inner: Handler) -> Answer:
        node_id, broker_epoch = call.request.replica_state.replica_id, call.request.replica_state.replica_epoch
        known = self.authority.image.brokers.get(node_id)
        if known is not None and known.epoch == broker_epoch:
            self._seen_ms[node_id] = monotonic_ms()
        return inner(call)

    def _live(self) -> Collection[int]:
        """The nodes that have been heard of lately, and this one."""
        horizon_ms = monotonic_ms() - SILENT_MS_MAX
        return {self._node_id, *(node_id for node_id, seen_ms in self._seen_ms.items() if seen_ms >= horizon_ms)}

    # Working ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start as chapter 03's broker does, then lead and follow."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._unless_failed(super().start())
        except BaseException:
            await self._end()
            raise
        proposer = Proposer(
            self.me,
            self._peers,
            self._outbox,
            authority_id=lambda: self._authority_id,
            topic_id_of=self._topic_id_of,
            replica_of=self.replica,
            settle=self.waiting.settle,
        )
        self._begin(proposer.run())
        self._begin(self._tick())
        self._begin(self._checkpoint())

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
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
        elif self._failure is not None:
            raise self._failure

    def make_files(self) -> Files:
        """The disk, and word of its first error: there is no other directory to go on with."""
        return WatchedFiles(self._on_disk_failed)

    def _on_disk_failed(self, what: str, error: OSError) -> None:
        failure = BrokerFailure(
            f"node {self._node_id} ends, because its disk refused to {what} ({error.strerror}). Nothing more is written"
            " here: free some room or replace the disk, then start it again"
        )
        life.forget_broker_epoch(self._config.log_dirs[0])
        # On whatever thread, and in the midst of whatever: what was begun is left in order first.
        self._loop.call_soon_threadsafe(self._fail, failure)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._on_ended)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """A task of this node is over. If it was not meant to be, the node is no whole one any more, and ends."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerFailure):
            self._fail(error)
        elif isinstance(error, StorageError | OSError):
            self._fail(BrokerFailure(f"node {self._node_id} ends, because its disk failed: {error}"))
        elif error is not None:
            log.error("something that this node needs has ended, because of a bug", exc_info=error)
            self._fail(BrokerFailure(f"node {self._node_id} ends because of a bug: {error!r}"))

    def _fail(self, failure: BrokerFailure) -> None:
        """Lead nothing from this moment on, and end."""
        self._failure = self._failure or failure
        self._failed.set()
        for replica in self.replicas():
            replica.retire()

    async def watch(self) -> None:
        """Raise when this node cannot go on."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def _tick(self) -> None:
        """Bring the replicas the time."""
        interval_s = min(self._settings.lag_ms_max / 4, _TICK_MS_MAX) / 1000
        while True:
            await asyncio.sleep(interval_s)
            now_ms = monotonic_ms()
            for replica in self.replicas():
                replica.tick(now_ms)

    async def _checkpoint(self) -> None:
        """Write down the high watermarks now and then."""
        while True:
            await asyncio.sleep(HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS.of(self._config) / 1000)
            self._remember_watermarks()

    def _remember_watermarks(self) -> None:
        for replica in self.replicas():
            self.data.remember(HIGH_WATERMARKS, replica.name, replica.high_watermark, is_urgent=False)

    async def stop(self) -> None:
        """Stop in order. A node whose disk has failed has said why it ends, and cannot close its logs."""
        try:
            await super().stop()
        except (LogError, OSError):
            if self._failure is None:
                raise
        finally:
            self._cleanup.close()

    async def leave(self) -> None:
        """Follow no more, and write down how far everything was."""
        await self._end()
        self._remember_watermarks()

    async def _end(self) -> None:
        if hasattr(self, "fetchers"):
            await self.fetchers.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._peers.close()


def _directories(identity: Identity) -> list[bytes]:
    # A directory from before there were such ids has none.
    return [parse_uuid(identity.directory_id)] if identity.directory_id else []


def _is_possible(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True


class _Replicas:
    """The replicas of a node, for handlers that need more than chapter 03's port."""

    def __init__(self, node: ReplicatedNode) -> None:
        self._node = node

    def partition(self, topic: str, index: int) -> Replica:
        found = self._node.store.partition(topic, index)
        assert isinstance(found, Replica)
        return found
