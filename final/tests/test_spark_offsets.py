"""Offsets without a session: the arithmetic, and the methods that Spark calls, called on a real broker."""

import json
import pickle
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from brokers import StartBroker, eventually, unique
from cases import case
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from minibroker.client.errors import BrokerUnavailable
from minibroker.clients import admin, group_admin
from minibroker.clients.blocking import Link
from minibroker.clients.group_consumer import GroupConsumer
from minibroker.clients.membership import MemberConfig
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.connecting import close_clients
from minibroker.spark.errors import DataLoss, InvalidOption, UnknownTopic
from minibroker.spark.filters import Pushed
from minibroker.spark.offsets import (
    IDS,
    STARTS,
    Cluster,
    Document,
    Range,
    from_document,
    limited,
    ranges_between,
    split,
    to_document,
)
from minibroker.spark.options import BATCH, STREAM, ReadOptions
from minibroker.spark.reading import Split, read_split
from minibroker.spark.source import BatchReader, StreamReader

if TYPE_CHECKING:
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]

ALL = ReadAllAvailable()


def name(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


# Arithmetic


def test_offsets_have_the_json_of_sparks_kafka_connector() -> None:
    document = to_document({name(10): 5, name(2): 1, name(0, "a"): 7})
    assert json.dumps(document) == '{"a": {"0": 7}, "t": {"2": 1, "10": 5}}'
    assert from_document(document) == {name(10): 5, name(2): 1, name(0, "a"): 7}


def test_a_pinned_start_overrides_the_start() -> None:
    end = to_document({name(0): 9, name(1): 4}, {name(0): 3, name(1): 0})
    assert ranges_between(to_document({name(0): 8}), end) == [Range("t", 0, 3, 9), Range("t", 1, 0, 4)]
    assert ranges_between(end, to_document({name(0): 9, name(1): 6})) == [Range("t", 1, 4, 6)]


sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@given(sizes, st.integers(1, 500))
def test_a_limit_is_not_exceeded_and_used_up(counts: list[int], offsets_max: int) -> None:
    starts = {name(number): 10 * number for number in range(len(counts))}
    ends = {name(number): 10 * number + count for number, count in enumerate(counts)}
    result = limited(starts, ends, offsets_max)
    assert all(starts[it] <= result[it] <= ends[it] for it in ends)
    assert sum(result.values()) - sum(starts.values()) == min(offsets_max, sum(counts))


def test_no_partition_waits_for_ever_for_larger_ones() -> None:
    for offsets_max in range(1, 13):
        for count in (2, 3, 5):
            small = [name(number) for number in range(1, count)]
            starts = dict.fromkeys([name(0), *small], 0)
            ends = {name(0): 1_000_000} | dict.fromkeys(small, 1)
            for _ in range(count * count):  # within `count` batches, one more of the small partitions is read
                starts = limited(starts, ends, offsets_max)
            with case(offsets_max, count):
                assert [starts[it] for it in small] == [1] * len(small)


@given(sizes, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 300)))
def test_splits_cover_the_ranges_and_keep_to_their_sizes(counts: list[int], least: int, most: int | None) -> None:
    ranges = [Range("t", number, 5, 5 + count) for number, count in enumerate(counts)]
    pieces = split(ranges, partitions_min=least, records_max=most)
    covered = [(it.partition, offset) for it in pieces for offset in range(it.start, it.until)]
    assert covered == [(it.partition, offset) for it in ranges for offset in range(it.start, it.until)]
    assert all(0 < it.size <= (most or 1000) for it in pieces)


def test_a_large_range_is_split_more_than_a_small_one() -> None:
    pieces = split([Range("t", 0, 0, 90), Range("t", 1, 0, 10)], partitions_min=10, records_max=None)
    assert [it.partition for it in pieces] == [0] * 9 + [1]
    # Small ranges count as pieces, so large ranges get fewer.
    ranges = [Range("t", 0, 0, 100), *(Range("t", number, 0, 1) for number in (1, 2, 3))]
    assert [it.partition for it in split(ranges, partitions_min=8, records_max=None)] == [0] * 5 + [1, 2, 3]


