"""The options of the format `minibroker`, which are those of Spark's own Kafka connector. A pure module.

Their names and defaults are the same, and the same values are refused. There is one difference. An unknown option is
refused, and the error suggests the nearest name; Spark's connector would ignore the option. Spark passes the names in
lower case; messages use the real names.
"""

import difflib
import enum
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minibroker.client.errors import ClientError
from minibroker.clients.fetching import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from minibroker.clients.retries import RetryPolicy
from minibroker.clients.routing import parse_addresses
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.errors import InvalidOption

BATCH, STREAM, WRITE = "batch", "stream", "write"
READ = (BATCH, STREAM)
EXACTLY_ONCE = "exactly-once"
SINK = "spark-minibroker-sink"


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table: an option's name, the queries that use it, its default, its meaning."""

    name: str
    where: tuple[str, ...]
    default: str
    about: str


OPTIONS = (
    Option(
        "kafka.bootstrap.servers",
        (*READ, WRITE),
        "required",
        "Brokers for the first request, HOST:PORT, comma-separated.",
    ),
    Option(
        "subscribe", READ, "", "Topics, comma-separated. One of subscribe, subscribePattern and assign is required."
    ),
    Option(
        "subscribePattern",
        READ,
        "",
        "A regular expression, found anywhere in a topic's name: `^orders$` is one topic. New matches are added.",
    ),
    Option("assign", READ, "", 'Partitions: `{"orders":[0,1]}`.'),
    Option(
        "startingOffsets",
        READ,
        "batch: earliest, stream: latest",
        'Where a new query begins: earliest, latest (streams only) or `{"orders":{"0":23,"1":-2}}`; -2 is earliest, -1'
        " latest. Partitions that appear later begin at their earliest offset.",
    ),
    Option(
        "startingTimestamp",
        READ,
        "",
        "Begin at the first record at or after a time in ms. Overrides startingOffsetsByTimestamp and startingOffsets.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READ,
        "",
        'Like startingTimestamp, per partition: `{"orders":{"0":1000,"1":2000}}`.',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READ,
        "error",
        "If no record is new enough: with error the query fails, with latest it begins at the end of the log.",
    ),
    Option("endingOffsets", (BATCH,), "latest", "Where a batch ends, exclusive: latest or offsets per partition."),
    Option(
        "endingTimestamp",
        (BATCH,),
        "",
        "End before the first record at or after a time in ms, or at the end of the log if there is no such record.",
    ),
    Option("endingOffsetsByTimestamp", (BATCH,), "", "Like endingTimestamp, per partition."),
    Option(
        "maxOffsetsPerTrigger", (STREAM,), "no limit", "The maximum number of offsets per trigger, over all partitions."
    ),
    Option("minOffsetsPerTrigger", (STREAM,), "no limit", "Wait for this many new offsets, up to maxTriggerDelay."),
    Option(
        "maxTriggerDelay", (STREAM,), "15m", "How long minOffsetsPerTrigger may delay a trigger: 500ms, 30s, 15m, 1h."
    ),
    Option(
        "minPartitions",
        READ,
        "one per partition",
        "The approximate minimum number of Spark partitions: large ranges are split.",
    ),
    Option("maxRecordsPerPartition", READ, "no limit", "The maximum number of offsets in a Spark partition."),
    Option(
        "failOnDataLoss",
        READ,
        "true",
        "Fail if records were deleted before they were read; false continues without them.",
    ),
    Option(
        "includeHeaders",
        (*READ, WRITE),
        "false",
        "Reads add the column headers. Writes ignore the option: if there is a column headers, it is written.",
    ),
    Option(
        "groupIdPrefix",
        READ,
        "spark-minibroker-source",
        "The client id of the query; no group is joined.",
    ),
    Option(
        "commitOffsets",
        (STREAM,),
        "false",
        "Commit the offsets of finished batches to the group `kafka.group.id`, so that tools see the lag of the query."
        " The query itself goes on from its checkpoint.",
    ),
    Option("kafkaConsumer.pollTimeoutMs", READ, "120000", "How long a task waits for records within its offsets."),
    Option(
        "fetchOffset.numRetries",
        READ,
        "3",
        "How many times a stream asks the brokers before it treats a partition as deleted, or a log as truncated.",
    ),
    Option("fetchOffset.retryIntervalMs", READ, "1000", "How long a stream waits between two attempts."),
    Option(
        "partition.metadata.cache.ttl.ms",
        READ,
        "-1",
        "How long a stream waits before it looks for new partitions again; -1 means at every trigger.",
    ),
    Option("topic", (WRITE,), "", "The topic for every row; it overrides the column topic."),
    Option(
        "delivery",
        (WRITE,),
        "at-least-once",
        "at-least-once or exactly-once. Exactly-once needs a streaming query: `writeStream`, or a write within"
        " foreachBatch.",
    ),
    Option(
        "transactionalIdPrefix",
        (WRITE,),
        "spark-minibroker-sink",
        "With exactly-once, the prefix of transactional ids and of the groups that hold the progress. Each of several"
        " writes within one foreachBatch needs its own.",
    ),
    Option("checkpointLocation", (WRITE,), "", "An option of Spark itself. The sink ignores it."),
    Option("queryName", (WRITE,), "", "An option of Spark itself. The sink ignores it."),
)
_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}

