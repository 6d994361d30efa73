"""The configuration keys of a broker of this chapter, with Kafka's names, types and limits. A pure module.

The defaults are Kafka's, unless a `Departure` gives another value and its reason. Keys that hold defaults for topics
are declared in `topic_keys`. Later chapters declare their keys in their own modules.
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
from minibroker.metadata.listeners import parse_address_counts, parse_listeners, parse_protocols

_LISTENERS = is_read_by(parse_listeners, "a list of NAME://HOST:PORT, each name and each port once, ports up to 65535")
_PROTOCOLS = is_read_by(parse_protocols, "a list of NAME:PROTOCOL; the protocol is PLAINTEXT or SASL_PLAINTEXT")
_ADDRESS_COUNTS = is_read_by(parse_address_counts, "a list of ADDRESS:COUNT")
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

# Keys of older brokers that a configuration file may still have.
BROKER_CONFIGS.refused.update(
    {
        "broker.id.generation.enable": "node ids are not generated: set node.id",
        "inter.broker.protocol.version": "brokers use the newest version that both know. Remove this key",
        "log.message.format.version": "there is only one format, Kafka's newest. Remove this key",
    }
)

# Identity and addresses -----------------------------------------------------------------------------------------------

NODE_ID = broker_key(
    "node.id",
    INT,
    1,
    at_least(0),
    "The id of this node in the cluster.",
    departure=Departure(None, "Kafka requires this key; a single node works without it"),
)
BROKER_ID = broker_key("broker.id", INT, -1, None, "The older name of node.id; -1 means that node.id is used.")
BROKER_RACK: ConfigKey[str | None] = broker_key(
    "broker.rack",
    STRING,
    None,
    None,
    "The rack of the node. The replicas of a partition are spread over racks, and metadata responses name the racks.",
)
LISTENERS = broker_key(
    "listeners",
    STRING,
    "PLAINTEXT://127.0.0.1:9092",
    _LISTENERS,
    "The addresses on which the broker listens, as NAME://HOST:PORT; port 0 means any free port. Metadata answers name "
    "the addresses of the listener by which the request came.",
    departure=Departure(
        "PLAINTEXT://:9092",
        "Kafka listens on every address; here clients need no login, so only local ones can connect",
    ),
)
ADVERTISED_LISTENERS: ConfigKey[str | None] = broker_key(
    "advertised.listeners",
    STRING,
    None,
    _LISTENERS,
    "The addresses that clients are told to connect to; by default the value of listeners.",
)
LISTENER_SECURITY_PROTOCOL_MAP = broker_key(
    "listener.security.protocol.map",
    STRING,
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    _PROTOCOLS,
    "The security protocol of each listener, as NAME:PROTOCOL. On a listener that is SASL_PLAINTEXT, every caller must "
    "log in; so far only nodes can. There is no TLS yet.",
)
LOG_DIR = broker_key(
    "log.dir",
    STRING,
    "data",
    None,
    "The data directory, if log.dirs is not set.",
    departure=Departure(
        "/tmp/kafka-logs", "Kafka writes to a temporary directory, which many systems empty when they start"
    ),
)
LOG_DIRS: ConfigKey[str | None] = broker_key(
    "log.dirs", STRING, None, None, "The data directories. This broker accepts only one."
)

# Topics ---------------------------------------------------------------------------------------------------------------

NUM_PARTITIONS = broker_key(
    "num.partitions", INT, 1, at_least(1), "The number of partitions of a new topic, if the request does not set it."
)
DEFAULT_REPLICATION_FACTOR = broker_key(
    "default.replication.factor",
    INT,
    1,
    at_least(1),
    "The number of replicas of a new partition, if the request does not set it.",
)
AUTO_CREATE_TOPICS_ENABLE = broker_key(
    "auto.create.topics.enable",
    BOOLEAN,
    "true",
    None,
    "Whether a Metadata request for a missing topic creates the topic.",
)
DELETE_TOPIC_ENABLE = broker_key("delete.topic.enable", BOOLEAN, "true", None, "Whether topics can be deleted.")

# Connections and requests ---------------------------------------------------------------------------------------------

SOCKET_REQUEST_MAX_BYTES = broker_key(
    "socket.request.max.bytes",
    INT,
    100 * 1024**2,
    at_least(1),
    "The largest request in bytes; a larger request closes the connection.",
)
SOCKET_LISTEN_BACKLOG_SIZE = broker_key(
    "socket.listen.backlog.size", INT, 50, at_least(1), "How many connections may wait to be accepted."
)
CONNECTIONS_MAX_IDLE_MS = broker_key(
    "connections.max.idle.ms", LONG, 10 * _MINUTE_MS, None, "The time after which an idle connection is closed."
)
MAX_CONNECTIONS = broker_key(
    "max.connections",
    INT,
    1000,
    at_least(0),
    "The most connections of clients at a time; nodes that have logged in do not count.",
    is_dynamic=True,
    departure=Departure(
        str(INT_MAX), "Kafka has no limit; idle connections must not use up the process's file descriptors"
    ),
)
MAX_CONNECTIONS_PER_IP = broker_key(
    "max.connections.per.ip",
    INT,
    INT_MAX,
    at_least(0),
    "The most connections of clients from one address.",
    is_dynamic=True,
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = broker_key(
    "max.connections.per.ip.overrides",
    STRING,
    "",
    _ADDRESS_COUNTS,
    "The most connections of clients from some addresses, as ADDRESS:COUNT,…; for the others, max.connections.per.ip "
    "holds. Names of hosts are not resolved.",
    is_dynamic=True,
)
QUEUED_MAX_REQUEST_BYTES = broker_key(
    "queued.max.request.bytes",
    LONG,
    256 * 1024**2,
    None,
    "The most bytes of requests in memory. Above this limit, no request is read; -1 means no limit.",
    departure=Departure("-1", "Kafka has no limit; requests must not fill the memory"),
)
REQUEST_ELEMENTS_MAX = broker_key(
    "minibroker.request.elements.max",
    INT,
    20_000,
    at_least(1),
    "The most elements of all arrays of a request, such as its topics and partitions; a request with more closes the "
    "connection. Requests of other nodes may have five times as many.",
)
FETCH_MAX_BYTES = broker_key(
    "fetch.max.bytes", INT, 55 * 1024**2, at_least(1024), "The most bytes in the answer to one fetch."
)

# Logs, except for the defaults of topics ------------------------------------------------------------------------------

broker_key("log.retention.minutes", INT, None, None, "The retention time in minutes, if log.retention.ms is not set.")
broker_key(
    "log.retention.hours",
    INT,
    168,
    None,
    "The retention time in hours, if neither log.retention.ms nor log.retention.minutes is set.",
)
broker_key("log.roll.hours", INT, 168, at_least(1), "The value of log.roll.ms in hours, if log.roll.ms is not set.")
LOG_RETENTION_CHECK_INTERVAL_MS = broker_key(
    "log.retention.check.interval.ms",
    LONG,
    5 * _MINUTE_MS,
    at_least(1),
    "How often the broker looks for old segments and deletes them.",
)
LOG_INITIAL_TASK_DELAY_MS = broker_key(
    "log.initial.task.delay.ms",
    LONG,
    30 * _SECOND_MS,
    at_least(0),
    "The time between the start of the broker and its first retention, compaction and other background work.",
    is_internal=True,
)
broker_key(
    "log.flush.scheduler.interval.ms", LONG, LONG_MAX, None, "How often the broker looks for logs that must be flushed."
)
LOG_CLEANER_ENABLE = broker_key("log.cleaner.enable", BOOLEAN, "true", None, "Whether logs are compacted.")
LOG_CLEANER_BACKOFF_MS = broker_key(
    "log.cleaner.backoff.ms",
    LONG,
    15 * _SECOND_MS,
    at_least(0),
    "How long compaction waits when there is nothing to compact.",
    is_dynamic=True,
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = broker_key(
    "log.cleaner.dedupe.buffer.size",
    LONG,
    128 * 1024**2,
    None,
    "The memory in which compaction keeps the keys of a log, in bytes.",
    is_dynamic=True,
)
PRODUCER_ID_EXPIRATION_MS = broker_key(
    "producer.id.expiration.ms",
    INT,
    24 * _HOUR_MS,
    at_least(1),
    "How long a producer's sequence numbers are remembered after its last batch.",
    is_dynamic=True,
)

# Keys that Kafka does not have ----------------------------------------------------------------------------------------

OPEN_FILES_MAX = broker_key(
    "minibroker.open.files.max",
    INT,
    10_000,
    at_least(16),
    "The most open log files. The least recently used one is closed first.",
)
VALIDATE_RECORDS = broker_key(
    "minibroker.validate.records",
    BOOLEAN,
    "false",
    None,
    "Whether every record of a batch is checked before the append, as in Kafka. This costs more than all other steps "
    "of an append.",
    is_dynamic=True,
)
SCRUB_INTERVAL_MS = broker_key(
    "minibroker.scrub.interval.ms",
    LONG,
    7 * 24 * _HOUR_MS,
    at_least(-1),
    "How often closed segments are checked for damage; -1 means never.",
)
