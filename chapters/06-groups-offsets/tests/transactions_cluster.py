"""The nodes of the world of transactions: several replicated partitions, with all coordinators of this chapter.

Everything that runs on a node is the broker's code: replicas, logs with their transactions, the handlers of Produce,
Fetch and WriteTxnMarkers, group and transaction coordinators, the sending of markers, verification. Simulated are the
event loop, the clocks, the disks, and the connections.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from groups_clients import Client
from groups_cluster import OFFSETS, Asked, Node, SimulatedClock, SimulatedCoordinators, on_ended
from groups_loop import LoopProcess, SlowTurn
from groups_sessions import SessionAuthority
from groups_watch import Broken, differences
from partition_watch import NO_ENDS, Mirror, WatchedDirectory
from replication_cluster import CHECKPOINT_MS, FETCH_TIMEOUT_MS, FETCH_WAIT_MS, NODE_CONFIG, TICK_MS
from replication_messages import Answered, Start
from replication_nodes import answer_fetch
from transactions_watch import read_batches

from minibroker.client.errors import ConnectionLost
from minibroker.coordinators.coordinator import State
from minibroker.coordinators.group_hosting import GroupCoordinators
from minibroker.coordinators.internal_topics import rules_for
from minibroker.coordinators.loading import replay_record
from minibroker.coordinators.node_calls import NodeCalls
from minibroker.coordinators.ongoing import OngoingTransactions
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.transaction_hosting import TransactionCoordinators
from minibroker.coordinators.verification import TransactionVerifier
from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, FileSlice
from minibroker.metadata.authority import Proposal
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage
from minibroker.metadata.names import TRANSACTION_STATE_TOPIC
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.partitions.errors import Refused
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.produce import Produce
from minibroker.partitions.waiting import Waiting
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Election, ElectLeaders, IsrChange, _changed
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.leader import Altered, IsrProposal
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.simulation.links import Reply
from minibroker.simulation.scheduler import Timer
from minibroker.simulation.trace import NOTE
from minibroker.transactions.keys import TransactionSettings
from minibroker.transactions.logs import TransactionLogs
from minibroker.transactions.shard import TransactionShard
from minibroker.transactions.tables.txn_offset_commit import TxnOffsetCommitResponse
from minibroker.transactions.transitions import PREPARED
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, codes_in
from minibroker.wire.tables.fetch import FetchResponse
from minibroker.wire.tables.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from transactions_world import World

PEER_MS_MAX = 3000
"""How long a node waits for another one. The broker waits longer, but its connections survive short cuts."""


# Messages -------------------------------------------------------------------------------------------------------------


class Decisions(NamedTuple):
    """The controller's decisions up to one offset of its log."""

    offset: int
    image: Image

    def __str__(self) -> str:
        return f"decisions up to {self.offset}"


class ProposeFor(NamedTuple):
    """A leader's proposal for one of its partitions."""

    broker_id: int
    broker_epoch: int
    name: TopicPartition
    proposal: IsrProposal

    def __str__(self) -> str:
        return f"propose ISR {list(self.proposal.members)} of {self.name.directory}"


class FetchAll(NamedTuple):
    """A follower's fetch of all partitions that one node leads."""

    replica_id: int
    broker_epoch: int
    positions: tuple[tuple[TopicPartition, Position], ...]
    bytes_max: int

    def __str__(self) -> str:
        return "fetch " + ", ".join(f"{name.directory} {it.fetch_offset}" for name, it in self.positions)


class FetchedAll(NamedTuple):
    """The answer, in the order of the request."""

    found: tuple[Fetched | Start, ...]

    def __str__(self) -> str:
        return ", ".join("start" if isinstance(it, Start) else f"{len(it.records)} bytes" for it in self.found)


