"""The configuration keys of a broker of this chapter, with Kafka's names, types and limits. A pure module.

The defaults are Kafka's, but for those with a `Departure`, each with its reason. The keys that stand in for a topic's
are declared with the topic's, in `topic_keys`. Later chapters declare theirs in modules of their own.
"""

from minibroker.metadata.config_keys import (
    BOOLEAN,
    BROKER_CONFIGS,
    INT,
    INT_MAX,
    LONG,
    LONG_MAX,
    STRING,
    ConfigKey,
    Departure,
    at_least,
    broker_key,
    is_read_by,
)
from minibroker.metadata.listeners import parse_listeners

_LISTENERS = is_read_by(parse_listeners, "a list of NAME://HOST:PORT, each name and each port once, ports up to 65535")
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

# Keys of older brokers that a file may still have.
BROKER_CONFIGS.refused.update(
    {
        "broker.id.generation.enable": "nobody gives numbers to nodes: set node.id",
        "inter.broker.protocol.version": "a broker speaks the newest version that the other one knows. Leave it out",
        "log.message.format.version": "there is one format, Kafka's newest. Leave it out",
    }
)

# Identity and addresses -----------------------------------------------------------------------------------------------

NODE_ID = broker_key(
    "node.id",
    INT,
    1,
    at_least(0),
    "The number of this node in the cluster.",
    departure=Departure(None, "Kafka demands one; a single node needs no thought about it"),
)
BROKER_ID = broker_key("broker.id", INT, -1, None, "The older name of node.id; -1 is node.id.")
BROKER_RACK: ConfigKey[str | None] = broker_key(
    "broker.rack",
    STRING,
    None,
    None,
    "Where the node stands. The replicas of a partition are spread over racks, and clients are told.",
)
LISTENERS = broker_key(
    "listeners",
    STRING,
    "PLAINTEXT://127.0.0.1:9092",
    _LISTENERS,
    "Where the broker listens, as NAME://HOST:PORT; port 0 is any free one.",
    departure=Departure("PLAINTEXT://:9092", "Kafka listens to the whole network; so far nobody is asked who they are"),
)
ADVERTISED_LISTENERS: ConfigKey[str | None] = broker_key(
    "advertised.listeners", STRING, None, _LISTENERS, "Where clients are told to connect to; if not set, the listeners."
)
LOG_DIR = broker_key(
    "log.dir",
    STRING,
    "data",
    None,
    "The directory of all data, if log.dirs is not set.",
    departure=Departure(
        "/tmp/kafka-logs", "Kafka writes to a temporary directory, which many systems empty when they start"
    ),
)
LOG_DIRS: ConfigKey[str | None] = broker_key(
    "log.dirs", STRING, None, None, "The directories of all data. This broker takes one."
)

# Topics ---------------------------------------------------------------------------------------------------------------

NUM_PARTITIONS = broker_key("num.partitions", INT, 1, at_least(1), "How many partitions a topic gets if nobody says.")
DEFAULT_REPLICATION_FACTOR = broker_key(
    "default.replication.factor", INT, 1, at_least(1), "How many replicas a partition gets if nobody says."
)
AUTO_CREATE_TOPICS_ENABLE = broker_key(
    "auto.create.topics.enable", BOOLEAN, "true", None, "Whether a topic is created when a client asks about it."
)
DELETE_TOPIC_ENABLE = broker_key("delete.topic.enable", BOOLEAN, "true", None, "Whether topics can be deleted.")

# Connections and requests ---------------------------------------------------------------------------------------------

