"""Committed offsets: commit, fetch, delete, expire, and the memory that they need."""

import gc
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

from cases import case

from minibroker.groups.keys import GroupSettings
from minibroker.groups.offsets import Committed, CommittedOffsets, refused_commit, refused_topics
from minibroker.groups.records import GroupRecord, OffsetCommitKey, OffsetCommitValue, decode, encode
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.groups.tables.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.offset_fetch import OffsetFetchRequestTopic
from minibroker.wire.uuids import NO_UUID

ORDERS_ID, EVENTS_ID = b"o" * 16, b"e" * 16
SETTINGS = GroupSettings.of(NodeConfig())
NOW_MS = 1_700_000_000_000
WEEK_MS = 7 * 24 * 3600 * 1000


def image_of(topics: Mapping[str, tuple[bytes, int]]) -> Image:
    """An image with topics, each with its id and its number of partitions."""
    partition = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    return Image(
        topics={
            name: TopicImage(name, topic_id, dict.fromkeys(range(count), partition))
            for name, (topic_id, count) in topics.items()
        },
        topic_names={topic_id: name for name, (topic_id, _count) in topics.items()},
    )


IMAGE = image_of({"orders": (ORDERS_ID, 3), "events": (EVENTS_ID, 1)})


def commit_of(offsets: Mapping[int, int], *, topic: str = "orders", metadata: str | None = None) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
        for index, offset in offsets.items()
    ]
    topic_id = IMAGE.topics[topic].topic_id if topic in IMAGE.topics else b"?" * 16
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)]
    return OffsetCommitRequest(group_id="g", topics=topics)


def commit(
    store: CommittedOffsets, request: OffsetCommitRequest, version: int = 9, now_ms: int = NOW_MS
) -> list[ErrorCode]:
    """Commit offsets and apply the records; returns the codes."""
    records, response = store.commit(request, version, IMAGE, SETTINGS, now_ms)
    apply(store, records)
    return [ErrorCode(it.error_code) for topic in response.topics for it in topic.partitions]


def apply(store: CommittedOffsets, records: Sequence[GroupRecord], offset: int = 0) -> None:
    """Apply records as they come out of the log."""
    for number, record in enumerate(records, start=offset):
        found = decode(*encode(record))
        assert found is not None
        assert isinstance(found.key, OffsetCommitKey)
        assert found.value is None or isinstance(found.value, OffsetCommitValue)
        store.apply(found.key, found.value, number)


def fetched(
    store: CommittedOffsets,
    topics: Mapping[str, Sequence[int]] | None,
    version: int = 9,
    *,
    image: Image = IMAGE,
    require_stable: bool = False,
    group_id: str = "g",
) -> dict[tuple[str, int], tuple[int, str | None, ErrorCode]]:
    """What OffsetFetch answers for each partition."""
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequestTopic(
                name=name if version < 10 else "",
                topic_id=image.topics[name].topic_id if version >= 10 and name in image.topics else NO_UUID,
                partition_indexes=list(indexes),
            )
            for name, indexes in topics.items()
        ]
    answered = store.fetch(group_id, asked, version, image, require_stable=require_stable)
    return {
        (topic.name, it.partition_index): (it.committed_offset, it.metadata, ErrorCode(it.error_code))
        for topic in answered
        for it in topic.partitions
    }


NONE = ErrorCode.NONE


def test_a_commit_is_fetched_with_its_metadata_unchanged_in_every_version() -> None:
    for version in range(2, 11):
        with case(version):
            store = CommittedOffsets()
            assert commit(store, commit_of({0: 5, 2: 7}, metadata="größe\n{}"), version) == [NONE, NONE]
            for fetch_version in range(1, 11):
                found = fetched(store, {"orders": [0, 1, 2]}, fetch_version)
                assert found == {
                    ("orders", 0): (5, "größe\n{}", NONE),
                    ("orders", 1): (-1, "", NONE),
                    ("orders", 2): (7, "größe\n{}", NONE),
                }, fetch_version


def test_null_topics_mean_all_and_an_unknown_group_has_no_offsets() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({1: 4}))
    commit(store, commit_of({0: 9}, topic="events"))
    assert set(fetched(store, None)) == {("orders", 1), ("events", 0)}
    assert fetched(store, None, group_id="other") == {}
    assert fetched(store, {"orders": [1]}, group_id="other") == {("orders", 1): (-1, "", NONE)}


