import pytest
from cases import case

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from minibroker.clients.fetching import EARLIEST, LATEST, READ_COMMITTED
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.errors import InvalidOption
from minibroker.spark.options import (
    BATCH,
    IGNORED_SETTINGS,
    OPTIONS,
    PRODUCER_SETTINGS,
    REFUSED_SETTINGS,
    STREAM,
    USED_SETTINGS,
    ReadOptions,
    SubscriptionKind,
    WriteOptions,
)
from minibroker.spark.source import MinibrokerSource

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
LEAST = SERVERS | {"subscribe": "orders"}


def parse(mode: str = BATCH, **options: str) -> ReadOptions:
    """Names arrive in lower case; `__` stands for a dot."""
    given = {name.replace("__", ".").lower(): value for name, value in options.items()}
    return ReadOptions.parse(LEAST | given, mode)


def refusal(mode: str = BATCH, **options: str) -> str:
    with pytest.raises(InvalidOption) as caught:
        parse(mode, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_batch_begins_at_the_earliest_and_ends_at_the_latest_offset() -> None:
    options = parse(BATCH)
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert options.fails_on_data_loss
    assert not options.includes_headers


def test_a_stream_begins_at_the_latest_offset_and_may_wait_fifteen_minutes() -> None:
    options = parse(STREAM)
    assert options.starting.everywhere == LATEST
    assert options.trigger_delay_ms_max == 15 * 60 * 1000


def test_one_time_overrides_times_and_times_override_offsets() -> None:
    times = '{"orders":{"0":7}}'
    place = parse(startingTimestamp="5", startingOffsetsByTimestamp=times, startingOffsets="earliest").starting
    assert (place.everywhere, place.is_time) == (5, True)
    place = parse(startingOffsetsByTimestamp=times, startingOffsets="earliest").starting
    assert (place.each, place.is_time) == ({TopicPartition("orders", 0): 7}, True)


def test_partitions_are_chosen_by_topic_pattern_or_number() -> None:
    assert parse(subscribe=" a, b ,a").subscription.topics == ("a", "b")
    given = SERVERS | {"assign": '{"a":[0,2]}'}
    assert ReadOptions.parse(given, BATCH).subscription.partitions == {TopicPartition("a", 0), TopicPartition("a", 2)}
    assert ReadOptions.parse(SERVERS | {"subscribepattern": "a.*"}, BATCH).subscription.kind is SubscriptionKind.PATTERN


def test_a_delay_is_written_with_a_unit() -> None:
    for text, ms in [
        ("500", 500),
        ("250ms", 250),
        ("30s", 30_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1 d", 86_400_000),
    ]:
        with case(text, ms):
            assert parse(STREAM, maxTriggerDelay=text).trigger_delay_ms_max == ms


def test_kafkas_settings_reach_the_client() -> None:
    client = parse(
        kafka__isolation__level="read_committed",
        kafka__max__partition__fetch__bytes="4096",
        kafka__group__id="mine",
        kafka__request__timeout__ms="1500",
        kafka__session__timeout__ms="9000",
    ).client
    assert (client.isolation_level, client.fetch_bytes_max, client.client_id) == (READ_COMMITTED, 4096, "mine")
    assert client.timeout_ms == 1500


def test_a_wrong_option_is_refused_in_one_line_that_names_it() -> None:
    for mode, name, value, told in [
        (BATCH, "startingOffset", "latest", "startingoffset: there is no such option; did you mean startingOffsets?"),
        (BATCH, "failOnDatLoss", "true", "did you mean failOnDataLoss?"),
        (BATCH, "topic", "orders", "topic: it is not an option of a read; to read topics, use subscribe"),
        (BATCH, "startingOffsets", "latest", "startingOffsets: a batch cannot begin at latest"),
        (BATCH, "startingOffsets", '{"orders":{"0":-1}}', "startingOffsets: a batch cannot begin at latest"),
        (BATCH, "startingOffsets", "newest", "startingOffsets: 'newest' cannot be understood; write earliest, latest"),
        (BATCH, "startingOffsets", '{"orders":{"0":-3}}', "startingOffsets: "),
        (BATCH, "startingOffsets", '{"orders":3}', "startingOffsets: the value of orders is not"),
        (BATCH, "endingOffsets", "earliest", "endingOffsets: a batch cannot end at earliest"),
        (BATCH, "endingOffsetsByTimestamp", "{}", "endingOffsetsByTimestamp: '{}' names no partition"),
        (STREAM, "endingOffsets", "latest", "endingOffsets: a stream has no end"),
        (STREAM, "endingTimestamp", "1", "endingTimestamp: a stream has no end"),
        (STREAM, "maxOffsetsPerTrigger", "0", "maxOffsetsPerTrigger: 0 is too small"),
        (STREAM, "maxTriggerDelay", "soon", "maxTriggerDelay: 'soon' is not a duration"),
        (BATCH, "minPartitions", "-1", "minPartitions: -1 is too small"),
        (BATCH, "maxRecordsPerPartition", "many", "maxRecordsPerPartition: 'many' is not a whole number"),
        (BATCH, "failOnDataLoss", "maybe", "failOnDataLoss: 'maybe' is neither true nor false"),
        (BATCH, "startingOffsetsByTimestampStrategy", "earliest", "startingOffsetsByTimestampStrategy: "),
        (BATCH, "subscribe", " , ", "subscribe: ' , ' names no topic"),
        (BATCH, "assign", '{"orders":[0]}', "subscribe: only one of"),
        (BATCH, "kafka.bootstrap.servers", "nowhere", "kafka.bootstrap.servers: "),
        (BATCH, "kafka.auto.offset.reset", "latest", "kafka.auto.offset.reset: it cannot be set; set startingOffsets"),
        (BATCH, "kafka.key.deserializer", "x", "kafka.key.deserializer: it cannot be set"),
        (BATCH, "kafka.enable.auto.commit", "true", "kafka.enable.auto.commit: it cannot be set"),
        (BATCH, "kafka.interceptor.classes", "x", "kafka.interceptor.classes: it cannot be set"),
        (BATCH, "kafka.sasl.mechanism", "PLAIN", "kafka.sasl.mechanism: TLS and SASL are not supported yet"),
        (BATCH, "kafka.security.protocol", "SSL", "kafka.security.protocol: SSL is not supported yet"),
        (BATCH, "kafka.isolaton.level", "x", "did you mean kafka.isolation.level?"),
        (BATCH, "kafka.value.deserializer", "x", "kafka.value.deserializer: it cannot be set"),
        (STREAM, "kafka.ssl.truststore.location", "x", "kafka.ssl.truststore.location: TLS and SASL are not supported"),
        (BATCH, "kafka.security.providers", "x", "kafka.security.providers: TLS and SASL are not supported yet"),
        (STREAM, "endingOffsetsByTimestamp", "{}", "endingOffsetsByTimestamp: a stream has no end"),
        (BATCH, "endingOffsets", '{"orders":{"0":-2}}', "endingOffsets: a batch cannot end at earliest (-2)"),
        (BATCH, "fetchOffset.numRetries", "0", "fetchOffset.numRetries: 0 is too small"),
        (BATCH, "partition.metadata.cache.ttl.ms", "0", "partition.metadata.cache.ttl.ms: 0 is not possible"),
        (BATCH, "subscribePattern", ".*", "subscribe: only one of"),
        (BATCH, "kafkaConsumer.pollTimeoutMs", "soon", "kafkaConsumer.pollTimeoutMs: 'soon' is not a whole number"),
        (BATCH, "kafka.acks", "all", "kafka.acks: it is a setting of producers"),
    ]:
        with case(mode, name, value, told):
            assert told in refusal(mode, **{name: value})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers: it must be set"):
        ReadOptions.parse({"subscribe": "orders"}, BATCH)
    with pytest.raises(InvalidOption, match="subscribe: one of subscribe, subscribePattern, assign must be set"):
        ReadOptions.parse(SERVERS, BATCH)


def test_the_least_offsets_per_trigger_cannot_exceed_the_most() -> None:
    assert "minOffsetsPerTrigger: 9 is more" in refusal(STREAM, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="3")
    assert parse(STREAM, maxTriggerDelay="0").trigger_delay_ms_max == 0


def test_a_batch_that_would_end_before_it_begins_is_refused() -> None:
    for kind in ["Offsets", "OffsetsByTimestamp"]:
        with case(kind):
            start = {f"starting{kind}": '{"orders":{"0":1,"1":5}}'}
            before = refusal(BATCH, **start, **{f"ending{kind}": '{"orders":{"0":1,"1":4}}'})
            assert f"ending{kind}: orders-1 would end at 4, before its start at 5" in before
            other = refusal(BATCH, **start, **{f"ending{kind}": '{"orders":{"0":1}}'})
            assert f"ending{kind}: orders-1 must be in both starting{kind} and ending{kind}" in other


def test_defaults_are_those_of_sparks_kafka_connector() -> None:
    options = parse(STREAM)
    assert (options.looks_max, options.look_interval_ms, options.poll_timeout_ms) == (3, 1000, 120_000)
    assert (options.offsets_per_trigger_max, options.partitions_min, options.records_per_partition_max) == (None,) * 3
    assert not options.is_latest_if_no_match
    assert options.partitions_age_ms_max == 0


def test_options_of_streams_are_accepted_in_a_batch() -> None:
    assert parse(BATCH, maxOffsetsPerTrigger="3").offsets_per_trigger_max == 3


def test_a_write_accepts_its_own_options_and_those_that_spark_adds() -> None:
    given = SERVERS | {"topic": "out", "checkpointlocation": "here", "kafka.acks": "1", "kafka.linger.ms": "5"}
    options = WriteOptions.parse(given)
    assert (options.topic, options.kafka["acks"], options.kafka["linger.ms"]) == ("out", "1", "5")
    assert WriteOptions.parse(SERVERS | {"topic": " out "}).topic == "out"
    with pytest.raises(InvalidOption, match="subscribe: it is not an option of a write"):
        WriteOptions.parse(SERVERS | {"subscribe": "orders"})
    assert not options.is_exactly_once


def test_offsets_are_committed_only_to_a_group_that_is_named() -> None:
    given = SERVERS | {"subscribe": "t", "kafka.group.id": "g"}
    assert ReadOptions.parse(given, STREAM).commit_group is None
    assert ReadOptions.parse(given | {"commitOffsets": "true"}, STREAM).commit_group == "g"
    with pytest.raises(InvalidOption, match=r"^commitOffsets: the group to commit to is missing; set kafka\.group"):
        ReadOptions.parse(SERVERS | {"subscribe": "t", "commitOffsets": "true"}, STREAM)


def test_exactly_once_is_an_option_of_a_write() -> None:
    once = SERVERS | {"delivery": "exactly-once"}
    options = WriteOptions.parse(once)
    assert (options.is_exactly_once, options.transactional_id_prefix) == (True, "spark-minibroker-sink")
    assert WriteOptions.parse(once | {"transactionalIdPrefix": "shop"}).transactional_id_prefix == "shop"
    assert WriteOptions.parse(once | {"kafka.enable.idempotence": "true"}).is_exactly_once
    with pytest.raises(InvalidOption, match=r"^kafka\.acks: delivery=exactly-once needs all"):
        WriteOptions.parse(once | {"kafka.acks": "1"})
    with pytest.raises(InvalidOption, match="delivery: 'often' is neither at-least-once nor exactly-once"):
        WriteOptions.parse(SERVERS | {"delivery": "often"})


def test_a_write_refuses_settings_that_its_producer_does_not_support() -> None:
    for name, value, told in [
        ("key.serializer", "x", "it cannot be set; keys are written from strings or bytes"),
        ("value.serializer", "x", "it cannot be set; values are written from strings or bytes"),
        ("transactional.id", "x", "it cannot be set; delivery=exactly-once makes one for each task"),
        ("partitioner.class", "x", "it cannot be set; the connector runs no Java class"),
        ("partitioner.ignore.keys", "true", "it cannot be true; keys choose the partitions"),
        ("enable.idempotence", "true", "it cannot be true; at-least-once can write a record twice"),
        ("sasl.jaas.config", "x", "TLS and SASL are not supported yet"),
        ("security.protocol", "sasl_ssl", "SASL_SSL is not supported yet; connect to a PLAINTEXT listener"),
    ]:
        with case(name, value, told):
            with pytest.raises(InvalidOption) as caught:
                WriteOptions.parse(SERVERS | {f"kafka.{name}": value})
            assert str(caught.value).startswith(f"kafka.{name}: {told}")
            assert "\n" not in str(caught.value)


def test_the_table_names_each_option_once_and_says_what_it_is_about() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.about.endswith((".", "`.")) for option in OPTIONS)
    lists = [set(USED_SETTINGS), set(PRODUCER_SETTINGS), set(IGNORED_SETTINGS), set(REFUSED_SETTINGS)]
    assert sum(len(it) for it in lists) == len(set().union(*lists))


def test_the_columns_cannot_be_chosen_and_a_topic_not_overwritten() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    source = MinibrokerSource(dict(LEAST))
    for make in (source.reader, source.streamReader):
        assert make(schema=source.schema()) is not None
        with pytest.raises(InvalidOption, match="schema: it cannot be chosen; the columns are struct<key:binary"):
            make(schema=StructType([StructField("n", LongType())]))
    with pytest.raises(InvalidOption, match="mode: a topic cannot be overwritten"):
        source.writer(schema=source.schema(), overwrite=True)
