"""Every configuration that a broker of this chapter can have, with Kafka's names, types and limits. A pure module.

The defaults are Kafka's, but for those in `DEPARTURES`, each with its reason. A configuration that is dynamic can be
changed while the broker runs, for one broker or for all. Later chapters add theirs.
"""

from dataclasses import replace

from minibroker.metadata.config_keys import (
    INT_MAX,
    LONG_MAX,
    Check,
    ConfigKey,
    ConfigType,
    Value,
    at_least,
)
from minibroker.metadata.listeners import parse_listeners, parse_voters
from minibroker.metadata.topic_configs import TOPIC_CONFIGS

BOOLEAN, DOUBLE, INT, LIST, LONG, STRING = (
    ConfigType.BOOLEAN,
    ConfigType.DOUBLE,
    ConfigType.INT,
    ConfigType.LIST,
    ConfigType.LONG,
    ConfigType.STRING,
)

_SOONER = "the cluster goes on within seconds when a node dies; a node that pauses for longer is taken for dead"

# What differs from Kafka's default: ours, and why.
DEPARTURES: dict[str, tuple[str, str]] = {
    "node.id": ("1", "Kafka demands one; a single node needs no thought about it"),
    "listeners": (
        "PLAINTEXT://127.0.0.1:9092",
        "Kafka listens to the whole network; so far nobody is asked who they are",
    ),
    "log.dir": ("data", "Kafka writes to a temporary directory, which many systems empty when they start"),
    "max.connections": ("1000", "Kafka's is without limit; ten thousand idle connections must not take all files"),
    "queued.max.request.bytes": (
        str(256 * 1024**2),
        "Kafka's is without limit; what clients send must not fill the memory",
    ),
    "controller.quorum.election.timeout.ms": ("500", _SOONER),
    "controller.quorum.fetch.timeout.ms": ("1000", _SOONER),
    "broker.session.timeout.ms": ("2000", _SOONER),
    "broker.heartbeat.interval.ms": ("500", "a session has room for several of them, as it has in Kafka"),
}


# What Kafka can change while a broker runs, and this broker cannot.
NEEDS_A_RESTART = frozenset(
    {
        "listeners",
    }
)


_ONE_LISTENER = "nodes and clients come in by one listener"
_NOBODY_IS_ASKED = "there is no TLS here yet, and nobody is asked who they are"
_NO_GROUPS = "there are no groups and no transactions here yet"

# Kafka's own keys that a broker here does not have, or what they begin with: why, and what to do instead.
NOT_HERE: dict[str, str] = {
    "controller.quorum.bootstrap.servers": "name the voters, with controller.quorum.voters=ID@HOST:PORT,…",
    "controller.listener.names": f"{_ONE_LISTENER}, so controllers need no name for theirs. Leave it out",
    "control.plane.listener.name": f"{_ONE_LISTENER}. Leave it out",
    "inter.broker.listener.name": f"{_ONE_LISTENER}. Leave it out",
    "listener.security.protocol.map": f"{_NOBODY_IS_ASKED}: every listener is PLAINTEXT. Leave it out",
    "listener.name.": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "security.": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "ssl.": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "sasl.": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "authorizer.class.name": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "super.users": f"{_NOBODY_IS_ASKED}. Leave it out, and let only those reach the port who may",
    "zookeeper.": "there is no ZooKeeper: the nodes in controller.quorum.voters decide. Leave it out",
    "broker.id.generation.enable": "nobody gives numbers to nodes: set node.id",
    "metadata.log.dir": "the metadata are in log.dirs, beside the rest. Leave it out",
    "remote.log.": "there is no tiered storage. Leave it out",
    "offsets.": f"{_NO_GROUPS}. Leave it out",
    "group.": f"{_NO_GROUPS}. Leave it out",
    "share.": f"{_NO_GROUPS}. Leave it out",
    "transaction.": f"{_NO_GROUPS}. Leave it out",
    "transactional.": f"{_NO_GROUPS}. Leave it out",
    "inter.broker.protocol.version": "a broker speaks the newest version that the other one knows. Leave it out",
    "log.message.format.version": "there is one format, Kafka's newest. Leave it out",
}


def why_not_here(name: str) -> str | None:
    """What to say of a key that Kafka has and this broker has not; nothing of one that Kafka has not, either."""
    if name in BROKER_CONFIGS:
        return None
    return next((why for it, why in NOT_HERE.items() if name == it or (it.endswith(".") and name.startswith(it))), None)


def _is_listeners(value: Value) -> bool:
    try:
        return isinstance(value, str) and bool(parse_listeners(value))
    except ValueError:
        return False


_LISTENERS = Check(_is_listeners, "a list of NAME://HOST:PORT, each name and each port once, ports up to 65535")


def _is_voters(value: Value) -> bool:
    try:
        return isinstance(value, str) and len(parse_voters(value)) >= 0
    except ValueError:
        return False


_VOTERS = Check(_is_voters, "a list of ID@HOST:PORT, each id and each place once, ports from 1 to 65535")
_ROLES = Check(
    lambda value: value in (("broker",), ("controller",), ("broker", "controller"), ("controller", "broker")),
    "broker, controller, or both",
)


