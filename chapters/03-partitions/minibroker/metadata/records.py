"""The metadata records, as Kafka defines them, and their frame. A pure module.

A change of metadata is one record, or a few records in one batch, in the log `__cluster_metadata-0`. The value of each
log record is a frame around one metadata record; its key is null:

    frame = frame_version:uvarint(1) key:uvarint version:uvarint message

Every metadata record is flexible from version 0 on, so that an older reader can skip new fields. A later chapter adds
its own kinds of records with `declare_record` of the module `image`.
"""

from typing import NamedTuple

from minibroker.log.errors import InvalidVarint
from minibroker.log.varint import decode_unsigned_varint, encode_unsigned_varint
from minibroker.metadata.errors import CorruptMetadata, UnknownRecord
from minibroker.wire.errors import WireError
from minibroker.wire.schema import (
    Message,
    Struct,
    array,
    boolean,
    decode_whole,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)

FRAME_VERSION = 1

METADATA_VERSION = "metadata.version"
METADATA_VERSION_LEVEL = 7  # 3.3-IV3, the oldest that Kafka 4 supports; it has all the records below


class LevelRange(NamedTuple):
    """The levels of a feature that a broker supports, both ends included."""

    lowest: int
    highest: int


SUPPORTED_FEATURES = {METADATA_VERSION: LevelRange(METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL)}
"""The features that ApiVersions announces (KIP-584). Their levels in the cluster are in the image."""


class MetadataRecord(Message):
    """One change of metadata."""


class TopicRecord(MetadataRecord, key=2, versions="0", flexible="0+"):
    """A topic is created."""

    name: str = string(about="the topic's name")
    topic_id: bytes = uuid(about="the topic's id, which is never used again")


class RemoveTopicRecord(MetadataRecord, key=9, versions="0", flexible="0+"):
    """A topic is deleted, with its partitions and its configuration."""

    topic_id: bytes = uuid(about="the topic")


class PartitionRecord(MetadataRecord, key=3, versions="0-2", flexible="0+"):
    """A partition is created. A snapshot has one such record for every partition."""

    partition_id: int = int32(default=-1, about="the partition")
    topic_id: bytes = uuid(about="the topic")
    replicas: list[int] = array(int32, about="the brokers with a replica, the preferred leader first")
    isr: list[int] = array(int32, about="the in-sync replicas")
    removing_replicas: list[int] = array(int32, default=(), about="the replicas that a reassignment removes")
    adding_replicas: list[int] = array(int32, default=(), about="the replicas that a reassignment adds")
    leader: int = int32(default=-1, about="the leader, or -1")
    leader_recovery_state: int = int8(
        tag=0, default=0, about="1 after an unclean election, until the leader has recovered"
    )
    leader_epoch: int = int32(default=-1, about="grows with every change of the leader")
    partition_epoch: int = int32(default=-1, about="grows with every change of the partition")
    directories: list[bytes] = array(
        uuid, versions="1+", default=(), ignorable=True, about="the data directory of each replica"
    )
    eligible_leader_replicas: list[int] | None = array(
        int32,
        versions="2+",
        nullable="2+",
        tag=1,
        default=None,
        about="replicas that are out of sync, but may become leader without data loss",
    )
    last_known_elr: list[int] | None = array(
        int32, versions="2+", nullable="2+", tag=2, default=None, about="the last known eligible leader replicas"
    )


class ConfigRecord(MetadataRecord, key=4, versions="0", flexible="0+"):
    """A configuration is set or removed."""

    resource_type: int = int8(about="the type of the resource: 2 is a topic, 4 a broker")
    resource_name: str = string(about="the topic's name, the broker's id, or an empty text for all brokers")
    name: str = string(about="the key")
    value: str | None = string(nullable="0+", about="its value, or null if it is removed")


class BrokerEndpoint(Struct):
    """The address of one listener."""

    name: str = string(about="the listener")
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16(about="0 is plaintext, 1 TLS, 2 SASL, 3 SASL with TLS")


