"""The nodes of the simulated cluster: the real log, companions, replica and authority, on simulated disks.

What stands here is the driver, as small as it can be: it carries messages, lets requests wait, and keeps time. And it
watches: `Committed` knows what was ever below a high watermark, and every replica is held against it after every event.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from replication_nodes import AuthorityNode, answer_fetch

from minibroker.log.batch import NO_OFFSET, BatchHeader
from minibroker.log.errors import LogError
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image, PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import CONSUMER, Appended, EpochEnd, LocalPartition
from minibroker.partitions.store import METADATA
from minibroker.replication.authority import Election, ElectLeaders
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.leader import Altered, IsrProposal
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import AlterIsr, Replica, ReplicaSettings
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.simulation.checker import Violation
from minibroker.simulation.disk import Disk
from minibroker.simulation.links import Link, Reply
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action, Timer
from minibroker.simulation.trace import BAND, MARK, NOTE
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from replication_world import World

NAME = TopicPartition("orders", 0)
NODE_CONFIG = NodeConfig()

FETCH_WAIT_MS = 400
FETCH_TIMEOUT_MS = 700
PRODUCE_TIMEOUT_MS = 1500
REGISTER_RETRY_MS = 300
NEWS_EVERY_MS = 500
TICK_MS = 250
SETTLED_AFTER = 1000  # turns of trying what waits: one that wakes another ends after a few


# What nodes say to each other -----------------------------------------------------------------------------------------


class Register(NamedTuple):
    node_id: int
    incarnation: int
    previous_broker_epoch: int

    def __str__(self) -> str:
        return f"register incarnation {self.incarnation}, was {self.previous_broker_epoch}"


class News(NamedTuple):
    """What the authority has decided, as of one offset of its log."""

    offset: int
    partition: PartitionImage
    broker_epochs: dict[int, int]

    def __str__(self) -> str:
        it = self.partition
        return f"leader {it.leader} epoch {it.leader_epoch}, ISR {list(it.isr)} v{it.partition_epoch}"


class Registered(NamedTuple):
    broker_epoch: int
    news: News

    def __str__(self) -> str:
        return f"broker epoch {self.broker_epoch}; {self.news}"


class Propose(NamedTuple):
    broker_epoch: int
    proposal: IsrProposal

    def __str__(self) -> str:
        return f"propose ISR {list(self.proposal.members)} on v{self.proposal.partition_epoch}"


class Answered(NamedTuple):
    altered: Altered

    def __str__(self) -> str:
        if self.altered.code is not ErrorCode.NONE:
            return self.altered.code.name
        return f"ISR {list(self.altered.isr)} v{self.altered.partition_epoch}"


class Fetch(NamedTuple):
    position: Position
    broker_epoch: int
    bytes_max: int

    def __str__(self) -> str:
        if self.position.is_lost:
            return "where does the log start?"
        return f"fetch {self.position.fetch_offset} in epoch {self.position.leader_epoch}"


class FetchAnswer(NamedTuple):
    fetched: Fetched

    def __str__(self) -> str:
        it = self.fetched
        if it.code is not ErrorCode.NONE:
            return it.code.name
        if it.diverging is not None:
            return f"epoch {it.diverging.epoch} ends at {it.diverging.end_offset}"
        return f"{len(it.records)} bytes, watermark {it.high_watermark}"


class Start(NamedTuple):
    log_start_offset: int

    def __str__(self) -> str:
        return f"the log starts at {self.log_start_offset}"


class Produce(NamedTuple):
    label: str
    number: int
    batch: bytes
    acks: int

    def __str__(self) -> str:
        return f"produce {self.label}"


class Produced(NamedTuple):
    number: int
    code: ErrorCode
    base_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"at {self.base_offset}" if self.code is ErrorCode.NONE else self.code.name


class Consume(NamedTuple):
    offset: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"consume from {self.offset}"


class Consumed(NamedTuple):
    code: ErrorCode
    records: bytes = b""
    log_start_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"{len(self.records)} bytes" if self.code is ErrorCode.NONE else self.code.name


class AskEpoch(NamedTuple):
    epoch: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"where does epoch {self.epoch} end?"


class ToldEpoch(NamedTuple):
    code: ErrorCode
    end: EpochEnd | None = None

    def __str__(self) -> str:
        return f"at {self.end.end_offset}" if self.end is not None else self.code.name


# What is watched ------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A batch in a log, as far as two logs can differ in it."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class Mirror:
    """A companion of a log that knows every batch in it."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self._bases: list[int] = []
        self.rolls = 0
        self.cut: list[Held] = []
        """What was truncated since somebody looked."""
        self._is_complete = False

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        if not self._is_complete:
            self._is_complete = True
            return log_start_offset
        return log_end_offset

    def replay(self, header: BatchHeader, position: int) -> None:
        self.held.append(Held(header.base_offset, header.next_offset, header.leader_epoch, header.crc))
        self._bases.append(header.base_offset)

    on_append = replay

    def on_truncate(self, offset: int) -> None:
        kept = bisect_left(self._bases, offset) if offset else 0
        self.cut += self.held[kept:]
        del self.held[kept:], self._bases[kept:]

    def on_delete(self, offset: int) -> None:
        first = bisect_left(self._bases, offset)
        if first and self.held[first - 1].next_offset > offset:
            first -= 1
        del self.held[:first], self._bases[:first]

    def on_flush(self, offset: int) -> None:
        pass

    def on_roll(self, base_offset: int) -> None:
        self.rolls += 1

    def on_close(self, offset: int) -> None:
        pass

    def between(self, start: int, end: int) -> list[Held]:
        """The batches from one offset to another."""
        return self.held[bisect_left(self._bases, start) : bisect_left(self._bases, end)]

    def has(self, batch: Held) -> bool:
        index = bisect_left(self._bases, batch.base_offset)
        return index < len(self.held) and self.held[index] == batch

    @property
    def end(self) -> int:
        return self.held[-1].next_offset if self.held else 0

    @property
    def last_epoch(self) -> int:
        return self.held[-1].leader_epoch if self.held else -1


