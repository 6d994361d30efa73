"""A node of a cluster: broker and controller, or one of both. Any of them may be killed at any time.

    start   open the logs → take part in the quorum → register with whoever decides → follow the metadata up to there →
            lead and follow what they say → be heard, and unfenced → serve clients
    stop    say that we go, and wait until others lead what we led → serve no more → close the logs

The nodes of `controller.quorum.voters` vote; a node that is not among them only follows; where none are named, the
node is its own only voter. A node whose `process.roles` is `controller` votes and has no partitions: it does not
register. One listener serves clients and nodes alike. Until a node is part of its cluster it talks to nodes only: a
client that comes early is sent away, and comes again.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from minibroker.broker.authority import ClusterAuthority
from minibroker.broker.slicing import slices
from minibroker.client.errors import ClientError, known_code
from minibroker.controller.answering import ControllerDecisions
from minibroker.controller.balancing import LeaderBalance
from minibroker.controller.deciding import Controller
from minibroker.controller.describing import DescribeTopicPartitions
from minibroker.controller.keys import (
    AUTO_LEADER_REBALANCE_ENABLE,
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
    MAX_REQUEST_PARTITION_SIZE_LIMIT,
    process_roles,
)
from minibroker.controller.lifecycle import FenceBroker, LeadUncleanly
from minibroker.controller.placement import place_on_racks
from minibroker.controller.sessions import Sessions
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Proposal
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.placement import Placing
from minibroker.partitions.administration import Administration
from minibroker.partitions.errors import BrokerFailure, Disconnect
from minibroker.partitions.identity import META_PROPERTIES, Identity, identify, lock
from minibroker.partitions.node import Node, bind, limits_of, only_listener, schedule_of
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.server import Server, Tracer
from minibroker.partitions.store import METADATA
from minibroker.partitions.upkeep import Upkeep
from minibroker.partitions.waiting import Wait
from minibroker.quorum.changing import VoterChanges
from minibroker.quorum.envelope import Envelopes
from minibroker.quorum.forwarding import ForwardInEnvelope
from minibroker.quorum.running import Quorum
from minibroker.raft.election import NOBODY, Ballot
from minibroker.raft.keys import METADATA_SNAPSHOT_BYTES, QUORUM_ELECTION_TIMEOUT_MS, QUORUM_FETCH_TIMEOUT_MS
from minibroker.raft.node import Raft, RaftSettings
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumTopic,
)
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replicas.disk import disk_usage
from minibroker.replicas.fetching import Self
from minibroker.replicas.node import FORWARDED, ReplicatedNode
from minibroker.replicas.peers import PeerAddress, node_of
from minibroker.replication.answering import DescribeProducers, OffsetForLeaderEpoch
from minibroker.replication.authority import Elected
from minibroker.replication.epochs import EpochCache
from minibroker.replication.keys import QuorumVoter, quorum_voters
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.log_dirs import DescribeLogDirs
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.describe_cluster import DescribeClusterResponse
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from minibroker.wire.uuids import parse_uuid, uuid_text

log = logging.getLogger(__name__)

_ASK_MS = 3000
_RETRY_S = 0.05
_RETRY_TAKEN_S = 0.2
_SESSIONS_MAX = 3
_SESSION_CHECK_S = 0.1
_GOODBYE_MS_MAX = 10_000
_LONELY_MS_MAX = 1000
_TELL_MS = 2000
# How many partitions are opened, or led by somebody else, before others have their turn.
_SLICE = 4

# Where a node that listens everywhere finds itself.
_REACHED_AT = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

# What nodes ask of each other, also before they serve clients.
BETWEEN_NODES = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)
# What no client ever asks. Until nodes prove who they are, they are known by the name they give themselves.
FOR_NODES_ALONE = (
    *sorted(BETWEEN_NODES - {ApiKey.API_VERSIONS}),
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.ENVELOPE,
)
# What only who decides can answer, besides chapter 04's.
DECIDED = (
    *FORWARDED,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UNREGISTER_BROKER,
)
# What may be in an Envelope.
FORWARDABLE = frozenset({*DECIDED, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.DESCRIBE_QUORUM})


class _Unclean:
    """Sees that somebody leads where a topic says that any leader is better than none, while this node decides."""

    def __init__(self, authority: ClusterAuthority, config: NodeConfig) -> None:
        self._authority = authority
        self._config = config
        self._seen: tuple[object, ...] = ()
        self._proposal: Proposal[list[Elected]] | None = None

    def look(self) -> None:
        """Elect, if anything has changed that could make a difference; say what came of the last time."""
        if self._proposal is not None and self._proposal.is_done:
            for it in self._proposal.result:
                log.warning("node %d leads %s, and was not in sync: records are lost", it.leader, it.name.directory)
            self._proposal = None
        # To look at every partition costs time, and only who lives and what is configured makes a difference.
        image = self._authority.image
        now = (image.brokers, image.configs)
        if self._proposal is None and not all(map(is_, now, self._seen or (None, None))):
            self._seen = now
            self._proposal = self._authority.propose(LeadUncleanly(self._config))

    def forget(self) -> None:
        """Another node decides: whatever it has seen, this one has not."""
        self._seen = ()


class _Patience:
    """How long a node puts up with another one that has its number. It says so at once, and then that it ends."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._since_ms: int | None = None

    def spend(self, what: str) -> None:
        """It is still so."""
        if self._since_ms is None:
            self._since_ms = monotonic_ms()
            log.warning("%s: waiting for %d ms at most, in case that it is gone", what, self._ms)
        if monotonic_ms() - self._since_ms > self._ms:
            raise BrokerFailure(f"{what}: this one ends. Give it another node.id, or stop the other one first")

    def restore(self) -> None:
        """It is not so any more."""
        self._since_ms = None