# The controller -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unlead(Command[None]):
    """Partitions have no leader any more, because no replica in sync is alive."""

    partitions: Sequence[TopicPartition]

    def run(self, image: Image, records: Records) -> None:
        for name in self.partitions:
            records.add([_changed(image.topics[name.topic].topic_id, name.partition, leader=NO_LEADER)])

    def refuse(self, code: ErrorCode, message: str) -> None:
        raise AssertionError(f"{code.name}: {message}")


class Controller(SessionAuthority):
    """Chapter 04's controller, for several topics."""

    world: "World"

    @property
    def partition(self) -> PartitionImage:
        return self.image_of(OFFSETS)

    def image_of(self, name: TopicPartition) -> PartitionImage:
        """The decision about one partition."""
        return self.image.topics[name.topic].partitions[name.partition]

    def create_topics(self, topics: Mapping[str, Sequence[Sequence[int]]], configs: Mapping[str, str]) -> None:
        """Create topics, with the replicas of each partition."""
        for name, replicas in topics.items():
            topic = NewTopic(
                name, name.encode()[:16].rjust(16, b"."), assignments=list(enumerate(replicas)), configs=configs
            )
            (created,) = self.voter.propose(CreateTopics([topic], NodeConfig())).result
            assert created.code == 0, created.message

    def news_now(self) -> Any:
        return Decisions(self.image.offset, self.image)

    def on_propose(self, request: Any, reply: Reply) -> None:
        it: ProposeFor = request
        topic_id = self.image.topics[it.name.topic].topic_id
        proposal = it.proposal
        change = IsrChange(topic_id, it.name.partition, proposal.leader_epoch, proposal.partition_epoch, proposal.isr)
        (found,) = self.voter.propose(self.alter_partitions(it.broker_id, it.broker_epoch, [change])).result
        reply(Answered(Altered(found.code, found.isr, found.partition_epoch)))

    def elect_for(
        self,
        names: Sequence[TopicPartition],
        live: Sequence[int],
        kind: Election = Election.PREFERRED,
        ends: LogEnds = NO_ENDS,
    ) -> None:
        """Elect leaders of some partitions."""
        self.voter.propose(ElectLeaders(names, live=live, node=NODE_CONFIG, kind=kind, ends=ends))

    def unlead(self, names: Sequence[TopicPartition]) -> None:
        """Take the leader from some partitions."""
        self.voter.propose(Unlead(names))


class NodeAuthority:
    """What a node knows of the metadata."""

    def __init__(self, node: "Broker") -> None:
        self._node = node
        self.image = node.world.image
        self._listeners: list[Callable[[Image, Image], None]] = []

    def subscribe(self, listener: Callable[[Image, Image], None]) -> None:
        self._listeners.append(listener)

    def learn(self, new: Image) -> Image:
        """New metadata are there. The listeners do not know them yet."""
        old, self.image = self.image, new
        return old

    def tell(self, old: Image) -> None:
        if old is not self.image:
            for listener in self._listeners:
                listener(old, self.image)

    def propose(self, command: Command[Any]) -> Proposal[Any]:
        """Only blocks of producer ids are asked for here. The controller answers if it can be reached."""
        authority, name = self._node.world.authority, self._node.name
        is_cut = self._node.world.network.is_cut(name, "authority")
        return Proposal() if is_cut else authority.voter.propose(command)


# Connections ----------------------------------------------------------------------------------------------------------


class Line(Client):
    """A connection of a process to a node that `find` returns. It is opened again when it breaks."""

    process: LoopProcess

    def __init__(self, world: Any, owner: Any, find: Callable[[], Any]) -> None:
        self.world = world
        self.name = owner.name
        self.process = owner.process
        self.chance = owner.chance
        self.link = None
        self._pending = {}
        self._find = find

    def find_node(self) -> Any:
        return self._find()

    async def call(self, version: int, request: Request, *, timeout_ms: int) -> Any:
        """The answer, or None if the connection breaks or the answer takes too long."""
        future = self.process.loop.create_future()

        def then(told: Any) -> None:
            if not future.done():
                future.set_result(told)

        self.ask(version, request, then, timeout_ms=timeout_ms)
        return await future