class BrokerFeature(Struct):
    """The levels of a feature that a broker supports."""

    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterBrokerRecord(MetadataRecord, key=0, versions="0-3", flexible="0+"):
    """A broker has registered."""

    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(versions="2+", default=False)
    incarnation_id: bytes = uuid(about="new each time the process starts")
    broker_epoch: int = int64(about="grows with every registration")
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint)
    features: list[BrokerFeature] = array(BrokerFeature, default=())
    rack: str | None = string(nullable="0+", default=None)
    fenced: bool = boolean(default=True, about="whether it is fenced and may not lead")
    in_controlled_shutdown: bool = boolean(versions="1+", default=False)
    log_dirs: list[bytes] = array(uuid, versions="3+", tag=0, default=(), about="its data directories")


class ProducerIdsRecord(MetadataRecord, key=15, versions="0", flexible="0+"):
    """A block of producer ids is allocated to a broker."""

    broker_id: int = int32(about="the broker")
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64(about="the first id after the block")


class FeatureLevelRecord(MetadataRecord, key=12, versions="0", flexible="0+"):
    """The level of a feature is set; 0 means off. The first record of every metadata log is a FeatureLevelRecord."""

    name: str = string()
    feature_level: int = int16()


class QuotaEntityData(Struct):
    """One part of the entity for which a quota is set."""

    entity_type: str = string(about="user, client-id or ip")
    entity_name: str | None = string(nullable="0+", about="the name, or null for the default of this type")


class ClientQuotaRecord(MetadataRecord, key=14, versions="0", flexible="0+"):
    """A quota is set or removed (KIP-546)."""

    entity: list[QuotaEntityData] = array(QuotaEntityData, about="the clients that have the quota")
    key: str = string(about="the name of the quota, such as producer_byte_rate")
    value: float = float64(about="its value; without meaning if it is removed")
    remove: bool = boolean(about="whether it is removed")


RECORDS: dict[int, type[MetadataRecord]] = {
    record.schema.key: record
    for record in (
        RegisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        RemoveTopicRecord,
        FeatureLevelRecord,
        ProducerIdsRecord,
        ClientQuotaRecord,
    )
    if record.schema.key is not None
}

# The version in which each kind of record is written; version 0 if it is not listed. The versions are as old as
# possible, so that older programs can read the log.
WRITTEN: dict[type[MetadataRecord], int] = {RegisterBrokerRecord: 1}
_WITH_LOG_DIRS = 3
_WITH_ELIGIBLE_LEADERS = 2


def encode_record(record: MetadataRecord) -> bytes:
    """Encode a record with its frame."""
    key = record.schema.key
    assert key in RECORDS, f"{type(record).__name__} is not among the metadata records"
    version = _version_of(record)
    frame = encode_unsigned_varint(FRAME_VERSION) + encode_unsigned_varint(key) + encode_unsigned_varint(version)
    return frame + record.encode(version)


def _version_of(record: MetadataRecord) -> int:
    # Without directory ids and eligible leader replicas the older version is enough.
    if isinstance(record, RegisterBrokerRecord) and record.log_dirs:
        return _WITH_LOG_DIRS
    if (
        getattr(record, "eligible_leader_replicas", None) is not None
        or getattr(record, "last_known_elr", None) is not None
    ):
        return _WITH_ELIGIBLE_LEADERS
    return WRITTEN.get(type(record), 0)


def decode_record(data: bytes) -> MetadataRecord:
    """Decode a frame with a record, in any version that the tables have."""
    try:
        frame_version, position = decode_unsigned_varint(data, 0)
        key, position = decode_unsigned_varint(data, position)
        version, position = decode_unsigned_varint(data, position)
        _check_known(frame_version, key, version)
        return decode_whole(RECORDS[key], memoryview(data), position, version)
    except (InvalidVarint, WireError) as error:
        raise CorruptMetadata(f"{len(data)} bytes are not a metadata record: {error}") from error


def _check_known(frame_version: int, key: int, version: int) -> None:
    if frame_version != FRAME_VERSION:
        raise UnknownRecord(f"the frame has version {frame_version}, but this program knows only {FRAME_VERSION}")
    versions = RECORDS[key].schema.versions if key in RECORDS else None
    if versions is None or version not in versions:
        raise UnknownRecord(
            f"record kind {key} in version {version} is unknown: a newer program has written it, so use that program"
        )
