"""What holds for a topic and for a broker: texts from several places, resolved into typed values. A pure module.

    a topic's value   = the topic's own, else the broker's synonym, else the default
    a broker's value  = set for this broker while it runs, else set for all brokers while they run,
                        else what it was started with, else the default

`NodeConfig` is what a broker was started with, and what was changed since. `TopicConfig` is what its code asks.
"""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar, cast

from minibroker.metadata.broker_configs import BROKER_CONFIGS, DEPARTURES, why_not_here
from minibroker.metadata.config_keys import (
    LONG_MAX,
    ConfigKey,
    ConfigResource,
    ConfigSource,
    ConfigType,
    Value,
)
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.listeners import Listener, QuorumVoter, parse_listeners, parse_voters
from minibroker.metadata.topic_configs import TOPIC_CONFIGS
from minibroker.segments.config import UNLIMITED, LogConfig

__all__ = [
    "BROKER_CONFIGS",
    "DEPARTURES",
    "TOPIC_CONFIGS",
    "ConfigKey",
    "ConfigResource",
    "ConfigSource",
    "ConfigType",
    "InvalidConfig",
    "Listener",
    "NodeConfig",
    "Resolved",
    "TopicConfig",
    "check_topic_configs",
    "find_key",
    "parse",
    "validate",
]

Texts = Mapping[str, str]
Configs = Mapping[tuple[ConfigResource, str], Texts]
T = TypeVar("T")


# One value ------------------------------------------------------------------------------------------------------------


def find_key(name: str, table: Mapping[str, ConfigKey] = TOPIC_CONFIGS) -> ConfigKey:
    """The key of that name, or an error that says which name may be meant."""
    key = table.get(name)
    if key is None:
        why = why_not_here(name) if table is BROKER_CONFIGS else None
        if why is not None:
            raise InvalidConfig(f"Kafka's {name[:100]} is not here: {why}")
        near = get_close_matches(name[:100], table, n=1)
        kind = "topic" if table is TOPIC_CONFIGS else "broker"
        hint = f": did you mean {near[0]}?" if near else ""
        raise InvalidConfig(f"Unknown {kind} config name: {ascii(name[:100])[1:-1]}{hint}")
    return key


def parse(name: str, text: str, table: Mapping[str, ConfigKey] = TOPIC_CONFIGS) -> Value:
    """Read a value and check it."""
    return find_key(name, table).parse(text)


def validate(name: str, text: str, table: Mapping[str, ConfigKey] = TOPIC_CONFIGS) -> None:
    """Demand that a configuration exists and may have this value."""
    parse(name, text, table)


class Resolved(NamedTuple):
    """A value's text, and where it comes from."""

    text: str | None
    source: ConfigSource