def test_filters_on_names_and_offsets_are_exact_and_times_are_left_to_spark_too() -> None:
    pushed = Pushed()
    exact = [
        In(("partition",), (0, 1)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "t"),
        GreaterThan(("offset",), 4),
        LessThan(("offset",), 9),
    ]
    left = [EqualTo(("value",), b"x"), In(("offset",), (1, 2)), Not(EqualTo(("offset",), 5))]
    assert pushed.push([*exact, *left]) == left
    assert (pushed.offset_min, pushed.offset_end) == (5, 9)
    assert [it for it in (name(0), name(1), name(0, "a")) if pushed.wants(it)] == [name(0)]


# A batch


def batch(topics: "Topics", topic: str, *filters: Filter, **options: object) -> list[Split]:
    reader = BatchReader(ReadOptions.parse(topics.options(topic, options), BATCH))
    reader._pushed.push(filters)
    planned = pickle.loads(pickle.dumps(reader)).partitions()
    return [it for it in planned if isinstance(it, Split)]


def spans(splits: Iterable[InputPartition]) -> list[tuple[int, int, int]]:
    return [(it.partition, it.start, it.until) for it in splits if isinstance(it, Split)]


def test_a_batch_is_planned_from_offsets_and_times(plain_topics: "Topics") -> None:
    topic = plain_topics.create(2)
    plain_topics.produce(topic, 5, timestamps=[1000, 2000, 3000, 4000, 5000])
    plain_topics.produce(topic, 2, partition=1, timestamps=[1000, 9000])

    def plan(**options: object) -> list[tuple[int, int, int]]:
        return spans(batch(plain_topics, topic, **options))

    def each(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    assert plan() == [(0, 0, 5), (1, 0, 2)]
    assert plan(startingOffsets=each(2, -2), endingOffsets=each(4, -1)) == [(0, 2, 4), (1, 0, 2)]
    assert plan(startingTimestamp=3000) == [(0, 2, 5), (1, 1, 2)]
    assert plan(startingOffsetsByTimestamp=each(1500, 0)) == [(0, 1, 5), (1, 0, 2)]
    assert plan(endingTimestamp=3000) == [(0, 0, 2), (1, 0, 1)]
    assert plan(endingOffsetsByTimestamp=each(9999, 1001)) == [(0, 0, 5), (1, 0, 1)]
    assert plan(startingTimestamp=6000, startingOffsetsByTimestampStrategy="latest") == [(1, 1, 2)]
    with pytest.raises(InvalidOption, match=r"startingTimestamp: .*-0 has no record at or after 6000 ms"):
        plan(startingTimestamp=6000)
    with pytest.raises(InvalidOption, match=r"startingOffsets: .*-1 is missing"):
        plan(startingOffsets=json.dumps({topic: {"0": 1}}))
    with pytest.raises(InvalidOption, match="endingOffsets: nosuch-0 is not among"):
        plan(endingOffsets=json.dumps({topic: {"0": 1, "1": 1}, "nosuch": {"0": 1}}))
    with pytest.raises(DataLoss, match=r"endingOffsets: offset 9 is not in .*-0, whose log starts at 0 and ends at 5"):
        plan(endingOffsets=each(9, 1))
    assert plan(endingOffsets=each(9, 1), failOnDataLoss="false") == [(0, 0, 5), (1, 0, 1)]
    with pytest.raises(
        InvalidOption, match=r"endingTimestamp: .*-0 would end at offset 2, before its start at 4; see st"
    ):
        plan(startingOffsets=each(4, 0), endingTimestamp=3000)
    assert plan(maxRecordsPerPartition=2) == [(0, 0, 1), (0, 1, 3), (0, 3, 5), (1, 0, 2)]
    assert len(plan(minPartitions=5)) == 5


def test_filters_leave_out_partitions_and_offsets(plain_topics: "Topics") -> None:
    topic = plain_topics.create(2)
    plain_topics.produce(topic, 5, timestamps=[1000, 2000, 3000, 4000, 5000])
    plain_topics.produce(topic, 2, partition=1, timestamps=[1000, 2000])
    since = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(3, UTC))
    assert spans(batch(plain_topics, topic, EqualTo(("partition",), 1))) == [(1, 0, 2)]
    assert spans(batch(plain_topics, topic, GreaterThan(("offset",), 0), LessThan(("offset",), 3))) == [
        (0, 1, 3),
        (1, 1, 2),
    ]
    assert spans(batch(plain_topics, topic, since)) == [(0, 2, 5)]