class Peers:
    """The connections of a node to the others, one for each kind of request, as in the broker."""

    def __init__(self, node: "Broker") -> None:
        self._node = node
        self._chance = node.world.chance(f"delays of {node.name} {node.process.lives}")
        self._lines: dict[tuple[int, str], Line] = {}

    async def send(self, node_id: int, request: Request, *, line: str, timeout_ms: int) -> Any:
        key = request.schema.key
        assert key is not None
        found = self._lines.get((node_id, line))
        if found is None:
            found = self._lines[node_id, line] = Line(self._node.world, self._node, partial(self._find, node_id))
        delay_s, is_answer_late = self._node.world.draw_delay(line, self._chance)
        if not is_answer_late:
            await asyncio.sleep(delay_s)
        told = await found.call(APIS[key].max_version, request, timeout_ms=min(timeout_ms, PEER_MS_MAX))
        if is_answer_late:
            await asyncio.sleep(delay_s)
        if told is None:
            raise ConnectionLost(f"node {node_id} has not answered")
        return told.response

    def _find(self, node_id: int) -> Any:
        node = self._node.world.brokers[node_id]
        return node if node.process.is_alive and node.replica is not None else None

    def close(self) -> None:
        for line in self._lines.values():
            line.disconnect()


# The coordinators of a node -------------------------------------------------------------------------------------------


class Groups(SimulatedCoordinators):
    """The group coordinators of a node whose offsets may be part of transactions."""

    def __init__(self, node: "Broker", machine: Any, cluster: Any, verifier: TransactionVerifier) -> None:
        self._node = node
        GroupCoordinators.__init__(self, machine, cluster, may_be_fenced=node.may_be_fenced, verifier=verifier)
        self.turn = SlowTurn(node.slice_ms)
        self.authority = cluster.authority
        self.open()


class Transactions(SimulatedClock, TransactionCoordinators):
    """The transaction coordinators of a node."""

    def __init__(self, node: "Broker", machine: Any, cluster: Any, **parts: Any) -> None:
        self._node = node
        super().__init__(machine, cluster, may_be_fenced=node.may_be_fenced, **parts)
        self.turn: Any = SlowTurn(node.slice_ms)
        self.open()

    def settings(self) -> TransactionSettings:
        world: Any = self._node.world
        settings: TransactionSettings = world.transaction_settings
        return settings


def _fail(_error: Exception) -> None:
    # This is called while the error is handled, which then ends the run of the world.
    raise


# A replica ------------------------------------------------------------------------------------------------------------


