"""Turns an image into the fewest records that produce it. A pure module.

Folding these records into an empty image gives the same image. So a snapshot of the metadata is a short log, and the
code that reads the log can also read the snapshot.
"""

from collections.abc import Iterator

from minibroker.metadata.image import BrokerImage, Image, PartitionImage
from minibroker.metadata.records import (
    METADATA_VERSION,
    BrokerEndpoint,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityData,
    RegisterBrokerRecord,
    TopicRecord,
)


def records_of(image: Image) -> Iterator[MetadataRecord]:
    """The records of an image. The metadata version comes first: it determines which records may follow."""
    features = sorted(image.features.items(), key=lambda it: (it[0] != METADATA_VERSION, it[0]))
    for name, level in features:
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield _broker(broker)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for number, partition in topic.partitions.items():
            yield _partition(topic.topic_id, number, partition)
    for (kind, name), configs in image.configs.items():
        for key, value in configs.items():
            yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
    for entity, quotas in image.client_quotas.items():
        parts = [QuotaEntityData(entity_type=it, entity_name=name) for it, name in entity]
        for key, amount in quotas.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=amount, remove=False)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)


def _broker(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.node_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(name=it.name, host=it.host, port=it.port, security_protocol=it.security_protocol)
            for it in broker.endpoints
        ],
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
    )


def _partition(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