def test_topics_are_found_by_pattern_and_partitions_by_number(plain_topics: "Topics") -> None:
    topic = plain_topics.create(2)
    plain_topics.create(1, name=f"{topic}-other")
    for number in (0, 1):
        plain_topics.produce(topic, 3, partition=number)
    plain_topics.produce(f"{topic}-other", 1)
    assert {it.topic for it in batch(plain_topics, "", subscribePattern=f"{topic}.*")} == {topic, f"{topic}-other"}
    assert {it.topic for it in batch(plain_topics, "", subscribePattern=f"{topic[1:]}$")} == {topic}
    assert spans(batch(plain_topics, "", assign=json.dumps({topic: [1]}))) == [(1, 0, 3)]
    with pytest.raises(UnknownTopic, match=f"assign: not in the cluster: {topic}-7; create what is missing first"):
        batch(plain_topics, "", assign=json.dumps({topic: [1, 7]}))
    with pytest.raises(UnknownTopic, match="subscribe: not in the cluster: nosuch; create what is missing first"):
        batch(plain_topics, "nosuch")


# A stream


def stream(topics: "Topics", topic: str, **options: object) -> StreamReader:
    given = topics.options(topic, {"fetchOffset.retryIntervalMs": 10, **options})
    return StreamReader(ReadOptions.parse(given, STREAM))