# Settings of Kafka's clients, after `kafka.` -------------------------------------------------------------------------

USED_SETTINGS = {
    "bootstrap.servers": "",
    "group.id": "",
    "client.id": "the group id",
    "isolation.level": "read_committed",
    "max.partition.fetch.bytes": "1048576",
    "fetch.max.wait.ms": "500",
    "check.crcs": "true",
    "request.timeout.ms": "30000",
    "default.api.timeout.ms": "30000",
    "socket.connection.setup.timeout.ms": "10000",
    "retry.backoff.ms": "100",
    "retry.backoff.max.ms": "1000",
    "security.protocol": "PLAINTEXT",
}
PRODUCER_SETTINGS = {
    "acks": "all",
    "batch.size": "",
    "buffer.memory": "",
    "compression.type": "none",
    "compression.gzip.level": "",
    "compression.lz4.level": "",
    "compression.zstd.level": "",
    "delivery.timeout.ms": "120000",
    "enable.idempotence": "false",
    "linger.ms": "0",
    "max.block.ms": "60000",
    "max.in.flight.requests.per.connection": "5",
    "max.request.size": "1048576",
    "metadata.max.idle.ms": "",
    "partitioner.adaptive.partitioning.enable": "",
    "partitioner.availability.timeout.ms": "",
    "partitioner.ignore.keys": "false",
    "retries": "2147483647",
    "transaction.timeout.ms": "60000",
}
IGNORED_SETTINGS = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "client.dns.lookup",
        "client.rack",
        "config.providers",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    }
)
REFUSED_SETTINGS = {
    "auto.offset.reset": "set startingOffsets, which Spark keeps in the checkpoint",
    "key.deserializer": "keys are read as bytes: cast the column",
    "value.deserializer": "values are read as bytes: cast the column",
    "key.serializer": "keys are written from strings or bytes: cast the column",
    "value.serializer": "values are written from strings or bytes: cast the column",
    "enable.auto.commit": "Spark keeps the offsets in the checkpoint; commitOffsets=true also commits them to a group",
    "interceptor.classes": "the connector uses no Java client",
    "partitioner.class": "the connector runs no Java class: add a column partition",
    "transactional.id": "delivery=exactly-once makes one for each task, which begins with transactionalIdPrefix",
    "transaction.two.phase.commit.enable": "a task commits its transaction itself",
}
REFUSED_VALUES = {
    (
        "enable.idempotence",
        "true",
    ): "at-least-once can write a record twice if an acknowledgement is lost: remove it, or set delivery=exactly-once",
    (
        "partitioner.ignore.keys",
        "true",
    ): "keys choose the partitions: leave the column key out, or add a column partition",
}
"""Values that would promise more than the connector does, each with the reason for its refusal."""