class Committed:
    """Every batch that was ever below a leader's high watermark: it is the same in every log, and for good."""

    def __init__(self) -> None:
        self._batches: dict[int, Held] = {}
        self.end = 0

    def extend(self, node: "Node", batches: list[Held]) -> None:
        """A leader's watermark has passed these."""
        for batch in batches:
            known = self._batches.setdefault(batch.base_offset, batch)
            if known != batch:
                raise Violation(11, f"{node.name} commits {batch}, committed was {known}")
            self.end = max(self.end, batch.next_offset)

    def check(self, node: "Node", batches: list[Held]) -> None:
        """A follower believes that these are committed."""
        for batch in batches:
            known = self._batches.get(batch.base_offset)
            if known != batch:
                raise Violation(11, f"{node.name} has {batch} below its high watermark, committed was {known}")

    def holds(self, batch: Held) -> bool:
        return self._batches.get(batch.base_offset) == batch

    def missing(self, node: "Node") -> Held | None:
        """The first committed batch that a log should have and has not."""
        start = node.replica.log.log_start_offset if node.replica is not None else 0
        for base_offset in sorted(self._batches):
            batch = self._batches[base_offset]
            if batch.next_offset > start and not node.mirror.has(batch):
                return batch
        return None


class _Watched(DataDirectory):
    """Opens logs with a mirror beside them."""

    def __init__(self, disk: Disk, mirror: Mirror) -> None:
        tokens = itertools.count()
        super().__init__(disk, "data", more_checkpoints=[HIGH_WATERMARKS], token=lambda: f"{next(tokens):032x}")
        self._mirror = mirror

    def open_log(
        self, partition: TopicPartition, config: LogConfig | None = None, *, companions: Any = ()
    ) -> SegmentedLog:
        both: list[Companion] = [*companions, self._mirror]
        return super().open_log(partition, config, companions=both)


# The authority --------------------------------------------------------------------------------------------------------


