"""The nodes of the simulated cluster: the real log, companions, replica and authority, on simulated disks.

What stands here is the driver, as small as it can be: it carries messages, lets requests wait, and keeps time. After
every event each replica is checked against what `partition_watch` knows.
"""

import itertools
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from partition_watch import Held, Mirror, PartitionWatch, WatchedDirectory
from replication_messages import (
    Answered,
    AskEpoch,
    Consume,
    Consumed,
    Fetch,
    FetchAnswer,
    News,
    Produce,
    Produced,
    Propose,
    Register,
    Registered,
    Start,
    ToldEpoch,
)
from replication_nodes import NAME, TOPIC_ID, AuthorityNode, answer_fetch
from simulated_machine import Machine

from minibroker.log.batch import NO_OFFSET
from minibroker.log.errors import LogError
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import CONSUMER, Appended, LocalPartition
from minibroker.partitions.store import METADATA
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Election, ElectLeaders
from minibroker.replication.follower import Position
from minibroker.replication.leader import IsrProposal
from minibroker.replication.log_info import GetReplicaLogInfo
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import AlterIsr, Replica
from minibroker.replication.tables.get_replica_log_info import PartitionLogInfo
from minibroker.segments.directory import DataDirectory
from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.disk import Disk
from minibroker.simulation.links import Reply
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Timer
from minibroker.simulation.trace import BAND, MARK, NOTE
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from replication_world import World

NODE_CONFIG = NodeConfig()

FETCH_WAIT_MS = 400
FETCH_TIMEOUT_MS = 700
PRODUCE_TIMEOUT_MS = 1500
REGISTER_RETRY_MS = 300
NEWS_EVERY_MS = 500
TICK_MS = 250
CHECKPOINT_MS = 4000
SETTLED_AFTER = 1000  # rounds over the waiting requests; requests that wake each other settle after a few


# The authority --------------------------------------------------------------------------------------------------------


