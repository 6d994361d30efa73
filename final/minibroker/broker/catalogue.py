"""Kafka's keys that no chapter uses. They are accepted and shown without effect, or refused with a reason.

Tools copy whole sets of configurations from one cluster to another, so a harmless key is accepted, kept and shown. A
key that would promise something this broker does not do is refused, and the message says what to do instead. The
finished broker imports this module through `declare_every_key`, before it reads a configuration; the programs of the
chapters do not.
"""

from minibroker.metadata.config_keys import (
    BOOLEAN,
    BROKER_CONFIGS,
    DOUBLE,
    INT,
    LONG,
    LONG_MAX,
    Check,
    Synonym,
    at_least,
    between,
    broker_key,
    topic_key,
)
from minibroker.metadata.configs import TOPIC_RULES, TopicConfig
from minibroker.metadata.errors import InvalidConfig

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS

GZIP_LEVEL = Check(lambda value: value == -1 or 1 <= value <= 9, "between 1 and 9, or -1")

# Without effect -------------------------------------------------------------------------------------------------------

INERT_TOPIC_KEYS = (
    topic_key(
        "compression.gzip.level",
        INT,
        -1,
        GZIP_LEVEL,
        "The level of gzip, if compression.type is gzip.",
        "compression.gzip.level",
    ),
    topic_key(
        "compression.lz4.level",
        INT,
        9,
        between(1, 17),
        "The level of lz4, if compression.type is lz4.",
        "compression.lz4.level",
    ),
    topic_key(
        "compression.zstd.level",
        INT,
        3,
        between(-131072, 22),
        "The level of zstd, if compression.type is zstd.",
        "compression.zstd.level",
    ),
    topic_key(
        "file.delete.delay.ms",
        LONG,
        _MINUTE_MS,
        at_least(0),
        "How long a deleted file stays on the disk.",
        "log.segment.delete.delay.ms",
    ),
    topic_key(
        "local.retention.bytes",
        LONG,
        -2,
        at_least(-2),
        "With tiered storage, the bytes that stay on the broker; -2 means retention.bytes.",
        "log.local.retention.bytes",
    ),
    topic_key(
        "local.retention.ms",
        LONG,
        -2,
        at_least(-2),
        "With tiered storage, how long segments stay on the broker; -2 means retention.ms.",
        "log.local.retention.ms",
    ),
    topic_key(
        "preallocate",
        BOOLEAN,
        "false",
        None,
        "Whether a new segment's file gets its full size at once.",
        "log.preallocate",
    ),
    topic_key(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        None,
        "Whether copying to tiered storage is disabled for this topic.",
    ),
    topic_key(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        None,
        "Whether the tiered data is deleted when tiered storage is switched off.",
    ),
    topic_key(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        None,
        "Whether old segments move to tiered storage. This broker has none: only false is accepted.",
    ),
    topic_key(
        "segment.jitter.ms",
        LONG,
        0,
        at_least(0),
        "The largest random time by which a segment is rolled before segment.ms, so that not all are rolled at once.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", _HOUR_MS),
    ),
)

