"""How a replica comes to be out of its directory: the log, its companions, and how far it was. A pure module.

    <data>/orders-0/leader-epoch-checkpoint     the epochs, beside the log they belong to
    <data>/replication-offset-checkpoint        the high watermark of each partition, written now and then

The checkpoint of high watermarks is a hint. If it is behind, a consumer waits a moment longer after a restart; what was
promised does not depend on it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from minibroker.log.interfaces import Files
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Rules, rules_of
from minibroker.partitions.partition import LocalPartition, Transactions
from minibroker.partitions.producers import ProducerStates
from minibroker.replication.epochs import EpochCache
from minibroker.replication.replica import AlterIsr, LeadershipListener, Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

HIGH_WATERMARKS = "replication-offset-checkpoint"

OpenTransactions = Callable[[Files, str], tuple[Companion, Transactions]]
"""Makes what knows the transactions of a log, given its directory: a companion, and what the partition asks."""

RulesFor = Callable[[TopicPartition], Rules]
"""Chooses the admission rules of a partition."""


def usual_rules(_name: TopicPartition) -> Rules:
    """Every partition has chapter 03's rules."""
    return rules_of


class Data(Protocol):
    """What is needed of chapter 02's `DataDirectory`."""

    def directory_of(self, partition: TopicPartition) -> str:
        """The path of a partition's directory."""

    def open_log(
        self, partition: TopicPartition, config: LogConfig | None = None, *, companions: list[Companion]
    ) -> SegmentedLog:
        """Open a partition's log, checking what the checkpoints do not vouch for."""

    def remembered(self, name: str, partition: TopicPartition) -> int | None:
        """The number of a partition in a checkpoint."""


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
) -> tuple[LocalPartition, Replica]:
    """Open a partition's log and all that goes along with it: what handlers use, and what a driver tells the news."""
    directory = data.directory_of(name)
    epochs, producers = EpochCache(files, directory), ProducerStates(files, directory)
    companions: list[Companion] = [producers, epochs]
    transactions: Transactions | None = None
    if open_transactions is not None:
        companion, transactions = open_transactions(files, directory)
        companions.append(companion)
    log = data.open_log(name, config.log_config, companions=companions)
    replica = Replica(
        name,
        node_id,
        log,
        epochs,
        outbox=outbox,
        wake=wake,
        high_watermark=data.remembered(HIGH_WATERMARKS, name) or 0,
        lag_ms_max=lag_ms_max,
        listeners=listeners,
    )
    return LocalPartition(
        name, log, producers, config, replica, rules=rules_for(name), transactions=transactions
    ), replica
