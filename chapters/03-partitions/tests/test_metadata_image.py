"""Folding records into an image: the effect of each, the shared parts, and the cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_model import brokers, case, topic_id

from minibroker.controller.records import NoOpRecord
from minibroker.metadata import records as kinds
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.errors import CorruptMetadata
from minibroker.metadata.image import Image, PartitionImage, fold, fold_all
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition


def topic(name: str, number: int) -> kinds.TopicRecord:
    return kinds.TopicRecord(name=name, topic_id=topic_id(number))


def partition(number: int, index: int, *, leader: int = 1) -> kinds.PartitionRecord:
    return kinds.PartitionRecord(
        partition_id=index,
        topic_id=topic_id(number),
        replicas=[1, 2],
        isr=[1],
        leader=leader,
        leader_epoch=3,
        partition_epoch=4,
    )


def config(name: str, value: str | None, topic_name: str = "orders") -> kinds.ConfigRecord:
    return kinds.ConfigRecord(resource_type=ConfigResource.TOPIC, resource_name=topic_name, name=name, value=value)


def folded(*records: kinds.MetadataRecord, image: Image | None = None) -> Image:
    image = image or Image()
    return fold_all(image, enumerate(records, start=image.offset + 1))


def test_a_topic_is_found_by_name_and_by_id_with_its_partitions() -> None:
    image = folded(topic("orders", 1), partition(1, 0), partition(1, 1, leader=2))
    assert image.topic_names == {topic_id(1): "orders"}
    assert image.topics["orders"].topic_id == topic_id(1)
    assert image.topics["orders"].partitions == {
        0: PartitionImage(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=3, partition_epoch=4),
        1: PartitionImage(replicas=(1, 2), isr=(1,), leader=2, leader_epoch=3, partition_epoch=4),
    }
    assert image.offset == 2


def change(number: int, index: int, **values: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=topic_id(number), partition_id=index, **values)


def test_a_partition_is_found_by_its_name() -> None:
    image = folded(topic("orders", 1), partition(1, 0))
    assert image.partition(TopicPartition("orders", 0)) is image.topics["orders"].partitions[0]
    assert image.partition(TopicPartition("orders", 1)) is None
    assert image.partition(TopicPartition("others", 0)) is None


def test_a_change_of_the_isr_keeps_the_leader_epoch_and_a_new_leader_increments_it() -> None:
    image = folded(topic("orders", 1), partition(1, 0), partition(1, 1), change(1, 0, isr=[1, 2]))
    assert image.topics["orders"].partitions[0] == PartitionImage((1, 2), (1, 2), 1, 3, 5)
    assert image.topics["orders"].partitions[1] == PartitionImage((1, 2), (1,), 1, 3, 4)
    led = folded(change(1, 0, leader=2, isr=[2]), image=image)
    assert led.topics["orders"].partitions[0] == PartitionImage((1, 2), (2,), 2, 4, 6)
    # As in Kafka, naming the same leader again begins an epoch. It fences fetches with the old epoch.
    again = folded(change(1, 0, leader=2), change(1, 0, leader=-1, leader_recovery_state=1), image=led)
    assert again.topics["orders"].partitions[0] == PartitionImage((1, 2), (2,), -1, 6, 8, leader_recovery_state=1)


def test_a_partition_that_was_created_in_the_same_batch_can_be_changed_and_old_images_stay() -> None:
    old = folded(topic("orders", 1), partition(1, 0), partition(1, 1))
    new = folded(change(1, 0, isr=[2]), topic("others", 2), partition(2, 0), change(2, 0, isr=[]), image=old)
    assert old.topics["orders"].partitions[0].isr == (1,)
    assert new.topics["orders"].partitions[0].isr == (2,)
    assert new.topics["orders"].partitions[1] is old.topics["orders"].partitions[1]
    assert new.topics["others"].partitions[0].isr == ()


NODES = st.none() | st.lists(st.integers(0, 3), unique=True)
CHANGES = st.fixed_dictionaries(
    {
        "isr": NODES,
        "replicas": NODES,
        "adding_replicas": NODES,
        "removing_replicas": NODES,
        "leader": st.integers(-2, 3),
        "leader_recovery_state": st.integers(-1, 1),
    }
)


@given(st.lists(st.tuples(st.integers(0, 1), CHANGES), max_size=8))
def test_partition_changes_fold_as_in_a_dictionary(changes: list[tuple[int, dict[str, Any]]]) -> None:
    image = folded(topic("orders", 1), partition(1, 0), partition(1, 1))
    names = PartitionImage.__dataclass_fields__
    model = [{name: getattr(image.topics["orders"].partitions[index], name) for name in names} for index in range(2)]
    records = []
    for index, values in changes:
        records.append(change(1, index, **values))
        assert kinds.decode_record(kinds.encode_record(records[-1])) == records[-1]
        told = {name: value for name, value in values.items() if value is not None}
        if told["leader"] == -2:
            del told["leader"]
        else:
            model[index]["leader_epoch"] += 1
        if told["leader_recovery_state"] == -1:
            del told["leader_recovery_state"]
        told = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        model[index] |= {**told, "partition_epoch": model[index]["partition_epoch"] + 1}
    new = folded(*records, image=image)
    assert new.topics["orders"].partitions == {index: PartitionImage(**model[index]) for index in range(2)}


def test_removing_a_topic_removes_its_partitions_configuration_and_name() -> None:
    records = [topic("a.b", 1), partition(1, 0), config("segment.ms", "5", "a.b"), topic("a_b", 2)]
    image = folded(*records, kinds.RemoveTopicRecord(topic_id=topic_id(1)))
    assert image.topics.keys() == {"a_b"}
    assert image.configs == {}
    assert image.collisions == {"a_b": frozenset({"a_b"})}
    gone = folded(kinds.RemoveTopicRecord(topic_id=topic_id(2)), image=image)
    assert (gone.topics, gone.topic_names, gone.collisions) == ({}, {}, {})


def test_a_topic_can_be_created_again_with_another_id_in_the_same_batch() -> None:
    image = folded(
        topic("orders", 1), partition(1, 0), kinds.RemoveTopicRecord(topic_id=topic_id(1)), topic("orders", 2)
    )
    assert image.topics["orders"].topic_id == topic_id(2)
    assert image.topics["orders"].partitions == {}


def test_a_configuration_is_set_replaced_and_removed() -> None:
    image = folded(config("segment.ms", "5"), config("segment.ms", "6"), config("flush.ms", "7"))
    assert image.topic_configs("orders") == {"segment.ms": "6", "flush.ms": "7"}
    image = folded(config("segment.ms", None), config("segment.ms", None), image=image)
    assert image.topic_configs("orders") == {"flush.ms": "7"}
    assert folded(config("flush.ms", None), image=image).configs == {}


def test_a_new_registration_replaces_the_brokers_last_one() -> None:
    image = brokers(1, 2, fenced=[3])
    assert image.live_brokers() == [1, 2]
    assert (image.brokers[1].host, image.brokers[1].port, image.brokers[1].epoch) == ("host-1", 9092, 0)
    assert image.brokers[3].is_fenced


def test_features_producer_ids_and_no_op_records_are_folded() -> None:
    image = folded(
        kinds.FeatureLevelRecord(name="a", feature_level=1),
        kinds.FeatureLevelRecord(name="b", feature_level=2),
        kinds.ProducerIdsRecord(broker_id=1, next_producer_id=1000),
        kinds.FeatureLevelRecord(name="a", feature_level=0),
        NoOpRecord(),
    )
    assert image.features == {"b": 2}
    assert image.next_producer_id == 1000
    assert image.offset == 4


def test_a_quota_is_set_changed_and_removed_and_its_entity_has_one_order() -> None:
    def quota(value: float | None, *entity: tuple[str, str | None]) -> kinds.ClientQuotaRecord:
        names = [kinds.QuotaEntityData(entity_type=type_, entity_name=name) for type_, name in entity]
        return kinds.ClientQuotaRecord(entity=names, key="rate", value=value or 0.0, remove=value is None)

    user, client = ("user", "ada"), ("client-id", None)
    image = folded(quota(5, user, client), quota(6, client, user), quota(7, user))
    assert image.client_quotas == {(client, user): {"rate": 6.0}, (user,): {"rate": 7.0}}
    image = folded(quota(None, user, client), quota(None, user, client), image=image)
    assert image.client_quotas == {(user,): {"rate": 7.0}}


def test_folding_does_not_change_the_old_image() -> None:
    old = folded(topic("orders", 1), partition(1, 0), config("segment.ms", "5"))
    before = (dict(old.topics), dict(old.topics["orders"].partitions), dict(old.topic_configs("orders")))
    new = folded(partition(1, 1), config("segment.ms", "6"), topic("others", 2), image=old)
    assert before == (old.topics, old.topics["orders"].partitions, old.topic_configs("orders"))
    assert len(new.topics["orders"].partitions) == 2


def test_images_share_unchanged_parts() -> None:
    old = folded(topic("orders", 1), partition(1, 0), topic("others", 2), partition(2, 0), config("segment.ms", "5"))
    new = folded(partition(1, 1), image=old)
    assert new.topics["others"] is old.topics["others"]
    assert new.topics["orders"].partitions[0] is old.topics["orders"].partitions[0]
    assert new.configs is old.configs
    assert new.topic_names is old.topic_names
    assert folded(image=old) is old


def test_one_by_one_and_all_at_once_give_the_same_image() -> None:
    records: list[kinds.MetadataRecord] = [
        topic("a.b", 1),
        config("segment.ms", "5", "a.b"),
        partition(1, 0),
        partition(1, 1),
        topic("c", 2),
        kinds.RemoveTopicRecord(topic_id=topic_id(1)),
        topic("a.b", 3),
        partition(3, 0),
    ]
    image = Image()
    for offset, record in enumerate(records):
        image = fold(image, record, offset)
    assert image == folded(*records)


def test_a_topic_of_ten_thousand_partitions_is_copied_once_not_ten_thousand_times() -> None:
    copies = 0

    class Counted(dict[int, PartitionImage]):
        def __iter__(self) -> object:  # type: ignore[override]
            nonlocal copies
            copies += 1
            return super().__iter__()

        def keys(self) -> object:  # type: ignore[override]
            nonlocal copies
            copies += 1
            return super().keys()

    old = folded(topic("orders", 1), partition(1, 0))
    counted = Counted(old.topics["orders"].partitions)
    object.__setattr__(old.topics["orders"], "partitions", counted)
    copies = 0
    new = folded(*(partition(1, index) for index in range(1, 10_000)), image=old)
    assert len(new.topics["orders"].partitions) == 10_000
    assert copies <= 2


def test_records_that_contradict_each_other_are_refused_with_the_offset() -> None:
    contradictions: list[tuple[list[kinds.MetadataRecord], str]] = [
        ([partition(9, 0)], "no topic has the id"),
        ([kinds.RemoveTopicRecord(topic_id=topic_id(9))], "no topic has the id"),
        ([change(9, 0, isr=[1])], "no topic has the id"),
        ([topic("a", 1), partition(1, 0), change(1, 7, isr=[1])], "a has no partition 7, it has 1"),
        ([topic("a", 1), topic("a", 2)], "exists already"),
        ([topic("a", 1), topic("b", 1)], "exists already"),
        ([kinds.ConfigRecord(resource_type=77, resource_name="", name="a", value="b")], "unknown resource type 77"),
        (
            [
                kinds.ProducerIdsRecord(broker_id=1, next_producer_id=9),
                kinds.ProducerIdsRecord(broker_id=1, next_producer_id=8),
            ],
            "decreases from 9 to 8",
        ),
        (
            [kinds.RegisterBrokerRecord(broker_id=1, incarnation_id=topic_id(1), broker_epoch=0, end_points=[])],
            "broker 1 has no listener",
        ),
    ]
    for records, message in contradictions:
        refusal = f"^metadata record at offset {len(records) - 1}: .*{message}"
        with case(records, message), pytest.raises(CorruptMetadata, match=refusal):
            folded(*records)