class MirroredDirectory(WatchedDirectory):
    """Opens each log with a mirror beside it."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, Mirror())
        self.mirrors: dict[TopicPartition, Mirror] = {}

    def open_log(
        self, partition: TopicPartition, config: LogConfig | None = None, *, companions: Any = ()
    ) -> SegmentedLog:
        self._mirror = self.mirrors[partition] = Mirror()
        both: list[Companion] = list(companions)
        return super().open_log(partition, config, companions=both)


class Copy:
    """A replica of one partition on one node, with the checks of it."""

    def __init__(self, node: "Broker", name: TopicPartition, logs: TransactionLogs, listeners: Sequence[Any]) -> None:
        self.node, self.name = node, name
        self.local, self.replica = open_replica(
            node.data,
            node.files,
            name,
            node.config,
            node_id=node.node_id,
            outbox=node.outbox,
            wake=node._wake,
            lag_ms_max=node.world.lag_ms_max,
            listeners=listeners,
            rules_for=partial(rules_for, others=logs.rules_for),
            open_transactions=logs.open_transactions,
        )
        self.mirror = node.mirrors[name]
        self._checked_to = self.replica.high_watermark
        self._stable = (-1, 0)
        self.checked: tuple[int, int, int, object] | None = None
        """What the last check was about: high watermark, log end offset, leader epoch, and leadership."""

    def check(self) -> None:
        """Check the watermarks of the replica."""
        if self.mirror.cut:
            self.mirror.cut = []
            self.node.world.states.reach("truncation")
        self.check_committed()
        if self.replica.leading is not None:
            self._check_stable(self.replica, self.replica.high_watermark)

    def check_committed(self) -> None:
        """Check what has been committed. A leader may die right after it has told its followers a watermark."""
        replica, watch = self.replica, self.node.world.logs[self.name]
        watermark = replica.high_watermark
        if watermark > self._checked_to:
            found = self.mirror.between(self._checked_to, watermark)
            if replica.leading is None:
                watch.committed.check(self.node.name, found)
            else:
                watch.committed.extend(self.node.name, found)
                with self.node.readable():
                    watch.on_durable(replica)
        self._checked_to = watermark

    def _check_stable(self, replica: Replica, watermark: int) -> None:
        epoch, before = self._stable
        stable = self.local.last_stable_offset
        if stable == before and epoch == replica.leader_epoch:
            return
        where = f"{self.node.name} leads {self.name.directory} in epoch {replica.leader_epoch}"
        if stable > watermark:
            raise Broken(26, f"{where}: last stable offset {stable}, high watermark {watermark}")
        if epoch == replica.leader_epoch and stable < before:
            raise Broken(26, f"{where}: the last stable offset goes from {before} to {stable}")
        first = self.node.world.logs[self.name].first_undecided(stable)
        if first is not None:
            raise Broken(26, f"{where}: last stable offset {stable}, but {first} is not decided yet")
        self._stable = (replica.leader_epoch, stable)


class Routes:
    """The partitions of a node, for the handlers."""

    internal: Mapping[bytes, Any] = {}

    def __init__(self, copies: dict[TopicPartition, Copy]) -> None:
        self._copies = copies

    def partition(self, topic: str, index: int) -> LocalPartition:
        found = self._copies.get(TopicPartition(topic, index))
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")
        return found.local

    def topic_name(self, topic_id: bytes) -> str:
        raise NotImplementedError

    def leader(self, _name: TopicPartition, _listener: str) -> None:
        return None


# A node ---------------------------------------------------------------------------------------------------------------


class Broker(Node):
    """A broker with a replica of every partition, and all coordinators."""

    world: "World"

    def __init__(self, world: "World", node_id: int, config: TopicConfig) -> None:
        self.copies: dict[TopicPartition, Copy] = {}
        super().__init__(world, node_id, config)

    def forget(self) -> None:
        super().forget()
        self._fetching: dict[int, tuple[int, Timer]] = {}

    # Life -------------------------------------------------------------------------------------------------------------

    def open_replica(self) -> None:
        """Open all partitions from the disk, with the coordinators."""
        self.waiting = Waiting()
        self.outstanding, self._answers = {}, []
        self.image = self.world.image
        data = MirroredDirectory(self.files)
        self.data, self.mirrors = data, data.mirrors
        self._open_coordinators()
        self.copies.clear()
        listeners = [self.coordinators, self.transactions]
        for name in self.world.names:
            self.copies[name] = Copy(self, name, self.logs, listeners)
        offsets = self.copies[OFFSETS]
        self.local, self.replica, self.mirror = offsets.local, offsets.replica, offsets.mirror

    def _open_coordinators(self) -> None:
        handlers: dict[ApiKey, Any] = {}
        registry: Any = SimpleNamespace(
            add=handlers.__setitem__, answer=lambda call: handlers[ApiKey(call.header.api_key)](call)
        )
        machine: Any = SimpleNamespace(
            waiting=self.waiting,
            config=NodeConfig({"node.id": str(self.node_id)}),
            on_ended=on_ended,
            begin=self.begin,
            fail=_fail,
            registry=registry,
        )
        self.authority, self.peers = NodeAuthority(self), Peers(self)
        cluster: Any = SimpleNamespace(authority=self.authority, peers=self.peers)
        calls = NodeCalls(machine, cluster, clock=self.now_ms, wall_clock=lambda: self.coordinators.wall_clock_ms())
        topic = StateTopic(TRANSACTION_STATE_TOPIC, cluster, _creation)
        verifier = TransactionVerifier(calls, topic)
        self.coordinators: Groups = Groups(self, machine, cluster, verifier)
        self.transactions = Transactions(
            self, machine, cluster, topic=topic, offsets=self.coordinators.topic, calls=calls
        )
        ongoing = OngoingTransactions(calls, lambda: self.authority.image)
        self.logs = TransactionLogs(self._wake, verifier=verifier, offsets=self.coordinators, ongoing=ongoing)
        routes: Any = Routes(self.copies)
        for part in (self.coordinators, self.transactions, self.logs):
            part.add_handlers(registry, routes)
            self.process.after(0, part.start)
        handlers[ApiKey.PRODUCE] = Produce(routes)
        handlers[ApiKey.FETCH] = Fetch(routes, bytes_max=1 << 20)
        self.coordinators.handlers = handlers
        self._shadows: dict[TopicPartition, Shadow] = {}

    def now_ms(self) -> int:
        """The monotonic clock."""
        return self.coordinators.now_ms()

    def close(self) -> None:
        if all(it.replica.log.failure is None for it in self.copies.values()):
            for name, it in self.copies.items():
                self.data.remember(HIGH_WATERMARKS, name, it.replica.high_watermark, is_urgent=False)
            self.data.close()

    def end(self, how: str) -> None:
        super().end(how)
        if self.replica is not None:
            self.peers.close()

    def on_news(self, news: Any) -> None:
        if not self.is_registered or self.replica is None or news.offset < self._news_offset:
            return
        self._news_offset = news.offset
        epochs = {it.node_id: it.epoch for it in news.image.brokers.values()}
        if epochs[self.node_id] != self.broker_epoch:
            # A registration of an earlier life has arrived after ours: the controller would refuse our requests.
            self.is_registered = False
            self._register()
            return
        old, self.image = self.authority.learn(news.image), news.image
        for name, it in self.copies.items():
            it.replica.on_partition(news.image.partition(name), epochs, self.process.now_ms)
        self.authority.tell(old)
        self.fetch()

    def send_outbox(self) -> None:
        orders, self.outbox[:] = list(self.outbox), []
        controller = self.world.authority
        for order in orders:
            request = ProposeFor(self.node_id, self.broker_epoch, order.name, order.proposal)
            self.world.network.ask(
                self.process,
                controller.process,
                request,
                partial(controller.on_propose, request),
                partial(self._on_altered, order.name, order.proposal),
            )

    def _on_altered(self, name: TopicPartition, proposal: IsrProposal, answer: Answered) -> None:
        if self.replica is not None:
            self.copies[name].replica.on_altered(proposal, answer.altered)

    # Following --------------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Fetch from every leader from which no fetch is under way."""
        if self.replica is None:
            return
        wanted: dict[int, list[tuple[TopicPartition, Position]]] = {}
        for name, it in self.copies.items():
            following = it.replica.following
            if following is not None and following.leader not in self._fetching:
                position = it.replica.position()
                if position is not None:
                    wanted.setdefault(position.leader, []).append((name, position))
        for leader, positions in wanted.items():
            self._fetch_from(leader, FetchAll(self.node_id, self.broker_epoch, tuple(positions), 1 << 20))

    def _fetch_from(self, leader: int, request: FetchAll) -> None:
        self._fetch_number += 1
        number = self._fetch_number
        node = self.world.brokers[leader]
        self.world.network.ask(
            self.process,
            node.process,
            request,
            partial(node.on_fetch_all, request),
            partial(self._on_all, leader, number, request),
        )
        timer = self.process.after(FETCH_TIMEOUT_MS, partial(self._on_no_answer, leader, number))
        self._fetching[leader] = number, timer

    def _on_no_answer(self, leader: int, number: int) -> None:
        # After a pause the timer may run after the answer.
        if leader in self._fetching and self._fetching[leader][0] == number:
            del self._fetching[leader]
            self.fetch()

    def _on_all(self, leader: int, number: int, request: FetchAll, answer: FetchedAll) -> None:
        last, timer = self._fetching.get(leader, (0, None))
        if last == number and timer is not None:
            timer.cancel()
            del self._fetching[leader]
        if self.replica is None:
            return
        is_refused = False
        for (name, position), found in zip(request.positions, answer.found, strict=True):
            replica = self.copies[name].replica
            if isinstance(found, Start):
                replica.on_start(position, found.log_start_offset)
            else:
                is_refused |= not replica.on_fetched(found)
        if is_refused:
            self.later(60, self.fetch)
        else:
            self.fetch()

    def on_fetch_all(self, request: FetchAll, reply: Reply) -> None:
        """Answer a follower, or let it wait for records."""
        if self.replica is None:
            return
        now_ms = self.process.now_ms
        replicas = [self.copies[name].replica for name, _position in request.positions]
        seen: list[tuple[int, int, int]] = []

        def attempt(*, is_last: bool = False, is_retry: bool = True) -> bool:
            ends = [(it.log.log_end_offset, it.leader_epoch, it.partition_epoch) for it in replicas]
            if ends == seen and not is_last:
                return False
            seen[:] = ends
            found = tuple(
                Start(self.copies[name].replica.log.log_start_offset)
                if position.is_lost
                else answer_fetch(
                    self.copies[name].local,
                    position,
                    replica_id=request.replica_id,
                    replica_epoch=request.broker_epoch,
                    now_ms=now_ms,
                    bytes_max=request.bytes_max,
                    is_retry=is_retry,
                )
                for name, position in request.positions
            )
            if is_last or any(_is_news(it) for it in found):
                for name, _position in request.positions:
                    self.copies[name].check_committed()
                reply(FetchedAll(found))
                return True
            return False

        if not attempt(is_retry=False):
            self.wait(attempt, FETCH_WAIT_MS, lambda: attempt(is_last=True))

    # Serving ----------------------------------------------------------------------------------------------------------

    def serve(self, asked: Any, reply: Reply) -> None:
        it: Asked = asked
        if isinstance(it.request, ProduceRequest):
            it = it._replace(request=_received(it.request))
        super().serve(it, reply)

    def _complete(self, asked: Asked, reply: Reply, response: Any) -> None:
        if isinstance(response, FetchResponse):
            for topic in response.responses:
                for it in topic.partitions:
                    if isinstance(it.records, FileSlice):
                        it.records = it.records.read()
        elif isinstance(response, ProduceResponse | TxnOffsetCommitResponse):
            code = next((it for it in codes_in(response) if it), ErrorCode.NONE)
            if code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
                self.world.states.reach("verification refused")
        super()._complete(asked, reply, response)

    # Time and checks --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.replica is not None:
            for it in self.copies.values():
                it.replica.tick(self.process.now_ms)
            self.waiting.expire(self.now_ms())
            self.fetch()
        self.later(TICK_MS, self._tick)

    def _checkpoint(self) -> None:
        for name, it in self.copies.items():
            log = it.replica.log
            if log.failure is None:
                try:
                    if self.chance.random() < 0.3:
                        log.flush()
                except LogError as error:
                    self.world.trace.happened(self.name, NOTE, str(error))
                self.data.remember(HIGH_WATERMARKS, name, it.replica.high_watermark, is_urgent=True)
        self.later(CHECKPOINT_MS, self._checkpoint)

    def _check(self, _replica: Replica) -> None:
        for it in self.copies.values():
            replica = it.replica
            log = replica.log
            if log.failure is not None and self.files.watch.failure is None:
                raise AssertionError(f"{self.name}: {it.name.directory} is offline: {log.failure}")
            # Without a change of these, the last check still holds: the stable offset depends on nothing else.
            now = (replica.high_watermark, log.log_end_offset, replica.leader_epoch, replica.leading)
            if now != it.checked or it.mirror.cut:
                it.check()
                it.checked = now

    def _tell(self, _replica: Replica) -> None:
        """The trace has the messages."""

    def _check_replay(self) -> None:
        """The live state of every coordinator is what another node would load from its log."""
        shadows = self._shadows
        for coordinators in (self.coordinators, self.transactions):
            for name, coordinator in coordinators._coordinators.items():
                shadow = shadows.get(name)
                if shadow is not None and shadow.live is not coordinator.shard:
                    shadow = None
                # Most events append nothing, and then there is nothing to replay.
                if shadow is not None and shadow.end == shadow.log.log_end_offset:
                    continue
                if coordinator._state is State.ACTIVE and not coordinator._collected:
                    if shadow is None:
                        shadow = shadows[name] = Shadow(self, name, coordinators, coordinator)
                    with self.readable():
                        shadow.check()