class Authority(AuthorityNode):
    """The authority in a process of its own. It may be down, but it forgets nothing."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.disk = Disk(world.chance("disk of the authority"))
        self.process = Process(world.scheduler, world.trace, "authority")
        self.process.after_run = self.tell_if_news
        self.lives: dict[int, int] = {}
        """The life of each node that is registered."""
        self.leaders: dict[int, int] = {}
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
            self.check_leader()
            for node_id in self.partition.isr:
                node = self.world.nodes[node_id]
                node.is_weak = node.is_weak and node.is_diminished
            self.tell()

    def _tell_again(self) -> None:
        self.tell()
        self.process.after(NEWS_EVERY_MS, self._tell_again)

    def news_now(self) -> News:
        return News(self.image.offset, self.partition, {it.node_id: it.epoch for it in self.image.brokers.values()})

    def tell(self) -> None:
        news = self.news_now()
        for node in self.world.nodes.values():
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

    def on_propose(self, node_id: int, request: Propose, reply: Reply) -> None:
        before, proposal = self.partition, request.proposal
        altered = self.alter(node_id, request.broker_epoch, proposal)
        after = self.partition
        if after.partition_epoch != before.partition_epoch:
            self._check_altered(node_id, before, after, proposal)
        elif altered.code is not ErrorCode.NONE:
            self.world.states.reach("proposal refused")
        reply(Answered(altered))

    def _check_altered(
        self, node_id: int, before: PartitionImage, after: PartitionImage, proposal: IsrProposal
    ) -> None:
        if (proposal.leader_epoch, proposal.partition_epoch) != (before.leader_epoch, before.partition_epoch):
            raise Violation(13, f"{proposal} was accepted on {before}")
        joined = set(after.isr) - set(before.isr)
        self.world.states.reach("ISR expansion" if joined else "ISR shrink")
        for each in joined:
            self.check_joined(self.world.nodes[node_id], self.world.nodes[each])

    def check_joined(self, leader: "Node", node: "Node") -> None:
        """Who joins has all that is committed, and all that was there when the leader's epoch began."""
        if node.is_diminished or node.replica is None or leader.replica is None or leader.replica.leading is None:
            return
        start = leader.replica.leading.epoch_start_offset
        if leader.replica.leader_epoch == self.partition.leader_epoch and node.replica.log.log_end_offset < start:
            facts = f"its log ends at {node.replica.log.log_end_offset}, the leader's epoch began at {start}"
            raise Violation(13, f"{node.name} joins: {facts}")
        missing = self.world.committed.missing(node)
        if missing is not None:
            raise Violation(13, f"{node.name} joins without {missing}, which is committed")

    def check_leader(self) -> None:
        """A leader has an epoch of its own, and all that is committed."""
        it = self.partition
        if it.leader < 0:
            return
        if self.leaders.setdefault(it.leader_epoch, it.leader) != it.leader:
            raise Violation(10, f"epoch {it.leader_epoch} has leaders {self.leaders[it.leader_epoch]} and {it.leader}")
        node = self.world.nodes[it.leader]
        if it.leader_epoch != self.world.last_leader_epoch and node.replica is not None:
            self.world.on_leader(it)
            missing = self.world.committed.missing(node)
            if missing is not None:
                raise Violation(1, f"{node.name} is to lead in epoch {it.leader_epoch} without {missing}, committed")

    # Elections --------------------------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """The nodes that are up, and registered in this life."""
        return [
            node_id
            for node_id, node in self.world.nodes.items()
            if node.process.is_alive and self.lives.get(node_id) == node.process.lives
        ]

    def elect(self, live: list[int], kind: Election = Election.PREFERRED) -> bool:
        (elected,) = self.voter.propose(ElectLeaders([NAME], live=live, node=NODE_CONFIG, kind=kind)).result
        return elected.code is ErrorCode.NONE

    @property
    def image(self) -> Image:
        return self.voter.image


# A node ---------------------------------------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """A request whose answer waits: `attempt` says whether it was given now."""

    attempt: Callable[[], bool]
    timer: Timer


