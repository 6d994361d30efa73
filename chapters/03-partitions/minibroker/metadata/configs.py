"""The configuration of a topic and of a broker: texts from several sources, resolved into typed values. A pure module.

    a topic's value   = the topic's own, else the broker's synonym, else the default
    a broker's value  = set at runtime for this broker, else set at runtime for all brokers,
                        else set when it was started, else the default

`NodeConfig` is the configuration of a broker, `TopicConfig` that of a topic. Their attributes are the keys of this
chapter; `key.of(config)` is the value of any key.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from minibroker.metadata import broker_keys, topic_keys
from minibroker.metadata.config_keys import (
    BROKER_CONFIGS,
    LONG_MAX,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigResource,
    ConfigSource,
    KeyTable,
)
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.listeners import (
    WITHOUT_TLS,
    Listener,
    SecurityProtocol,
    parse_listeners,
    parse_protocols,
)
from minibroker.segments.config import UNLIMITED, LogConfig

Texts = Mapping[str, str]
Configs = Mapping[tuple[ConfigResource, str], Texts]
T = TypeVar("T")


class _Setting(Generic[T]):
    """An attribute that returns the value of a key."""

    def __init__(self, key: ConfigKey[T]) -> None:
        self._key = key

    def __get__(self, config: "NodeConfig | TopicConfig", owner: type) -> T:
        return self._key.of(config)


# The broker -----------------------------------------------------------------------------------------------------------


class NodeConfig:
    """A broker's configuration, resolved and typed. It is immutable; `with_dynamic` returns a changed copy."""

    def __init__(
        self,
        settings: Texts | None = None,
        *,
        dynamic: Texts | None = None,
        dynamic_default: Texts | None = None,
    ) -> None:
        self.settings: Texts = dict(settings or {})
        # The first layer that has a value takes precedence.
        self.layers: tuple[tuple[ConfigSource, Texts], ...] = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, dict(dynamic or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dict(dynamic_default or {})),
            (ConfigSource.STATIC_BROKER_CONFIG, self.settings),
        )
        values: dict[str, Any] = dict(BROKER_CONFIGS.defaults)
        for _source, texts in reversed(self.layers):
            values |= {name: BROKER_CONFIGS.parse(name, text) for name, text in texts.items()}
        self.values: Mapping[str, Any] = values
        for rule in BROKER_RULES:
            rule(self)

    num_partitions = _Setting(broker_keys.NUM_PARTITIONS)
    default_replication_factor = _Setting(broker_keys.DEFAULT_REPLICATION_FACTOR)
    auto_create_topics_enable = _Setting(broker_keys.AUTO_CREATE_TOPICS_ENABLE)
    delete_topic_enable = _Setting(broker_keys.DELETE_TOPIC_ENABLE)
    broker_rack = _Setting(broker_keys.BROKER_RACK)
    socket_request_max_bytes = _Setting(broker_keys.SOCKET_REQUEST_MAX_BYTES)
    socket_listen_backlog_size = _Setting(broker_keys.SOCKET_LISTEN_BACKLOG_SIZE)
    connections_max_idle_ms = _Setting(broker_keys.CONNECTIONS_MAX_IDLE_MS)
    max_connections = _Setting(broker_keys.MAX_CONNECTIONS)
    max_connections_per_ip = _Setting(broker_keys.MAX_CONNECTIONS_PER_IP)
    max_connections_per_ip_overrides = _Setting(broker_keys.MAX_CONNECTIONS_PER_IP_OVERRIDES)
    queued_max_request_bytes = _Setting(broker_keys.QUEUED_MAX_REQUEST_BYTES)
    request_elements_max = _Setting(broker_keys.REQUEST_ELEMENTS_MAX)
    fetch_max_bytes = _Setting(broker_keys.FETCH_MAX_BYTES)
    log_retention_check_interval_ms = _Setting(broker_keys.LOG_RETENTION_CHECK_INTERVAL_MS)
    log_initial_task_delay_ms = _Setting(broker_keys.LOG_INITIAL_TASK_DELAY_MS)
    log_cleaner_enable = _Setting(broker_keys.LOG_CLEANER_ENABLE)
    log_cleaner_backoff_ms = _Setting(broker_keys.LOG_CLEANER_BACKOFF_MS)
    log_cleaner_dedupe_buffer_size = _Setting(broker_keys.LOG_CLEANER_DEDUPE_BUFFER_SIZE)
    producer_id_expiration_ms = _Setting(broker_keys.PRODUCER_ID_EXPIRATION_MS)
    is_validating_records = _Setting(broker_keys.VALIDATE_RECORDS)
    open_files_max = _Setting(broker_keys.OPEN_FILES_MAX)
    scrub_interval_ms = _Setting(broker_keys.SCRUB_INTERVAL_MS)

    @property
    def node_id(self) -> int:
        """`node.id`, or `broker.id` if only that is set."""
        older = broker_keys.BROKER_ID.of(self)
        return older if "node.id" not in self.settings and older != -1 else broker_keys.NODE_ID.of(self)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners."""
        return parse_listeners(broker_keys.LISTENERS.of(self))

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """The listeners that clients are told to connect to."""
        advertised = broker_keys.ADVERTISED_LISTENERS.of(self)
        return self.listeners if advertised is None else parse_listeners(advertised)

    def security_protocol(self, listener: str) -> SecurityProtocol | None:
        """The security protocol of a listener, by its name; None if the name has none."""
        found = parse_protocols(broker_keys.LISTENER_SECURITY_PROTOCOL_MAP.of(self)).get(listener)
        # As in Kafka, the usual name of a controller's listener needs no entry.
        return SecurityProtocol.PLAINTEXT if found is None and listener == "CONTROLLER" else found

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data directories."""
        text = broker_keys.LOG_DIRS.of(self) or broker_keys.LOG_DIR.of(self)
        return tuple(path.strip() for path in text.split(","))

    def with_dynamic(self, configs: Configs) -> "NodeConfig":
        """The configuration with the dynamic values in an image's `configs`, for this broker and for all brokers.

        The values were checked, but perhaps not together with the settings that this broker was started with. If they
        conflict, the broker's own dynamic values are ignored. If there is still a conflict, the values for all brokers
        are ignored instead. As a last resort, both are ignored.
        """
        own, for_all = (ConfigResource.BROKER, str(self.node_id)), (ConfigResource.BROKER, "")
        for left in ((own, for_all), (for_all,), (own,)):
            with suppress(InvalidConfig):
                return self.checked_dynamic({key: configs[key] for key in left if key in configs})
        return self

    def checked_dynamic(self, configs: Configs) -> "NodeConfig":
        """Like `with_dynamic`, but conflicting values are refused."""
        dynamic = configs.get((ConfigResource.BROKER, str(self.node_id)), {})
        dynamic_default = configs.get((ConfigResource.BROKER, ""), {})
        if not dynamic and not dynamic_default:
            return self
        return NodeConfig(self.settings, dynamic=_known(dynamic), dynamic_default=_known(dynamic_default))

    def inherited(self, key: ConfigKey[Any]) -> str | None:
        """The text of a key that a resource does not set itself: the first synonym that is set, else the default."""
        for _source, texts in self.layers:
            for name, factor in key.synonyms:
                if name in texts:
                    return _converted(texts[name], factor)
        return key.default

    def inherited_values(self, table: KeyTable) -> dict[str, Any]:
        """The typed default values, for a resource with no configuration set."""
        values = {}
        for key in table.values():
            text = self.inherited(key)
            values[key.name] = None if text is None else key.parse(text)
        return values

    @cached_property
    def topic_values(self) -> Mapping[str, Any]:
        """The typed default values, for a topic with no configuration set."""
        if not any(texts for _source, texts in self.layers):
            return TOPIC_CONFIGS.defaults
        return self.inherited_values(TOPIC_CONFIGS)