def test_latest_is_pinned_for_a_first_batch_that_is_repeated(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    plain_topics.produce(topic, 3)
    reader = stream(plain_topics, topic)
    start = reader.initialOffset()
    plain_topics.produce(topic, 2)
    assert reader.initialOffset() == start == {topic: {"0": 3}}
    end = reader.latestOffset(start, ALL)
    assert (from_document(end), end[STARTS], list(end[IDS])) == ({name(0, topic): 5}, {topic: {"0": 3}}, [topic])
    reader.stop()
    # The process dies before the batch is committed; the next one finds another latest offset.
    plain_topics.produce(topic, 4)
    again = stream(plain_topics, topic)
    later = again.initialOffset()
    assert later == {topic: {"0": 9}}
    assert spans(again.partitions(later, end)) == [(0, 3, 5)]
    following = again.latestOffset(end, ALL)
    assert spans(again.partitions(end, following)) == [(0, 5, 9)]
    assert again.latestOffset(following, ALL) == following
    again.stop()


def test_a_trigger_is_limited_and_waits_for_enough(plain_topics: "Topics") -> None:
    topic = plain_topics.create(2)
    plain_topics.produce(topic, 8)
    plain_topics.produce(topic, 4, partition=1)
    reader = stream(plain_topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger=6, minOffsetsPerTrigger=5)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    assert (from_document(first), from_document(second)) == (
        {name(0, topic): 4, name(1, topic): 2},
        {name(0, topic): 8, name(1, topic): 4},
    )
    plain_topics.produce(topic, 4)
    assert reader.latestOffset(second, limit) == second
    assert reader.reportLatestOffset() == {topic: {"0": 12, "1": 4}}
    plain_topics.produce(topic, 1, partition=1)
    assert from_document(reader.latestOffset(second, limit)) == {name(0, topic): 12, name(1, topic): 5}
    assert sum(from_document(reader.latestOffset(first, ALL)).values()) == 17
    reader.stop()


def test_a_batch_that_is_overdue_does_not_wait_for_more(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    reader = stream(plain_topics, topic, startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="50ms")
    assert reader.getDefaultReadLimit() == ReadMinRows(5)
    first = reader.latestOffset(reader.initialOffset(), ReadMinRows(5))
    plain_topics.produce(topic, 1)
    eventually(lambda: reader.latestOffset(first, ReadMinRows(5)) != first, "a trigger with one record")
    reader.stop()


def test_available_now_ends_where_the_logs_ended(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    plain_topics.produce(topic, 3)
    reader = stream(plain_topics, topic, startingOffsets="earliest", minOffsetsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    plain_topics.produce(topic, 2)
    admin.create_partitions(plain_topics.client, {topic: 2})
    end = reader.latestOffset(start, ReadMinRows(100))
    assert from_document(end) == {name(0, topic): 3}
    assert reader.latestOffset(end, ReadMinRows(100)) == end
    reader.stop()
    # A query that begins at latest may begin after the end that was fixed.
    late = stream(plain_topics, topic, startingOffsets="latest")
    late.prepareForTriggerAvailableNow()
    plain_topics.produce(topic, 4)
    assert from_document(late.latestOffset(late.initialOffset(), ALL)) == {name(0, topic): 9, name(1, topic): 0}
    late.stop()


def test_new_partitions_begin_at_their_first_record(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    reader = stream(plain_topics, topic)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    admin.create_partitions(plain_topics.client, {topic: 2})
    plain_topics.produce(topic, 3, partition=1)
    second = eventually(lambda: _other(reader.latestOffset(first, ALL), first), "a new partition")
    assert spans(reader.partitions(first, second)) == [(1, 0, 3)]
    reader.stop()


def _other(document: Document, first: Document) -> Document:
    return {} if document == first else document


def test_a_deleted_topic_fails_the_stream_or_is_left_out(plain_topics: "Topics") -> None:
    kept, deleted = plain_topics.create(), plain_topics.create()
    for topic in (kept, deleted):
        plain_topics.produce(topic, 2)
    strict = stream(plain_topics, f"{kept},{deleted}", startingOffsets="earliest")
    loose = stream(plain_topics, f"{kept},{deleted}", startingOffsets="earliest", failOnDataLoss="false")
    first = strict.latestOffset(strict.initialOffset(), ALL)
    admin.delete_topics(plain_topics.client, [deleted])
    plain_topics.produce(kept, 1)
    with pytest.raises(DataLoss, match=rf"{deleted}-0: the partitions were deleted.*set failOnDataLoss=false"):
        strict.latestOffset(first, ALL)
    # A query with other topics than its checkpoint is most likely not the one that wrote it.
    other = stream(plain_topics, deleted)
    with pytest.raises(DataLoss, match=rf"^{kept}-0: the checkpoint has them, but this query does not read them"):
        other.latestOffset(first, ALL)
    other.stop()
    second = loose.latestOffset(first, ALL)
    assert (from_document(second), list(second[IDS])) == ({name(0, kept): 3}, [kept])
    assert loose.latestOffset(second, ALL) == second
    # Created again, it is a new partition.
    plain_topics.create(name=deleted)
    plain_topics.produce(deleted, 1)
    third = loose.latestOffset(second, ALL)
    assert spans(loose.partitions(second, third)) == [(0, 0, 1)]
    strict.stop()
    loose.stop()


def test_a_topic_created_again_is_noticed_by_its_id_and_refused_or_read_from_its_beginning(
    plain_topics: "Topics",
) -> None:
    topic = plain_topics.create()
    plain_topics.produce(topic, 5)
    strict = stream(plain_topics, topic, startingOffsets="earliest")
    loose = stream(plain_topics, topic, failOnDataLoss="false")
    first = strict.latestOffset(strict.initialOffset(), ALL)
    without_ids = {key: value for key, value in first.items() if key != IDS}
    (planned,) = strict.partitions(strict.initialOffset(), first)
    assert isinstance(planned, Split)
    admin.delete_topics(plain_topics.client, [topic])
    plain_topics.create(name=topic)
    plain_topics.produce(topic, 2)
    with pytest.raises(DataLoss, match="was read up to offset 5, and its log now ends at 2"):
        strict.latestOffset(without_ids, ALL)
    # With more records than before, only the id tells the topics apart.
    plain_topics.produce(topic, 6)
    told = (
        rf"^topic {topic} was deleted and created again under its name, .*; to read the new one, give the query a new"
    )
    with pytest.raises(DataLoss, match=told):
        strict.latestOffset(first, ALL)
    with pytest.raises(DataLoss, match=f"topic {topic} was deleted and created again"):
        read(plain_topics, planned)
    second = loose.latestOffset(first, ALL)
    assert spans(loose.partitions(first, second)) == [(0, 0, 8)]
    assert loose.latestOffset(second, ALL) == second
    strict.stop()
    loose.stop()


def test_the_offsets_of_finished_batches_are_committed_on_request(plain_topics: "Topics") -> None:
    topic, group_id = plain_topics.create(2), unique("lag")
    plain_topics.produce(topic, 5)
    reader = stream(plain_topics, topic, startingOffsets="earliest", kafka__group__id=group_id, commitOffsets="true")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    assert group_admin.committed_offsets(plain_topics.client, group_id) == {name(0, topic): 0, name(1, topic): 0}
    reader.latestOffset(first, ALL)
    assert group_admin.committed_offsets(plain_topics.client, group_id) == {name(0, topic): 5, name(1, topic): 0}
    reader.stop()
    config = MemberConfig(group_id, [topic])
    with GroupConsumer(plain_topics.client, config) as consumer:
        eventually(lambda: consumer.poll(50) or consumer.assignment, "an assignment")
        plain_topics.produce(topic, 1)
        other = stream(plain_topics, topic, kafka__group__id=group_id, commitOffsets="true")
        with pytest.raises(InvalidOption, match=r"^kafka\.group\.id: the offsets were not committed .* no consumer"):
            other.latestOffset(first, ALL)
        other.stop()


def test_an_apparent_data_loss_is_checked_again(plain_topics: "Topics", monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader, or a node that has just started, may not know all partitions and offsets yet."""
    topic = plain_topics.create()
    plain_topics.produce(topic, 5)
    reader = stream(plain_topics, topic, startingOffsets="earliest")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    look_up, lies = Cluster._look_up, [2, 4]

    def stale(cluster: Cluster, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = look_up(cluster, timestamps)
        return dict.fromkeys(found, lies.pop(0)) if lies else found

    monkeypatch.setattr(Cluster, "_look_up", stale)
    assert reader.latestOffset(first, ALL) == first
    assert not lies
    reader.stop()


def test_new_partitions_are_looked_for_at_the_configured_interval(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    option = {"startingOffsets": "earliest", "partition.metadata.cache.ttl.ms": 600_000}
    reader = stream(plain_topics, topic, **option)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    admin.create_partitions(plain_topics.client, {topic: 2})
    plain_topics.produce(topic, 1)
    assert from_document(reader.latestOffset(first, ALL)) == {name(0, topic): 1}
    reader.stop()


# A task


def read(topics: "Topics", split_: Split, **options: object) -> list[int]:
    parsed = ReadOptions.parse(topics.options(split_.topic, options), BATCH)
    return [offset for rows in read_split(parsed, split_) for offset in rows.column("offset").to_pylist()]


def test_a_task_reads_its_split_and_no_more(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    plain_topics.produce(topic, 100)
    assert read(plain_topics, Split(topic, 0, 13, 57)) == list(range(13, 57))


def test_a_large_split_is_read_in_fetches_of_the_configured_size(plain_topics: "Topics") -> None:
    from minibroker.spark.connecting import cached_client
    from minibroker.spark.reading import fetch_range

    topic = plain_topics.create()
    for first in range(0, 100, 10):
        plain_topics.produce(topic, 10, first=first)
    options = ReadOptions.parse(plain_topics.options(topic, {"kafka.max.partition.fetch.bytes": 300}), BATCH)
    fetched = list(fetch_range(cached_client(options.client), options, Split(topic, 0, 0, 100)))
    assert len(fetched) >= 10
    assert max(len(it.records) for it in fetched) < 1000
    assert read(plain_topics, Split(topic, 0, 0, 100), kafka__max__partition__fetch__bytes=300) == list(range(100))


def test_records_that_were_deleted_fail_a_task_or_are_left_out(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    plain_topics.produce(topic, 10)
    plain_topics.delete_before(topic, 4)
    with pytest.raises(DataLoss, match=r"records from offset 2 to 3 are gone.*set failOnDataLoss=false"):
        read(plain_topics, Split(topic, 0, 2, 8))
    assert read(plain_topics, Split(topic, 0, 2, 8), failOnDataLoss="false") == [4, 5, 6, 7]
    assert read(plain_topics, Split(topic, 0, 0, 3), failOnDataLoss="false") == []
    with pytest.raises(DataLoss, match="is gone"):
        read(plain_topics, Split("nosuch", 0, 0, 3))


def test_a_task_that_stops_early_leaves_nothing_to_the_next(plain_topics: "Topics") -> None:
    topic = plain_topics.create()
    for first in range(0, 40, 10):
        plain_topics.produce(topic, 10, first=first)
    options = ReadOptions.parse(plain_topics.options(topic, {"kafka.max.partition.fetch.bytes": 100}), BATCH)
    abandoned = read_split(options, Split(topic, 0, 0, 40))
    next(abandoned)
    del abandoned
    assert read(plain_topics, Split(topic, 0, 0, 40), kafka__max__partition__fetch__bytes=100) == list(range(40))


def test_a_task_asks_for_the_leader_again_if_it_cannot_connect_to_it(
    plain_topics: "Topics", monkeypatch: pytest.MonkeyPatch
) -> None:
    from minibroker.spark.connecting import cached_client

    topic = plain_topics.create()
    plain_topics.produce(topic, 3)
    options = ReadOptions.parse(plain_topics.options(topic, {}), BATCH)
    client = cached_client(options.client)
    client.leader(topic, 0)
    link, learn, events = client.link, client.core.metadata, []

    def refuse_once(node_id: int) -> Link:
        events.append("connect")
        if events == ["connect"]:
            raise BrokerUnavailable("connection refused")
        return link(node_id)

    def note(*names: Any, **how: Any) -> Any:
        events.append("metadata")
        return learn(*names, **how)

    monkeypatch.setattr(client, "link", refuse_once)
    monkeypatch.setattr(client.core, "metadata", note)
    assert len(list(read_split(options, Split(topic, 0, 0, 3)))) == 1
    assert events[:3] == ["connect", "metadata", "connect"]


def test_a_task_survives_a_broker_that_is_started_again(start: StartBroker) -> None:
    from minibroker.clients.blocking import Client
    from minibroker.clients.producer import Producer

    broker = start()
    with Client(broker.address) as client:
        admin.create_topics(client, [admin.NewTopic("t", partitions=1)])
        for _ in range(3):
            with Producer(client) as producer:
                producer.send("t", bytes(1000), partition=0)
    given = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", "kafka.max.partition.fetch.bytes": "100"}
    rows = read_split(ReadOptions.parse(given, BATCH), Split("t", 0, 0, 3))
    offsets = next(rows).column("offset").to_pylist()
    broker.stop()
    broker.restart()
    assert offsets + [it for batch_ in rows for it in batch_.column("offset").to_pylist()] == [0, 1, 2]
    close_clients()