SOCKET_REQUEST_MAX_BYTES = broker_key(
    "socket.request.max.bytes",
    INT,
    100 * 1024**2,
    at_least(1),
    "The largest request; a larger one ends the connection.",
)
SOCKET_LISTEN_BACKLOG_SIZE = broker_key(
    "socket.listen.backlog.size", INT, 50, at_least(1), "How many connections wait to be accepted."
)
CONNECTIONS_MAX_IDLE_MS = broker_key(
    "connections.max.idle.ms", LONG, 10 * _MINUTE_MS, None, "A connection that is idle for so long is closed."
)
MAX_CONNECTIONS = broker_key(
    "max.connections",
    INT,
    1000,
    at_least(0),
    "The most connections at a time.",
    is_dynamic=True,
    departure=Departure(
        str(INT_MAX), "Kafka's is without limit; ten thousand idle connections must not take all files"
    ),
)
MAX_CONNECTIONS_PER_IP = broker_key(
    "max.connections.per.ip", INT, INT_MAX, at_least(0), "The most connections from one address.", is_dynamic=True
)
QUEUED_MAX_REQUEST_BYTES = broker_key(
    "queued.max.request.bytes",
    LONG,
    256 * 1024**2,
    None,
    "The most bytes of requests in memory before no more are read; -1 is no limit.",
    departure=Departure("-1", "Kafka's is without limit; what clients send must not fill the memory"),
)
FETCH_MAX_BYTES = broker_key(
    "fetch.max.bytes", INT, 55 * 1024**2, at_least(1024), "The most bytes that one fetch answers with."
)

# Logs, beside what stands in for a topic's ----------------------------------------------------------------------------

broker_key("log.retention.minutes", INT, None, None, "As log.retention.ms, in minutes, where that is not set.")
broker_key("log.retention.hours", INT, 168, None, "As log.retention.ms, in hours, where none of both is set.")
broker_key("log.roll.hours", INT, 168, at_least(1), "As log.roll.ms, in hours, where that is not set.")
LOG_RETENTION_CHECK_INTERVAL_MS = broker_key(
    "log.retention.check.interval.ms", LONG, 5 * _MINUTE_MS, at_least(1), "How often retention looks for old segments."
)
LOG_INITIAL_TASK_DELAY_MS = broker_key(
    "log.initial.task.delay.ms",
    LONG,
    30 * _SECOND_MS,
    at_least(0),
    "How long after the start retention, compaction and the like begin.",
    is_internal=True,
)
broker_key(
    "log.flush.scheduler.interval.ms", LONG, LONG_MAX, None, "How often the broker looks for logs to be flushed."
)
LOG_CLEANER_ENABLE = broker_key("log.cleaner.enable", BOOLEAN, "true", None, "Whether logs are compacted.")
LOG_CLEANER_BACKOFF_MS = broker_key(
    "log.cleaner.backoff.ms",
    LONG,
    15 * _SECOND_MS,
    at_least(0),
    "How long to wait when nothing is to be compacted.",
    is_dynamic=True,
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = broker_key(
    "log.cleaner.dedupe.buffer.size",
    LONG,
    128 * 1024**2,
    None,
    "The memory for the keys of a compaction.",
    is_dynamic=True,
)
PRODUCER_ID_EXPIRATION_MS = broker_key(
    "producer.id.expiration.ms",
    INT,
    24 * _HOUR_MS,
    at_least(1),
    "After so much time without a batch a producer's sequence is forgotten.",
    is_dynamic=True,
)

# Ours, with no name in Kafka ------------------------------------------------------------------------------------------

OPEN_FILES_MAX = broker_key(
    "minibroker.open.files.max",
    INT,
    10_000,
    at_least(16),
    "The most files of logs that are open at a time; the one used longest ago is closed first.",
)
VALIDATE_RECORDS = broker_key(
    "minibroker.validate.records",
    BOOLEAN,
    "false",
    None,
    "Whether every record of every batch is looked at before it is appended, as Kafka does. It costs more than all "
    "the rest of an append.",
    is_dynamic=True,
)
SCRUB_INTERVAL_MS = broker_key(
    "minibroker.scrub.interval.ms",
    LONG,
    7 * 24 * _HOUR_MS,
    at_least(-1),
    "How often closed segments are read again in search of damage; -1 is never.",
)
