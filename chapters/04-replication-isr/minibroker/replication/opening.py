"""Opening a replica from its directory: the log, its companions, and the last known high watermark. A pure module.

    <data>/orders-0/leader-epoch-checkpoint     the epochs of the log in this directory
    <data>/replication-offset-checkpoint        the high watermark of each partition, written every few seconds

The checkpoint of high watermarks is a hint. If it is too old, a consumer waits a moment longer after a restart; no
acknowledged record depends on it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol
from weakref import ref

from minibroker.log.interfaces import Files
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Rules, rules_of
from minibroker.partitions.partition import LocalPartition, Transactions
from minibroker.partitions.producers import ProducerStates
from minibroker.replication.epochs import EpochCache
from minibroker.replication.replica import AlterIsr, LeadershipListener, Replica
from minibroker.replication.throttling import ReplicationQuotas
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

HIGH_WATERMARKS = "replication-offset-checkpoint"


class TransactionLog(Companion, Transactions, Protocol):
    """The transactions of a log. It is a companion of the log, and the `Transactions` port of the partition."""


OpenTransactions = Callable[[TopicPartition, Files, str, ProducerStates, Callable[[], int]], TransactionLog]
"""Opens the transactions in a log's directory, given the log's producers and a function for the high watermark."""

RulesFor = Callable[[TopicPartition], Rules]
"""Chooses the admission rules of a partition."""


def usual_rules(_name: TopicPartition) -> Rules:
    """Every partition has chapter 03's rules."""
    return rules_of


class Data(Protocol):
    """The methods of chapter 02's `DataDirectory` that are used here."""

    def directory_of(self, partition: TopicPartition) -> str:
        """The path of a partition's directory."""

    def open_log(
        self, partition: TopicPartition, config: LogConfig | None = None, *, companions: list[Companion]
    ) -> SegmentedLog:
        """Open a partition's log, and check the part after its recovery point."""

    def remembered(self, name: str, partition: TopicPartition) -> int | None:
        """The offset of a partition in a checkpoint."""


def open_replica(
    data: Data,
    files: Files,
    name: TopicPartition,
    config: TopicConfig,
    *,
    node_id: int,
    outbox: list[AlterIsr],
    wake: Callable[[Hashable], None],
    lag_ms_max: int = 30_000,
    listeners: Sequence[LeadershipListener] = (),
    rules_for: RulesFor = usual_rules,
    open_transactions: OpenTransactions | None = None,
    quotas: ReplicationQuotas | None = None,
) -> tuple[LocalPartition, Replica]:
    """Open a partition's log with its companions; return the partition for the handlers, and its replica."""
    directory = data.directory_of(name)
    epochs, producers = EpochCache(files, directory), ProducerStates(files, directory)
    companions: list[Companion] = [producers, epochs]
    watermark = _Watermark(data.remembered(HIGH_WATERMARKS, name) or 0)
    transactions: TransactionLog | None = None
    if open_transactions is not None:
        transactions = open_transactions(name, files, directory, producers, watermark)
        companions.append(transactions)
    log = data.open_log(name, config.log_config, companions=companions)
    replica = Replica(
        name,
        node_id,
        log,
        epochs,
        outbox=outbox,
        wake=wake,
        high_watermark=watermark.remembered,
        lag_ms_max=lag_ms_max,
        listeners=listeners,
        quotas=quotas,
    )
    watermark.replica = ref(replica)
    return LocalPartition(
        name, log, producers, config, replica, rules=rules_for(name), transactions=transactions
    ), replica


class _Watermark:
    """The high watermark of a replica, or the remembered one as long as there is no replica.

    The log's companions refer to this object. It refers to the replica only weakly, so that a companion does not keep
    the replica and its log alive.
    """

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered
        self.replica: ref[Replica] | None = None

    def __call__(self) -> int:
        replica = None if self.replica is None else self.replica()
        return self.remembered if replica is None else replica.high_watermark
