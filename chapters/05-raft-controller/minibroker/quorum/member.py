"""A node's place in a cluster with a quorum: voter or observer, broker or not, and for a time perhaps the controller.

The nodes of `controller.quorum.voters` vote. A node that is not among them observes; where none are named, the node is
its own only voter. A node whose `process.roles` is `controller` votes and has no partitions: it does not register.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from minibroker.client.addresses import Address
from minibroker.controller.answering import ControllerDecisions
from minibroker.controller.deciding import Controller
from minibroker.controller.describing import DescribeTopicPartitions
from minibroker.controller.keys import MAX_REQUEST_PARTITION_SIZE_LIMIT, process_roles
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG
from minibroker.metadata.image import Image
from minibroker.partitions import access as partition_access
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.cluster import check_metadata_log
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.store import METADATA, Store
from minibroker.quorum import access
from minibroker.quorum.answering import QuorumHandlers
from minibroker.quorum.asking import ControllerCalls
from minibroker.quorum.authority import ClusterAuthority
from minibroker.quorum.changing import VoterChanges
from minibroker.quorum.duties import Duties
from minibroker.quorum.envelope import Envelopes, unwrap, wrap
from minibroker.quorum.following import Following, remove_leftovers
from minibroker.quorum.heartbeats import Heartbeats
from minibroker.quorum.identifying import Identification
from minibroker.quorum.running import Quorum
from minibroker.raft.election import NOBODY, Ballot
from minibroker.raft.keys import METADATA_SNAPSHOT_BYTES, QUORUM_ELECTION_TIMEOUT_MS, QUORUM_FETCH_TIMEOUT_MS
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replicas.forwarding import Forwarded
from minibroker.replicas.membership import Membership
from minibroker.replicas.registration import Registration
from minibroker.replication.epochs import EpochCache
from minibroker.replication.keys import quorum_voters
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.metadata import MetadataResponseBroker
from minibroker.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

_RETRY_TAKEN_S = 0.2

# Where a node that listens everywhere finds itself.
_REACHED_AT = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class QuorumMember(Membership):
    """A node's place in such a cluster."""

    authority: ClusterAuthority
    rows: Mapping[ApiKey, Access] = access.ROWS
    _all_rows: Mapping[ApiKey, Access] = {**partition_access.ROWS, **access.ROWS}

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, self._in_envelope)
        self._config = config = machine.config
        self._is_voter = "controller" in process_roles(config)
        self._is_broker = "broker" in process_roles(config)
        self._duties = Duties(config)
        self._registration = Registration(machine, self.me, self._ask_for_registration, lambda: self.authority.image)
        self.heartbeats = Heartbeats(config, self.me, lambda it: self._calls.ask(it), lambda: self.authority.image)

    @property
    def controller_id(self) -> int:
        """The leader of the quorum, as far as this node knows."""
        return self.raft.leader_id

    @property
    def is_active(self) -> bool:
        """Whether this node leads the quorum, and decides."""
        return self.authority.is_active

    def _address_of(self, node_id: int) -> Address | None:
        if node_id == self._node_id:
            host = self._config.listeners[0].host
            return Address(_REACHED_AT.get(host, host), self._machine.port)
        # A voter is where the configuration says, whatever it was called when the metadata heard of it last.
        voter = next((it for it in quorum_voters(self._config) if it.node_id == node_id), None)
        if voter is not None:
            return Address(voter.host, voter.port)
        broker = self.authority.image.brokers.get(node_id)
        # One that was added as a voter, and is no broker, has said there where it is.
        added = self.raft.voters.voters.get(node_id)
        # Nodes that name a leader also say where it is: a node with an empty disk knows nothing else.
        place = broker or added or self.quorum.places.get(node_id)
        return None if place is None else Address(place.host, place.port)

    def myself(self) -> MetadataResponseBroker:
        """This node, as clients find it: it forwards what is for the controller."""
        here = self._machine.endpoint
        return MetadataResponseBroker(node_id=self._node_id, host=here.host, port=here.port)

    def whose_data(self) -> str:
        """Where the data are, and of which cluster."""
        cluster_id, voters = self.authority.image.cluster_id, sorted(self.raft.voters)
        return f"data is in {self._machine.path}, of cluster {cluster_id}, whose voters are {voters}"

    # Opening ----------------------------------------------------------------------------------------------------------

    async def identify(self) -> Identity:
        """Find out of which cluster the data directory is."""
        return await Identification(self._config, self.peers).identify()

    def open(self, identity: Identity) -> None:
        """Open the metadata log, with what this node has voted and which snapshot it has."""
        self._identity = identity
        directory, files = self._machine.data.directory_of(METADATA), self._machine.files
        epochs = EpochCache(files, directory)
        metadata_log = self._machine.data.open_log(METADATA, METADATA_LOG_CONFIG, companions=[epochs])
        if self._is_voter:
            # No other node has the metadata; or others count on it that this voter still knows what it was told.
            check_metadata_log(self._machine, metadata_log)
        voters = [Voter(VoterKey(it.node_id), it.host, it.port) for it in quorum_voters(self._config)]
        snapshots = SnapshotFiles(files, directory)
        self.raft = Raft(
            VoterKey(self._node_id, parse_uuid(identity.directory_id)),
            metadata_log,
            epochs,
            Ballot(files, directory),
            VoterSet.of(voters or [Voter(VoterKey(self._node_id))]),
            chance=random.randrange,
            now_ms=monotonic_ms(),
            settings=RaftSettings(
                election_timeout_ms=QUORUM_ELECTION_TIMEOUT_MS.of(self._config),
                fetch_timeout_ms=QUORUM_FETCH_TIMEOUT_MS.of(self._config),
            ),
            snapshots=snapshots,
            clock=wall_clock_ms,
        )
        self._check_voters(identity)
        self._drive(identity, snapshots)

    def _drive(self, identity: Identity, snapshots: SnapshotFiles) -> None:
        machine = self._machine
        controller = Controller(
            self.raft, Image(cluster_id=identity.cluster_id), clock=wall_clock_ms, done=self._on_done
        )
        controller.on_active = self._on_active
        self.authority = ClusterAuthority(controller, self.peers, self.me, self._on_done)
        self.quorum = Quorum(
            self.raft,
            controller,
            self.peers,
            machine.waiting,
            cluster_id=identity.cluster_id,
            begin=machine.begin,
            snapshots=snapshots,
            snapshot_bytes=METADATA_SNAPSHOT_BYTES.of(self._config),
        )
        controller.image = self.quorum.snapshotting.image()
        self._calls = ControllerCalls(machine, self.quorum, lambda node_id: self._address_of(node_id) is not None)
        self.authority.subscribe(self._registration.on_image)

    def _check_voters(self, identity: Identity) -> None:
        """The log says who votes. A configuration that names others may be that of another cluster."""
        named, known = sorted(it.node_id for it in quorum_voters(self._config)), sorted(self.raft.voters)
        if not named or named == known:
            return
        if known == [self._node_id]:
            # It would decide alone, where clients look for the others' cluster.
            raise BrokerFailure(
                f"{self._machine.path} is of cluster {identity.cluster_id}, in which node {self._node_id} votes alone, "
                f"and controller.quorum.voters names {named}: give this node a directory of its own (log.dirs). Or, if "
                f"that cluster is to grow, name node {self._node_id} alone there, and let the others vote with "
                "`minibroker cluster add-voter`"
            )
        log.warning(
            "the voters of cluster %s are %s, as its log says; controller.quorum.voters names %s: there this node looks"
            " for the cluster, and who votes is changed with `minibroker cluster add-voter` and `remove-voter`",
            identity.cluster_id,
            known,
            named,
        )

    def _on_active(self) -> None:
        log.info("node %d decides from now on, in epoch %d", self._node_id, self.raft.epoch)
        self._duties.begin(self.authority, self.quorum)

    # Joining ----------------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Vote, and be found by others; a broker registers, and knows the metadata at least up to there."""
        self.quorum.start()
        self._machine.begin(self._duties.run(self.authority, self.quorum))
        if not self._is_broker:
            await self._calls.await_leader()
            return
        # Of the metadata only a snapshot is certain so far: which logs should be here is known when our own
        # registration has arrived. Until then this node is fenced, so what it says of itself can be taken back.
        previous_broker_epoch = self._registration.previous_broker_epoch(self.authority.image)
        await self._register(previous_broker_epoch)
        if previous_broker_epoch != NO_BROKER_EPOCH and self._registration.is_something_lost(self.authority.image):
            await self._register(NO_BROKER_EPOCH)

    async def _register(self, previous_broker_epoch: int) -> None:
        """Be registered, and hear of it."""
        await self._registration.register(self._identity, previous_broker_epoch)
        while self.authority.image.offset < self.me.broker_epoch:
            await self.quorum.changed()

    async def _ask_for_registration(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Ask again while the node.id is taken: by our own last incarnation, perhaps, if its disk was lost with it."""
        patience = self._calls.patience()
        while True:
            response: BrokerRegistrationResponse = await self._calls.ask(request)
            if response.error_code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                return response
            patience.spend(self._another_is_registered())
            await asyncio.sleep(_RETRY_TAKEN_S)

    def _another_is_registered(self) -> str:
        # A node that follows the metadata knows where.
        known = self.authority.image.brokers.get(self._node_id)
        where = f" at {known.host}:{known.port}" if known is not None else ""
        return f"node {self._node_id} is registered and live{where}, with another directory than {self._machine.path}"

    async def follow(self, store: Store) -> None:
        """Open what the metadata give this node, and follow every change in slices."""
        # Nothing may come between reading the image and following it.
        self._store = store
        following = Following(store, self.authority.image, self._machine.waiting.settle)
        store.begin(self.authority.image)
        self.authority.subscribe(following.on_image)
        self._machine.begin(following.run())

    async def announce(self) -> None:
        """A broker is announced by its heartbeats, and serves clients once it is unfenced."""
        if self._is_broker:
            self._machine.begin(self.heartbeats.run())
        await remove_leftovers(self._store, self.authority.removed_topics)
        if self._is_broker:
            await self.heartbeats.unfenced.wait()

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """The quorum's handlers, and the controller's: one that is not active refuses."""
        decisions = ControllerDecisions(
            self.authority,
            self._config,
            self._duties.sessions,
            live=lambda: self.authority.image.live_brokers(),
            clock=monotonic_ms,
        )
        registry.add(ApiKey.ELECT_LEADERS, decisions.replication.elect_leaders)
        registry.add(ApiKey.ALTER_PARTITION, decisions.replication.alter_partition)
        registry.add(ApiKey.BROKER_REGISTRATION, decisions.register)
        registry.add(ApiKey.BROKER_HEARTBEAT, decisions.heartbeat)
        registry.add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.replication.allocate_producer_ids)
        registry.add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, decisions.reassign)
        registry.add(ApiKey.LIST_PARTITION_REASSIGNMENTS, decisions.list_reassignments)
        registry.add(ApiKey.UNREGISTER_BROKER, decisions.unregister)
        partitions_max = MAX_REQUEST_PARTITION_SIZE_LIMIT.of(self._config)
        describe = DescribeTopicPartitions(lambda: self.authority.image, partitions_max=partitions_max)
        registry.add(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe)
        QuorumHandlers(self.quorum).add_handlers(registry, store)
        VoterChanges(self.quorum).add_handlers(registry)
        registry.add(ApiKey.ENVELOPE, Envelopes(registry, self._all_rows))

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """Calls for the controller are forwarded to it; other brokers tell of their own configuration."""
        return {
            Place.NAMED_BROKER: self._at_the_named_broker(judge),
            Place.CONTROLLER: self._answer_or_forward,
            Place.CONTROLLER_IF_ANY: self._answer_or_forward_if_any,
        }

    def _answer_or_forward(self, call: Call[Any], inner: Handler) -> Answer:
        # What another node has forwarded is not forwarded again: a node that takes the wrong one for the leader would
        # do so for ever. It is refused here, with the code that lets the other node ask again.
        is_here = self.is_active or call.via is not None or self.is_node(call)
        return inner(call) if is_here else self._forward(call)

    def _answer_or_forward_if_any(self, call: Call[Any], inner: Handler) -> Answer:
        """Like `_answer_or_forward`, but answered locally while there is no controller."""
        if self.controller_id in (NOBODY, self._node_id):
            return inner(call)
        return self._answer_or_forward(call, inner)

    def _in_envelope(self, call: Call[Request]) -> Forwarded:
        """A request in an envelope, so that the controller learns which client asks (KIP-590).

        What a node asks on its own behalf, such as a topic that a client has only mentioned, goes without an envelope.
        """
        header = call.header
        row = self._all_rows.get(ApiKey(header.api_key))
        is_read = row is not None and row.is_read
        # The version in which the client asked is that of the request inside.
        return Forwarded(call.request, call.version, wrap(call), None, partial(unwrap, header), is_read=is_read)

    # Leaving ----------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Let others lead first, so that no client has to find out by itself."""
        self.heartbeats.say_goodbye()
        if self._is_broker and self._machine.failure is None and not await self.heartbeats.has_leave(self._is_led):
            log.warning("node %d goes without leave: nobody decides, or nobody else can lead", self._node_id)
        await self.quorum.resign()

    def _is_led(self) -> bool:
        return self.raft.role in (Role.LEADER, Role.FOLLOWER)
