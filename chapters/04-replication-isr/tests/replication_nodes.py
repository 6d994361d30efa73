"""Nodes of one partition for tests: the real log, companions, replica and authority on disks in memory.

Nothing here sends anything: a test, a scenario or a world carries what nodes say to each other.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from minibroker.log.batch import NO_LEADER_EPOCH, BatchBuilder, batches
from minibroker.log.interfaces import Log
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Endpoint, Image, PartitionImage
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import LocalPartition, Reader
from minibroker.partitions.store import METADATA
from minibroker.replication.authority import AlterPartitions, IsrChange, RegisterReplicas
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.leader import Altered, IsrProposal
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import AlterIsr, LeadershipListener
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.directory import DataDirectory

NAME = TopicPartition("orders", 0)
TOPIC_ID = b"orders".rjust(16, b"\0")
_NOTHING = memoryview(bytearray())
ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


class News(NamedTuple):
    """What the controller tells the nodes: the partition, and the broker epoch of each registered node."""

    partition: PartitionImage
    broker_epochs: dict[int, int]


class AuthorityNode:
    """The controller on its own disk, which is never lost."""

    alter_partitions: Callable[[int, int, Sequence[IsrChange]], AlterPartitions] = AlterPartitions
    """Makes the command that decides about proposals."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.files = files or MemoryFiles()
        log = DataDirectory(self.files, "data").open_log(METADATA, METADATA_LOG_CONFIG)
        self.voter = Voter(log, cluster_id="test", clock=lambda: 0)
        self._incarnations = 0

    @property
    def image(self) -> Image:
        return self.voter.image

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[NAME.topic].partitions[NAME.partition]

    @property
    def news(self) -> News:
        return News(self.partition, {node_id: it.epoch for node_id, it in self.image.brokers.items()})

    def register(self, node_id: int, *, previous_broker_epoch: int = -1) -> int:
        """Register a new incarnation of a node; return its broker epoch."""
        self._incarnations += 1
        command = RegisterReplicas(
            broker_id=node_id,
            endpoints=ENDPOINTS,
            incarnation_id=self._incarnations.to_bytes(16, "big"),
            previous_broker_epoch=previous_broker_epoch,
        )
        return self.voter.propose(command).result.epoch

    def create(self, replicas: Sequence[int], **configs: str) -> None:
        topic = NewTopic(NAME.topic, TOPIC_ID, assignments=[(0, list(replicas))], configs=named(configs))
        (created,) = self.voter.propose(CreateTopics([topic], NodeConfig())).result
        assert created.code == 0, created.message

    def alter(self, node_id: int, broker_epoch: int, proposal: IsrProposal) -> Altered:
        """Decide about a leader's proposal."""
        change = IsrChange(TOPIC_ID, 0, proposal.leader_epoch, proposal.partition_epoch, proposal.isr)
        (it,) = self.voter.propose(self.alter_partitions(node_id, broker_epoch, [change])).result
        return Altered(it.code, it.isr, it.partition_epoch)