def test_offsets_of_a_deleted_topic_are_in_the_list_of_all_only_if_topics_have_names() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({0: 4}))
    commit(store, commit_of({0: 9}, topic="events"))
    image = image_of({"orders": (ORDERS_ID, 3)})
    assert set(fetched(store, None, 9, image=image)) == {("orders", 0), ("events", 0)}
    assert set(fetched(store, None, 10, image=image)) == {("orders", 0)}


def test_an_answer_has_the_name_and_the_id_of_the_request_and_the_leader_epoch_of_the_commit() -> None:
    store = CommittedOffsets()
    request = commit_of({0: 5})
    request.topics[0].partitions[0].committed_leader_epoch = 7
    records, response = store.commit(request, 10, IMAGE, SETTINGS, NOW_MS)
    apply(store, records)
    asked = [OffsetFetchRequestTopic(name="orders", topic_id=ORDERS_ID, partition_indexes=[0])]
    found = store.fetch("g", asked, 10, IMAGE, require_stable=False)
    refused = refused_commit(request, ErrorCode.NOT_COORDINATOR).topics
    refused_too = refused_topics(asked, ErrorCode.NOT_COORDINATOR)
    answered: list[Any] = [*response.topics, *found, *refused, *refused_too]
    for topic in answered:
        assert (topic.name, topic.topic_id) == ("orders", ORDERS_ID)
    assert found[0].partitions[0].committed_leader_epoch == 7
    assert refused[0].partitions[0].error_code == refused_too[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert refused_topics(None, ErrorCode.NOT_COORDINATOR) == []


def test_an_offset_of_an_old_record_has_no_topic_id_and_belongs_to_any_topic_of_its_name() -> None:
    store = CommittedOffsets()
    key = OffsetCommitKey(group_id="g", topic="orders", partition=0)
    apply(store, [GroupRecord(key, OffsetCommitValue(offset=5, commit_timestamp=NOW_MS))])
    assert fetched(store, {"orders": [0]}, 10) == {("orders", 0): (5, "", NONE)}
    apply(store, store.tombstones_of_topic("orders", ORDERS_ID))
    assert len(store) == 0


def test_each_partition_of_a_commit_has_its_own_error() -> None:
    store = CommittedOffsets()
    cases = {
        "unknown topic": (commit_of({0: 1}, topic="nope"), 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        "unknown topic id": (commit_of({0: 1}, topic="nope"), 10, ErrorCode.UNKNOWN_TOPIC_ID),
        "unknown partition": (commit_of({3: 1}), 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        "negative partition": (commit_of({-1: 1}), 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        "negative offset": (commit_of({0: -2}), 9, ErrorCode.INVALID_REQUEST),
        "long metadata": (commit_of({0: 1}, metadata="x" * 4097), 9, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    }
    for name, (request, version, code) in cases.items():
        with case(name):
            assert commit(store, request, version) == [code]
    assert commit(store, commit_of({0: 1, 3: 1})) == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert len(store) == 1
    # These are just allowed. -1 means that there is no offset.
    assert commit(store, commit_of({0: -1}, metadata="x" * 4096)) == [NONE]
    assert fetched(store, {"orders": [0]})["orders", 0] == (-1, "x" * 4096, NONE)


def test_a_fetch_by_id_does_not_get_the_offset_of_a_deleted_topic_with_the_same_name() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({0: 5}))
    again = image_of({"orders": (b"n" * 16, 3)})
    assert fetched(store, {"orders": [0]}, 10, image=again) == {("orders", 0): (-1, "", NONE)}
    assert fetched(store, {"events": [0]}, 10, image=again) == {("", 0): (-1, "", ErrorCode.UNKNOWN_TOPIC_ID)}


def test_a_pending_offset_is_unstable_only_for_clients_that_require_stable_ones() -> None:
    store = CommittedOffsets(is_pending=lambda group_id, topic, partition: (group_id, partition) == ("g", 0))
    commit(store, commit_of({0: 5, 1: 6}))
    stable = fetched(store, {"orders": [0, 1]}, require_stable=True)
    assert stable == {
        ("orders", 0): (-1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT),
        ("orders", 1): (6, "", NONE),
    }
    assert fetched(store, {"orders": [0]})["orders", 0] == (5, "", NONE)


def delete_of(topic: str, *indexes: int) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    return OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)])


def test_offsets_of_a_topic_that_members_read_are_not_deleted() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({0: 5, 1: 6}))
    records, response = store.delete(delete_of("orders", 0), lambda topic: topic == "orders")
    assert not records
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    # Offset 2 does not exist: it needs no tombstone, and there is no error.
    records, response = store.delete(delete_of("orders", 0, 2), lambda topic: False)
    assert [it.error_code for it in response.topics[0].partitions] == [NONE, NONE]
    apply(store, records)
    assert len(records) == 1
    assert set(fetched(store, None)) == {("orders", 1)}


