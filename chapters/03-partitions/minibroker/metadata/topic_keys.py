"""The configuration keys of a topic of this chapter: Kafka's names, types, defaults and limits. A pure module.

The last arguments of each key are the broker keys that hold its default. The first that is set takes precedence.
"""

from minibroker.metadata.config_keys import (
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Synonym,
    at_least,
    between,
    list_of,
    one_of,
    topic_key,
)

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
SEGMENT_BYTES_MIN = 1024**2

CLEANUP_POLICY = topic_key(
    "cleanup.policy",
    LIST,
    "delete",
    list_of("compact", "delete"),
    "What happens to old segments: retention deletes them (delete), compaction keeps the newest record of each key "
    "(compact), or both. With neither, everything stays.",
    "log.cleanup.policy",
)
COMPRESSION_TYPE = topic_key(
    "compression.type",
    STRING,
    "producer",
    one_of(*CODECS),
    "The codec of stored batches; producer means the codec in which they were sent.",
    "compression.type",
)
DELETE_RETENTION_MS = topic_key(
    "delete.retention.ms",
    LONG,
    24 * _HOUR_MS,
    at_least(0),
    "How long compaction keeps a tombstone, so that a consumer that has read the key also reads its deletion.",
    "log.cleaner.delete.retention.ms",
)
FLUSH_MESSAGES = topic_key(
    "flush.messages",
    LONG,
    LONG_MAX,
    at_least(1),
    "The number of records after which the log is flushed to the disk; 1 flushes before every acknowledgement.",
    "log.flush.interval.messages",
)
FLUSH_MS = topic_key(
    "flush.ms",
    LONG,
    LONG_MAX,
    at_least(0),
    "The time after which the log is flushed to the disk.",
    "log.flush.interval.ms",
    "log.flush.scheduler.interval.ms",
)
INDEX_INTERVAL_BYTES = topic_key(
    "index.interval.bytes",
    INT,
    4096,
    at_least(0),
    "The number of bytes of log between two entries of an index.",
    "log.index.interval.bytes",
)
INTERNAL_SEGMENT_BYTES = topic_key(
    "internal.segment.bytes",
    INT,
    None,
    at_least(1),
    "The size of a segment in tests and lessons. It replaces segment.bytes and may be below its minimum.",
    "internal.segment.bytes",
    is_internal=True,
)
MAX_COMPACTION_LAG_MS = topic_key(
    "max.compaction.lag.ms",
    LONG,
    LONG_MAX,
    at_least(1),
    "The time after which a record is compacted, even if that frees little space.",
    "log.cleaner.max.compaction.lag.ms",
)
MAX_MESSAGE_BYTES = topic_key(
    "max.message.bytes",
    INT,
    1024**2 + 12,
    at_least(0),
    "The largest record batch that is accepted, in bytes, after compression.",
    "message.max.bytes",
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = topic_key(
    "message.timestamp.after.max.ms",
    LONG,
    _HOUR_MS,
    at_least(0),
    "How far a record's timestamp may be ahead of the broker's clock, with CreateTime.",
    "log.message.timestamp.after.max.ms",
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = topic_key(
    "message.timestamp.before.max.ms",
    LONG,
    LONG_MAX,
    at_least(0),
    "How far a record's timestamp may be before the broker's clock, with CreateTime.",
    "log.message.timestamp.before.max.ms",
)
MESSAGE_TIMESTAMP_TYPE = topic_key(
    "message.timestamp.type",
    STRING,
    "CreateTime",
    one_of(*TIMESTAMP_TYPES),
    "Whose clock stamps the records: the producer's, or the broker's when it appends them.",
    "log.message.timestamp.type",
)
MIN_CLEANABLE_DIRTY_RATIO = topic_key(
    "min.cleanable.dirty.ratio",
    DOUBLE,
    "0.5",
    between(0, 1),
    "A log is compacted when this share of it has not been compacted yet.",
    "log.cleaner.min.cleanable.ratio",
)
MIN_COMPACTION_LAG_MS = topic_key(
    "min.compaction.lag.ms",
    LONG,
    0,
    at_least(0),
    "The time during which a record is not compacted, so that consumers can read every change of a key.",
    "log.cleaner.min.compaction.lag.ms",
)
RETENTION_BYTES = topic_key(
    "retention.bytes",
    LONG,
    -1,
    None,
    "The size of a partition above which its oldest segments are deleted; -1 means no limit.",
    "log.retention.bytes",
)
RETENTION_MS = topic_key(
    "retention.ms",
    LONG,
    7 * 24 * _HOUR_MS,
    at_least(-1),
    "A segment is deleted when its newest record is older than this; -1 means no limit.",
    "log.retention.ms",
    Synonym("log.retention.minutes", _MINUTE_MS),
    Synonym("log.retention.hours", _HOUR_MS),
)
SEGMENT_BYTES = topic_key(
    "segment.bytes",
    INT,
    1024**3,
    at_least(SEGMENT_BYTES_MIN),
    "The size of a segment. Only whole segments are deleted or compacted.",
    "log.segment.bytes",
)
SEGMENT_INDEX_BYTES = topic_key(
    "segment.index.bytes",
    INT,
    10 * 1024**2,
    at_least(4),
    "The largest size of an index. When it is full, a new segment begins.",
    "log.index.size.max.bytes",
)
SEGMENT_MS = topic_key(
    "segment.ms",
    LONG,
    7 * 24 * _HOUR_MS,
    at_least(1),
    "The time after which a new segment begins, even if the last one is not full.",
    "log.roll.ms",
    Synonym("log.roll.hours", _HOUR_MS),
)