class ReplicaNode:
    """A node with one replica. `kill` loses the process, `cut_power` also what was not flushed."""

    def __init__(
        self,
        node_id: int,
        config: TopicConfig,
        *,
        files: MemoryFiles | None = None,
        lag_ms_max: int = 30_000,
        wake: Callable[[Hashable], None] = lambda _key: None,
        listeners: Sequence[LeadershipListener] = (),
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.files = files or MemoryFiles()
        self.lag_ms_max = lag_ms_max
        self.wake = wake
        self.listeners = listeners
        self.outbox: list[AlterIsr] = []
        self.broker_epoch = -1
        self.open()

    def open(self) -> None:
        """Start the process, and read its disk."""
        self.outbox = []
        self.data = DataDirectory(self.files, "data", more_checkpoints=[HIGH_WATERMARKS])
        self.local, self.replica = open_replica(
            self.data,
            self.files,
            NAME,
            self.config,
            node_id=self.node_id,
            outbox=self.outbox,
            wake=self.wake,
            lag_ms_max=self.lag_ms_max,
            listeners=self.listeners,
        )

    def fetch(
        self,
        leader: "ReplicaNode",
        position: Position,
        now_ms: int,
        *,
        bytes_max: int = 1 << 20,
        is_retry: bool = False,
    ) -> Fetched:
        """What the leader answers to a position, as chapter 03's handler of Fetch does."""
        return answer_fetch(
            leader.local,
            position,
            replica_id=self.node_id,
            replica_epoch=self.broker_epoch,
            now_ms=now_ms,
            bytes_max=bytes_max,
            is_retry=is_retry,
        )


def answer_fetch(
    leader: LocalPartition,
    position: Position,
    *,
    replica_id: int,
    replica_epoch: int,
    now_ms: int,
    bytes_max: int = 1 << 20,
    is_retry: bool = False,
) -> Fetched:
    """Check, find where the logs diverge, and read, in the order of chapter 03's handler."""
    start = position.log_start_offset
    reader = Reader(replica_id, replica_epoch, log_start_offset=start, now_ms=now_ms, is_retry=is_retry)
    try:
        leader.check_leader(position.leader_epoch)
        if position.last_fetched_epoch != NO_LEADER_EPOCH:
            diverging = leader.diverging_epoch(position.fetch_offset, last_fetched_epoch=position.last_fetched_epoch)
            if diverging is not None:
                return Fetched(position, diverging=diverging)
        found = leader.read(position.fetch_offset, bytes_max=bytes_max, reader=reader)
    except Refused as refused:
        return Fetched(position, refused.code)
    return Fetched(
        position,
        records=memoryview(bytearray(found.read())) if found.count else _NOTHING,
        high_watermark=leader.high_watermark,
        log_start_offset=leader.log_start_offset,
    )


def named(configs: dict[str, str]) -> dict[str, str | None]:
    return {name.replace("_", "."): value for name, value in configs.items()}


def batch_of(*values: bytes, producer_id: int = -1, sequence: int = -1, producer_epoch: int = 0) -> bytearray:
    """A producer's batch."""
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch if producer_id >= 0 else -1, base_sequence=sequence
    )
    for value in values:
        builder.append(timestamp=0, key=None, value=value)
    return builder.build()


class HasLog(Protocol):
    """A replica, or a node of a quorum."""

    @property
    def log(self) -> Log: ...


Content = tuple[int, int, bytes]
"""A record of a log: its offset, its epoch, its value."""


def contents(owner: HasLog, upto_offset: int | None = None) -> list[Content]:
    """Every record of a log; those of a control batch have the value `*`."""
    found: list[Content] = []
    log = owner.log
    offset = log.log_start_offset
    end = log.log_end_offset if upto_offset is None else upto_offset
    while offset < end:
        read = list(batches(log.read(offset, bytes_max=1 << 20, upto_offset=end).read()))
        assert read, f"nothing at {offset} of {end}"
        for batch in read:
            epoch, is_control = batch.header.leader_epoch, batch.header.is_control
            records = [it for it in batch.records() if it.offset >= offset]
            found += [(it.offset, epoch, b"*" if is_control else it.value or b"") for it in records]
        offset = read[-1].header.next_offset
    return found


def shown(found: list[Content]) -> str:
    """Records as a scenario shows them: `1:a` is a record `a` of epoch 1."""
    return " ".join(f"{epoch}:{value.decode()}" for _offset, epoch, value in found)


def shown_log(found: list[Content], high_watermark: int, start: str = "") -> str:
    """A log as a scenario shows it: `|` is the high watermark."""
    below = shown([it for it in found if it[0] < high_watermark])
    above = shown([it for it in found if it[0] >= high_watermark])
    return f"[{start}{below} | {above}]".replace("[ ", "[").replace(" ]", "]")