def test_a_deletion_has_one_tombstone_for_each_offset_that_is_committed_or_may_be() -> None:
    store = CommittedOffsets(is_pending=lambda _group_id, _topic, partition: partition == 2)
    commit(store, commit_of({0: 5}))
    records, _response = store.delete(delete_of("orders", 0, 0, 1, 2), lambda _topic: False)
    assert [(it.key, it.value) for it in records] == [
        (OffsetCommitKey(group_id="g", topic="orders", partition=partition), None) for partition in (0, 2)
    ]


def test_a_deleted_topic_takes_its_offsets_along_but_not_those_of_its_successor() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({0: 5}))
    assert store.tombstones_of_topic("orders", b"x" * 16) == []
    apply(store, store.tombstones_of_topic("orders", ORDERS_ID))
    assert "g" not in store


def expired(
    store: CommittedOffsets, now_ms: int, *, empty_since_ms: int = -1, subscribed: Sequence[str] = ()
) -> set[tuple[str, int]]:
    records = store.tombstones_of_expired(
        "g",
        is_subscribed=lambda topic: topic in subscribed,
        empty_since_ms=empty_since_ms,
        retention_ms=WEEK_MS,
        now_ms=now_ms,
    )
    keys = [record.key for record in records]
    return {(key.topic, key.partition) for key in keys if isinstance(key, OffsetCommitKey)}


def test_an_offset_expires_a_week_after_its_commit_or_after_its_group_became_empty() -> None:
    store = CommittedOffsets()
    commit(store, commit_of({0: 5}))
    commit(store, commit_of({1: 6}), now_ms=NOW_MS + 1000)
    assert expired(store, NOW_MS + WEEK_MS - 1) == set()
    assert expired(store, NOW_MS + WEEK_MS) == {("orders", 0)}
    assert expired(store, NOW_MS + WEEK_MS + 1000) == {("orders", 0), ("orders", 1)}
    assert expired(store, NOW_MS + WEEK_MS, subscribed=["orders"]) == set()
    # The group has been empty since a moment ago, so all its offsets stay.
    assert expired(store, NOW_MS + WEEK_MS, empty_since_ms=NOW_MS + WEEK_MS - 1) == set()
    assert expired(store, NOW_MS + WEEK_MS, empty_since_ms=NOW_MS) == {("orders", 0), ("orders", 1)}


def test_an_old_client_can_say_when_its_offsets_expire() -> None:
    store = CommittedOffsets()
    request = commit_of({0: 5})
    request.retention_time_ms = 60_000
    commit(store, request, version=3)
    assert expired(store, NOW_MS + 59_999, empty_since_ms=NOW_MS - WEEK_MS) == set()
    assert expired(store, NOW_MS + 60_000) == {("orders", 0)}


def test_a_retention_that_ends_after_all_time_is_stored() -> None:
    store = CommittedOffsets()
    request = commit_of({0: 5})
    request.retention_time_ms = 2**63 - 1
    commit(store, request, version=3)
    assert expired(store, NOW_MS + 100 * WEEK_MS) == set()


def test_an_offset_that_is_pending_in_a_transaction_does_not_expire() -> None:
    """Trap 5: a tombstone for it would hide what the transaction commits."""
    store = CommittedOffsets(is_pending=lambda _group_id, _topic, partition: partition == 0)
    commit(store, commit_of({0: 5, 1: 6}))
    assert expired(store, NOW_MS + 2 * WEEK_MS) == {("orders", 1)}


def test_a_commit_remembers_its_record() -> None:
    store = CommittedOffsets()
    records, _response = store.commit(commit_of({0: 5}), 9, IMAGE, SETTINGS, NOW_MS)
    apply(store, records, offset=41)
    assert store.get("g", "orders", 0) == Committed(5, -1, NOW_MS, -1, ORDERS_ID, 41, "")


def test_an_offset_needs_at_most_400_bytes_and_nothing_that_the_garbage_collector_tracks() -> None:
    store = CommittedOffsets()
    count = 20_000
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            key = OffsetCommitKey(
                group_id=f"group-{number // 100}", topic=f"topic-{number // 10 % 10}", partition=number
            )
            value = OffsetCommitValue(offset=10**9 + number, commit_timestamp=NOW_MS + number, topic_id=ORDERS_ID)
            apply(store, [GroupRecord(key, value)], offset=number)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store) == count
    assert used / count <= 400
    assert not any(gc.is_tracked(it) for partitions in store._topics("group-0").values() for it in partitions.values())
