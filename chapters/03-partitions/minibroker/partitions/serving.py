"""The partitions of a node, and the handlers of chapter 03.

`Partitions` owns the store and its upkeep. A `Hosting` opens partitions of another kind, such as replicated ones. The
authority that decides about metadata comes from a `ClusterPort`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.metadata.placement import Placing, place
from minibroker.metadata.records import SUPPORTED_FEATURES, LevelRange
from minibroker.partitions.administration import Administration
from minibroker.partitions.cluster import ClusterPort
from minibroker.partitions.configs import Configurations
from minibroker.partitions.describe import Describe, OwnBroker, api_versions
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.identity import new_id_bytes
from minibroker.partitions.list_offsets import ListOffsets
from minibroker.partitions.logs import DeleteRecords
from minibroker.partitions.machine import Machine, limits_of
from minibroker.partitions.produce import Produce
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Registry
from minibroker.partitions.slices import PARTITIONS, in_parts
from minibroker.partitions.store import OnChanged, OpenPartition, Store
from minibroker.partitions.upkeep import Schedule, Upkeep
from minibroker.partitions.without_groups import WithoutGroups
from minibroker.wire.apis import ApiKey


class Hosting(Protocol):
    """Opens partitions of another kind, such as replicated ones, and is notified when their metadata change."""

    @property
    def open_partition(self) -> OpenPartition:
        """Opens a partition."""

    @property
    def on_changed(self) -> OnChanged:
        """Called when the metadata of an open partition change."""


class Partitions:
    """Serves the partitions that the metadata assign to this node."""

    def __init__(
        self,
        machine: Machine,
        cluster: ClusterPort,
        *,
        hosting: Hosting | None = None,
        placing: Placing = place,
        own_broker: OwnBroker | None = None,
        check_leading: Callable[[], None] = lambda: None,
        features: Mapping[str, LevelRange] = SUPPORTED_FEATURES,
    ) -> None:
        """`placing` chooses the brokers of new partitions. `own_broker` is this node, if it forwards clients' calls.

        `check_leading` is called before a client is told what a deposed leader may say by mistake: that a batch was not
        replicated in time, or that an offset is out of range. It may raise.
        `features` are the levels that ApiVersions announces.
        """
        self._machine = machine
        self._cluster = cluster
        self._hosting = hosting
        self._placing = placing
        self._own_broker = own_broker
        self._check_leading = check_leading
        self._features = features

    def open(self) -> None:
        """Create the store and its upkeep, before the metadata are known."""
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
        """Called when the partitions are open. Apply the dynamic configuration, and start the upkeep."""
        self._reconfigure(Image(), self._cluster.authority.image)
        self._cluster.authority.subscribe(self._reconfigure)
        self.upkeep.start()

    async def stop(self) -> None:
        """Stop the upkeep."""
        await self.upkeep.stop()

    def _topic_config(self, image: Image, topic: str) -> TopicConfig:
        return TopicConfig.of(image.configs, topic, self._machine.config.with_dynamic(image.configs))

    def _reconfigure(self, old: Image, new: Image) -> None:
        """Apply configurations that can be changed while the broker runs."""
        if new.configs is not old.configs:
            config = self._machine.effective_config(new)
            self._machine.server.limits = limits_of(config)
            self.upkeep.schedule = schedule_of(config)

    # Handlers ---------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry) -> None:
        """Add the handlers of chapter 03."""
        config, store, authority = self._machine.config, self.store, self._cluster.authority
        # librdkafka compresses only if Produce 0 is announced. No client sends that version any more.
        registry.add(ApiKey.PRODUCE, Produce(store, on_timeout=self._check_leading), advertised_from=0)
        fetch = Fetch(store, bytes_max=config.fetch_max_bytes, clock=monotonic_ms, check_leading=self._check_leading)
        registry.add(ApiKey.FETCH, fetch)
        registry.add(ApiKey.LIST_OFFSETS, ListOffsets(store))
        delete_records = in_parts(DeleteRecords(store), "topics", "topics", size=200, inner=PARTITIONS)
        registry.add(ApiKey.DELETE_RECORDS, delete_records)
        registry.add(ApiKey.API_VERSIONS, api_versions(registry, authority, self._features))
        registry.add(ApiKey.INIT_PRODUCER_ID, InitProducerId(authority, config.node_id), stand_in=True)
        registry.add(ApiKey.DESCRIBE_CONFIGS, self.configurations.describe)
        registry.add(ApiKey.ALTER_CONFIGS, in_parts(self.configurations.alter, "resources", "responses", size=200))
        registry.add(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, in_parts(self.configurations.alter, "resources", "responses", size=200)
        )
        registry.add(ApiKey.LIST_CONFIG_RESOURCES, self.configurations.list_resources)
        self._add_topic_handlers(registry)

    def _add_topic_handlers(self, registry: Registry) -> None:
        config, authority = self._machine.config, self._cluster.authority
        administration = Administration(authority, config, new_topic_id=new_id_bytes, placing=self._placing)
        # Creating a topic takes longer than deleting one, because its logs are opened. So a CreateTopics request is
        # handled in smaller parts.
        registry.add(ApiKey.CREATE_TOPICS, in_parts(administration.create_topics, "topics", "topics", size=25))
        delete = in_parts(administration.delete_topics, "topics", "responses", size=100)
        registry.add(ApiKey.DELETE_TOPICS, in_parts(delete, "topic_names", "responses", size=100))
        registry.add(ApiKey.CREATE_PARTITIONS, in_parts(administration.create_partitions, "topics", "results", size=50))
        describe = Describe(
            authority,
            create=lambda names: self._cluster.create_on_demand(administration, names),
            is_auto_creating=lambda: config.auto_create_topics_enable,
            own_broker=self._own_broker,
        )
        registry.add(ApiKey.METADATA, describe.metadata)
        registry.add(ApiKey.DESCRIBE_CLUSTER, describe.cluster)
        without_groups = WithoutGroups(lambda: authority.image)
        registry.add(ApiKey.FIND_COORDINATOR, without_groups.find_coordinator, stand_in=True)
        registry.add(ApiKey.OFFSET_FETCH, without_groups.offset_fetch, stand_in=True)


def schedule_of(config: NodeConfig) -> Schedule:
    """The schedule of the upkeep, from the configuration."""
    return Schedule(
        initial_delay_ms=config.log_initial_task_delay_ms,
        retention_ms=config.log_retention_check_interval_ms,
        compaction_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        is_compacting=config.log_cleaner_enable,
        producer_expiration_ms=config.producer_id_expiration_ms,
        scrub_ms=config.scrub_interval_ms,
    )