def _known(texts: Texts) -> Texts:
    # A newer program may have written keys that this program does not know. Ignore them.
    return {name: text for name, text in texts.items() if name in BROKER_CONFIGS}


def _converted(text: str, factor: int) -> str:
    """Hours or minutes as milliseconds. A negative number means no limit, in any unit."""
    return text if factor == 1 else str(max(int(text) * factor, UNLIMITED))


# The topic ------------------------------------------------------------------------------------------------------------


class TopicConfig:
    """A topic's configuration, resolved and typed. It is immutable."""

    def __init__(self, overrides: Texts | None = None, node: NodeConfig | None = None) -> None:
        self.overrides: Texts = overrides or {}
        self.is_validating_records = node is not None and node.is_validating_records
        defaults = TOPIC_CONFIGS.defaults if node is None else node.topic_values
        # Keys that only a newer program knows are ignored.
        own = {name: TOPIC_CONFIGS.parse(name, text) for name, text in self.overrides.items() if name in TOPIC_CONFIGS}
        self.values: Mapping[str, Any] = {**defaults, **own} if own else defaults

    @classmethod
    def of(cls, configs: Configs, topic: str, node: NodeConfig) -> "TopicConfig":
        """The configuration of a topic, from an image's `configs` and the broker's current configuration."""
        return cls(configs.get((ConfigResource.TOPIC, topic)), node)

    compression_type = _Setting(topic_keys.COMPRESSION_TYPE)
    max_compaction_lag_ms = _Setting(topic_keys.MAX_COMPACTION_LAG_MS)
    max_message_bytes = _Setting(topic_keys.MAX_MESSAGE_BYTES)
    message_timestamp_after_max_ms = _Setting(topic_keys.MESSAGE_TIMESTAMP_AFTER_MAX_MS)
    message_timestamp_before_max_ms = _Setting(topic_keys.MESSAGE_TIMESTAMP_BEFORE_MAX_MS)
    message_timestamp_type = _Setting(topic_keys.MESSAGE_TIMESTAMP_TYPE)
    min_compaction_lag_ms = _Setting(topic_keys.MIN_COMPACTION_LAG_MS)
    retention_ms = _Setting(topic_keys.RETENTION_MS)
    segment_ms = _Setting(topic_keys.SEGMENT_MS)

    @property
    def cleanup_policy(self) -> frozenset[str]:
        """`delete`, `compact`, both or neither."""
        return frozenset(topic_keys.CLEANUP_POLICY.of(self))

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's clock stamps the records."""
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def log_config(self) -> LogConfig:
        """The settings that chapter 02's logs need."""
        return LogConfig(
            # internal.segment.bytes takes precedence over segment.bytes.
            segment_bytes=topic_keys.INTERNAL_SEGMENT_BYTES.of(self) or topic_keys.SEGMENT_BYTES.of(self),
            segment_ms=self._roll_ms(),
            index_interval_bytes=topic_keys.INDEX_INTERVAL_BYTES.of(self),
            segment_index_bytes=topic_keys.SEGMENT_INDEX_BYTES.of(self),
            retention_ms=self.retention_ms,
            retention_bytes=max(topic_keys.RETENTION_BYTES.of(self), UNLIMITED),
            cleanup_policy=self.cleanup_policy,
            min_cleanable_dirty_ratio=topic_keys.MIN_CLEANABLE_DIRTY_RATIO.of(self),
            min_compaction_lag_ms=self.min_compaction_lag_ms,
            max_compaction_lag_ms=self.max_compaction_lag_ms,
            delete_retention_ms=topic_keys.DELETE_RETENTION_MS.of(self),
            flush_messages=_unless_never(topic_keys.FLUSH_MESSAGES.of(self)),
            flush_ms=_unless_never(topic_keys.FLUSH_MS.of(self)),
        )

    def _roll_ms(self) -> int:
        # The active segment is never compacted, so it must be rolled before max.compaction.lag.ms has passed.
        if "compact" in self.cleanup_policy:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms


def _unless_never(value: int) -> int | None:
    return None if value == LONG_MAX else value


# Rules for several keys -----------------------------------------------------------------------------------------------


def check_topic_configs(overrides: Texts, node: NodeConfig) -> None:
    """Refuse configurations of a topic that are invalid alone or in combination."""
    for name, text in overrides.items():
        TOPIC_CONFIGS.parse(name, text)
    config = TopicConfig(overrides, node)
    for rule in TOPIC_RULES:
        rule(config)


def check_compaction_lags(config: TopicConfig) -> None:
    """Refuse a minimum compaction lag above the maximum."""
    least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if least > most:
        raise InvalidConfig(
            f"min.compaction.lag.ms={least} is larger than max.compaction.lag.ms={most}: no record could be compacted"
        )


def check_node_id(config: NodeConfig) -> None:
    """Refuse a node.id and a broker.id that differ."""
    broker_id, node_id = broker_keys.BROKER_ID.of(config), broker_keys.NODE_ID.of(config)
    if "node.id" in config.settings and broker_id not in (-1, node_id):
        raise InvalidConfig(
            f"node.id={node_id} and broker.id={broker_id} differ, but both are the id of this node: set only node.id"
        )
    if config.node_id < 0:
        raise InvalidConfig(f"broker.id={config.node_id} is not allowed: it must be at least 0")


def check_topic_defaults(config: NodeConfig) -> None:
    """Refuse broker values that contradict each other as the defaults of topics."""
    check_topic_configs({}, config)


def check_listeners(config: NodeConfig) -> None:
    """Refuse a listener that has no security protocol, that needs TLS, or that is advertised but does not exist."""
    for key, listeners in (("listeners", config.listeners), ("advertised.listeners", config.advertised_listeners)):
        for it in listeners:
            protocol = config.security_protocol(it.name)
            if protocol is None:
                raise InvalidConfig(
                    f"{key}={it} has a name without a security protocol: set listener.security.protocol.map="
                    f"{it.name}:PLAINTEXT, and list the other listeners there, too"
                )
            if protocol not in WITHOUT_TLS:
                raise InvalidConfig(
                    f"{key}={it} is not possible: there is no TLS yet, so this listener would be plain text. Write "
                    "PLAINTEXT:// or SASL_PLAINTEXT://, and let a firewall protect the port"
                )
    unknown = {it.name for it in config.advertised_listeners} - {it.name for it in config.listeners}
    if unknown:
        raise InvalidConfig(
            f"advertised.listeners has {sorted(unknown)}, but listeners has {[it.name for it in config.listeners]}: a"
            " listener has the same name in both"
        )


# Checks of several keys together. Each package appends the checks for its own keys.
TOPIC_RULES: list[Callable[[TopicConfig], None]] = [check_compaction_lags]
BROKER_RULES: list[Callable[[NodeConfig], None]] = [check_node_id, check_topic_defaults, check_listeners]
