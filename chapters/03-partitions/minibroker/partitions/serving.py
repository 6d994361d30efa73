"""The partitions of a node, and the handlers that chapter 03 brings for them.

It owns the store and its upkeep. What is behind the partition port, one replica or several, is given to it as a
`Hosting`; the authority that decides about metadata comes from a `ClusterPort`.
"""

from collections.abc import Callable
from typing import Protocol

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.metadata.placement import Placing, place
from minibroker.partitions.administration import Administration
from minibroker.partitions.cluster import ClusterPort
from minibroker.partitions.configs import Configurations
from minibroker.partitions.describe import Describe, Myself, api_versions
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.identity import new_id_bytes
from minibroker.partitions.list_offsets import ListOffsets
from minibroker.partitions.logs import DeleteRecords
from minibroker.partitions.machine import Machine, limits_of
from minibroker.partitions.produce import Produce
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Registry
from minibroker.partitions.store import OnChanged, OpenPartition, Store
from minibroker.partitions.upkeep import Schedule, Upkeep
from minibroker.wire.apis import ApiKey


class Hosting(Protocol):
    """Opens the partitions of a node, if they are not plain ones with one replica, and hears what becomes of them."""

    @property
    def open_partition(self) -> OpenPartition:
        """Opens a partition."""

    @property
    def on_changed(self) -> OnChanged:
        """Hears what the metadata say of an open partition."""


class Partitions:
    """Serves the partitions that the metadata give this node."""

    def __init__(
        self,
        machine: Machine,
        cluster: ClusterPort,
        *,
        hosting: Hosting | None = None,
        placing: Placing = place,
        myself: Myself | None = None,
        on_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        """`placing` chooses the brokers of new partitions. A node that forwards calls to the controller names `myself`.

        `on_timeout` is called before a producer is told that its batch was not replicated in time, and may raise.
        """
        self._machine = machine
        self._cluster = cluster
        self._hosting = hosting
        self._placing = placing
        self._myself = myself
        self._on_timeout = on_timeout

    def open(self) -> None:
        """Be ready to follow the metadata."""
        machine, hosting = self._machine, self._hosting
        self.store = Store(
            machine.data,
            machine.files,
            node_id=machine.config.node_id,
            topic_config=self._topic_config,
            wake=machine.waiting.wake,
            open_partition=None if hosting is None else hosting.open_partition,
            on_changed=None if hosting is None else hosting.on_changed,
        )
        self.upkeep = Upkeep(self.store, machine.data, machine.files, schedule_of(machine.config), machine.threads[1])
        self.configurations = Configurations(self._cluster.authority, machine.config)

    def start(self) -> None:
        """The partitions are open: take what was configured while this node was away, and keep the logs in order."""
        self._reconfigure(Image(), self._cluster.authority.image)
        self._cluster.authority.subscribe(self._reconfigure)
        self.upkeep.start()

    async def stop(self) -> None:
        """End the upkeep."""
        await self.upkeep.stop()

    def _topic_config(self, image: Image, topic: str) -> TopicConfig:
        return TopicConfig.of(image.configs, topic, self._machine.config.with_dynamic(image.configs))

    def _reconfigure(self, old: Image, new: Image) -> None:
        """Follow what can be changed while the broker runs."""
        if new.configs is not old.configs:
            config = self._machine.holding(new)
            self._machine.server.limits = limits_of(config)
            self.upkeep.schedule = schedule_of(config)

    # Handlers ---------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry) -> None:
        """Serve chapter 03's APIs."""
        config, store, authority = self._machine.config, self.store, self._cluster.authority
        # Some clients conclude from Produce 0 that a broker knows compression; none sends it any more.
        registry.add(ApiKey.PRODUCE, Produce(store, on_timeout=self._on_timeout), advertised_from=0)
        registry.add(ApiKey.FETCH, Fetch(store, bytes_max=config.fetch_max_bytes, clock=monotonic_ms))
        registry.add(ApiKey.LIST_OFFSETS, ListOffsets(store))
        registry.add(ApiKey.DELETE_RECORDS, DeleteRecords(store))
        registry.add(ApiKey.API_VERSIONS, api_versions(registry))
        registry.add(ApiKey.INIT_PRODUCER_ID, InitProducerId(authority, config.node_id), stand_in=True)
        registry.add(ApiKey.DESCRIBE_CONFIGS, self.configurations.describe)
        registry.add(ApiKey.ALTER_CONFIGS, self.configurations.alter)
        registry.add(ApiKey.INCREMENTAL_ALTER_CONFIGS, self.configurations.alter)
        self._add_topic_handlers(registry)

    def _add_topic_handlers(self, registry: Registry) -> None:
        config, authority = self._machine.config, self._cluster.authority
        administration = Administration(authority, config, new_topic_id=new_id_bytes, placing=self._placing)
        registry.add(ApiKey.CREATE_TOPICS, administration.create_topics)
        registry.add(ApiKey.DELETE_TOPICS, administration.delete_topics)
        registry.add(ApiKey.CREATE_PARTITIONS, administration.create_partitions)
        describe = Describe(
            authority,
            create=lambda names: self._cluster.create_on_demand(administration, names),
            is_auto_creating=lambda: config.auto_create_topics_enable,
            myself=self._myself,
        )
        registry.add(ApiKey.METADATA, describe.metadata)
        registry.add(ApiKey.FIND_COORDINATOR, describe.coordinator, stand_in=True)
        registry.add(ApiKey.DESCRIBE_CLUSTER, describe.cluster)


def schedule_of(config: NodeConfig) -> Schedule:
    """How often what is done."""
    return Schedule(
        initial_delay_ms=config.log_initial_task_delay_ms,
        retention_ms=config.log_retention_check_interval_ms,
        compaction_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        is_compacting=config.log_cleaner_enable,
        producer_expiration_ms=config.producer_id_expiration_ms,
        scrub_ms=config.scrub_interval_ms,
    )
