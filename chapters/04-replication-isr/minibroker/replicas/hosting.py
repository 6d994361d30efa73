"""The replicas of a node: `Hosted` opens them, makes them leaders or followers, and calls their `tick`.

`Hosted` is the `Hosting` of chapter 03's partitions, and a part of the node. It owns every `Replica` of the node, the
tasks that fetch for followers, and the checkpoint of high watermarks. The metadata says which replica leads.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image, PartitionImage
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.machine import Machine
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.registry import Registry
from minibroker.partitions.server import Connect, Tracer
from minibroker.partitions.slices import PARTITIONS, Inner, in_parts
from minibroker.partitions.store import Store
from minibroker.partitions.streams import stream_connection
from minibroker.replicas import access, epoch_file
from minibroker.replicas.disk import WatchedFiles, disk_usage, loses_records
from minibroker.replicas.fetching import Fetchers
from minibroker.replicas.membership import Membership
from minibroker.replicas.proposing import Outbox, Proposer
from minibroker.replication.answering import DescribeProducers, OffsetForLeaderEpoch
from minibroker.replication.keys import HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS, REPLICA_LAG_TIME_MAX_MS
from minibroker.replication.log_dirs import DescribeLogDirs
from minibroker.replication.log_info import GetReplicaLogInfo
from minibroker.replication.opening import HIGH_WATERMARKS, OpenTransactions, RulesFor, open_replica, usual_rules
from minibroker.replication.replica import LeadershipListener, Replica
from minibroker.replication.throttling import ReplicationQuotas
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey

log = logging.getLogger(__name__)

_TICK_MS_MAX = 500


class Hosted:
    """The replicas of one node."""

    rows = access.REPLICA_ROWS

    def __init__(
        self,
        machine: Machine,
        cluster: Membership,
        *,
        listeners: Sequence[LeadershipListener] = (),
        rules_for: RulesFor = usual_rules,
        open_transactions: OpenTransactions | None = None,
    ) -> None:
        """`listeners` are parts of the node that work only on the leader of a partition.

        `rules_for` chooses the admission rules, and `open_transactions` opens the transactions of a log.
        """
        self._listeners = listeners
        self._rules_for = rules_for
        self._open_transactions = open_transactions
        self._machine = machine
        self._cluster = cluster
        self._lag_ms_max = REPLICA_LAG_TIME_MAX_MS.of(machine.config)
        self._outbox = Outbox()
        self._quotas = ReplicationQuotas()
        self._replicas: dict[TopicPartition, Replica] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self.fetchers = Fetchers(
            cluster.me,
            cluster.peers,
            machine.config,
            topic_id_of=self._topic_ids.get,
            settle=machine.waiting.settle,
            on_ended=machine.on_ended,
            quota=self._quotas.as_follower,
        )
        machine.on_failure.append(self._retire_all)

    def replica(self, name: TopicPartition) -> Replica | None:
        """The replica of a partition on this node, if there is one."""
        return self._replicas.get(name)

    def replicas(self) -> list[Replica]:
        """All replicas on this node."""
        return list(self._replicas.values())

    # Following the metadata -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Subscribe to the metadata. The store subscribes later, so it is notified after this part."""
        self._cluster.authority.subscribe(self._on_image)

    def open_partition(
        self, name: TopicPartition, topic_id: bytes, _image: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        """Open the replica of a partition. A partition that is opened again gets a new replica."""
        machine = self._machine
        # The topic id is kept here, because the metadata may already have a newer topic of the same name.
        self._topic_ids[name] = topic_id
        partition, self._replicas[name] = open_replica(
            machine.data,
            machine.files,
            name,
            config,
            node_id=machine.config.node_id,
            outbox=self._outbox,
            wake=machine.waiting.wake,
            lag_ms_max=self._lag_ms_max,
            listeners=self._listeners,
            rules_for=self._rules_for,
            open_transactions=self._open_transactions,
            quotas=self._quotas,
        )
        return partition

    def on_changed(self, name: TopicPartition, _old: PartitionImage | None, new: PartitionImage | None) -> None:
        """The controller has changed a partition of this node, or this node's replica is gone (`new` is None)."""
        if new is None:
            replica = self._replicas.pop(name)
            del self._topic_ids[name]
            self.fetchers.forget(name)
            self._outbox.forget(name)
            replica.retire()
        elif self._machine.failure is None:
            replica = self._replicas[name]
            # A change of role needs no disk, so it works even if the disk has failed.
            replica.on_partition(new, broker_epochs(self._cluster.authority.image), monotonic_ms())
            self.fetchers.follow(replica)

    def _on_image(self, old: Image, new: Image) -> None:
        """Pass the broker epochs of the other nodes to the leaders, and apply the rates of throttled replicas."""
        if new.brokers is not old.brokers:
            epochs = broker_epochs(new)
            for replica in self.replicas():
                if replica.leading is not None:
                    replica.leading.broker_epochs = epochs
        if new.configs is not old.configs:
            self._quotas.configure(self._machine.config.with_dynamic(new.configs), monotonic_ms())
        # Requests may wait for this change. Try them again, because no other event would do so.
        asyncio.get_running_loop().call_soon(self._machine.waiting.settle)

    def _retire_all(self) -> None:
        """Stop leading, because the node ends."""
        for replica in self.replicas():
            replica.retire()

    # Serving ----------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Serve the APIs that only a replica can answer."""
        epochs = OffsetForLeaderEpoch(store, self.replica)
        in_slices = partial(in_parts, requested="topics", answered="topics", size=500)
        registry.add(ApiKey.OFFSET_FOR_LEADER_EPOCH, in_slices(epochs, inner=PARTITIONS))
        by_index = Inner("partition_indexes", "partitions")
        registry.add(ApiKey.DESCRIBE_PRODUCERS, in_slices(DescribeProducers(store), inner=by_index))
        registry.add(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs(store.logs, lambda: disk_usage(self._machine.path)))
        log_info = GetReplicaLogInfo(store.topic_name, self.replica, lambda: self._cluster.me.broker_epoch)
        registry.add(ApiKey.GET_REPLICA_LOG_INFO, log_info)

    # Working ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to propose in-sync sets, to call `tick` of the replicas, and to write the high watermarks."""
        machine, cluster = self._machine, self._cluster
        self._quotas.configure(machine.config.with_dynamic(cluster.authority.image.configs), monotonic_ms())
        proposer = Proposer(
            cluster.me,
            cluster.peers,
            self._outbox,
            controller_id=lambda: cluster.controller_id,
            topic_id_of=self._topic_ids.get,
            replica_of=self.replica,
            settle=machine.waiting.settle,
        )
        machine.begin(proposer.run())
        machine.begin(self._tick())
        machine.begin(self._checkpoint())

    async def _tick(self) -> None:
        interval_s = min(self._lag_ms_max / 4, _TICK_MS_MAX) / 1000
        while True:
            await asyncio.sleep(interval_s)
            now_ms = monotonic_ms()
            for replica in self.replicas():
                replica.tick(now_ms)

    async def _checkpoint(self) -> None:
        interval_s = HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS.of(self._machine.config) / 1000
        while True:
            await asyncio.sleep(interval_s)
            self._remember_watermarks()

    def _remember_watermarks(self) -> None:
        for replica in self.replicas():
            self._machine.data.remember(HIGH_WATERMARKS, replica.name, replica.high_watermark, is_urgent=False)

    async def stop(self) -> None:
        """Stop fetching, and write the high watermarks."""
        await self.fetchers.stop()
        self._remember_watermarks()


def broker_epochs(image: Image) -> dict[int, int]:
    """The brokers that may be in sync, each with its broker epoch.

    The controller would refuse a broker that is fenced or shutting down.
    """
    brokers = image.brokers.values()
    return {it.node_id: it.epoch for it in brokers if not it.is_fenced and not it.in_controlled_shutdown}


def watched_machine(config: NodeConfig, tracer: Tracer | None = None, connect: Connect = stream_connection) -> Machine:
    """A machine that stops at the first error of its only disk, so that other nodes lead its partitions."""

    def on_disk_failed(what: str, error: OSError) -> None:
        failure = BrokerFailure(
            f"node {config.node_id} ends, because its disk refused to {what} ({error.strerror}). Nothing more is"
            " written here: free some space or replace the disk, then start the node again"
        )
        # If records may be lost, remove the file that would prove at the next start that none is.
        if loses_records(what, error):
            epoch_file.forget_broker_epoch(machine.path)
        # This code may run on another thread, in the middle of a write, so the event loop ends the machine afterwards.
        loop.call_soon_threadsafe(machine.fail, failure)

    loop = asyncio.get_running_loop()
    files = WatchedFiles(on_disk_failed)
    machine = Machine(config, tracer=tracer, files=files, checkpoints=(HIGH_WATERMARKS,), connect=connect)
    return machine