class ClusterNode(ReplicatedNode):
    """One node of a cluster."""

    voters_max = 2**31

    def __init__(self, config: NodeConfig, *, tracer: Tracer | None = None) -> None:
        super().__init__(config, tracer=tracer)
        self.me = Self(config.node_id, -1)
        self._sessions = Sessions(BROKER_SESSION_TIMEOUT_MS.of(config))
        interval_ms = LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS.of(config) * 1000
        self._balance = LeaderBalance(interval_ms if AUTO_LEADER_REBALANCE_ENABLE.of(config) else None)
        self._is_serving = False
        self._is_broker = "broker" in process_roles(config)
        self._leaving = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._may_go = asyncio.Event()
        self._is_behind = asyncio.Event()
        self._heard_ms = 0
        """When this node last said something that who decides has heard."""

    @property
    def is_authority(self) -> bool:
        """Nobody is for good: see `ClusterAuthority.is_active`."""
        return False

    @property
    def _authority_id(self) -> int:
        return self.raft.leader_id

    @_authority_id.setter
    def _authority_id(self, node_id: int) -> None:
        """Whoever leads decides: there is nothing to set."""

    def _address_of(self, node_id: int) -> PeerAddress | None:
        if node_id == self._node_id:
            return self._here
        # A voter is where the configuration says, whatever it was called when the metadata heard of it last.
        voter = next((it for it in quorum_voters(self._config) if it.node_id == node_id), None)
        if voter is not None:
            return PeerAddress(voter.host, voter.port)
        broker = self.authority.image.brokers.get(node_id)
        # One that was added as a voter, and is no broker, has said there where it is.
        added = self.raft.voters.voters.get(node_id)
        # And where the leader is, those tell who name it: a node with an empty disk knows nothing else.
        place = broker or added or self.quorum.places.get(node_id)
        return None if place is None else PeerAddress(place.host, place.port)

    # Starting ---------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        listener = only_listener(self._config)
        bound = self._cleanup.enter_context(bind(listener))
        port = bound.getsockname()[1]
        self._here = PeerAddress(_REACHED_AT.get(listener.host, listener.host), port)
        path = self._config.log_dirs[0]
        self._cleanup.callback(os.close, lock(path))
        identity = await self.identify(path)
        self._open(path)
        self._advertised = endpoint = self._endpoint(port)
        self._make_quorum(identity)
        self.store = self.make_store()
        self.add_handlers()
        config = self._config
        self.server = Server(self.registry, self.waiting, limits_of(config), tracer=self._tracer)
        self.upkeep = Upkeep(self.store, self.data, self.files, schedule_of(config), self._threads[1])
        await self.server.start(bound, backlog=config.socket_listen_backlog_size)
        # From here on this node votes, and is found by others.
        self.quorum.start()
        self._begin(self._keep_sessions())
        if self._is_broker:
            await self._join(identity, endpoint)
        else:
            await self._await_leader()
        # Nothing may come between reading the image and following it.
        image = self.authority.image
        self.store.begin(image)
        self._reconfigure(Image(), image)
        self._wanted_image = image
        self.authority.subscribe(self._follow)
        self._begin(self._follow_on())
        self.authority.subscribe(self._reconfigure)
        self._is_serving = True
        self.upkeep.start()
        if self._is_broker:
            self._begin(self._heartbeat())
        await self._put_away()
        if self._is_broker:
            await self._unfenced.wait()

    async def _put_away(self) -> None:
        """Remove what was deleted while this node was away: thousands of directories, in between other things."""
        for number, _name in enumerate(self.store.put_away(self.authority.removed_topics)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    def _follow(self, _old: Image, new: Image) -> None:
        """Do at once what is quickly done; the rest in between other things."""
        is_behind = self.store.image is not self._wanted_image
        self._wanted_image = new
        if not is_behind:
            self._follow_a_little()
        self._is_behind.set()

    def _follow_a_little(self) -> None:
        self.store.follow(self.store.image, next(slices(self.store.image, self._wanted_image, _SLICE)))

    async def _follow_on(self) -> None:
        while True:
            await self._is_behind.wait()
            self._is_behind.clear()
            while self.store.image is not self._wanted_image:
                self._follow_a_little()
                self.waiting.settle()
                await asyncio.sleep(0)

    async def identify(self, path: str) -> Identity:
        """Whose directory this is. A voter's new one is of the cluster that its voters are; others ask the voters.

        One that says so itself need not ask, and must not: it may be a voter by now, for which all the others wait.
        Whether they are of the same cluster, the quorum finds out.
        """
        if os.path.exists(f"{path}/{META_PROPERTIES}"):
            return identify(path, self._node_id)
        if "controller" in process_roles(self._config):
            cluster_id = await self._cluster_of_most() or self._cluster_of_voters()
        else:
            cluster_id = await self._ask_for_cluster_id()
        return identify(path, self._node_id, cluster_id=cluster_id)

    async def _cluster_of_most(self) -> str | None:
        """The cluster that most of the voters serve already, if they do: others than these may have begun it."""
        voters = quorum_voters(self._config)
        others = [it for it in voters if it.node_id != self._node_id]
        answers = await asyncio.gather(*map(self._ask_voter, others), return_exceptions=True)
        found = Counter(
            answer[0]
            for it, answer in zip(others, answers, strict=True)
            if not isinstance(answer, BaseException) and it.node_id in answer[1]
        )
        return next((cluster_id for cluster_id, count in found.items() if count > len(voters) // 2), None)

    def _cluster_of_voters(self) -> str | None:
        """The voters of a cluster are its identity, until a directory has one: nodes need not be told another name."""
        voters = quorum_voters(self._config)
        if not voters:
            return None
        names = ",".join(f"{it.node_id}@{it.host}:{it.port}" for it in sorted(voters))
        return uuid_text(hashlib.sha256(names.encode()).digest()[:16])

    async def _ask_for_cluster_id(self) -> str:
        """Ask one voter after the other, until one is part of its cluster; nodes may be started in any order."""
        told: set[str] = set()
        while True:
            wrong = []
            for voter in quorum_voters(self._config):
                try:
                    cluster_id, voters = await self._ask_voter(voter)
                    if voter.node_id in voters:
                        return cluster_id
                    place = f"node {voter.node_id} at {voter.host}:{voter.port}"
                    wrong.append(f"{place}, which leads to a cluster whose voters are {voters}: correct it")
                    _tell_once(told, f"controller.quorum.voters has {wrong[-1]}")
                except ClientError as error:
                    if not told:
                        _tell_once(told, f"waiting for the voters: node {voter.node_id}: {error}")
            # One that was removed may be named here for a while; but if all are wrong, this is another cluster.
            if len(wrong) == len(quorum_voters(self._config)):
                raise BrokerFailure(f"controller.quorum.voters has {wrong[0]}")
            await asyncio.sleep(_RETRY_S)

    async def _ask_voter(self, voter: QuorumVoter) -> tuple[str, list[int]]:
        """Of which cluster a node is that is to be a voter, and who votes there."""
        metadata: MetadataResponse = await self._peers.send(
            voter.node_id, MetadataRequest(topics=[]), timeout_ms=_ASK_MS
        )
        topic = QuorumTopic(topic_name=METADATA.topic, partitions=[QuorumPartition(partition_index=0)])
        request = DescribeQuorumRequest(topics=[topic])
        response: DescribeQuorumResponse = await self._peers.send(voter.node_id, request, timeout_ms=_ASK_MS)
        return metadata.cluster_id or "", sorted(it.node_id for it in response.nodes)

    def _open_quorum_log(self, epochs: EpochCache) -> SegmentedLog:
        metadata_log = self.data.open_log(METADATA, METADATA_LOG_CONFIG, companions=[epochs])
        if "controller" in process_roles(self._config):
            # Nobody else has the metadata; or others count on it that this voter still knows what it was told.
            self.check_metadata_log(metadata_log)
        return metadata_log

    def _make_quorum(self, identity: Identity) -> None:
        directory = self.data.directory_of(METADATA)
        epochs = EpochCache(self.files, directory)
        metadata_log = self._open_quorum_log(epochs)
        key = VoterKey(self._node_id, parse_uuid(identity.directory_id))
        voters = [Voter(VoterKey(it.node_id), it.host, it.port) for it in quorum_voters(self._config)]
        snapshots = SnapshotFiles(self.files, directory)
        self.raft = Raft(
            key,
            metadata_log,
            epochs,
            Ballot(self.files, directory),
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
        self._check_whose_log(identity)
        controller = Controller(
            self.raft, Image(cluster_id=identity.cluster_id), clock=wall_clock_ms, done=self._on_done
        )
        controller.on_active = self._on_active
        self.controller = controller
        self.authority: ClusterAuthority = ClusterAuthority(controller, self._peers, self.me, self._on_done)
        self.quorum = Quorum(
            self.raft,
            controller,
            self._peers,
            self.waiting,
            cluster_id=identity.cluster_id,
            begin=self._begin,
            snapshots=snapshots,
            snapshot_bytes=METADATA_SNAPSHOT_BYTES.of(self._config),
        )
        controller.image = self.quorum.image_of_snapshot()

    def _check_whose_log(self, identity: Identity) -> None:
        """Who votes is said by the log. A file that names others may be that of another cluster."""
        named, known = sorted(it.node_id for it in quorum_voters(self._config)), sorted(self.raft.voters)
        if not named or named == known:
            return
        if known == [self._node_id]:
            # It would decide alone, where clients look for the others' cluster.
            raise BrokerFailure(
                f"{self._directory} is of cluster {identity.cluster_id}, in which node {self._node_id} votes alone, "
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

    def whose_data(self) -> str:
        """Where the data are, and of which cluster."""
        image, voters = self.authority.image, sorted(self.raft.voters)
        return f"data is in {self._directory}, of cluster {image.cluster_id}, whose voters are {voters}"

    def _on_active(self) -> None:
        log.info("node %d decides from now on, in epoch %d", self._node_id, self.raft.epoch)
        before, before_ms = self.quorum.heard
        self._sessions.begin(self.authority.image.brokers, monotonic_ms(), before=before, before_ms=before_ms)
        self._balance.begin(monotonic_ms())

    async def _join(self, identity: Identity, endpoint: Endpoint) -> None:
        # Of the metadata only a snapshot is certain so far: which logs should be here is known when our own
        # registration has arrived. Until then this node is fenced, so what it says of itself can be taken back.
        previous_broker_epoch = self._previous_broker_epoch(self.authority.image)
        await self._register_here(identity, endpoint, previous_broker_epoch)
        if previous_broker_epoch != NO_BROKER_EPOCH and self._is_something_lost(self.authority.image):
            await self._register_here(identity, endpoint, NO_BROKER_EPOCH)

    async def _register_here(self, identity: Identity, endpoint: Endpoint, previous_broker_epoch: int) -> None:
        """Be registered, and hear of it."""
        self._is_registering = True
        self.me.broker_epoch = await self._register_as(identity, endpoint, previous_broker_epoch)
        self._is_registering = False
        while self.authority.image.offset < self.me.broker_epoch:
            await self.quorum.changed()

    async def _ask_for_registration(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Ask again while our number is another one's: that may be our own last life, if its disk was lost with it."""
        patience = self._patience_with_another()
        while True:
            response = await super()._ask_for_registration(request)
            if response.error_code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                return response
            patience.spend(self._another_is_registered())
            await asyncio.sleep(_RETRY_TAKEN_S)

    def _patience_with_another(self) -> "_Patience":
        # A session, and another one if somebody else begins to decide meanwhile.
        return _Patience(_SESSIONS_MAX * BROKER_SESSION_TIMEOUT_MS.of(self._config))

    def _another_is_registered(self) -> str:
        # Whoever follows the metadata knows where.
        known = self.authority.image.brokers.get(self._node_id)
        where = f" at {known.host}:{known.port}" if known is not None else ""
        return f"node {self._node_id} is registered and live{where}, with another directory than {self._directory}"

    @property
    def _directory(self) -> str:
        return self._config.log_dirs[0]

    async def _await_leader(self) -> None:
        waiting = self._waiting_for_a_majority()
        # One that was started again remembers who led. Whoever leads now has answered, or is this node.
        while not self.raft.is_leader and self.quorum.heard[0] == NOBODY:
            self._raise_if_failed()
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    def _raise_if_failed(self) -> None:
        """Nobody watches a node that has not started yet."""
        if self._failure is not None:
            raise self._failure

    def _waiting_for_a_majority(self) -> Iterator[None]:
        """To be asked again and again while nobody leads: says so, if it is not over in a moment, and what changes."""
        told, told_ms = "", monotonic_ms()
        patience = self._patience_with_another()
        while True:
            yield
            if self.quorum.is_doubled:
                patience.spend(f"node {self._node_id} leads the voters {list(self.raft.voters)}, and is not this one")
                continue
            patience.restore()
            if monotonic_ms() - told_ms >= _TELL_MS and told != (now := self._awaited()):
                log.warning("waiting %s", now)
                told, told_ms = now, monotonic_ms()

    def _awaited(self) -> str:
        if self.raft.role is Role.FOLLOWER and not self.raft.is_voter:
            # It has no say in who leads.
            leader_id = self.raft.leader_id
            lost = "" if self._address_of(leader_id) is not None else ", and nobody has said where it is"
            return f"for node {leader_id}, which led when this node last heard of it{lost}"
        voters = list(self.raft.voters)
        # A voter that has nothing needs every vote: see `Raft`.
        needs_all = self.raft.log.log_end_offset == 0 and self._node_id in voters
        what = (
            f"for all voters {voters}: a new cluster begins when each of them is up"
            if needs_all
            else f"until a majority of the voters {voters} is there"
        )
        missed, strangers = sorted(self.quorum.unreached & set(voters)), sorted(self.quorum.strangers)
        if missed:
            what += f"; no answer from {missed}"
        if strangers:
            what += (
                f"; {strangers} are of another cluster, which has begun without this node. If that is the one to join, "
                f"name only {strangers} in controller.quorum.voters, start this one with an empty directory, and then "
                "let it vote with `minibroker cluster add-voter`"
            )
        return what

    async def _ask_who_decides(self, request: Any) -> Any:
        """Ask the leader of the quorum; whoever that is by then, if it changes."""
        waiting = self._waiting_for_a_majority()
        while True:
            self._raise_if_failed()
            leader_id = self.raft.leader_id
            if leader_id < 0:
                next(waiting)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                response = await self.quorum.ask(leader_id, request, timeout_ms=_ASK_MS)
                if response.error_code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
                    return response
            except ClientError as error:
                log.debug("node %d: %s", leader_id, error)
            # One that was started again remembers who led, and may wait for that one in vain.
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    def _check_that_we_are_we(self, image: Image) -> None:
        if self.me.broker_epoch >= 0:
            super()._check_that_we_are_we(image)

    def _broker_epochs(self, image: Image) -> dict[int, int]:
        """Those who may be in sync: who is fenced, or about to go, would only be refused."""
        brokers = image.brokers.values()
        return {it.node_id: it.epoch for it in brokers if not it.is_fenced and not it.in_controlled_shutdown}

    # Being heard ------------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        """Say that this node is there, until it is gone."""
        interval_s = BROKER_HEARTBEAT_INTERVAL_MS.of(self._config) / 1000
        while True:
            sent_ms = monotonic_ms()
            request = BrokerHeartbeatRequest(
                broker_id=self._node_id,
                broker_epoch=self.me.broker_epoch,
                current_metadata_offset=self.authority.image.offset,
                want_fence=False,
                want_shut_down=self._leaving.is_set(),
                offline_log_dirs=[],
            )
            response: BrokerHeartbeatResponse = await self._ask_who_decides(request)
            if response.error_code:
                code = known_code(response.error_code)
                log.warning("node %d is not heard: %s", self._node_id, code.name)
            else:
                self._heard_ms = sent_ms
            if response.should_shut_down:
                self._may_go.set()
            elif not response.error_code and not response.is_fenced:
                self._unfenced.set()
            if self._leaving.is_set() or not self._unfenced.is_set():
                await asyncio.sleep(_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), interval_s)

    async def _keep_sessions(self) -> None:
        """While this node decides: fence who is silent, let who is back lead again, and where anybody may, somebody."""
        checked_ms = monotonic_ms()
        unclean = _Unclean(self.authority, self._config)
        while True:
            await asyncio.sleep(_SESSION_CHECK_S)
            now_ms = monotonic_ms()
            if now_ms - checked_ms > self._sessions.session_ms / 2:
                # This node was stuck itself. What it did not hear meanwhile, others may have said.
                self._sessions.begin(self.authority.image.brokers, now_ms)
            checked_ms = now_ms
            if self.authority.is_active:
                for broker_id in self._sessions.silent(self.authority.image.live_brokers(), now_ms):
                    fenced = self.authority.propose(FenceBroker(broker_id))
                    if not fenced.is_done or fenced.result:
                        log.warning("node %d has been silent for %d ms: fenced", broker_id, self._sessions.session_ms)
                balance = self._balance.tick(self.authority.image, now_ms)
                if balance is not None:
                    log.info("partitions go back to their preferred leaders")
                    self.authority.propose(balance)
                unclean.look()
                self.quorum.step()
            else:
                unclean.forget()

    def _live(self) -> Collection[int]:
        return self.authority.image.live_brokers()

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self) -> None:
        """Everything; to clients not before this node is part of its cluster."""
        Node.add_handlers(self)
        add = self.registry.add
        replicas = self.replica_routes()
        add(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpoch(replicas))
        add(ApiKey.DESCRIBE_PRODUCERS, DescribeProducers(replicas))
        add(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs(self.store.logs, lambda: disk_usage(self._config.log_dirs[0])))
        partitions_max = MAX_REQUEST_PARTITION_SIZE_LIMIT.of(self._config)
        describe = DescribeTopicPartitions(lambda: self.authority.image, partitions_max=partitions_max)
        add(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe)
        decisions = ControllerDecisions(
            self.authority, self._config, self._sessions, live=self._live, clock=monotonic_ms
        )
        add(ApiKey.ELECT_LEADERS, decisions.elect_leaders)
        add(ApiKey.ALTER_PARTITION, decisions.alter_partition)
        add(ApiKey.BROKER_REGISTRATION, decisions.register)
        add(ApiKey.BROKER_HEARTBEAT, decisions.heartbeat)
        add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.allocate_producer_ids)
        add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, decisions.reassign)
        add(ApiKey.LIST_PARTITION_REASSIGNMENTS, decisions.list_reassignments)
        add(ApiKey.UNREGISTER_BROKER, decisions.unregister)
        self._forward = ForwardInEnvelope(self._peers, self.waiting, authority_id=lambda: self._authority_id)
        self.registry.wrap(ApiKey.PRODUCE, self._send_away_if_not_heard)
        for key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER):
            self.registry.wrap(key, self._name_ourselves)
        for key in DECIDED:
            self.registry.wrap(key, self._here_or_there)
        self.wrap_configurations()
        for key in self.registry.known():
            if key not in BETWEEN_NODES:
                self.registry.wrap(key, self._gate)
        self.registry.wrap(ApiKey.API_VERSIONS, self._gate_for_clients)
        self.quorum.add_handlers(self.registry)
        VoterChanges(self.quorum).add_handlers(self.registry)
        for key in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER):
            self.registry.wrap(key, self._here_or_there)
        self.registry.wrap(ApiKey.DESCRIBE_QUORUM, self._here_or_there_now)
        add(ApiKey.ENVELOPE, Envelopes(self.registry, FORWARDABLE))
        for key in FOR_NODES_ALONE:
            self.registry.wrap(key, self._refuse_clients)

    def _here_or_there(self, call: Call[Any], inner: Handler) -> Answer:
        # What another node has passed on is not passed on again: who takes the wrong one for the leader would do so for
        # ever. It is refused here, with the code that lets the other node ask again.
        is_here = self.authority.is_active or call.via is not None or _is_of_a_node(call)
        return inner(call) if is_here else self._forward(call)

    def _here_or_there_now(self, call: Call[Any], inner: Handler) -> Answer:
        """The same for what can be told while nobody decides: that nobody does."""
        if self._authority_id in (NOBODY, self._node_id):
            return inner(call)
        return self._here_or_there(call, inner)

    def _name_ourselves(self, call: Call[Any], inner: Handler) -> Answer:
        """Say that this node is the controller: it passes on what is for whoever is (KIP-590).

        A client sends administrative requests to the one that is named, and librdkafka waits for it even if it is dead.
        Whoever can read this can reach us.
        """
        answer = inner(call)
        if isinstance(answer, MetadataResponse) and not answer.brokers:
            # All are fenced. To be told that there are no brokers, librdkafka forgets those that it knows, and never
            # asks anybody again.
            here = self._advertised
            answer.brokers = [MetadataResponseBroker(node_id=self._node_id, host=here.host, port=here.port)]
            answer.controller_id = self._node_id
        elif isinstance(answer, MetadataResponse | DescribeClusterResponse) and self._node_id in self._live():
            answer.controller_id = self._node_id
        return answer

    def _send_away_if_not_heard(self, call: Call[Any], inner: Handler) -> Answer:
        """A leader that followers have left, and who decides too, may be deposed without knowing it.

        To be told that a write took too long, a client tries the same node again, for minutes. So it is sent away, and
        asks another node who leads.
        """
        answer = inner(call)
        if isinstance(answer, Wait):
            answer.expire = functools.partial(self._too_late, answer.expire)
        return answer

    def _too_late(self, expire: Callable[[], Response]) -> Response:
        silent_ms = monotonic_ms() - self._heard_ms
        if silent_ms > BROKER_SESSION_TIMEOUT_MS.of(self._config):
            raise Disconnect(f"this node was not heard for {silent_ms} ms: another one may lead")
        return expire()

    def _gate(self, call: Call[Any], inner: Handler) -> Answer:
        # Other nodes need it before it is heard to have caught up, clients do not.
        is_heard = not self._is_broker or self._unfenced.is_set()
        if not self._is_serving or not (is_heard or _is_of_a_node(call)):
            raise Disconnect("this node is not part of its cluster yet")
        return inner(call)

    def _refuse_clients(self, call: Call[Any], inner: Handler) -> Answer:
        if not _is_of_a_node(call):
            raise Disconnect(f"{type(call.request).__name__} is for nodes alone, and came from {call.peer}")
        return inner(call)

    def _gate_for_clients(self, call: Call[Any], inner: Handler) -> Answer:
        return inner(call) if _is_of_a_node(call) else self._gate(call, inner)

    def placing(self) -> Placing:
        """With regard to racks."""
        return place_on_racks

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics here if this node decides, or ask who does."""
        if self.authority.is_active:
            return administration.create_on_demand(names)
        return super().create_on_demand(administration, names)

    # Leaving ----------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Go in order: first let others lead, so that no client has to find out by itself."""
        self._leaving.set()
        if self._is_broker and self._failure is None and not await self._is_let_go():
            log.warning("node %d goes without leave: nobody decides, or nobody else can lead", self._node_id)
        await self.quorum.resign()
        await super().stop()

    async def _is_let_go(self) -> bool:
        """Wait until others lead what this node led; not for long where nobody is left who could decide that."""
        begun_ms = led_ms = monotonic_ms()
        while not self._may_go.is_set():
            now_ms = monotonic_ms()
            if self.raft.role in (Role.LEADER, Role.FOLLOWER):
                led_ms = now_ms
            if now_ms - begun_ms > _GOODBYE_MS_MAX or now_ms - led_ms > _LONELY_MS_MAX:
                return False
            await asyncio.sleep(_RETRY_S)
        return True


def _is_of_a_node(call: Call[Any]) -> bool:
    """Whether another node asks, and no client."""
    return node_of(call.header.client_id) is not None


def _tell_once(told: set[str], line: str) -> None:
    if line not in told:
        told.add(line)
        log.warning("%s", line)