class _Setting(Generic[T]):
    """An attribute that is a configuration's typed value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, config: "NodeConfig | TopicConfig", owner: type) -> T:
        return cast(T, config.value(self.name))


# The names that Kafka gives to listeners of these protocols, if nobody says otherwise.
_PROTECTED = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})

# The broker -----------------------------------------------------------------------------------------------------------

_BROKER_DEFAULTS = {
    name: None if key.default is None else key.parse(key.default) for name, key in BROKER_CONFIGS.items()
}


class NodeConfig:
    """A broker's configuration, resolved and typed. It never changes; `with_dynamic` makes another."""

    def __init__(
        self,
        settings: Texts | None = None,
        *,
        dynamic: Texts | None = None,
        dynamic_default: Texts | None = None,
    ) -> None:
        self.settings: Texts = dict(settings or {})
        # The first place that has a value wins.
        self.layers: tuple[tuple[ConfigSource, Texts], ...] = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, dict(dynamic or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dict(dynamic_default or {})),
            (ConfigSource.STATIC_BROKER_CONFIG, self.settings),
        )
        self._values = dict(_BROKER_DEFAULTS)
        for _source, texts in reversed(self.layers):
            self._values |= {name: parse(name, text, BROKER_CONFIGS) for name, text in texts.items()}
        self._check_identity()
        self._check_listeners()
        self._check_roles()
        self._check_session()
        self._check_topic_defaults()

    num_partitions = _Setting[int]("num.partitions")
    default_replication_factor = _Setting[int]("default.replication.factor")
    auto_create_topics_enable = _Setting[bool]("auto.create.topics.enable")
    delete_topic_enable = _Setting[bool]("delete.topic.enable")
    broker_rack = _Setting["str | None"]("broker.rack")
    message_max_bytes = _Setting[int]("message.max.bytes")
    socket_request_max_bytes = _Setting[int]("socket.request.max.bytes")
    socket_listen_backlog_size = _Setting[int]("socket.listen.backlog.size")
    connections_max_idle_ms = _Setting[int]("connections.max.idle.ms")
    max_connections = _Setting[int]("max.connections")
    max_connections_per_ip = _Setting[int]("max.connections.per.ip")
    queued_max_request_bytes = _Setting[int]("queued.max.request.bytes")
    fetch_max_bytes = _Setting[int]("fetch.max.bytes")
    max_request_partition_size_limit = _Setting[int]("max.request.partition.size.limit")
    log_retention_check_interval_ms = _Setting[int]("log.retention.check.interval.ms")
    log_initial_task_delay_ms = _Setting[int]("log.initial.task.delay.ms")
    log_flush_scheduler_interval_ms = _Setting[int]("log.flush.scheduler.interval.ms")
    log_cleaner_enable = _Setting[bool]("log.cleaner.enable")
    log_cleaner_backoff_ms = _Setting[int]("log.cleaner.backoff.ms")
    log_cleaner_dedupe_buffer_size = _Setting[int]("log.cleaner.dedupe.buffer.size")
    producer_id_expiration_ms = _Setting[int]("producer.id.expiration.ms")
    quorum_election_timeout_ms = _Setting[int]("controller.quorum.election.timeout.ms")
    quorum_fetch_timeout_ms = _Setting[int]("controller.quorum.fetch.timeout.ms")
    metadata_snapshot_bytes = _Setting[int]("metadata.log.max.record.bytes.between.snapshots")
    broker_session_timeout_ms = _Setting[int]("broker.session.timeout.ms")
    broker_heartbeat_interval_ms = _Setting[int]("broker.heartbeat.interval.ms")
    auto_leader_rebalance_enable = _Setting[bool]("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds = _Setting[int]("leader.imbalance.check.interval.seconds")
    replica_lag_time_max_ms = _Setting[int]("replica.lag.time.max.ms")
    replica_fetch_wait_max_ms = _Setting[int]("replica.fetch.wait.max.ms")
    replica_fetch_min_bytes = _Setting[int]("replica.fetch.min.bytes")
    replica_fetch_max_bytes = _Setting[int]("replica.fetch.max.bytes")
    replica_fetch_response_max_bytes = _Setting[int]("replica.fetch.response.max.bytes")
    replica_fetch_backoff_ms = _Setting[int]("replica.fetch.backoff.ms")
    high_watermark_checkpoint_interval_ms = _Setting[int]("replica.high.watermark.checkpoint.interval.ms")
    is_validating_records = _Setting[bool]("minibroker.validate.records")
    open_files_max = _Setting[int]("minibroker.open.files.max")
    scrub_interval_ms = _Setting[int]("minibroker.scrub.interval.ms")

    def value(self, name: str) -> Value:
        """The typed value of any broker configuration."""
        return self._values[name]

    @property
    def node_id(self) -> int:
        """`node.id`, or where only its older name is set, that."""
        name = "broker.id" if self._is_named_by_broker_id else "node.id"
        return cast(int, self._values[name])

    @property
    def _is_named_by_broker_id(self) -> bool:
        return "node.id" not in self.settings and self._values["broker.id"] != -1

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Where to listen."""
        return parse_listeners(cast(str, self._values["listeners"]))

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """Where clients are told to connect to."""
        advertised = self._values["advertised.listeners"]
        return self.listeners if advertised is None else parse_listeners(cast(str, advertised))

    @property
    def quorum_voters(self) -> tuple[QuorumVoter, ...]:
        """The nodes that decide about metadata; none: this one alone."""
        return parse_voters(cast(str, self._values["controller.quorum.voters"]))

    @property
    def process_roles(self) -> frozenset[str]:
        """What this node does: `broker`, `controller`, or both."""
        stated = self._values["process.roles"]
        if stated is not None:
            return frozenset(cast("tuple[str, ...]", stated))
        return frozenset(("broker", "controller") if self._is_voter else ("broker",))

    @property
    def _is_voter(self) -> bool:
        voters = self.quorum_voters
        return not voters or self.node_id in {it.node_id for it in voters}

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data directories."""
        text = cast(str, self._values["log.dirs"] or self._values["log.dir"])
        return tuple(path.strip() for path in text.split(","))

    def _check_identity(self) -> None:
        broker_id, node_id = self._values["broker.id"], self._values["node.id"]
        if "node.id" in self.settings and broker_id not in (-1, node_id):
            raise InvalidConfig(
                f"node.id={node_id} and broker.id={broker_id} are two names of one number: set node.id only"
            )
        if self.node_id < 0:
            raise InvalidConfig(f"broker.id={self.node_id} is not allowed: it must be at least 0")
        # A single node needs no number. One of several that takes the default takes somebody else's.
        if self.quorum_voters and "node.id" not in self.settings and not self._is_named_by_broker_id:
            names = sorted(it.node_id for it in self.quorum_voters)
            raise InvalidConfig(
                f"node.id is not set, and controller.quorum.voters names {names}: say which node this one is"
            )

    def _check_listeners(self) -> None:
        for name in ("listeners", "advertised.listeners"):
            for it in parse_listeners(cast(str, self._values[name] or "PLAINTEXT://:0")):
                if it.name in _PROTECTED:
                    raise InvalidConfig(
                        f"{name}={it} is not possible: there is no TLS and no SASL here yet, so it would be served in "
                        "plain text. Write PLAINTEXT://, and let only those reach the port who may"
                    )

    def _check_roles(self) -> None:
        """Demand that what this node does, who votes, and where it listens agree: a mistake here splits a cluster."""
        voters, node_id = {it.node_id: it for it in self.quorum_voters}, self.node_id
        if "controller" not in self.process_roles and self._is_voter:
            raise InvalidConfig(
                f"process.roles=broker, but controller.quorum.voters names node {node_id} as a voter: add controller "
                f"to process.roles, or leave {node_id} out of the voters"
                if voters
                else "process.roles=broker needs controller.quorum.voters: the nodes that decide, as ID@HOST:PORT,…"
            )
        if not voters and self.process_roles == {"controller"}:
            raise InvalidConfig(
                "process.roles=controller needs controller.quorum.voters: the nodes that decide, this one among them, "
                "as ID@HOST:PORT,…"
            )
        if "controller" in self.process_roles and not self._is_voter:
            raise InvalidConfig(
                f"process.roles has controller, but controller.quorum.voters names {sorted(voters)} and not node "
                f"{node_id}: add {node_id}@HOST:PORT to the voters, or set process.roles=broker"
            )
        if node_id in voters:
            self._check_place(voters[node_id])

    def _check_place(self, me: QuorumVoter) -> None:
        # Nodes find each other where clients find them: there is one listener. Port 0 is known only later.
        ports = [it.port for it in (*self.listeners, *self.advertised_listeners)]
        if me.port not in ports and 0 not in ports:
            raise InvalidConfig(
                f"controller.quorum.voters has node {me.node_id} at port {me.port}, but listeners={self.listeners[0]}: "
                "the other nodes would not find it; let both have the same port"
            )

    def _check_session(self) -> None:
        session_ms, interval_ms = self.broker_session_timeout_ms, self.broker_heartbeat_interval_ms
        if session_ms < 2 * interval_ms:
            raise InvalidConfig(
                f"broker.session.timeout.ms={session_ms} is less than twice broker.heartbeat.interval.ms={interval_ms}:"
                " one heartbeat that is late would fence the broker"
            )

    def _check_topic_defaults(self) -> None:
        # The broker's values are topics' values, too, so they must be good together.
        check_topic_configs({}, self)

    def with_dynamic(self, configs: Configs) -> "NodeConfig":
        """What holds now, with the changes that an image's `configs` has for this broker and for all brokers.

        They were checked, but perhaps not against what this broker was started with. What does not go together with
        that is left out: the broker's own changes, or those for all, or both.
        """
        own, for_all = (ConfigResource.BROKER, str(self.node_id)), (ConfigResource.BROKER, "")
        for left in ((own, for_all), (for_all,), (own,)):
            with suppress(InvalidConfig):
                return self.checked_dynamic({key: configs[key] for key in left if key in configs})
        return self

    def checked_dynamic(self, configs: Configs) -> "NodeConfig":
        """The same; but what does not go together is refused."""
        dynamic = configs.get((ConfigResource.BROKER, str(self.node_id)), {})
        dynamic_default = configs.get((ConfigResource.BROKER, ""), {})
        if not dynamic and not dynamic_default:
            return self
        return NodeConfig(self.settings, dynamic=_known(dynamic), dynamic_default=_known(dynamic_default))

    def topic_default(self, key: ConfigKey) -> Resolved:
        """What a topic has that does not set `key`."""
        for source, texts in self.layers:
            for name, factor in key.synonyms:
                if name in texts:
                    return Resolved(_converted(texts[name], factor), source)
        return Resolved(key.default, ConfigSource.DEFAULT_CONFIG)

    @cached_property
    def topic_values(self) -> Mapping[str, Value]:
        """The typed values of a topic that sets nothing."""
        if not any(texts for _source, texts in self.layers):
            return _TOPIC_DEFAULTS
        return {name: _typed(key, self.topic_default(key).text) for name, key in TOPIC_CONFIGS.items()}


def _known(texts: Texts) -> Texts:
    # A newer program may have written what this one does not know.
    return {name: text for name, text in texts.items() if name in BROKER_CONFIGS}


def _converted(text: str, factor: int) -> str:
    """Hours and minutes as milliseconds. A negative number is no limit, in whatever unit."""
    return text if factor == 1 else str(max(int(text) * factor, UNLIMITED))


def _typed(key: ConfigKey, text: str | None) -> Value:
    return None if text is None else key.parse(text)


_TOPIC_DEFAULTS: Mapping[str, Value] = {name: _typed(key, key.default) for name, key in TOPIC_CONFIGS.items()}


# The topic ------------------------------------------------------------------------------------------------------------


class TopicConfig:
    """A topic's configuration, resolved and typed. It never changes."""

    def __init__(self, overrides: Texts | None = None, node: NodeConfig | None = None) -> None:
        self.overrides: Texts = overrides or {}
        self.is_validating_records = node is not None and node.is_validating_records
        defaults = _TOPIC_DEFAULTS if node is None else node.topic_values
        # What a newer program has written and this one does not know is left alone.
        own = {name: parse(name, text) for name, text in self.overrides.items() if name in TOPIC_CONFIGS}
        self._values = {**defaults, **own} if own else defaults

    @classmethod
    def of(cls, configs: Configs, topic: str, node: NodeConfig) -> "TopicConfig":
        """The configuration of a topic of an image, with that image's `configs`; `node` is what holds now."""
        return cls(configs.get((ConfigResource.TOPIC, topic)), node)

    compression_type = _Setting[str]("compression.type")
    delete_retention_ms = _Setting[int]("delete.retention.ms")
    file_delete_delay_ms = _Setting[int]("file.delete.delay.ms")
    max_compaction_lag_ms = _Setting[int]("max.compaction.lag.ms")
    max_message_bytes = _Setting[int]("max.message.bytes")
    message_timestamp_after_max_ms = _Setting[int]("message.timestamp.after.max.ms")
    message_timestamp_before_max_ms = _Setting[int]("message.timestamp.before.max.ms")
    message_timestamp_type = _Setting[str]("message.timestamp.type")
    min_compaction_lag_ms = _Setting[int]("min.compaction.lag.ms")
    min_insync_replicas = _Setting[int]("min.insync.replicas")
    retention_bytes = _Setting[int]("retention.bytes")
    retention_ms = _Setting[int]("retention.ms")
    segment_ms = _Setting[int]("segment.ms")
    unclean_leader_election_enable = _Setting[bool]("unclean.leader.election.enable")

    def value(self, name: str) -> Value:
        """The typed value of any topic configuration."""
        return self._values[name]

    @property
    def cleanup_policy(self) -> frozenset[str]:
        """`delete`, `compact`, both or neither."""
        return frozenset(cast("tuple[str, ...]", self._values["cleanup.policy"]))

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's clock stamps the records."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def segment_bytes(self) -> int:
        """The size of a segment; the internal configuration goes before the public one."""
        return cast(int, self._values["internal.segment.bytes"] or self._values["segment.bytes"])

    def log_config(self) -> LogConfig:
        """What chapter 02's logs must know of it."""
        return self._log_config

    @cached_property
    def _log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self._roll_ms(),
            index_interval_bytes=cast(int, self._values["index.interval.bytes"]),
            segment_index_bytes=cast(int, self._values["segment.index.bytes"]),
            retention_ms=self.retention_ms,
            retention_bytes=max(self.retention_bytes, UNLIMITED),
            cleanup_policy=self.cleanup_policy,
            min_cleanable_dirty_ratio=cast(float, self._values["min.cleanable.dirty.ratio"]),
            min_compaction_lag_ms=self.min_compaction_lag_ms,
            max_compaction_lag_ms=self.max_compaction_lag_ms,
            delete_retention_ms=self.delete_retention_ms,
            flush_messages=self._unless_never("flush.messages"),
            flush_ms=self._unless_never("flush.ms"),
        )

    def _roll_ms(self) -> int:
        # The active segment is never compacted. Where records must be compacted in time, it must be rolled in time.
        if "compact" in self.cleanup_policy:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def _unless_never(self, name: str) -> int | None:
        value = cast(int, self._values[name])
        return None if value == LONG_MAX else value


def check_topic_configs(overrides: Texts, node: NodeConfig) -> None:
    """Demand that a topic may have these configurations, each by itself and all together."""
    for name, text in overrides.items():
        validate(name, text)
    config = TopicConfig(overrides, node)
    least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if least > most:
        raise InvalidConfig(
            f"min.compaction.lag.ms={least} is larger than max.compaction.lag.ms={most}: no record could be compacted"
        )
    if config.value("remote.storage.enable"):
        raise InvalidConfig("remote.storage.enable=true is not allowed: this broker has no tiered storage")
