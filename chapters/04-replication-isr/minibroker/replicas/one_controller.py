"""A cluster with one fixed controller: the node that `controller.quorum.voters` names.

The controller's metadata log is the cluster's. The other nodes follow that log, and send the controller the requests
that only a controller can decide. When a node stops, an operator has to elect new leaders for its partitions. Chapter
05 replaces the fixed controller by a quorum.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

from minibroker.client.addresses import Address
from minibroker.client.errors import ClientError
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.cluster import Deciding, open_metadata_log
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.identity import Identity, identify
from minibroker.partitions.machine import Machine
from minibroker.partitions.node import Node
from minibroker.partitions.partition import ANY_NODE, LocalPartition, LogEnd, Partition, SoleReplica
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.routes import Leader, Routes, Serve
from minibroker.partitions.server import Tracer
from minibroker.partitions.serving import Partitions
from minibroker.partitions.store import METADATA, Store
from minibroker.replicas import access
from minibroker.replicas.hosting import Hosted, watched_machine
from minibroker.replicas.later import Later
from minibroker.replicas.membership import Membership
from minibroker.replicas.observer import Observer
from minibroker.replicas.recovering import Elections, Recovery
from minibroker.replicas.registration import Registration
from minibroker.replication.answering import Decisions, described
from minibroker.replication.authority import RegisterReplicas
from minibroker.replication.keys import quorum_voters
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchRequest
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse

log = logging.getLogger(__name__)

SILENT_MS_MAX = 3000
"""A node that has not fetched metadata for this time counts as dead. Live nodes fetch at least twice a second."""
_ASK_MS = 5000
_RETRY_S = 0.2


class OneController(Membership):
    """A node's membership in a cluster with one fixed controller."""

    authority: Deciding
    rows: Mapping[ApiKey, Access] = {**access.LOGIN_ROWS, **access.CONTROLLER_ROWS}

    def __init__(self, machine: Machine) -> None:
        voters = quorum_voters(machine.config)
        if len(voters) > 1:
            raise BrokerFailure(
                f"controller.quorum.voters names {len(voters)} nodes: name one node, the only controller"
            )
        # Other nodes may join this one later. So its secret file is beside its data directory, where they look for it.
        super().__init__(machine, is_alone=False)
        self._voter = voters[0] if voters else None
        ask = self._register_here if self.is_active else self._ask
        self._registration = Registration(machine, self.me, ask, lambda: self.authority.image)
        self._seen_ms: dict[int, int] = {}

    @property
    def controller_id(self) -> int:
        """The voter that the configuration names, or this node."""
        return self._node_id if self._voter is None else self._voter.node_id

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller."""
        return self.controller_id == self._node_id

    def _controller_address_of(self, node_id: int) -> Address | None:
        is_controller = self._voter is not None and node_id == self._voter.node_id
        place = self._voter if is_controller else self.authority.image.brokers.get(node_id)
        return None if place is None else Address(place.host, place.port)

    # Joining ----------------------------------------------------------------------------------------------------------

    async def identify(self) -> Identity:
        """Give a new data directory the id of the controller's cluster. Fails if there is no secret to log in with."""
        self.logins.open()
        if self.is_active:
            return identify(self._machine.path, self._node_id)
        response: MetadataResponse = await self._ask(MetadataRequest(topics=[]))
        found = sorted(it.node_id for it in response.brokers)
        if self.controller_id not in found:
            raise BrokerFailure(
                f"the address in controller.quorum.voters belongs to a cluster with the nodes {found}, but without node"
                f" {self.controller_id}: correct the id or the address"
            )
        return identify(self._machine.path, self._node_id, cluster_id=response.cluster_id)

    async def _ask(self, request: Any) -> Any:
        """Ask the controller until it answers: the nodes of a cluster may be started in any order."""
        is_logged = False
        while True:
            try:
                return await self.peers.send(self.controller_id, request, timeout_ms=_ASK_MS)
            except ClientError as error:
                if not is_logged:
                    log.warning("waiting for node %d, the controller: %s", self.controller_id, error)
                is_logged = True
                await asyncio.sleep(_RETRY_S)

    def open(self, identity: Identity) -> None:
        """Open the metadata log: as the controller, or as a copy of the controller's log."""
        self._identity = identity
        if self.is_active:
            metadata_log = open_metadata_log(self._machine)
            self.authority = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)
            self._serve_metadata = Fetch(self._metadata_routes(metadata_log), bytes_max=2**31 - 1, clock=monotonic_ms)
            self.authority.subscribe(lambda _old, _new: self._machine.waiting.wake(LogEnd(METADATA)))
        else:
            self.authority = self._observer = Observer(
                self._machine.data.open_log(METADATA, METADATA_LOG_CONFIG),
                self.peers,
                me=self.me,
                controller_id=self.controller_id,
                cluster_id=identity.cluster_id,
                on_done=self._on_done,
            )
        self.authority.subscribe(self._registration.on_image)

    def _metadata_routes(self, metadata_log: SegmentedLog) -> Routes:
        """Routes with the metadata log as their only partition. All of its records are committed and flushed."""
        machine = self._machine
        producers = ProducerStates(machine.files, machine.data.directory_of(METADATA))
        config = TopicConfig({}, machine.config)
        replica = SoleReplica(METADATA, metadata_log, leader_epoch=0, wake=machine.waiting.wake, copied_by=ANY_NODE)
        return _OnePartition(LocalPartition(METADATA, metadata_log, producers, config, replica))

    async def join(self) -> None:
        """Register, and wait until the image contains the registration."""
        previous_broker_epoch = self._registration.previous_broker_epoch(self.authority.image)
        await self._registration.register(self._identity, previous_broker_epoch)
        if not self.is_active:
            self._machine.begin(self._observer.run())
            await self._observer.reach(self.me.broker_epoch)

    async def _register_here(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        result = self.authority.propose(RegisterReplicas(**described(request))).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {self._node_id} could not be registered: {result.message}")
        return BrokerRegistrationResponse(error_code=result.code, broker_epoch=result.epoch)

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Serve ElectLeaders; on the controller also the requests of brokers, and fetches of the metadata log."""
        self.logins.add_handlers(registry)
        decisions = Decisions(self.authority, self._machine.config, live=self._live)
        recovery = Recovery(self.peers, lambda: self.authority.image, self._live)
        registry.add(ApiKey.ELECT_LEADERS, Elections(decisions, recovery, Later(self._machine.waiting)))
        if self.is_active:
            self._register = decisions.register
            registry.add(ApiKey.BROKER_REGISTRATION, self._on_registration)
            registry.add(ApiKey.ALTER_PARTITION, decisions.alter_partition)
            registry.add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.allocate_producer_ids)
            store.add_internal(CLUSTER_METADATA_TOPIC_ID, self._on_metadata_fetch)

    def _on_registration(self, call: Call[BrokerRegistrationRequest]) -> Answer:
        if call.request.broker_id == self._node_id:
            return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        return self._register(call)

    def _on_metadata_fetch(self, call: Call[FetchRequest]) -> Answer:
        """Serve the metadata log, and note which node is alive."""
        node_id, broker_epoch = call.request.replica_state.replica_id, call.request.replica_state.replica_epoch
        known = self.authority.image.brokers.get(node_id)
        if known is not None and known.epoch == broker_epoch:
            self._seen_ms[node_id] = monotonic_ms()
        return self._serve_metadata(call)

    def _live(self) -> Collection[int]:
        """This node, and the nodes that have fetched metadata lately."""
        horizon_ms = monotonic_ms() - SILENT_MS_MAX
        return {self._node_id, *(node_id for node_id, seen_ms in self._seen_ms.items() if seen_ms >= horizon_ms)}

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """Forward requests about a broker's configuration to that broker, and administrative ones to the controller."""
        found: dict[Place, Filter] = {Place.NAMED_BROKER: self._named_broker_filter(judge)}
        if not self.is_active:
            found[Place.CONTROLLER] = lambda call, _inner: self._forward(call)
        return found


class _OnePartition:
    """Routes that find one partition under every name."""

    internal: Mapping[bytes, Serve] = {}

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def partition(self, _topic: str, _index: int) -> Partition:
        return self._partition

    def topic_name(self, _topic_id: bytes) -> str:
        return self._partition.name.topic

    def leader(self, _name: TopicPartition, _listener: str) -> Leader | None:
        return None


def replicated(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node with replicas, in a cluster with one controller."""
    machine = watched_machine(config, tracer)
    cluster = OneController(machine)
    hosted = Hosted(machine, cluster)
    return Node(machine, cluster, Partitions(machine, cluster, hosting=hosted), [hosted])