class Authority(AuthorityNode):
    """The controller in a process of its own. It may be down, but it forgets nothing."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.disk = Disk(world.chance("disk of the authority"))
        self.process = Process(world.scheduler, world.trace, "authority")
        self.process.after_run = self.tell_if_news
        self.lives: dict[int, int] = {}
        """The registered life of each node."""
        self._told = -1
        self.start()

    def start(self) -> None:
        if not self.process.is_alive:
            self.process.start()
            log = DataDirectory(self.disk, "data").open_log(METADATA, METADATA_LOG_CONFIG)
            self.voter = Voter(log, cluster_id="simulated", clock=lambda: 0)
            self._incarnations = 0
            self.process.after(NEWS_EVERY_MS, self._tell_again)

    def stop(self, *, is_power_cut: bool) -> None:
        self.process.kill("power cut" if is_power_cut else "")
        if is_power_cut:
            self.disk.cut_power()
        else:
            self.disk.kill()

    # Telling ----------------------------------------------------------------------------------------------------------

    def tell_if_news(self) -> None:
        if self.image.offset != self._told:
            self._told = self.image.offset
            self.world.check_partition()
            self.tell()

    def _tell_again(self) -> None:
        self.tell()
        self.process.after(NEWS_EVERY_MS, self._tell_again)

    def news_now(self) -> News:
        return News(self.image.offset, self.partition, {it.node_id: it.epoch for it in self.image.brokers.values()})

    def tell(self) -> None:
        news = self.news_now()
        for node in self.world.members.values():
            self.world.network.send(self.process, node.process, news, partial(node.on_news, news))

    # Deciding ---------------------------------------------------------------------------------------------------------

    def on_register(self, request: Register, life: int, reply: Reply) -> None:
        image = self.image
        known = image.brokers.get(request.node_id)
        self._incarnations = request.incarnation - 1
        epoch = self.register(request.node_id, previous_broker_epoch=request.previous_broker_epoch)
        node = self.world.nodes[request.node_id]
        if known is not None and known.epoch != epoch and request.previous_broker_epoch != known.epoch:
            self.world.states.reach("unclean registration")
        if node.process.lives == life:
            self.lives[request.node_id] = life
            node.is_diminished = False
        reply(Registered(epoch, self.news_now()))

    def on_propose(self, request: Propose, reply: Reply) -> None:
        node_id, before, proposal = request.broker_id, self.partition, request.proposal
        altered = self.alter(node_id, request.broker_epoch, proposal)
        after = self.partition
        if altered.code is not ErrorCode.NONE:
            self.world.states.reach("proposal refused")
            if after.isr != before.isr:
                raise Violation(13, f"{proposal} was refused, and {before} became {after}")
        elif after.partition_epoch != before.partition_epoch:
            self._check_altered(node_id, before, after, proposal)
        reply(Answered(altered))

    def _check_altered(
        self, node_id: int, before: PartitionImage, after: PartitionImage, proposal: IsrProposal
    ) -> None:
        if (proposal.leader_epoch, proposal.partition_epoch) != (before.leader_epoch, before.partition_epoch):
            raise Violation(13, f"{proposal} was accepted on {before}")
        joined = set(after.isr) - set(before.isr)
        self.world.states.reach("ISR expansion" if joined else "ISR shrink")
        for each in joined:
            self.world.check_joined(self.world.nodes[node_id], self.world.nodes[each])

    # Elections --------------------------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """The nodes that are up and registered in their current life."""
        return [
            node_id
            for node_id, node in self.world.nodes.items()
            if node.process.is_alive and self.lives.get(node_id) == node.process.lives
        ]

    def elect(self, live: list[int], kind: Election, ends: LogEnds) -> None:
        self.voter.propose(ElectLeaders([NAME], live=live, node=NODE_CONFIG, kind=kind, ends=ends))


# A node ---------------------------------------------------------------------------------------------------------------


class Node(Machine):
    """A broker with one replica."""

    world: PartitionWatch

    def __init__(self, world: PartitionWatch, node_id: int, config: TopicConfig) -> None:
        super().__init__(world, node_id)
        self.config = config
        self.replica: Replica | None = None
        self.local: LocalPartition | None = None
        self.mirror = Mirror()
        self.is_diminished = False
        """Whether its power was cut, and the controller does not know that yet."""
        self.is_weak = False
        """Whether its power was cut since it was last in sync, or is about to be cut."""
        self.is_doomed = False
        """Whether the next flush fails, after which the machine is booted again."""
        self.kept_broker_epoch = -1
        """The file with the broker epoch and the boot id: after a power cut it proves nothing."""
        self.begun_incarnation = 0
        """In the same file, the incarnation whose registration was begun and not finished; 0 if there is none."""
        self.incarnation = 0
        self.forget()

    def forget(self) -> None:
        self.broker_epoch = -1
        self.is_registered = False
        self.outbox: list[AlterIsr] = []
        self._is_woken = False
        self._news_offset = -1
        self._is_fetching = False
        self._fetch_number = 0
        self._fetch_timer = Timer(lambda: None)
        self._start_seen = 0
        self._seen = (-1, -1, 0)  # as a leader: epoch and watermark; in any role: the last checked watermark

    # Life -------------------------------------------------------------------------------------------------------------

    def open_replica(self) -> None:
        """Open the partition from the disk."""
        mirror = Mirror()
        data = WatchedDirectory(self.files, mirror)
        names = self.disk.list(data.directory_of(NAME))
        local, replica = open_replica(
            data,
            self.files,
            NAME,
            self.config,
            node_id=self.node_id,
            outbox=self.outbox,
            wake=self._wake,
            lag_ms_max=self.world.lag_ms_max,
        )
        self.data, self.mirror, self.local, self.replica = data, mirror, local, replica
        if any(name.endswith(".snapshot") for name in names) and local.producers.producers:
            self.world.states.reach("producers restored from a snapshot")
        self._seen = (-1, -1, replica.high_watermark)
        self._start_seen = replica.log.log_start_offset

    def cut_power(self) -> None:
        super().cut_power()
        self.on_power_cut()

    def on_power_cut(self) -> None:
        self.is_diminished = self.is_weak = True
        self.is_doomed = False
        self.forget_epoch()

    def forget_epoch(self) -> None:
        self.kept_broker_epoch = -1
        self.begun_incarnation = 0

    def begin_incarnation(self) -> None:
        """Choose the incarnation, as the broker does."""
        self.incarnation = self.begun_incarnation or next(self.world.incarnations)
        self.begun_incarnation = self.incarnation if self.kept_broker_epoch >= 0 else 0

    def on_epoch(self, broker_epoch: int) -> None:
        """The controller has registered this incarnation."""
        self.is_registered = True
        self.broker_epoch = self.kept_broker_epoch = broker_epoch
        self.begun_incarnation = 0

    def close(self) -> None:
        if self.replica is not None and self.replica.log.failure is None:
            self.data.remember(HIGH_WATERMARKS, NAME, self.replica.high_watermark, is_urgent=False)
            self.data.close()

    def end(self, how: str) -> None:
        super().end(how)
        self._epoch_told = -1

    # Leading ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def send_outbox(self) -> None:
        """Send the proposals of the replica to the controller."""

    def on_altered(self, proposal: IsrProposal, answer: Answered) -> None:
        """A proposal was answered."""
        if self.replica is not None:
            self.replica.on_altered(proposal, answer.altered)

    # Following --------------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Fetch from the leader, unless a fetch is under way."""
        position = self.replica.position() if self.replica is not None else None
        if position is None or self._is_fetching:
            return
        self._is_fetching = True
        self._fetch_number += 1
        number = self._fetch_number
        leader = self.world.nodes[position.leader]
        request = Fetch(self.node_id, position, self.broker_epoch, self.chance.choice(self.world.fetch_bytes))
        self.world.network.ask(
            self.process,
            leader.process,
            request,
            partial(leader.on_fetch, request),
            partial(self._on_answer, number, position),
        )
        self._fetch_timer = self.process.after(FETCH_TIMEOUT_MS, partial(self._on_timeout, number))

    def _on_timeout(self, number: int) -> None:
        if self._is_fetching and number == self._fetch_number:
            self._is_fetching = False
            self.fetch()

    def _on_answer(self, number: int, position: Position, answer: FetchAnswer | Start) -> None:
        # An answer that comes after its timeout still counts.
        is_last = number == self._fetch_number
        if is_last:
            self._is_fetching = False
            self._fetch_timer.cancel()
        if self.replica is None:
            return
        is_eager = True
        if isinstance(answer, Start):
            self.replica.on_start(position, answer.log_start_offset)
        else:
            if answer.fetched.diverging is not None:
                self.world.states.reach("divergence by epoch")
            is_eager = self.replica.on_fetched(answer.fetched)
        if is_eager:
            self.fetch()
        elif is_last:
            self.later(60, self.fetch)

    # Serving ----------------------------------------------------------------------------------------------------------

    def on_fetch(self, request: Fetch, reply: Reply) -> None:
        """Answer a follower, or let it wait for records."""
        replica, local, now_ms = self.replica, self.local, self.process.now_ms
        if replica is None or local is None:
            return
        if request.position.is_lost:
            if replica.leading is not None:
                reply(Start(replica.log.log_start_offset))
            return

        def attempt(*, is_last: bool = False, is_retry: bool = True) -> bool:
            fetched = answer_fetch(
                local,
                request.position,
                replica_id=request.replica_id,
                replica_epoch=request.broker_epoch,
                now_ms=now_ms,
                bytes_max=request.bytes_max,
                is_retry=is_retry,
            )
            if fetched.code is ErrorCode.STALE_BROKER_EPOCH:
                self.world.states.reach("stale incarnation refused")
            if is_last or fetched.code or fetched.diverging is not None or len(fetched.records):
                reply(FetchAnswer(fetched))
                return True
            return False

        if not attempt(is_retry=False):
            self.wait(attempt, FETCH_WAIT_MS, lambda: attempt(is_last=True))

    def serve(self, request: Produce | Consume | AskEpoch, reply: Reply) -> None:
        """Answer a client."""
        if isinstance(request, Produce):
            self._on_produce(request, reply)
        elif isinstance(request, Consume):
            reply(self._on_consume(request))
        else:
            reply(self._on_epoch(request))

    def _on_produce(self, request: Produce, reply: Reply) -> None:
        local = self.local
        if local is None:
            reply(Produced(request.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        end, batch = local.log_end_offset, memoryview(bytearray(request.batch))
        try:
            appended = local.append(batch, acks=request.acks, now_ms=self.process.now_ms)
        except Refused as refused:
            self.world.reach_code(refused.code)
            reply(Produced(request.number, refused.code))
            return
        if local.log_end_offset == end:
            self.world.states.reach("duplicate answered")
        else:
            self.world.written[request.label] = appended.base_offset
        attempt = partial(self._answer_produce, local, request, appended, reply)
        if not attempt():
            timed_out = Produced(request.number, ErrorCode.REQUEST_TIMED_OUT)
            self.wait(attempt, PRODUCE_TIMEOUT_MS, lambda: reply(timed_out))

    def _answer_produce(self, local: LocalPartition, request: Produce, appended: Appended, reply: Reply) -> bool:
        verdict = local.verdict(appended, acks=request.acks)
        if verdict is None:
            return False
        self.world.reach_code(verdict)
        reply(Produced(request.number, verdict, appended.base_offset if not verdict else NO_OFFSET))
        return True

    def _on_consume(self, request: Consume) -> Consumed:
        replica, local = self.replica, self.local
        if replica is None or local is None:
            return Consumed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            local.check_leader(request.leader_epoch)
            found = local.read(request.offset, bytes_max=4000, reader=CONSUMER)
        except Refused as refused:
            start = local.log_start_offset if replica.leading is not None else NO_OFFSET
            return Consumed(refused.code, log_start_offset=start)
        return Consumed(ErrorCode.NONE, found.read(), local.log_start_offset)

    def _on_epoch(self, request: AskEpoch) -> ToldEpoch:
        if self.replica is None or self.local is None:
            return ToldEpoch(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            self.local.check_leader(request.leader_epoch)
        except Refused as refused:
            return ToldEpoch(refused.code)
        return ToldEpoch(ErrorCode.NONE, self.replica.end_of_epoch(request.epoch))

    def log_info(self) -> PartitionLogInfo:
        """The answer to the controller, which asks before an unclean election where the log ends."""
        info = GetReplicaLogInfo(lambda _id: NAME.topic, lambda _name: self.replica, lambda: self.broker_epoch)
        return info._answer(TOPIC_ID, NAME.partition)

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _wake(self, _key: object) -> None:
        self._is_woken = True

    def _settle(self) -> None:
        """Try the waiting requests until none of them wakes another."""
        for turn in itertools.count():
            if not self._is_woken:
                return
            if turn > SETTLED_AFTER:
                raise Violation(LIVENESS, f"{self.name} tries {len(self._waiting)} waiting requests again and again")
            self._is_woken = False
            self.try_waiting()

    # Time -------------------------------------------------------------------------------------------------------------

    def begin_upkeep(self) -> None:
        self.later(TICK_MS, self._tick)
        self.later(CHECKPOINT_MS, self._checkpoint)

    def _tick(self) -> None:
        if self.replica is not None:
            self.replica.tick(self.process.now_ms)
            self.fetch()
        self.later(TICK_MS, self._tick)

    def _checkpoint(self) -> None:
        """What a broker does from time to time: retention, a flush, and the checkpoint of the high watermark."""
        replica = self.replica
        if replica is not None and replica.log.failure is None:
            try:
                replica.log.retain(self.process.now_ms, upto_offset=replica.high_watermark)
                if self.chance.random() < 0.3:
                    replica.log.flush()
            except LogError as error:
                self.world.trace.happened(self.name, NOTE, str(error))
            self.data.remember(HIGH_WATERMARKS, NAME, replica.high_watermark, is_urgent=True)
        self.later(CHECKPOINT_MS, self._checkpoint)

    # After every event ------------------------------------------------------------------------------------------------

    def after_run(self) -> None:
        if self._is_woken:
            self._settle()
        if self.outbox:
            self.send_outbox()
        if self.replica is not None:
            self._check(self.replica)
            if self.world.trace.is_kept:
                self._tell(self.replica)

    def _check(self, replica: Replica) -> None:
        """Check everything that must be true of the replica."""
        leading, watermark = replica.leading, replica.high_watermark
        epoch_seen, led_to, checked_to = self._seen
        mirror, world = self.mirror, self.world
        if replica.log.failure is not None and self.files.watch.failure is None:
            raise AssertionError(f"{self.name}: the log is offline: {replica.log.failure}")
        if mirror.cut:
            self._check_cut()
        if replica.log.log_start_offset != self._start_seen:
            self._start_seen = replica.log.log_start_offset
            world.on_start_moved(self._start_seen, is_leader=leading is not None)
        if watermark == checked_to and (leading is None or epoch_seen == replica.leader_epoch):
            return
        if leading is not None and epoch_seen == replica.leader_epoch and watermark < led_to:
            raise Violation(
                12, f"{self.name} leads in epoch {epoch_seen}, its watermark goes from {led_to} to {watermark}"
            )
        if watermark > checked_to:
            batches = mirror.between(checked_to, watermark)
            if leading is None:
                world.committed.check(self.name, batches)
            else:
                self._check_advance(replica, batches)
        self._seen = (replica.leader_epoch, watermark, watermark) if leading is not None else (-1, -1, watermark)

    def _check_cut(self) -> None:
        """A replica in sync never truncates committed records."""
        cut, self.mirror.cut = self.mirror.cut, []
        self.world.states.reach("truncation")
        self.world.trace.happened(self.name, NOTE, f"cuts off {cut[0].base_offset} to {cut[-1].next_offset - 1}")
        if self.node_id in self.world.partition.isr and not self.is_diminished:
            for batch in cut:
                if self.world.committed.holds(batch) and batch.next_offset > self.world.log_start_offset():
                    raise Violation(11, f"{self.name} is in sync and cuts off {batch}, which is committed")

    def _check_advance(self, replica: Replica, batches: list[Held]) -> None:
        """A leader's watermark has moved: every replica that counts must have the records before it."""
        leading, world = replica.leading, self.world
        assert leading is not None
        if leading.pending is not None:
            world.states.reach("watermark moved while an ISR change was pending")
        watermark = replica.high_watermark
        counted = set(leading.isr) | set(leading.pending.members if leading.pending is not None else ())
        for node_id in counted - {self.node_id}:
            progress = leading.followers.get(node_id)
            if progress is None or progress.log_end_offset < watermark:
                facts = f"{node_id} counts and has told {'nothing' if progress is None else progress.log_end_offset}"
                raise Violation(12, f"{self.name} moves its watermark to {watermark}, {facts}")
        world.committed.extend(self.name, batches)
        # Every node that may be elected next must have it, unless its power was cut since.
        decided = world.partition
        if decided.leader_epoch == replica.leader_epoch:
            for node in (world.nodes[node_id] for node_id in decided.isr):
                for batch in batches:
                    if not node.is_diminished and not node.mirror.has(batch) and node.started_at <= batch.base_offset:
                        raise Violation(11, f"{self.name} commits {batch}, {node.name} is in sync and does not have it")

    @property
    def started_at(self) -> int:
        return self.replica.log.log_start_offset if self.replica is not None else 0

    def _tell(self, replica: Replica) -> None:
        """Add a changed role or watermark to the trace."""
        epoch, watermark = replica.leader_epoch if replica.leading is not None else -1, replica.high_watermark
        if epoch != self._epoch_told:
            self.world.trace.happened(self.name, BAND, f"leads in epoch {epoch}" if epoch >= 0 else "")
        if watermark != self._watermark_told:
            self.world.trace.happened(self.name, MARK, f"high watermark {watermark}")
        self._epoch_told, self._watermark_told = epoch, watermark

    _epoch_told = _watermark_told = -1


class Member(Node):
    """A node with one fixed controller."""

    world: "World"

    def open(self) -> None:
        self.forget()
        self.open_replica()
        self.begin_incarnation()
        self._register()
        self.begin_upkeep()

    def _register(self) -> None:
        if self.is_registered or self.replica is None:
            return
        authority, life = self.world.authority, self.process.lives
        request = Register(self.node_id, self.incarnation, self.kept_broker_epoch)
        self.world.network.ask(
            self.process,
            authority.process,
            request,
            partial(authority.on_register, request, life),
            self._on_registered,
        )
        self.later(REGISTER_RETRY_MS, self._register)

    def _on_registered(self, answer: Registered) -> None:
        if self.is_registered and answer.broker_epoch <= self.broker_epoch:
            return
        self.on_epoch(answer.broker_epoch)
        self.on_news(answer.news)

    def on_news(self, news: News) -> None:
        # Decisions are numbered by the metadata log, so a node never goes back to older ones.
        if not self.is_registered or self.replica is None or news.offset < self._news_offset:
            return
        self._news_offset = news.offset
        if news.broker_epochs[self.node_id] != self.broker_epoch:
            # A registration of an earlier life has arrived after ours: the controller would refuse our requests.
            self.is_registered = False
            self._register()
            return
        self.replica.on_partition(news.partition, news.broker_epochs, self.process.now_ms)
        self.fetch()

    def send_outbox(self) -> None:
        orders, self.outbox[:] = list(self.outbox), []
        authority = self.world.authority
        for order in orders:
            request = Propose(self.node_id, self.broker_epoch, order.proposal)
            self.world.network.ask(
                self.process,
                authority.process,
                request,
                partial(authority.on_propose, request),
                partial(self.on_altered, order.proposal),
            )