_SECURITY = ("ssl.", "sasl.", "security.providers")
_KAFKA = "kafka."


class SubscriptionKind(enum.Enum):
    """How a query names its partitions; the value is the name of the option."""

    TOPICS = "subscribe"
    PATTERN = "subscribePattern"
    ASSIGNED = "assign"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions that a query reads."""

    kind: SubscriptionKind
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """A start or an end: one for all partitions or one for each, as an offset or as a time."""

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a connection and its fetches; equal settings share a connection."""

    bootstrap_servers: str
    client_id: str
    timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    backoff_ms: int = 100
    backoff_ms_max: int = 1000
    fetch_bytes_max: int = 1024 * 1024
    fetch_wait_ms_max: int = 500
    check_crcs: bool = True
    isolation_level: int = READ_COMMITTED

    @property
    def retry(self) -> RetryPolicy:
        """The delays between attempts."""
        return RetryPolicy(self.backoff_ms, max(self.backoff_ms, self.backoff_ms_max))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a query that reads, checked."""

    client: ClientSettings
    subscription: Subscription
    starting: Place
    ending: Place
    is_latest_if_no_match: bool = False
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 15 * 60 * 1000
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    fails_on_data_loss: bool = True
    includes_headers: bool = False
    poll_timeout_ms: int = 120_000
    looks_max: int = 3
    look_interval_ms: int = 1000
    partitions_age_ms_max: int = 0
    commit_group: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: str) -> "ReadOptions":
        """Check the options of a read; the mode is BATCH or STREAM."""
        given = _Given(options, mode)
        starting, ending = _starting(given), _ending(given)
        _check_order(starting, ending)
        return cls(
            client=_client(given, given.text("groupIdPrefix") or "spark-minibroker-source"),
            subscription=_subscription(given),
            starting=starting,
            ending=ending,
            is_latest_if_no_match=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
            offsets_per_trigger_max=given.count("maxOffsetsPerTrigger"),
            offsets_per_trigger_min=_offsets_min(given),
            trigger_delay_ms_max=given.duration_ms("maxTriggerDelay", 15 * 60 * 1000),
            partitions_min=given.count("minPartitions"),
            records_per_partition_max=given.count("maxRecordsPerPartition"),
            fails_on_data_loss=given.flag("failOnDataLoss", default=True),
            includes_headers=given.flag("includeHeaders", default=False),
            poll_timeout_ms=given.count("kafkaConsumer.pollTimeoutMs") or 120_000,
            looks_max=given.count("fetchOffset.numRetries") or 3,
            look_interval_ms=_whole_of(given, "fetchOffset.retryIntervalMs", 1000, least=0),
            partitions_age_ms_max=_partitions_age(given),
            commit_group=_commit_group(given),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a query that writes, checked; `kafka` has the settings with the prefix `kafka.` as given."""

    client: ClientSettings
    topic: str | None = None
    includes_headers: bool = False
    is_exactly_once: bool = False
    transactional_id_prefix: str = SINK
    kafka: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Check the options of a write."""
        given = _Given(options, WRITE)
        topic = given.text("topic")
        if topic is not None and not topic.strip():
            raise InvalidOption("topic: it is empty; name a topic, or leave it out and add a column topic")
        is_exactly_once = given.choice("delivery", ("at-least-once", EXACTLY_ONCE)) == EXACTLY_ONCE
        if is_exactly_once and (given.setting("acks") or "all").strip() not in ("all", "-1"):
            raise InvalidOption("kafka.acks: delivery=exactly-once needs all; remove it")
        return cls(
            client=_client(given, SINK),
            topic=topic and topic.strip(),
            includes_headers=given.flag("includeHeaders", default=False),
            is_exactly_once=is_exactly_once,
            transactional_id_prefix=given.text("transactionalIdPrefix") or SINK,
            kafka=given.kafka,
        )


# The given options ---------------------------------------------------------------------------------------------------


class _Given:
    """Options by their real names; each is known and valid for this kind of query."""

    def __init__(self, options: Mapping[str, str], mode: str) -> None:
        self.mode = mode
        self.kafka: dict[str, str] = {}
        self._values: dict[str, str] = {}
        is_exactly_once = any(it.lower() == "delivery" and options[it] == EXACTLY_ONCE for it in options)
        for name, value in options.items():
            lower = name.lower()
            if lower.startswith(_KAFKA):
                setting = lower.removeprefix(_KAFKA)
                _check_setting(setting, value, mode, is_exactly_once=is_exactly_once)
                self.kafka[setting] = value
            else:
                self._values[_known(name, mode).name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._values.get(name)
        return default if text is None else _flag(name, text)

    def count(self, name: str) -> int | None:
        text = self._values.get(name)
        return None if text is None else _whole(name, text, least=1)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self._values.get(name, choices[0]).strip().lower()
        return _one_of(name, text, choices)

    def duration_ms(self, name: str, default: int) -> int:
        text = self._values.get(name)
        if text is None:
            return default
        match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
        unit_ms = _UNITS_MS.get(match[2]) if match else None
        if match is None or unit_ms is None:
            raise InvalidOption(
                f"{name}: {text!r} is not a duration; write a number with ms, s, m, h or d, such as 15m"
            )
        return int(match[1]) * unit_ms

    def setting(self, name: str) -> str | None:
        return self.kafka.get(name)

    def whole(self, name: str, default: int, *, least: int = 1) -> int:
        text = self.kafka.get(name)
        return default if text is None else _whole(_KAFKA + name, text, least=least)


_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _known(name: str, mode: str) -> Option:
    option = _BY_LOWER_NAME.get(name.lower())
    if option is None:
        names = [it.name for it in OPTIONS if mode in it.where]
        raise InvalidOption(f"{name}: there is no such option{_nearest(name, names)}")
    if mode in option.where or (mode == BATCH and STREAM in option.where):
        return option  # an option of streams has no effect on a batch
    if mode == STREAM and BATCH in option.where:
        raise InvalidOption(f"{option.name}: a stream has no end; the option is for batch reads only")
    hint = "; to read topics, use subscribe" if option.name == "topic" else ""
    raise InvalidOption(f"{option.name}: it is not an option of a {_MODE_NAMES[mode]}{hint}")


_MODE_NAMES = {BATCH: "read", STREAM: "read", WRITE: "write"}


def _check_setting(setting: str, value: str, mode: str, *, is_exactly_once: bool) -> None:
    if setting in REFUSED_SETTINGS:
        raise InvalidOption(f"{_KAFKA}{setting}: it cannot be set; {REFUSED_SETTINGS[setting]}")
    is_kept = is_exactly_once and setting == "enable.idempotence"
    if not is_kept and (why := REFUSED_VALUES.get((setting, value.strip().lower()))):
        raise InvalidOption(f"{_KAFKA}{setting}: it cannot be {value.strip()}; {why}")
    if setting.startswith(_SECURITY):
        raise InvalidOption(f"{_KAFKA}{setting}: TLS and SASL are not supported yet; connect to a PLAINTEXT listener")
    known = {*USED_SETTINGS, *IGNORED_SETTINGS, *PRODUCER_SETTINGS}
    if setting not in known:
        near = _nearest(_KAFKA + setting, [_KAFKA + it for it in known])
        raise InvalidOption(f"{_KAFKA}{setting}: Kafka's clients have no such setting{near}")
    if mode != WRITE and setting in PRODUCER_SETTINGS:
        raise InvalidOption(f"{_KAFKA}{setting}: it is a setting of producers, but this query reads")


def _nearest(name: str, names: list[str]) -> str:
    by_lower = {it.lower(): it for it in names}
    found = difflib.get_close_matches(name.lower(), sorted(by_lower), n=1, cutoff=0.5)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def _flag(name: str, text: str) -> bool:
    return _one_of(name, text.strip().lower(), ("true", "false")) == "true"


def _one_of(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise InvalidOption(f"{name}: {text!r} is neither {' nor '.join(choices)}")
    return text


def _whole(name: str, text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InvalidOption(f"{name}: {text!r} is not a whole number") from None
    if value < least:
        raise InvalidOption(f"{name}: {value} is too small; it must be {least} or more")
    return value


# The parts -----------------------------------------------------------------------------------------------------------


def _client(given: _Given, group_prefix: str) -> ClientSettings:
    servers = given.setting("bootstrap.servers")
    if not servers or not servers.strip():
        raise InvalidOption("kafka.bootstrap.servers: it must be set, to HOST:PORT of one broker or more")
    try:
        parse_addresses(servers)
    except ClientError as error:
        raise InvalidOption(f"kafka.bootstrap.servers: {error}") from None
    protocol = (given.setting("security.protocol") or "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        raise InvalidOption(
            f"kafka.security.protocol: {protocol} is not supported yet; connect to a PLAINTEXT listener"
        )
    levels = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    level = _one_of("kafka.isolation.level", given.setting("isolation.level") or "read_committed", tuple(levels))
    request_timeout_ms = given.whole("request.timeout.ms", 30_000)
    return ClientSettings(
        bootstrap_servers=servers,
        client_id=given.setting("client.id") or given.setting("group.id") or group_prefix,
        timeout_ms=given.whole("default.api.timeout.ms", request_timeout_ms),
        connect_timeout_ms=given.whole("socket.connection.setup.timeout.ms", 10_000),
        backoff_ms=given.whole("retry.backoff.ms", 100),
        backoff_ms_max=given.whole("retry.backoff.max.ms", 1000),
        fetch_bytes_max=given.whole("max.partition.fetch.bytes", 1024 * 1024),
        fetch_wait_ms_max=given.whole("fetch.max.wait.ms", 500, least=0),
        check_crcs=_flag("kafka.check.crcs", given.setting("check.crcs") or "true"),
        isolation_level=levels[level],
    )


def _subscription(given: _Given) -> Subscription:
    found = [kind for kind in SubscriptionKind if given.text(kind.value) is not None]
    names = "subscribe, subscribePattern, assign"
    if not found:
        raise InvalidOption(f"subscribe: one of {names} must be set; name the topics to read")
    if len(found) > 1:
        both = " and ".join(kind.value for kind in found)
        raise InvalidOption(f"{found[0].value}: only one of {names} can be set, not {both}")
    kind = found[0]
    return _SUBSCRIPTIONS[kind](given.text(kind.value) or "")


def _topics(text: str) -> Subscription:
    topics = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not topics:
        raise InvalidOption(f"subscribe: {text!r} names no topic")
    return Subscription(SubscriptionKind.TOPICS, topics=topics)


def _pattern(text: str) -> Subscription:
    pattern = text.strip()
    if not pattern:
        raise InvalidOption("subscribePattern: it is empty; .* matches every topic")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOption(f"subscribePattern: {pattern!r} is not a regular expression ({error})") from None
    return Subscription(SubscriptionKind.PATTERN, pattern=pattern)


def _assigned(text: str) -> Subscription:
    shape = '{"orders":[0,1]}'
    parsed = _json("assign", text, shape)
    partitions = set()
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not all(_is_whole(it) and it >= 0 for it in numbers):
            raise InvalidOption(f"assign: the partitions of {topic} are not a list of numbers; write {shape}")
        partitions |= {TopicPartition(topic, number) for number in numbers}
    if not partitions:
        raise InvalidOption(f"assign: {text!r} names no partition; write {shape}")
    return Subscription(SubscriptionKind.ASSIGNED, partitions=frozenset(partitions))


_SUBSCRIPTIONS: dict[SubscriptionKind, Callable[[str], Subscription]] = {
    SubscriptionKind.TOPICS: _topics,
    SubscriptionKind.PATTERN: _pattern,
    SubscriptionKind.ASSIGNED: _assigned,
}


def _starting(given: _Given) -> Place:
    default = "earliest" if given.mode == BATCH else "latest"
    names = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    place = _place(given, names, default, least=EARLIEST)
    if given.mode == BATCH and not place.is_time and LATEST in (place.everywhere, *place.each.values()):
        raise InvalidOption("startingOffsets: a batch cannot begin at latest (-1); there would be nothing to read")
    return place


def _ending(given: _Given) -> Place:
    place = _place(given, ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"), "latest", least=EARLIEST)
    if not place.is_time and EARLIEST in (place.everywhere, *place.each.values()):
        raise InvalidOption("endingOffsets: a batch cannot end at earliest (-2); there would be nothing to read")
    return place


def _check_order(starting: Place, ending: Place) -> None:
    """Check that starts are before ends, if both are given per partition; this needs no broker."""
    if not starting.each or not ending.each or starting.is_time != ending.is_time:
        return
    differing = starting.each.keys() ^ ending.each.keys()
    if differing:
        raise InvalidOption(f"{ending.option}: {min(differing)} must be in both {starting.option} and {ending.option}")
    for partition, start in sorted(starting.each.items()):
        if 0 <= ending.each[partition] < start:
            end = ending.each[partition]
            raise InvalidOption(f"{ending.option}: {partition} would end at {end}, before its start at {start}")


def _place(given: _Given, names: tuple[str, str, str], default: str, *, least: int) -> Place:
    """Return the place that the first given option sets: one time, times per partition, or offsets."""
    time, times, offsets = names
    if (text := given.text(time)) is not None:
        return Place(time, _whole(time, text, least=0), is_time=True)
    if (text := given.text(times)) is not None:
        return Place(times, each=numbers_by_partition(times, text, least=0), is_time=True)
    text = (given.text(offsets) or default).strip()
    everywhere = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if everywhere is not None:
        return Place(offsets, everywhere)
    return Place(offsets, each=numbers_by_partition(offsets, text, least=least))


def numbers_by_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    """Parse an option such as `{"orders":{"0":23,"1":-2}}`."""
    shape = '{"orders":{"0":23,"1":42}}'
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _json(name, text, shape).items():
        if not isinstance(partitions, dict):
            raise InvalidOption(
                f"{name}: the value of {topic} is not an object of numbers per partition; write {shape}"
            )
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit() and _is_whole(number) and number >= least):
                raise InvalidOption(f"{name}: {json.dumps({partition: number})} of {topic} is not valid; write {shape}")
            numbers[TopicPartition(topic, int(partition))] = number
    if not numbers:
        raise InvalidOption(f"{name}: {text!r} names no partition; write {shape}")
    return numbers


def _json(name: str, text: str, shape: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        words = "earliest, latest or " if name in ("startingOffsets", "endingOffsets") else ""
        raise InvalidOption(f"{name}: {text!r} cannot be understood; write {words}{shape}")
    return parsed


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_of(given: _Given, name: str, default: int, *, least: int) -> int:
    text = given.text(name)
    return default if text is None else _whole(name, text, least=least)


def _partitions_age(given: _Given) -> int:
    """Return the longest age of the cached partitions; the option's -1 becomes 0, so that nothing is cached."""
    name = "partition.metadata.cache.ttl.ms"
    age_ms = _whole_of(given, name, -1, least=-1)
    if age_ms == 0:
        raise InvalidOption(
            f"{name}: 0 is not possible; set 1 ms or more, or -1 to look for new partitions at every trigger"
        )
    return max(0, age_ms)


def _commit_group(given: _Given) -> str | None:
    if not given.flag("commitOffsets", default=False):
        return None
    group_id = given.setting("group.id")
    if not group_id:
        raise InvalidOption("commitOffsets: the group to commit to is missing; set kafka.group.id")
    return group_id


def _offsets_min(given: _Given) -> int | None:
    least, most = given.count("minOffsetsPerTrigger"), given.count("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, which is {most}")
    return least
