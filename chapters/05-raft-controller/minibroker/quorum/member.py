"""A node as a member of a cluster with a quorum. It may be a voter, an observer, a broker, or the active controller.

The nodes of `controller.quorum.voters` are voters; every other node is an observer. Without the setting, the node is
the only voter. A node whose `process.roles` is `controller` votes and has no partitions: it does not register as a
broker.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from minibroker.client.addresses import Address
from minibroker.controller.answering import ControllerDecisions
from minibroker.controller.deciding import FIRST_FEATURES, Controller
from minibroker.controller.describing import DescribeTopicPartitions
from minibroker.controller.keys import MAX_REQUEST_PARTITION_SIZE_LIMIT, controller_listener, process_roles
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import Image
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.cluster import check_metadata_log
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.slices import PARTITIONS, in_parts
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
from minibroker.raft.election import NO_NODE, Ballot
from minibroker.raft.keys import METADATA_SNAPSHOT_BYTES, QUORUM_ELECTION_TIMEOUT_MS, QUORUM_FETCH_TIMEOUT_MS
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replicas.forwarding import Forwarded
from minibroker.replicas.later import Later
from minibroker.replicas.membership import Membership
from minibroker.replicas.recovering import Elections, Recovery
from minibroker.replicas.registration import Registration
from minibroker.replication.epochs import EpochCache
from minibroker.replication.keys import MIN_INSYNC_REPLICAS, quorum_voters
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.metadata import MetadataResponseBroker
from minibroker.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

_RETRY_TAKEN_S = 0.2

# The address at which a node that listens on all interfaces reaches itself.
_REACHED_AT = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class QuorumMember(Membership):
    """The membership of one node in a cluster with a quorum."""

    authority: ClusterAuthority
    rows: Mapping[ApiKey, Access] = access.ROWS

    def __init__(self, machine: Machine, *, features: Mapping[str, int] = FIRST_FEATURES) -> None:
        """`features` has the feature levels that a controller sets if they are not set yet."""
        super().__init__(machine, self._in_envelope, is_alone=not quorum_voters(machine.config))
        self._features = features
        self._config = config = machine.config
        self._voter_addresses = {it.node_id: Address(it.host, it.port) for it in quorum_voters(config)}
        self._is_voter = "controller" in process_roles(config)
        self._is_broker = "broker" in process_roles(config)
        self._duties = Duties(config, self.me)
        self._recovery = Recovery(self.peers, lambda: self.authority.image, lambda: self.authority.image.live_brokers())
        self._registration = Registration(machine, self.me, self._ask_for_registration, lambda: self.authority.image)
        self.heartbeats = Heartbeats(
            config, self.me, lambda it: self._calls.ask(it), lambda: self.authority.image, lambda: self.is_active
        )

    @property
    def controller_id(self) -> int:
        """The leader of the quorum, as far as this node knows; -1 if there is none."""
        return self.raft.leader_id

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self.authority.is_active

    def _controller_address_of(self, node_id: int) -> Address | None:
        if node_id == self._node_id:
            name = controller_listener(self._config)
            host = next(it.host for it in self._config.listeners if it.name == name)
            return Address(_REACHED_AT.get(host, host), self._machine.port_of(name))
        # The configured address of a voter is preferred: the address in the metadata may be older.
        voter = self._voter_addresses.get(node_id)
        if voter is not None:
            return voter
        broker = self.quorum.registered_place_of(node_id)
        # An added voter that is not a broker has its address in the voter set.
        added = self.raft.voters.voters.get(node_id)
        # A response that names a leader also has the leader's address. A node with an empty disk has no other source of
        # that address.
        place = broker or added or self.quorum.places.get(node_id)
        return None if place is None else Address(place.host, place.port)

    def own_broker(self, listener: str) -> MetadataResponseBroker:
        """This node as clients see it. Clients need not know the controller, because nodes forward requests to it."""
        here = self._machine.endpoint(listener)
        return MetadataResponseBroker(node_id=self._node_id, host=here.host, port=here.port)

    def whose_data(self) -> str:
        """The data directory, the cluster id and the voters, in words."""
        cluster_id, voters = self.authority.image.cluster_id, sorted(self.raft.voters)
        return f"data is in {self._machine.path}, of cluster {cluster_id}, whose voters are {voters}"

    # Opening ----------------------------------------------------------------------------------------------------------

    async def identify(self) -> Identity:
        """Find the cluster id of the data directory. Fails if there is no secret to log in with."""
        self.logins.open()
        return await Identification(self._config, self.peers).identify()

    def open(self, identity: Identity) -> None:
        """Open the metadata log, the vote and the newest snapshot."""
        self._identity = identity
        directory, files = self._machine.data.directory_of(METADATA), self._machine.files
        epochs = EpochCache(files, directory)
        metadata_log = self._machine.data.open_log(METADATA, METADATA_LOG_CONFIG, companions=[epochs])
        if self._is_voter:
            # A voter must not start without its metadata log. The log may be the only copy, or it may have been counted
            # as one of the copies of committed records.
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
            self.raft,
            Image(cluster_id=identity.cluster_id),
            clock=wall_clock_ms,
            done=self._on_done,
            features=self._features,
            configs=self._min_isr(),
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
            listener=controller_listener(self._config),
        )
        controller.image = self.quorum.snapshotting.image()
        self._calls = ControllerCalls(
            machine, self.quorum, lambda node_id: self._controller_address_of(node_id) is not None
        )
        self.authority.subscribe(self._registration.on_image)

    def _min_isr(self) -> Mapping[str, str]:
        """The value of `min.insync.replicas` in this node's configuration, to be set for all brokers (KIP-966).

        The controller decides from the metadata alone which replicas are eligible to lead. Without this value it would
        assume 1, the default, and remember fewer of them.
        """
        value = MIN_INSYNC_REPLICAS.of(TopicConfig({}, self._config))
        return {MIN_INSYNC_REPLICAS.name: str(value)} if value > 1 else {}

    def _check_voters(self, identity: Identity) -> None:
        """Check the configured voters against those in the log. If the two differ, they may be of two clusters."""
        named, known = sorted(it.node_id for it in quorum_voters(self._config)), sorted(self.raft.voters)
        if not named or named == known:
            return
        if known == [self._node_id]:
            # This node would run as a cluster of its own, although clients expect the configured cluster.
            raise BrokerFailure(
                f"{self._machine.path} is of cluster {identity.cluster_id}, whose only voter is node {self._node_id}, "
                f"but controller.quorum.voters names {named}: give this node a data directory of its own (log.dirs). "
                f"Or, if that cluster is to grow, name only node {self._node_id} there, and add the other voters "
                "with `minibroker cluster add-voter`"
            )
        log.warning(
            "by its log, cluster %s has the voters %s, but controller.quorum.voters names %s: this node uses the"
            " setting only to find the cluster; `minibroker cluster add-voter` and `remove-voter` change the voters",
            identity.cluster_id,
            known,
            named,
        )

    def _on_active(self) -> None:
        log.info("node %d has become the controller, in epoch %d", self._node_id, self.raft.epoch)
        self._duties.begin(self.authority, self.quorum)

    # Joining ----------------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join the quorum. A broker also registers, and reads the metadata at least up to its registration."""
        self.quorum.start()
        self._machine.begin(self._duties.run(self.authority, self.quorum, self._recovery))
        if not self._is_broker:
            await self._calls.await_leader()
            return
        # So far only the records of a snapshot are known to be committed, so this node does not know yet which logs it
        # should have. It knows that when it has read its own registration. If logs are missing then, it registers
        # again, as after an unclean stop. The broker is fenced all this time.
        previous_broker_epoch = self._registration.previous_broker_epoch(self.authority.image)
        await self._register(previous_broker_epoch)
        if previous_broker_epoch != NO_BROKER_EPOCH and self._registration.is_something_lost(self.authority.image):
            await self._register(NO_BROKER_EPOCH)

    async def _register(self, previous_broker_epoch: int) -> None:
        """Register, and wait until the metadata have the registration."""
        await self._registration.register(self._identity, previous_broker_epoch)
        while self.authority.image.offset < self.me.broker_epoch:
            await self.quorum.changed()

    async def _ask_for_registration(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Register, and retry while the node.id is taken. It may be taken by this node's own last incarnation."""
        conflict = self._calls.node_id_conflict()
        while True:
            response: BrokerRegistrationResponse = await self._calls.ask(request)
            if response.error_code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                return response
            conflict.tolerate(self._another_is_registered())
            await asyncio.sleep(_RETRY_TAKEN_S)

    def _another_is_registered(self) -> str:
        # Another process is registered with this node.id. Its address is known if this node has read its registration.
        known = self.authority.image.brokers.get(self._node_id)
        where, path = f" at {known.host}:{known.port}" if known is not None else "", self._machine.path
        return f"node {self._node_id} is registered and live{where}, with another data directory than {path}"

    async def follow(self, store: Store) -> None:
        """Open the partitions of this node, and apply every change of the metadata in slices."""
        # There must be no await between reading the image and subscribing to its changes.
        self._store = store
        following = Following(store, self.authority.image, self._machine.waiting.settle)
        store.begin(self.authority.image)
        self.authority.subscribe(following.on_image)
        self._machine.begin(following.run())

    async def announce(self) -> None:
        """Send heartbeats, and wait until this broker is unfenced. Then it can serve clients."""
        if self._is_broker:
            self._machine.begin(self.heartbeats.run())
        await remove_leftovers(self._store, self.authority.removed_topics)
        if self._is_broker:
            await self.heartbeats.unfenced.wait()

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Register the handlers of the quorum and of the controller. An inactive controller refuses requests."""
        self.logins.add_handlers(registry)
        decisions = ControllerDecisions(
            self.authority,
            self._config,
            self._duties.sessions,
            live=lambda: self.authority.image.live_brokers(),
            clock=monotonic_ms,
        )
        elections = Elections(decisions.replication, self._recovery, Later(self._machine.waiting))
        registry.add(ApiKey.ELECT_LEADERS, elections)
        registry.add(ApiKey.ALTER_PARTITION, decisions.replication.alter_partition)
        registry.add(ApiKey.BROKER_REGISTRATION, decisions.register)
        registry.add(ApiKey.BROKER_HEARTBEAT, decisions.heartbeat)
        registry.add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.replication.allocate_producer_ids)
        reassign = in_parts(decisions.reassign, "topics", "responses", size=500, inner=PARTITIONS)
        registry.add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassign)
        registry.add(ApiKey.LIST_PARTITION_REASSIGNMENTS, decisions.list_reassignments)
        registry.add(ApiKey.UNREGISTER_BROKER, decisions.unregister)
        partitions_max = MAX_REQUEST_PARTITION_SIZE_LIMIT.of(self._config)
        describe = DescribeTopicPartitions(lambda: self.authority.image, partitions_max=partitions_max)
        registry.add(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe)
        QuorumHandlers(self.quorum).add_handlers(registry, store)
        VoterChanges(self.quorum).add_handlers(registry)
        registry.add(ApiKey.ENVELOPE, Envelopes(registry, self.table))

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """The filters that forward a request to the controller, or to the broker that a configuration request names."""
        return {
            Place.NAMED_BROKER: self._named_broker_filter(judge),
            Place.CONTROLLER: self._answer_or_forward,
            Place.CONTROLLER_IF_ANY: self._answer_or_forward_if_any,
        }

    def _answer_or_forward(self, call: Call[Any], inner: Handler) -> Answer:
        # A forwarded request is not forwarded again: two nodes that each consider the other one the leader would do so
        # for ever. It is refused here, with NOT_CONTROLLER, so that the other node looks for the leader again.
        is_here = self.is_active or call.via is not None or call.session.node_id is not None
        return inner(call) if is_here else self._forward(call)

    def _answer_or_forward_if_any(self, call: Call[Any], inner: Handler) -> Answer:
        """Like `_answer_or_forward`, but while there is no controller, this node answers."""
        if self.controller_id in (NO_NODE, self._node_id):
            return inner(call)
        return self._answer_or_forward(call, inner)

    def _in_envelope(self, call: Call[Request]) -> Forwarded:
        """Wrap a request in an envelope, which names the client (KIP-590).

        A request of the node itself, such as the automatic creation of a topic, is sent without an envelope.
        """
        header = call.header
        row = self.table.get(ApiKey(header.api_key))
        is_read = row is not None and row.is_read
        # The request inside has the version that the client used.
        return Forwarded(call.request, call.version, wrap(call), None, partial(unwrap, header), is_read=is_read)

    # Leaving ----------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand over leaderships before stopping, so that clients see no timeout."""
        self.heartbeats.request_shutdown()
        if self._is_broker and self._machine.failure is None and not await self.heartbeats.may_stop(self._is_led):
            log.warning(
                "node %d stops without handing over leadership: no controller answered, or no other broker can lead",
                self._node_id,
            )
        await self.quorum.resign()

    def _is_led(self) -> bool:
        return self.raft.role in (Role.LEADER, Role.FOLLOWER)