class Shadow:
    """A second shard for the log of a coordinator, to compare it with the live one."""

    def __init__(self, node: Broker, name: TopicPartition, coordinators: Any, coordinator: Any) -> None:
        self.name = name
        self._node = node
        self._coordinator = coordinator
        self.live = coordinator.shard
        self._shard = coordinators.new_shard()
        self._replica = node.copies[name].replica
        self.log = self._replica.log
        self.end = 0
        """How much of the log is replayed."""
        node.world.trace.happened(node.name, NOTE, f"coordinates {name.directory}")
        node.world.states.reach("coordinator loaded")
        if isinstance(self.live, TransactionShard) and any(
            state.state in PREPARED for _name, state in self.live.transactions.items()
        ):
            node.world.states.reach("coordinator took over decided transactions")

    def check(self) -> None:
        """Replay what is new, and compare."""
        touched: set[str] = set()
        for batch in read_batches(self._replica, self.end, self.log.log_end_offset):
            for record in batch.records():
                replay_record(self._shard, batch.header, record)
                if batch.header.is_control:
                    touched.update(self._node.world.group_ids)
                else:
                    found = self._shard.decode(record.key, record.value)
                    touched.add(found.transactional_id if hasattr(found, "transactional_id") else found.key.group_id)
        self.end = self.log.log_end_offset
        for key in sorted(touched):
            found = self._difference(key)
            if found:
                raise Broken(22, f"{self._node.name}, {self.name.directory}, {key}: {found}")

    def _difference(self, key: str) -> str:
        if isinstance(self.live, TransactionShard):
            one, two = (it.transactions.get(key) for it in (self.live, self._shard))
            # No record has the epoch before the current one.
            one = None if one is None else one._replace(last_epoch=-1)
            return "" if one == two else f"the state is {one}, a replay has {two}"
        one, two = (vars(it.pending) for it in (self.live, self._shard))
        if one != two:
            return f"the pending offsets are {one}, a replay has {two}"
        return differences(key, self.live, self._shard, self._coordinator.refused)


def _creation() -> Any:
    raise NotImplementedError("the topic is there from the beginning")


def _is_news(found: Fetched | Start) -> bool:
    return isinstance(found, Start) or bool(found.code or found.diverging is not None or len(found.records))


def _received(request: ProduceRequest) -> ProduceRequest:
    """The request as a server has it: with a batch of its own, into which offsets are written."""
    for topic in request.topic_data:
        for it in topic.partition_data:
            it.records = memoryview(bytearray(it.records))  # type: ignore[arg-type]
    return request