INERT_BROKER_KEYS = (
    broker_key(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        at_least(0),
        "The most bytes per second that are copied between data directories. This broker has one directory.",
        is_dynamic=True,
    ),
    broker_key(
        "socket.send.buffer.bytes",
        INT,
        100 * 1024,
        None,
        "The bytes of a socket's send buffer; -1 is the system's default.",
    ),
    broker_key(
        "socket.receive.buffer.bytes",
        INT,
        100 * 1024,
        None,
        "The bytes of a socket's receive buffer; -1 is the system's default.",
    ),
    broker_key(
        "num.network.threads",
        INT,
        3,
        at_least(1),
        "How many threads read requests.",
        is_dynamic=True,
        is_thread_count=True,
    ),
    broker_key(
        "num.io.threads",
        INT,
        8,
        at_least(1),
        "How many threads answer requests.",
        is_dynamic=True,
        is_thread_count=True,
    ),
    broker_key("group.coordinator.threads", INT, 4, at_least(1), "How many threads run the group coordinator."),
    broker_key(
        "group.coordinator.background.threads",
        INT,
        2,
        at_least(1),
        "How many threads match topics with the regular expressions of consumer groups.",
    ),
    broker_key(
        "group.coordinator.append.linger.ms",
        INT,
        -1,
        at_least(-1),
        "How long the group coordinator collects records before it appends them; -1 adapts to the load.",
    ),
    broker_key(
        "group.coordinator.cached.buffer.max.bytes",
        INT,
        1024 * 1024 + 12,
        at_least(512 * 1024),
        "The largest buffer that the group coordinator keeps for its next batch.",
    ),
    broker_key("request.timeout.ms", INT, 30_000, None, "How long a request to another node may take."),
    broker_key(
        "log.roll.jitter.hours",
        INT,
        0,
        at_least(0),
        "The value of log.roll.jitter.ms in hours, if log.roll.jitter.ms is not set.",
    ),
    broker_key(
        "log.flush.offset.checkpoint.interval.ms", INT, 60_000, at_least(0), "How often recovery points are written."
    ),
    broker_key(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        at_least(0),
        "How often the logs' start offsets are written.",
    ),
    broker_key(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        at_least(1),
        "How many threads recover logs.",
        is_dynamic=True,
        is_thread_count=True,
    ),
    broker_key(
        "log.cleaner.threads",
        INT,
        1,
        at_least(0),
        "How many threads compact logs.",
        is_dynamic=True,
        is_thread_count=True,
    ),
    broker_key(
        "log.cleaner.io.buffer.size",
        INT,
        512 * 1024,
        at_least(0),
        "The size of the buffers with which compaction reads and writes.",
        is_dynamic=True,
    ),
    broker_key(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        None,
        "How full compaction's memory for keys may become, as a fraction up to 1.",
        is_dynamic=True,
    ),
    broker_key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        None,
        "The most bytes per second that compaction reads and writes.",
        is_dynamic=True,
    ),
)

# Refused --------------------------------------------------------------------------------------------------------------

_NO_SECURITY = "there is no TLS yet, and clients are not authenticated"
_PROTECT_THE_PORT = "Remove this key, and let a firewall protect the port"
_NO_SHARE_GROUPS = "there are no share groups"

# Refused keys and prefixes of keys, each with the reason and what to do instead.
NOT_HERE: dict[str, str] = {
    "controller.quorum.bootstrap.servers": "name all voters with controller.quorum.voters=ID@HOST:PORT,… instead",
    "control.plane.listener.name": "there is no ZooKeeper, so set controller.listener.names instead",
    "listener.name.": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "security.": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "ssl.": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "sasl.": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "authorizer.class.name": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "super.users": f"{_NO_SECURITY}. {_PROTECT_THE_PORT}",
    "zookeeper.": "there is no ZooKeeper: the voters in controller.quorum.voters elect the controller. Remove this key",
    "metadata.log.dir": "the metadata log is in log.dirs, with the other logs. Remove this key",
    "remote.log.": "there is no tiered storage. Remove this key",
    "group.coordinator.rebalance.protocols": "groups of both protocols, classic and consumer, work. Remove this key",
    "group.share.": f"{_NO_SHARE_GROUPS}. Remove this key",
    "group.streams.": "there are no streams groups: set group.protocol=classic in Kafka Streams. Remove this key",
    "share.": f"{_NO_SHARE_GROUPS}. Remove this key",
    "transaction.two.phase.commit.enable": "there is no two-phase commit of other systems (KIP-939). Remove this key",
}
BROKER_CONFIGS.refused.update(NOT_HERE)

# Keys that Kafka can change while a broker runs, but this broker only with a restart.
NEEDS_A_RESTART = frozenset({"listeners"})


def check_tiered_storage(config: TopicConfig) -> None:
    """Refuse to enable tiered storage, which this broker does not have."""
    if config.values["remote.storage.enable"]:
        raise InvalidConfig(
            "remote.storage.enable=true is not allowed: this broker has no tiered storage, so set it to false"
        )


TOPIC_RULES.append(check_tiered_storage)