def _synonym_of(topic_config: str, *, is_dynamic: bool = True) -> ConfigKey:
    """The broker's key that stands in for a topic's: the same type, check and default."""
    key = TOPIC_CONFIGS[topic_config]
    assert key.synonym is not None
    about = f"What topics have that do not set {topic_config}. {key.about}"
    return replace(key, name=key.synonym, about=about, synonyms=(), is_dynamic=is_dynamic)


_KEYS = [
    # Who and where
    ConfigKey("node.id", INT, None, at_least(0), "The number of this node in the cluster."),
    ConfigKey("broker.id", INT, "-1", None, "The older name of node.id; -1 is node.id."),
    ConfigKey(
        "broker.rack",
        STRING,
        None,
        None,
        "Where the node stands. The replicas of a partition are spread over racks, and clients are told.",
    ),
    ConfigKey(
        "listeners", STRING, None, _LISTENERS, "Where the broker listens, as NAME://HOST:PORT; port 0 is any free one."
    ),
    ConfigKey(
        "advertised.listeners",
        STRING,
        None,
        _LISTENERS,
        "Where clients are told to connect to; if not set, the listeners.",
    ),
    ConfigKey("log.dir", STRING, None, None, "The directory of all data, if log.dirs is not set."),
    ConfigKey("log.dirs", STRING, None, None, "The directories of all data. This broker takes one."),
    # Topics
    ConfigKey("num.partitions", INT, "1", at_least(1), "How many partitions a topic gets if nobody says."),
    ConfigKey(
        "default.replication.factor", INT, "1", at_least(1), "How many replicas a partition gets if nobody says."
    ),
    ConfigKey(
        "auto.create.topics.enable", BOOLEAN, "true", None, "Whether a topic is created when a client asks about it."
    ),
    ConfigKey("delete.topic.enable", BOOLEAN, "true", None, "Whether topics can be deleted."),
    # Replication
    ConfigKey(
        "controller.quorum.voters",
        STRING,
        "",
        _VOTERS,
        "Which nodes decide about metadata, as ID@HOST:PORT, where each is its listener; if not set, this node alone.",
    ),
    ConfigKey(
        "process.roles",
        LIST,
        None,
        _ROLES,
        "What this node does: a broker has partitions, a controller votes on metadata. If not set, it is a broker, and "
        "a controller too if it is among the voters.",
    ),
    ConfigKey(
        "controller.quorum.election.timeout.ms",
        INT,
        "1000",
        at_least(1),
        "How long a voter waits for a leader, or a candidate for votes, before it tries by itself.",
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        INT,
        "2000",
        at_least(1),
        "How long a follower of the quorum waits for its leader before it stands for election.",
    ),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        str(20 * 1024**2),
        at_least(1),
        "How large the metadata log may be before a snapshot takes the place of its beginning.",
    ),
    ConfigKey(
        "broker.session.timeout.ms", INT, "9000", at_least(1), "How long a silent broker is believed to be alive."
    ),
    ConfigKey("broker.heartbeat.interval.ms", INT, "2000", at_least(1), "How often a broker says that it is alive."),
    ConfigKey(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        None,
        "Whether the controller gives partitions back to their preferred leaders once those are in sync again.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        at_least(1),
        "How often the controller looks for partitions whose preferred leader could lead, and does not.",
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        at_least(1),
        "How long a follower may be behind before it is not in sync any more.",
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        at_least(1),
        "How long a leader may let a follower wait for records.",
    ),
    ConfigKey("replica.fetch.min.bytes", INT, "1", at_least(0), "How many bytes are worth an answer before that."),
    ConfigKey(
        "replica.fetch.max.bytes",
        INT,
        str(1024**2),
        at_least(0),
        "How much a follower takes of one partition at once.",
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        INT,
        str(10 * 1024**2),
        at_least(0),
        "How much a follower takes of one leader at once.",
    ),
    ConfigKey("replica.fetch.backoff.ms", INT, "1000", at_least(0), "How long a follower waits after an error."),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "5000",
        at_least(1),
        "How often high watermarks are written to the disk.",
    ),
    # Connections and requests
    ConfigKey(
        "socket.request.max.bytes",
        INT,
        str(100 * 1024**2),
        at_least(1),
        "The largest request; a larger one ends the connection.",
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        INT,
        str(100 * 1024),
        None,
        "The socket's send buffer; -1 is the system's.",
        acts=False,
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        INT,
        str(100 * 1024),
        None,
        "The socket's receive buffer; -1 is the system's.",
        acts=False,
    ),
    ConfigKey("socket.listen.backlog.size", INT, "50", at_least(1), "How many connections wait to be accepted."),
    ConfigKey(
        "connections.max.idle.ms", LONG, str(10 * 60 * 1000), None, "A connection that is idle for so long is closed."
    ),
    ConfigKey("max.connections", INT, str(INT_MAX), at_least(0), "The most connections at a time.", is_dynamic=True),
    ConfigKey(
        "max.connections.per.ip",
        INT,
        str(INT_MAX),
        at_least(0),
        "The most connections from one address.",
        is_dynamic=True,
    ),
    ConfigKey(
        "queued.max.request.bytes",
        LONG,
        "-1",
        None,
        "The most bytes of requests in memory before no more are read; -1 is no limit.",
    ),
    ConfigKey("fetch.max.bytes", INT, str(55 * 1024**2), at_least(1024), "The most bytes that one fetch answers with."),
    ConfigKey(
        "max.request.partition.size.limit",
        INT,
        "2000",
        at_least(1),
        "The most partitions that one answer describes.",
    ),
    ConfigKey(
        "num.network.threads", INT, "3", at_least(1), "How many threads read requests.", acts=False, is_dynamic=True
    ),
    ConfigKey(
        "num.io.threads", INT, "8", at_least(1), "How many threads answer requests.", acts=False, is_dynamic=True
    ),
    ConfigKey("request.timeout.ms", INT, "30000", None, "How long a request to another node may take.", acts=False),
    # Logs, beside what is a topic's synonym
    ConfigKey("log.retention.minutes", INT, None, None, "As log.retention.ms, in minutes, where that is not set."),
    ConfigKey("log.retention.hours", INT, "168", None, "As log.retention.ms, in hours, where none of both is set."),
    ConfigKey("log.roll.hours", INT, "168", at_least(1), "As log.roll.ms, in hours, where that is not set."),
    ConfigKey("log.roll.jitter.hours", INT, "0", at_least(0), "As log.roll.jitter.ms, in hours.", acts=False),
    ConfigKey(
        "log.retention.check.interval.ms", LONG, "300000", at_least(1), "How often retention looks for old segments."
    ),
    ConfigKey(
        "log.initial.task.delay.ms",
        LONG,
        "30000",
        at_least(0),
        "How long after the start retention, compaction and the like begin.",
        is_internal=True,
    ),
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        LONG,
        str(LONG_MAX),
        None,
        "How often the broker looks for logs to be flushed.",
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        at_least(0),
        "How often recovery points are written.",
        acts=False,
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        at_least(0),
        "How often the logs' start offsets are written.",
        acts=False,
    ),
    ConfigKey(
        "num.recovery.threads.per.data.dir",
        INT,
        "2",
        at_least(1),
        "How many threads recover logs.",
        acts=False,
        is_dynamic=True,
    ),
    # Compaction
    ConfigKey("log.cleaner.enable", BOOLEAN, "true", None, "Whether logs are compacted."),
    ConfigKey("log.cleaner.threads", INT, "1", at_least(0), "How many threads compact.", acts=False, is_dynamic=True),
    ConfigKey(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        at_least(0),
        "How long to wait when nothing is to be compacted.",
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        str(128 * 1024**2),
        None,
        "The memory for the keys of a compaction.",
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.size",
        INT,
        str(512 * 1024),
        at_least(0),
        "The memory to read and write.",
        acts=False,
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        None,
        "How full the memory for keys may get.",
        acts=False,
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        None,
        "How fast compaction may read and write.",
        acts=False,
        is_dynamic=True,
    ),
    # Producers
    ConfigKey(
        "producer.id.expiration.ms",
        INT,
        str(24 * 60 * 60 * 1000),
        at_least(1),
        "After so much time without a batch a producer's sequence is forgotten.",
        is_dynamic=True,
    ),
    # Ours, with no name in Kafka
    ConfigKey(
        "minibroker.open.files.max",
        INT,
        "10000",
        at_least(16),
        "The most files of logs that are open at a time; the one used longest ago is closed first.",
    ),
    ConfigKey(
        "minibroker.validate.records",
        BOOLEAN,
        "false",
        None,
        "Whether every record of every batch is looked at before it is appended, as Kafka does. It costs more than all "
        "the rest of an append.",
        is_dynamic=True,
    ),
    ConfigKey(
        "minibroker.scrub.interval.ms",
        LONG,
        str(7 * 24 * 60 * 60 * 1000),
        at_least(-1),
        "How often closed segments are read again in search of damage; -1 is never.",
    ),
]

# Nearly every topic configuration has a synonym here. These have no default of their own: another of the same meaning,
# in hours perhaps, has it.
_DEFAULT_ELSEWHERE = {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"}
_SYNONYMS = [_synonym_of(name) for name, key in TOPIC_CONFIGS.items() if key.synonym is not None]


def _with_defaults(key: ConfigKey) -> ConfigKey:
    if key.name in DEPARTURES:
        return replace(key, default=DEPARTURES[key.name][0])
    return replace(key, default=None) if key.name in _DEFAULT_ELSEWHERE else key


BROKER_CONFIGS: dict[str, ConfigKey] = {
    key.name: _with_defaults(key) for key in sorted(_KEYS + _SYNONYMS, key=lambda key: key.name)
}

# Kafka's own default where ours is another; None is no default at all.
KAFKA_DEFAULTS: dict[str, str | None] = {
    "node.id": None,
    "listeners": "PLAINTEXT://:9092",
    "log.dir": "/tmp/kafka-logs",
    "max.connections": str(INT_MAX),
    "queued.max.request.bytes": "-1",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}
