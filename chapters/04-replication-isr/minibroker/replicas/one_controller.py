"""A cluster in which one node, for good, is the controller: the one that `controller.quorum.voters` names.

Its metadata log is the cluster's. The other nodes follow that log, and ask the controller for what must be decided.
When a node stops, no other takes over what it leads: an operator elects leaders. Chapter 05 puts a quorum in the
controller's place.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from minibroker.client.addresses import Address
from minibroker.client.errors import ClientError
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Proposal, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.administration import Administration
from minibroker.partitions.cluster import open_metadata_log
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.identity import Identity, identify, new_id_bytes
from minibroker.partitions.machine import Machine
from minibroker.partitions.node import Node
from minibroker.partitions.partition import ANY_NODE, LocalPartition, Partition, SoleReplica
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.routes import Leader, Routes, Serve
from minibroker.partitions.server import Tracer
from minibroker.partitions.serving import Partitions
from minibroker.partitions.store import METADATA, Store
from minibroker.replicas import access
from minibroker.replicas.configuring import BrokerConfigs
from minibroker.replicas.fetching import Self
from minibroker.replicas.forwarding import Forward
from minibroker.replicas.hosting import Hosted, watched_machine
from minibroker.replicas.membership import Membership
from minibroker.replicas.observer import Observer
from minibroker.replicas.peers import Peers, client_id_of, node_of
from minibroker.replicas.registration import Registration, directories_of
from minibroker.replication.answering import Decisions
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
"""A node that has not asked for metadata for so long is not alive. They ask at least twice a second."""
_ASK_MS = 5000
_RETRY_S = 0.2


class OneController(Membership):
    """A node's place in such a cluster."""

    controller_id: int = -1

    def __init__(self, machine: Machine) -> None:
        voters = quorum_voters(machine.config)
        if len(voters) > 1:
            raise BrokerFailure(f"{len(voters)} nodes in controller.quorum.voters: before chapter 05 one node decides")
        self._machine = machine
        self._node_id = machine.config.node_id
        self.controller_id = voters[0].node_id if voters else self._node_id
        self._controller_address = Address(voters[0].host, voters[0].port) if voters else None
        self._is_controller = self.controller_id == self._node_id
        self.rows: Mapping[ApiKey, Access] = access.CONTROLLER_ROWS
        self.me = Self(self._node_id, -1)
        self.peers = Peers(self._address_of, client_id=client_id_of(self._node_id))
        self._forward = Forward(self.peers, machine.waiting, controller_id=lambda: self.controller_id)
        self._registration = Registration(machine, self.me, self._ask, lambda: self.authority.image)
        self._seen_ms: dict[int, int] = {}

    def _address_of(self, node_id: int) -> Address | None:
        if node_id == self.controller_id and self._controller_address is not None:
            return self._controller_address
        broker = self.authority.image.brokers.get(node_id)
        return None if broker is None else Address(broker.host, broker.port)

    def is_node(self, call: Call[Any]) -> bool:
        """Nodes are known by the client id that they give themselves."""
        return node_of(call.header.client_id) is not None

    # Joining ----------------------------------------------------------------------------------------------------------

    async def identify(self) -> Identity:
        """A new directory becomes part of the controller's cluster."""
        if self._is_controller:
            return identify(self._machine.path, self._node_id)
        response: MetadataResponse = await self._ask(MetadataRequest(topics=[]))
        found = sorted(it.node_id for it in response.brokers)
        if self.controller_id not in found:
            raise BrokerFailure(
                f"controller.quorum.voters leads to a cluster of the nodes {found}, and node {self.controller_id} is"
                " none of them: correct it"
            )
        return identify(self._machine.path, self._node_id, cluster_id=response.cluster_id)

    async def _ask(self, request: Any) -> Any:
        """Ask the controller for as long as it takes: the nodes of a cluster may be started in any order."""
        is_told = False
        while True:
            try:
                return await self.peers.send(self.controller_id, request, timeout_ms=_ASK_MS)
            except ClientError as error:
                if not is_told:
                    log.warning("waiting for node %d, which decides: %s", self.controller_id, error)
                is_told = True
                await asyncio.sleep(_RETRY_S)

    def open(self, identity: Identity) -> None:
        """Decide on the metadata log, or follow the controller's."""
        self._identity = identity
        if self._is_controller:
            metadata_log = open_metadata_log(self._machine)
            self.authority = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)
            self._serve_metadata = Fetch(self._metadata_routes(metadata_log), bytes_max=2**31 - 1, clock=monotonic_ms)
            self.authority.subscribe(lambda _old, _new: self._machine.waiting.wake(METADATA))
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
        """The metadata log as the only partition that there is: what is in it is decided and flushed."""
        machine = self._machine
        producers = ProducerStates(machine.files, machine.data.directory_of(METADATA))
        config = TopicConfig({}, machine.config)
        replica = SoleReplica(METADATA, metadata_log, leader_epoch=0, wake=machine.waiting.wake, copied_by=ANY_NODE)
        return _OnePartition(LocalPartition(METADATA, metadata_log, producers, config, replica))

    def _on_done(self, proposal: Proposal[Any]) -> None:
        self._machine.waiting.wake(proposal)
        self._machine.waiting.settle()

    async def join(self) -> None:
        """Register, and know the metadata at least up to there."""
        previous_broker_epoch = self._registration.previous_broker_epoch(self.authority.image)
        if self._is_controller:
            self._register_here(previous_broker_epoch)
        else:
            await self._registration.register(self._identity, previous_broker_epoch)
            self._machine.begin(self._observer.run())
            await self._observer.reach(self.me.broker_epoch)

    def _register_here(self, previous_broker_epoch: int) -> None:
        command = RegisterReplicas(
            broker_id=self._node_id,
            endpoints=(self._machine.endpoint,),
            incarnation_id=new_id_bytes(),
            rack=self._machine.config.broker_rack,
            previous_broker_epoch=previous_broker_epoch,
            log_dirs=directories_of(self._identity),
        )
        result = self.authority.propose(command).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {self._node_id} could not be registered: {result.message}")
        self._registration.remember(result.epoch)
        self.me.broker_epoch = result.epoch

    async def stop(self) -> None:
        """Close the connections to the other nodes."""
        await self.peers.close()

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """The controller decides, and serves its metadata log to the other nodes."""
        decisions = Decisions(self.authority, self._machine.config, live=self._live)
        registry.add(ApiKey.ELECT_LEADERS, decisions.elect_leaders)
        if self._is_controller:
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
        """The nodes that have asked for metadata lately, and this one."""
        horizon_ms = monotonic_ms() - SILENT_MS_MAX
        return {self._node_id, *(node_id for node_id, seen_ms in self._seen_ms.items() if seen_ms >= horizon_ms)}

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """Other brokers tell of their configuration; another node may be the controller."""
        configs = BrokerConfigs(
            self._node_id, self.peers, self._machine.waiting, brokers=lambda: self.authority.image.brokers, judge=judge
        )
        found: dict[Place, Filter] = {Place.NAMED_BROKER: configs.at_the_named}
        if not self._is_controller:
            found[Place.CONTROLLER] = lambda call, _inner: self._forward(call)
        return found

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics here, or ask the controller to."""
        return administration.create_on_demand(names) if self._is_controller else self._forward.create_on_demand(names)


class _OnePartition:
    """Routes that lead to one partition, for whatever name."""

    internal: Mapping[bytes, Serve] = {}

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def partition(self, _topic: str, _index: int) -> Partition:
        return self._partition

    def topic_name(self, _topic_id: bytes) -> str:
        return self._partition.name.topic

    def leader(self, _name: TopicPartition) -> Leader | None:
        return None


def replicated(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node with replicas, in a cluster with one controller."""
    machine = watched_machine(config, tracer)
    cluster = OneController(machine)
    hosted = Hosted(machine, cluster)
    return Node(machine, cluster, Partitions(machine, cluster, hosting=hosted), [hosted])