class Node:
    """A broker with one replica. All that it does runs in its process; all it keeps is on its disk."""

    def __init__(self, world: "World", node_id: int, config: TopicConfig) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.config = config
        self.disk = Disk(world.chance(f"disk {node_id}"))
        self.process = Process(world.scheduler, world.trace, self.name, on_died=self._on_died)
        self.process.after_run = self._after_run
        self.chance = world.chance(self.name)
        self.links: list[Link] = []
        self.replica: Replica | None = None
        self.local: LocalPartition | None = None
        self.mirror = Mirror()
        self.is_diminished = False
        """Whether its power was cut, and the authority does not know yet."""
        self.is_weak = False
        """Whether its power was cut since it was last in sync."""
        self.kept_broker_epoch = -1
        """On its disk, with the boot id of the machine: a power cut makes it worthless."""
        self.how_it_dies = "kill"
        self.incarnation = 0
        self.restart_ms = 500
        self._forget()

    def _forget(self) -> None:
        self.broker_epoch = -1
        self.is_registered = False
        self.outbox: list[AlterIsr] = []
        self._waiting: list[_Waiting] = []
        self._is_woken = False
        self._news_offset = -1
        self._is_fetching = False
        self._fetch_number = 0
        self._start_seen = 0
        self._seen = (-1, -1, 0)  # as a leader: epoch and watermark; as anybody: the watermark that was checked

    # Life -------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.process.is_alive:
            return
        self._forget()
        self.process.start()
        self.process.run(self._open)

    def _open(self) -> None:
        mirror = Mirror()
        data = _Watched(self.disk, mirror)
        names = self.disk.list(data.directory_of(NAME))
        local, replica = open_replica(
            data,
            self.disk,
            NAME,
            self.config,
            node_id=self.node_id,
            outbox=self.outbox,
            wake=self._wake,
            settings=ReplicaSettings(lag_ms_max=self.world.lag_ms_max),
        )
        self.data, self.mirror, self.local, self.replica = data, mirror, local, replica
        if any(name.endswith(".snapshot") for name in names) and local.producers.producers:
            self.world.states.reach("producers restored from a snapshot")
        self._seen = (-1, -1, replica.high_watermark)
        self._start_seen = replica.log.log_start_offset
        self.incarnation = self.world.next_incarnation()
        self._register()
        self._later(TICK_MS, self._tick)
        self._later(4000, self._checkpoint)

    def _later(self, delay_ms: int, action: Action) -> None:
        """Do something after about so long."""
        self.process.after(delay_ms // 2 + int(self.chance.random() * delay_ms), action)

    def kill(self) -> None:
        """kill -9: what was written is in the page cache."""
        if self.process.is_alive:
            self._end("")
            self.disk.kill()

    def cut_power(self) -> None:
        """The machine loses power: what was not flushed may be gone."""
        if self.process.is_alive:
            self._end("power cut")
        self.disk.cut_power()
        self.is_diminished = self.is_weak = True
        self.kept_broker_epoch = -1

    def stop(self) -> None:
        """A clean shutdown."""
        if self.process.is_alive and not self.process.is_paused:
            self.process.run(self._close)
            if self.process.is_alive:
                self._end("clean shutdown")
                self.disk.kill()

    def _close(self) -> None:
        if self.replica is not None and self.replica.log.failure is None:
            self.data.remember(HIGH_WATERMARKS, NAME, self.replica.high_watermark, is_urgent=False)
            self.data.close()

    def _end(self, how: str) -> None:
        self.process.kill(how)
        for link in self.links:
            link.break_off()
        self.links.clear()
        for waiting in self._waiting:
            waiting.timer.cancel()
        self._waiting = []
        self._epoch_told = -1
        self.world.trace.happened(self.name, BAND, "")

    def _on_died(self) -> None:
        """It died in the middle of a write."""
        self.world.states.reach("death in mid-write")
        if self.how_it_dies == "power" and self.world.may_cut_power(self):
            self.cut_power()
        else:
            self.kill()
        self.world.scheduler.after(self.restart_ms, self.start)

    # The authority ----------------------------------------------------------------------------------------------------

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
        self._later(REGISTER_RETRY_MS, self._register)

    def _on_registered(self, answer: Registered) -> None:
        if self.is_registered and answer.broker_epoch <= self.broker_epoch:
            return
        self.is_registered = True
        self.broker_epoch = self.kept_broker_epoch = answer.broker_epoch
        self.on_news(answer.news)

    def on_news(self, news: News) -> None:
        # Decisions are read from the authority's log, so a node never goes back to older ones.
        if not self.is_registered or self.replica is None or news.offset < self._news_offset:
            return
        self._news_offset = news.offset
        if news.broker_epochs[self.node_id] != self.broker_epoch:
            # A registration of an earlier life has arrived after ours: nobody would listen to us any more.
            self.is_registered = False
            self._register()
            return
        self.replica.on_partition(news.partition, news.broker_epochs, self.process.now_ms)
        self._fetch()

    def _send_outbox(self) -> None:
        orders, self.outbox[:] = list(self.outbox), []
        authority = self.world.authority
        for order in orders:
            request = Propose(self.broker_epoch, order.proposal)
            self.world.network.ask(
                self.process,
                authority.process,
                request,
                partial(authority.on_propose, self.node_id, request),
                partial(self._on_altered, order.proposal),
            )

    def _on_altered(self, proposal: IsrProposal, answer: Answered) -> None:
        assert self.replica is not None
        self.replica.on_altered(proposal, answer.altered)

    # Following --------------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Ask the leader for what comes next, unless an answer is still to come."""
        position = self.replica.position() if self.replica is not None else None
        if position is None or self._is_fetching:
            return
        self._is_fetching = True
        self._fetch_number += 1
        number = self._fetch_number
        leader = self.world.nodes[position.leader]
        request = Fetch(position, self.broker_epoch, self.chance.choice(self.world.fetch_bytes))
        self.world.network.ask(
            self.process,
            leader.process,
            request,
            partial(leader.on_fetch, self.node_id, request),
            partial(self._on_answer, number, position),
        )
        self.process.after(FETCH_TIMEOUT_MS, partial(self._on_timeout, number))

    def _on_timeout(self, number: int) -> None:
        if self._is_fetching and number == self._fetch_number:
            self._is_fetching = False
            self._fetch()

    def _on_answer(self, number: int, position: Position, answer: FetchAnswer | Start) -> None:
        # An answer that comes after its time is out is an answer all the same.
        assert self.replica is not None
        is_last = number == self._fetch_number
        if is_last:
            self._is_fetching = False
        is_eager = True
        if isinstance(answer, Start):
            self.replica.on_start(position, answer.log_start_offset)
        else:
            if answer.fetched.diverging is not None:
                self.world.states.reach("divergence by epoch")
            is_eager = self.replica.on_fetched(answer.fetched)
        if is_eager:
            self._fetch()
        elif is_last:
            self._later(60, self._fetch)

    # Serving ----------------------------------------------------------------------------------------------------------

    def on_fetch(self, replica_id: int, request: Fetch, reply: Reply) -> None:
        """Answer a follower, or let it wait for records."""
        replica, local, now_ms = self.replica, self.local, self.process.now_ms
        if replica is None or local is None:
            return
        if request.position.is_lost:
            if replica.leading is not None:
                reply(Start(replica.log.log_start_offset))
            return

        def attempt(*, is_last: bool = False, is_again: bool = True) -> bool:
            fetched = answer_fetch(
                local,
                request.position,
                replica_id=replica_id,
                replica_epoch=request.broker_epoch,
                now_ms=now_ms,
                bytes_max=request.bytes_max,
                is_again=is_again,
            )
            if fetched.code is ErrorCode.STALE_BROKER_EPOCH:
                self.world.states.reach("stale incarnation refused")
            if is_last or fetched.code or fetched.diverging is not None or len(fetched.records):
                reply(FetchAnswer(fetched))
                return True
            return False

        if not attempt(is_again=False):
            self._wait(attempt, FETCH_WAIT_MS, lambda: attempt(is_last=True))

    def serve(self, request: Produce | Consume | AskEpoch, reply: Reply) -> None:
        """Answer a client."""
        if isinstance(request, Produce):
            self._on_produce(request, reply)
        elif isinstance(request, Consume):
            reply(self._on_consume(request))
        else:
            reply(self._on_epoch(request))

    def _on_produce(self, request: Produce, reply: Reply) -> None:
        assert self.local is not None
        local, end = self.local, self.local.log_end_offset
        try:
            appended = local.append(memoryview(bytearray(request.batch)), acks=request.acks, now_ms=self.process.now_ms)
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
            self._wait(attempt, PRODUCE_TIMEOUT_MS, lambda: reply(timed_out))

    def _answer_produce(self, local: LocalPartition, request: Produce, appended: Appended, reply: Reply) -> bool:
        verdict = local.verdict(appended, acks=request.acks)
        if verdict is None:
            return False
        self.world.reach_code(verdict)
        reply(Produced(request.number, verdict, appended.base_offset if not verdict else NO_OFFSET))
        return True

    def _on_consume(self, request: Consume) -> Consumed:
        assert self.replica is not None
        assert self.local is not None
        try:
            self.local.check_leader(request.leader_epoch)
            found = self.local.read(request.offset, bytes_max=4000, reader=CONSUMER)
        except Refused as refused:
            start = self.replica.log.log_start_offset if self.replica.leading is not None else NO_OFFSET
            return Consumed(refused.code, log_start_offset=start)
        return Consumed(ErrorCode.NONE, found.read(), self.replica.log.log_start_offset)

    def _on_epoch(self, request: AskEpoch) -> ToldEpoch:
        assert self.replica is not None
        assert self.local is not None
        try:
            self.local.check_leader(request.leader_epoch)
        except Refused as refused:
            return ToldEpoch(refused.code)
        return ToldEpoch(ErrorCode.NONE, self.replica.end_of_epoch(request.epoch))

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _wake(self, _key: object) -> None:
        self._is_woken = True

    def _wait(self, attempt: Callable[[], bool], timeout_ms: int, expire: Callable[[], object]) -> None:
        def on_timeout() -> None:
            # A process that was paused comes to its timers late: the answer may have been given a moment ago.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                expire()

        waiting = _Waiting(attempt, self.process.after(timeout_ms, on_timeout))
        self._waiting.append(waiting)

    def _settle(self) -> None:
        """Try what waits, as long as that wakes something."""
        for turn in itertools.count():
            if not self._is_woken:
                return
            if turn > SETTLED_AFTER:
                raise Violation(0, f"{self.name} tries {len(self._waiting)} waiting requests again and again")
            self._is_woken = False
            waiting, self._waiting = self._waiting, []
            for it in waiting:
                if it.attempt():
                    it.timer.cancel()
                else:
                    self._waiting.append(it)

    # Time -------------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self.replica is not None
        self.replica.tick(self.process.now_ms)
        self._fetch()
        self._later(TICK_MS, self._tick)

    def _checkpoint(self) -> None:
        """What a broker does now and then: retention, a flush, and writing down the high watermark."""
        assert self.replica is not None
        replica = self.replica
        if replica.log.failure is None:
            try:
                replica.log.retain(self.process.now_ms, upto_offset=replica.high_watermark)
                if self.chance.random() < 0.3:
                    replica.log.flush()
            except LogError as error:
                self.world.trace.happened(self.name, NOTE, str(error))
            self.data.remember(HIGH_WATERMARKS, NAME, replica.high_watermark, is_urgent=True)
        self._later(4000, self._checkpoint)

    # After every event ------------------------------------------------------------------------------------------------

    def _after_run(self) -> None:
        if self._is_woken:
            self._settle()
        if self.outbox:
            self._send_outbox()
        if self.replica is not None:
            self._check(self.replica)
            if self.world.trace.is_kept:
                self._tell(self.replica)

    def _check(self, replica: Replica) -> None:
        """Hold the replica against everything that must be true of it."""
        leading, watermark = replica.leading, replica.high_watermark
        epoch_seen, led_to, checked_to = self._seen
        mirror, world = self.mirror, self.world
        if replica.log.failure is not None:
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
                world.committed.check(self, batches)
            else:
                self._check_advance(replica, batches)
        self._seen = (replica.leader_epoch, watermark, watermark) if leading is not None else (-1, -1, watermark)

    def _check_cut(self) -> None:
        """Who is in sync never cuts off what is committed."""
        cut, self.mirror.cut = self.mirror.cut, []
        self.world.states.reach("truncation")
        self.world.trace.happened(self.name, NOTE, f"cuts off {cut[0].base_offset} to {cut[-1].next_offset - 1}")
        if self.node_id in self.world.authority.partition.isr and not self.is_diminished:
            for batch in cut:
                if self.world.committed.holds(batch) and batch.next_offset > self.world.log_start_offset():
                    raise Violation(11, f"{self.name} is in sync and cuts off {batch}, which is committed")

    def _check_advance(self, replica: Replica, batches: list[Held]) -> None:
        """A leader's watermark has moved: everybody who counts has what is before it."""
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
        world.committed.extend(self, batches)
        # Whoever may be elected next has it, unless its power was cut since; whatever the leader believes of it.
        decided = world.authority.partition
        if decided.leader_epoch == replica.leader_epoch:
            for node in (world.nodes[node_id] for node_id in decided.isr):
                for batch in batches:
                    if not node.is_diminished and not node.mirror.has(batch) and node.started_at <= batch.base_offset:
                        raise Violation(11, f"{self.name} commits {batch}, {node.name} is in sync and does not have it")

    @property
    def started_at(self) -> int:
        return self.replica.log.log_start_offset if self.replica is not None else 0

    def _tell(self, replica: Replica) -> None:
        """Let the trace know of another role, and of another watermark."""
        epoch, watermark = replica.leader_epoch if replica.leading is not None else -1, replica.high_watermark
        if epoch != self._epoch_told:
            self.world.trace.happened(self.name, BAND, f"leads in epoch {epoch}" if epoch >= 0 else "")
        if watermark != self._watermark_told:
            self.world.trace.happened(self.name, MARK, f"high watermark {watermark}")
        self._epoch_told, self._watermark_told = epoch, watermark

    _epoch_told = _watermark_told = -1
