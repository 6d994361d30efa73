"""The image: the metadata of the cluster up to one offset of the metadata log. A pure module.

An image is immutable. Folding a record gives a new image that shares all unchanged parts with the old one. So a reader
can keep an old image. Two images are compared quickly, because their shared parts need no comparison. Many records are
folded through a `Builder`, which copies each part only once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.errors import CorruptMetadata
from minibroker.metadata.names import can_collide, collision_key
from minibroker.metadata.records import (
    RECORDS,
    WRITTEN,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.uuids import uuid_text

NO_LEADER = -1

QuotaEntity = tuple[tuple[str, str | None], ...]
"""The clients that have a quota, as types and names in the order of the types. The name None means a type's default."""


class Endpoint(NamedTuple):
    """The address of one listener of a broker."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. `host` and `port` are the address of its first listener."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    incarnation_id: bytes
    epoch: int
    endpoints: tuple[Endpoint, ...] = ()
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    """The ids of its data directories; empty if it did not report them."""
    fenced_offset: int = field(default=NO_OFFSET, compare=False)
    """The offset of the record that fenced the broker last. A snapshot does not keep this offset."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address of a listener, by its name; None if the broker does not have it."""
        return next((it for it in self.endpoints if it.name == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: its replicas, its in-sync replicas, its leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    """Replicas outside the in-sync set that have every acknowledged record (KIP-966)."""
    last_known_elr: tuple[int, ...] = ()
    """The last leader, while no replica is in sync."""


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic and its partitions."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class Image:
    """The metadata of a cluster. `offset` is the offset of the last folded record."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    collisions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The topics with a `.` or `_` in their names, by collision key. Two names with the same key collide."""
    configs: Mapping[tuple[ConfigResource, str], Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    offset: int = NO_OFFSET

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The configurations that are set for a topic."""
        return self.configs.get((ConfigResource.TOPIC, topic), {})

    def partition(self, name: TopicPartition) -> PartitionImage | None:
        """A partition, or None."""
        topic = self.topics.get(name.topic)
        return None if topic is None else topic.partitions.get(name.partition)

    def active_brokers(self) -> list[int]:
        """The brokers that can get new replicas: live, and not shutting down."""
        return [it for it in self.live_brokers() if not self.brokers[it].in_controlled_shutdown]

    def live_brokers(self) -> list[int]:
        """The brokers that are not fenced, in order of their ids."""
        return sorted(node_id for node_id, broker in self.brokers.items() if not broker.is_fenced)


def fold(image: Image, record: MetadataRecord, offset: int) -> Image:
    """The image after one more record."""
    return fold_all(image, [(offset, record)])


def fold_all(image: Image, records: Iterable[tuple[int, MetadataRecord]]) -> Image:
    """The image after these records, each with its offset. The cost depends on the records, not on the image."""
    builder = Builder(image)
    for offset, record in records:
        builder.fold(record, offset)
    return builder.build()


class Builder:
    """Builds an image. Each mapping is copied at its first change."""

    def __init__(self, image: Image) -> None:
        self._old = image
        self._new: dict[str, Any] = {}
        self._partitions: dict[str, dict[int, PartitionImage]] = {}
        self._configs: dict[tuple[ConfigResource, str], dict[str, str]] = {}
        self.offset = image.offset
        """The offset of the record that is being applied, or of the last one that was applied."""

    def fold(self, record: MetadataRecord, offset: int) -> None:
        """Apply one record. A record that contradicts the image raises CorruptMetadata with its offset."""
        assert offset > self.offset, f"record {offset} cannot follow record {self.offset}"
        step = _STEPS.get(type(record))
        assert step is not None, f"there is no method to fold a {type(record).__name__}"
        self.offset = offset
        try:
            step(self, record)
        except CorruptMetadata as error:
            raise CorruptMetadata(f"metadata record at offset {offset}: {error}") from error

    def build(self) -> Image:
        """The image. The builder cannot be used afterwards."""
        if self.offset == self._old.offset:
            return self._old
        for name, partitions in self._partitions.items():
            topics = self.change("topics")
            if name in topics:
                topics[name] = replace(topics[name], partitions=partitions)
        return replace(self._old, offset=self.offset, **self._new)

    def change(self, part: str) -> Any:
        """A part of the new image, for changes. The first call copies it."""
        if part not in self._new:
            self._new[part] = dict(getattr(self._old, part))
        return self._new[part]

    def now(self, part: str) -> Any:
        """A part of the new image, for reading only."""
        return self._new.get(part, getattr(self._old, part))

    def topic(self, topic_id: bytes) -> TopicImage:
        """The topic with this id. Its `partitions` may be outdated: use `partitions_of`."""
        name = self.now("topic_names").get(topic_id)
        if name is None:
            raise CorruptMetadata(f"no topic has the id {uuid_text(topic_id)}")
        topic: TopicImage = self.now("topics")[name]
        return topic

    def partitions_of(self, topic: TopicImage) -> dict[int, PartitionImage]:
        """The partitions of a topic, for changes. The first call copies them."""
        if topic.name not in self._partitions:
            self._partitions[topic.name] = dict(topic.partitions)
        return self._partitions[topic.name]

    # One method for each kind of record -------------------------------------------------------------------------------

    def on_topic(self, record: TopicRecord) -> None:
        """Add a topic without partitions. The records of its partitions follow."""
        if record.name in self.now("topics") or record.topic_id in self.now("topic_names"):
            raise CorruptMetadata(f"the topic {record.name} or its id {uuid_text(record.topic_id)} exists already")
        self.change("topics")[record.name] = TopicImage(record.name, record.topic_id, {})
        self.change("topic_names")[record.topic_id] = record.name
        self._partitions[record.name] = {}
        if can_collide(record.name):
            key = collision_key(record.name)
            self.change("collisions")[key] = self.now("collisions").get(key, frozenset()) | {record.name}

    def on_remove_topic(self, record: RemoveTopicRecord) -> None:
        """Remove a topic, its id and its configuration."""
        name = self.topic(record.topic_id).name
        del self.change("topics")[name]
        del self.change("topic_names")[record.topic_id]
        self._partitions.pop(name, None)
        self._forget_configs((ConfigResource.TOPIC, name))
        key = collision_key(name)
        if name in self.now("collisions").get(key, ()):
            left = self.change("collisions").pop(key) - {name}
            if left:
                self.change("collisions")[key] = left

    def on_partition(self, record: PartitionRecord) -> None:
        """Add a partition to an existing topic."""
        partitions = self.partitions_of(self.topic(record.topic_id))
        partitions[record.partition_id] = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
        )

    def on_config(self, record: ConfigRecord) -> None:
        """Set or remove a configuration. A resource without configurations is not in the image."""
        resource = _resource(record)
        texts = self._configs.get(resource)
        if texts is None:
            texts = self._configs[resource] = dict(self.now("configs").get(resource, {}))
        if record.value is None:
            texts.pop(record.name, None)
        else:
            texts[record.name] = record.value
        if texts:
            self.change("configs")[resource] = texts
        else:
            self._forget_configs(resource)

    def _forget_configs(self, resource: tuple[ConfigResource, str]) -> None:
        self._configs.pop(resource, None)
        if resource in self.now("configs"):
            del self.change("configs")[resource]

    def on_register_broker(self, record: RegisterBrokerRecord) -> None:
        """Add a broker, or replace its last registration."""
        endpoints = tuple(Endpoint(it.name, it.host, it.port, it.security_protocol) for it in record.end_points)
        if not endpoints:
            raise CorruptMetadata(f"broker {record.broker_id} has no listener")
        self.change("brokers")[record.broker_id] = BrokerImage(
            node_id=record.broker_id,
            host=endpoints[0].host,
            port=endpoints[0].port,
            rack=record.rack,
            is_fenced=record.fenced,
            incarnation_id=record.incarnation_id,
            epoch=record.broker_epoch,
            endpoints=endpoints,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            fenced_offset=self.offset if record.fenced else NO_OFFSET,
        )

    def on_producer_ids(self, record: ProducerIdsRecord) -> None:
        """Set the next free producer id. It never decreases, because no id is given twice."""
        if record.next_producer_id < self.now("next_producer_id"):
            old, new = self.now("next_producer_id"), record.next_producer_id
            raise CorruptMetadata(f"the next producer id decreases from {old} to {new}")
        self._new["next_producer_id"] = record.next_producer_id

    def on_feature_level(self, record: FeatureLevelRecord) -> None:
        """Set the level of a feature. Level 0 removes it."""
        features = self.change("features")
        features[record.name] = record.feature_level
        if record.feature_level == 0:
            del features[record.name]

    def on_client_quota(self, record: ClientQuotaRecord) -> None:
        """Set or remove a quota. An entity without quotas is not in the image."""
        entity, quotas = quota_entity(record), self.change("client_quotas")
        values = dict(quotas.get(entity, {}))
        values[record.key] = record.value
        if record.remove:
            del values[record.key]
        quotas[entity] = values
        if not values:
            del quotas[entity]


def quota_entity(record: ClientQuotaRecord) -> QuotaEntity:
    """The entity of a record. The order in which a record names its parts does not matter."""
    return tuple(sorted(((it.entity_type, it.entity_name) for it in record.entity), key=lambda it: it[0]))


def _resource(record: ConfigRecord) -> tuple[ConfigResource, str]:
    try:
        return ConfigResource(record.resource_type), record.resource_name
    except ValueError:
        raise CorruptMetadata(f"a configuration record has the unknown resource type {record.resource_type}") from None


_STEPS: dict[type[MetadataRecord], Callable[[Builder, Any], None]] = {
    TopicRecord: Builder.on_topic,
    RemoveTopicRecord: Builder.on_remove_topic,
    PartitionRecord: Builder.on_partition,
    ConfigRecord: Builder.on_config,
    RegisterBrokerRecord: Builder.on_register_broker,
    ProducerIdsRecord: Builder.on_producer_ids,
    FeatureLevelRecord: Builder.on_feature_level,
    ClientQuotaRecord: Builder.on_client_quota,
}


def declare_record(record: type[MetadataRecord], step: Callable[[Builder, Any], None], *, version: int = 0) -> None:
    """Add a kind of record from a later chapter: how it is folded, and in which version it is written."""
    key = record.schema.key
    assert key is not None, f"{record.__name__} has no record key"
    assert key not in RECORDS, f"{record.__name__} has the same key as {RECORDS[key].__name__}"
    RECORDS[key] = record
    WRITTEN[record] = version
    _STEPS[record] = step
