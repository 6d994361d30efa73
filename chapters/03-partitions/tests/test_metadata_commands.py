"""Commands checked against an image: the records of each, and every refusal with Kafka's code."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from metadata_model import NODE, alter, brokers, case, setting, topic_id

from minibroker.metadata.broker_commands import AllocateProducerIds, RegisterBroker, Registration
from minibroker.metadata.config_commands import (
    AlterConfigs,
    AlteredResource,
    ConfigChange,
    ConfigOperation,
    ResourceChange,
)
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import RECORDS_PER_COMMAND_MAX, Records, decide
from minibroker.metadata.image import Endpoint, Image, fold_all
from minibroker.metadata.placement import place
from minibroker.metadata.records import ConfigRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord
from minibroker.metadata.topic_commands import (
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicReference,
)
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import NO_UUID

ONE = brokers(1)
THREE = brokers(1, 2, 3)


def new_topic(
    name: str,
    number: int = 1,
    partitions: int = -1,
    replicas: int = -1,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> NewTopic:
    return NewTopic(name, topic_id(number), partitions, replicas, assignments, configs or {})


def creating(*topics: NewTopic, image: Image = ONE, node: NodeConfig = NODE) -> list[CreatedTopic]:
    return decide(image, CreateTopics(topics, node)).result


def with_topic(name: str, number: int = 1, partitions: int = 1, image: Image = ONE) -> Image:
    decision = decide(image, CreateTopics([new_topic(name, number, partitions)], NODE))
    assert decision.result[0].code == ErrorCode.NONE
    return fold_all(image, enumerate(decision.records, start=image.offset + 1))


# CreateTopics


def test_a_topic_becomes_its_record_then_its_configuration_then_its_partitions() -> None:
    decision = decide(ONE, CreateTopics([new_topic("orders", 7, 2, 1, configs={"segment.ms": "5"})], NODE))
    assert decision.records == [
        TopicRecord(name="orders", topic_id=topic_id(7)),
        ConfigRecord(resource_type=2, resource_name="orders", name="segment.ms", value="5"),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id(7),
                replicas=[1],
                isr=[1],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for index in range(2)
        ),
    ]
    assert decision.result == [
        CreatedTopic(
            "orders", topic_id=topic_id(7), partition_count=2, replication_factor=1, configs={"segment.ms": "5"}
        )
    ]


def test_minus_one_is_the_brokers_default() -> None:
    node = NodeConfig({"num.partitions": "4", "default.replication.factor": "3"})
    (created,) = creating(new_topic("orders"), image=THREE, node=node)
    assert (created.partition_count, created.replication_factor) == (4, 3)


def test_validating_decides_the_same_and_writes_nothing() -> None:
    topics = [new_topic("orders", 1, 3), new_topic("..", 2)]
    real, tried = (decide(ONE, CreateTopics(topics, NODE, validate_only)) for validate_only in (False, True))
    assert real.result == tried.result
    assert real.records
    assert not tried.records


def test_an_error_in_one_topic_does_not_affect_the_others() -> None:
    codes = [topic.code for topic in creating(new_topic("good", 1), new_topic("bad/name", 2), new_topic("fine", 3))]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_a_topic_is_refused_with_kafkas_code_and_a_reason() -> None:
    for topic, code, message in [
        (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (new_topic("../x"), ErrorCode.INVALID_TOPIC_EXCEPTION, "use only"),
        (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "250 characters"),
        (new_topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "cannot be created"),
        (new_topic("there.is"), ErrorCode.TOPIC_ALREADY_EXISTS, "there.is exists already"),
        (new_topic("there_is"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with the topic there.is"),
        (new_topic("a", partitions=0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (new_topic("a", partitions=-2), ErrorCode.INVALID_PARTITIONS, "-2 partitions"),
        (new_topic("a", replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR, "0 replicas are not possible"),
        (new_topic("a", replicas=-2), ErrorCode.INVALID_REPLICATION_FACTOR, "-2 replicas are not possible"),
        (new_topic("a", replicas=2), ErrorCode.INVALID_REPLICATION_FACTOR, "2 replicas need 2 brokers, but 1 are live"),
        (new_topic("a", configs={"nope": "1"}), ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
        (new_topic("a", configs={"segment.ms": "0"}), ErrorCode.INVALID_CONFIG, "segment.ms=0"),
        (new_topic("a", configs={"segment.ms": None}), ErrorCode.INVALID_CONFIG, "segment.ms has no value"),
        (new_topic("a", partitions=1, assignments=[(0, [1])]), ErrorCode.INVALID_REQUEST, "both counts must be -1"),
        (new_topic("a", replicas=1, assignments=[(0, [1])]), ErrorCode.INVALID_REQUEST, "both counts must be -1"),
        (new_topic("a", assignments=[(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "0 to 1, each once"),
        (new_topic("a", assignments=[(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "must be 0 to 0"),
        (new_topic("a", assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "it names no broker"),
        (new_topic("a", assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 1 occurs twice"),
        (new_topic("a", assignments=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9 is not registered"),
    ]:
        with case(topic, code, message):
            decision = decide(with_topic("there.is", 50), CreateTopics([topic], NODE))
            assert decision.records == []
            (refused,) = decision.result
            assert refused.code == code
            assert message in (refused.message or "")
            assert refused.topic_id == NO_UUID


def test_a_topic_that_occurs_twice_in_a_request_is_refused_once() -> None:
    decision = decide(ONE, CreateTopics([new_topic("a", 1), new_topic("b", 2), new_topic("a", 3)], NODE))
    assert {topic.name: topic.code for topic in decision.result} == {
        "a": ErrorCode.INVALID_REQUEST,
        "b": ErrorCode.NONE,
    }
    assert len(decision.result) == 2
    assert [record.name for record in decision.records if isinstance(record, TopicRecord)] == ["b"]


def test_two_names_of_one_request_that_collide_are_not_both_created() -> None:
    assert [topic.code for topic in creating(new_topic("a.b", 1), new_topic("a_b", 2), new_topic("a-b", 3))] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]


def test_an_assignment_of_the_client_is_used() -> None:
    decision = decide(THREE, CreateTopics([new_topic("a", assignments=[(1, [3, 1]), (0, [2, 3])])], NODE))
    partitions = [record for record in decision.records if isinstance(record, PartitionRecord)]
    assert [(it.partition_id, it.replicas, it.leader) for it in partitions] == [(0, [2, 3], 2), (1, [3, 1], 3)]


def test_all_partitions_of_an_assignment_have_the_same_number_of_replicas() -> None:
    (refused,) = creating(new_topic("a", assignments=[(0, [1, 2]), (1, [3])]), image=THREE)
    assert refused.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "it names 1 brokers, but the other partitions have 2 replicas" in (refused.message or "")


def test_a_fenced_broker_gets_a_replica_only_if_needed_and_is_not_in_sync() -> None:
    image = brokers(1, 2, fenced=[3])
    decision = decide(image, CreateTopics([new_topic("a", 1, 2, 3), new_topic("b", 2, 6, 2)], NODE))
    partitions = [record for record in decision.records if isinstance(record, PartitionRecord)]
    assert all(sorted(it.isr) == [1, 2] and it.leader != 3 for it in partitions)
    assert all(3 not in it.replicas for it in partitions if it.topic_id == topic_id(2))


def test_without_a_live_broker_no_topic_is_created() -> None:
    image = brokers(fenced=[1])
    assert creating(new_topic("a"), image=image)[0].code == ErrorCode.INVALID_REPLICATION_FACTOR
    (refused,) = creating(new_topic("a", assignments=[(0, [1])]), image=image)
    assert refused.message is not None
    assert "all of these brokers are fenced" in refused.message


# Limits


def test_a_command_of_too_many_records_is_refused_before_they_are_made() -> None:
    for topics in (
        [new_topic("huge", 1, 2**31 - 1)],
        [new_topic("fits", 1, 5000), new_topic("not.any.more", 2, 5000)],
        [new_topic(f"t{number}", number) for number in range(1, RECORDS_PER_COMMAND_MAX + 2)],
    ):
        decision = decide(ONE, CreateTopics(topics, NODE))
        assert decision.records == []
        assert {topic.code for topic in decision.result} == {ErrorCode.POLICY_VIOLATION}
        assert len(decision.result) == len(topics)


def test_the_largest_allowed_number_of_records_is_accepted() -> None:
    decision = decide(ONE, CreateTopics([new_topic("a", 1, RECORDS_PER_COMMAND_MAX - 1)], NODE))
    assert len(decision.records) == RECORDS_PER_COMMAND_MAX
    image = with_topic("a", partitions=1)
    too_many = CreatePartitions([MorePartitions("a", RECORDS_PER_COMMAND_MAX + 2)])
    assert decide(image, too_many).result[0].code == ErrorCode.POLICY_VIOLATION
    assert decide(image, CreatePartitions([MorePartitions("a", RECORDS_PER_COMMAND_MAX + 1)])).result[0].code == 0


# Placement


@given(broker_count=st.integers(1, 7), data=st.data(), partition_count=st.integers(1, 40), first=st.integers(0, 1000))
def test_replicas_are_on_different_brokers_and_leaders_are_balanced(
    broker_count: int, data: st.DataObject, partition_count: int, first: int
) -> None:
    factor = data.draw(st.integers(1, broker_count))
    placed = place(
        brokers(*range(broker_count)),
        topic_id=topic_id(data.draw(st.integers(1, 2**100))),
        first_partition=first,
        partition_count=partition_count,
        replication_factor=factor,
    )
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    leads = [sum(replicas[0] == node_id for replicas in placed) for node_id in range(broker_count)]
    assert max(leads) - min(leads) <= 1


def test_later_partitions_continue_the_placement() -> None:
    def placed(first: int, count: int) -> list[tuple[int, ...]]:
        return place(THREE, topic_id=topic_id(5), first_partition=first, partition_count=count, replication_factor=2)

    assert placed(0, 6) == placed(0, 2) + placed(2, 4)


# DeleteTopics


def test_a_topic_is_deleted_by_name_or_by_id() -> None:
    image = with_topic("b", 2, image=with_topic("a", 1))
    decision = decide(image, DeleteTopics([TopicReference("a"), TopicReference(topic_id=topic_id(2))]))
    assert decision.result == [DeletedTopic("a", topic_id(1)), DeletedTopic("b", topic_id(2))]
    left = fold_all(image, enumerate(decision.records, start=image.offset + 1))
    assert left.topics == {}


def test_a_deletion_is_refused_with_kafkas_code() -> None:
    for references, codes in [
        ([TopicReference("nope")], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([TopicReference("../x")], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([TopicReference("__cluster_metadata")], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([TopicReference(topic_id=topic_id(77))], [ErrorCode.UNKNOWN_TOPIC_ID]),
        ([TopicReference()], [ErrorCode.INVALID_REQUEST]),
        ([TopicReference("a", topic_id(1))], [ErrorCode.INVALID_REQUEST]),
        ([TopicReference("a"), TopicReference("a")], [ErrorCode.INVALID_REQUEST]),
        ([TopicReference("a"), TopicReference(topic_id=topic_id(1))], [ErrorCode.INVALID_REQUEST] * 2),
    ]:
        with case(references, codes):
            decision = decide(with_topic("a", 1), DeleteTopics(references))
            assert [topic.code for topic in decision.result] == codes
            assert decision.records == []


# CreatePartitions


def test_a_topic_grows_and_its_old_partitions_stay() -> None:
    image = with_topic("a", partitions=2)
    decision = decide(image, CreatePartitions([MorePartitions("a", 5)]))
    assert [record.partition_id for record in decision.records if isinstance(record, PartitionRecord)] == [2, 3, 4]
    tried = decide(image, CreatePartitions([MorePartitions("a", 5)], validate_only=True))
    assert (tried.records, tried.result) == ([], decision.result)


def test_growth_is_refused_with_kafkas_code() -> None:
    for topic, code, message in [
        (MorePartitions("nope", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'nope'"),
        (MorePartitions("a", 2), ErrorCode.INVALID_PARTITIONS, "a has 2 partitions, so 2 is not an increase"),
        (MorePartitions("a", 1), ErrorCode.INVALID_PARTITIONS, "1 is not an increase"),
        (MorePartitions("a", -1), ErrorCode.INVALID_PARTITIONS, "-1 is not an increase"),
        (MorePartitions("a", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 new partitions, but 1 assignments"),
        (MorePartitions("a", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "1 new partitions, but 0 assignments"),
        (MorePartitions("a", 4, [[1], [9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9 is not registered"),
        (MorePartitions("a", 3, [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "it names no broker"),
    ]:
        with case(topic, code, message):
            decision = decide(with_topic("a", partitions=2), CreatePartitions([topic]))
            (refused,) = decision.result
            assert refused.code == code
            assert message in (refused.message or "")
            assert decision.records == []


def test_new_partitions_can_be_assigned_and_a_topic_may_occur_only_once() -> None:
    image = with_topic("a", image=THREE)
    decision = decide(image, CreatePartitions([MorePartitions("a", 3, [[3], [2]])]))
    assert [record.leader for record in decision.records if isinstance(record, PartitionRecord)] == [3, 2]
    twice = decide(image, CreatePartitions([MorePartitions("a", 3), MorePartitions("a", 4)]))
    assert [topic.code for topic in twice.result] == [ErrorCode.INVALID_REQUEST]
    assert twice.records == []


# AlterConfigs


def altered(image: Image, command: AlterConfigs) -> tuple[AlteredResource, Mapping[str, str]]:
    """The result of a command about one resource, and its configuration afterwards."""
    decision = decide(image, command)
    new = fold_all(image, enumerate(decision.records, start=image.offset + 1))
    (result,) = decision.result
    return result, new.configs.get((ConfigResource(result.resource_type), result.resource_name), {})


def topic_with(configs: Mapping[str, str]) -> Image:
    image = with_topic("a")
    command = alter(ConfigResource.TOPIC, "a", *(setting(name, value) for name, value in configs.items()))
    return fold_all(image, enumerate(decide(image, command).records, start=image.offset + 1))


def test_list_operations_have_the_same_result_as_in_kafka() -> None:
    for before, operation, value, after in [
        ({}, ConfigOperation.SET, "compact", "compact"),
        ({}, ConfigOperation.APPEND, "compact", "delete,compact"),
        ({}, ConfigOperation.APPEND, "delete", "delete"),
        ({}, ConfigOperation.SUBTRACT, "delete", ""),
        ({"cleanup.policy": "compact"}, ConfigOperation.APPEND, "delete,compact,delete", "compact,delete"),
        ({"cleanup.policy": "compact,delete"}, ConfigOperation.SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact,delete"}, ConfigOperation.SUBTRACT, "delete,compact", ""),
        ({"cleanup.policy": "compact"}, ConfigOperation.SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact"}, ConfigOperation.DELETE, None, None),
        ({}, ConfigOperation.DELETE, None, None),
    ]:
        with case(before, operation, value, after):
            command = alter(ConfigResource.TOPIC, "a", setting("cleanup.policy", value, operation))
            result, configs = altered(topic_with(before), command)
            assert result.code == ErrorCode.NONE
            assert configs.get("cleanup.policy") == after


def test_an_incremental_change_keeps_other_keys_and_a_replacing_one_deletes_them() -> None:
    image = topic_with({"segment.ms": "5", "flush.ms": "6"})
    changes = [setting("flush.ms", "7")]
    assert altered(image, alter(ConfigResource.TOPIC, "a", *changes))[1] == {"segment.ms": "5", "flush.ms": "7"}
    replacing = AlterConfigs([ResourceChange(ConfigResource.TOPIC, "a", changes)], NODE, replaces=True)
    assert altered(image, replacing)[1] == {"flush.ms": "7"}


def test_an_unchanged_value_writes_no_record() -> None:
    image = topic_with({"segment.ms": "5"})
    assert decide(image, alter(ConfigResource.TOPIC, "a", setting("segment.ms", "5"))).records == []
    gone = alter(ConfigResource.TOPIC, "a", setting("no.such.config", None, ConfigOperation.DELETE))
    assert decide(image, gone).records == []
    assert decide(image, gone).result[0].code == ErrorCode.NONE


def test_validating_a_change_writes_nothing() -> None:
    command = alter(ConfigResource.TOPIC, "a", setting("segment.ms", "5"), validate_only=True)
    assert decide(with_topic("a"), command).records == []


def test_a_change_is_refused_with_kafkas_code_and_changes_nothing() -> None:
    for kind, name, changes, code, message in [
        (2, "", [setting("segment.ms", "5")], ErrorCode.INVALID_REQUEST, "the topic's name is empty"),
        (2, "a/b", [setting("segment.ms", "5")], ErrorCode.INVALID_TOPIC_EXCEPTION, "use only"),
        (2, "nope", [setting("segment.ms", "5")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic nope"),
        (2, "a", [setting("segment.ms", "0")], ErrorCode.INVALID_CONFIG, "segment.ms=0"),
        (2, "a", [setting("segmentms", "1")], ErrorCode.INVALID_CONFIG, "did you mean segment.ms?"),
        (2, "a", [setting("segment.ms", None)], ErrorCode.INVALID_REQUEST, "has no value"),
        (2, "a", [setting("segment.ms", "1"), setting("segment.ms", "2")], ErrorCode.INVALID_REQUEST, "more than once"),
        (2, "a", [setting("segment.ms", "1", 2)], ErrorCode.INVALID_CONFIG, "is not a list"),
        (2, "a", [setting("nope", "1", 3)], ErrorCode.INVALID_CONFIG, "is not a list"),
        (2, "a", [setting("segment.ms", "1", 9)], ErrorCode.INVALID_REQUEST, "operation 9 is unknown"),
        (2, "a", [setting("cleanup.policy", "x", 2)], ErrorCode.INVALID_CONFIG, "a list of compact, delete"),
        (2, "a", [setting("min.compaction.lag.ms", "9"), setting("max.compaction.lag.ms", "8")], 40, "larger"),
        (
            4,
            "2",
            [setting("log.retention.ms", "5")],
            ErrorCode.INVALID_REQUEST,
            "no broker '2': the brokers are 1, and",
        ),
        (4, "x", [setting("log.retention.ms", "5")], ErrorCode.INVALID_REQUEST, "no broker 'x'"),
        (4, "1", [setting("log.retention.ms", "-5")], ErrorCode.INVALID_REQUEST, "log.retention.ms=-5"),
        (4, "1", [setting("num.partitions", "5")], ErrorCode.INVALID_REQUEST, "cannot be changed at runtime"),
        (4, "", [setting("no.such", "5")], ErrorCode.INVALID_REQUEST, "Unknown broker config name"),
        (
            4,
            "",
            [setting("log.cleaner.min.compaction.lag.ms", "9"), setting("log.cleaner.max.compaction.lag.ms", "8")],
            42,
            "larger",
        ),
        (0, "a", [setting("segment.ms", "5")], ErrorCode.INVALID_REQUEST, "type 0 cannot be changed"),
        (8, "1", [setting("root", "INFO")], ErrorCode.INVALID_REQUEST, "type 8 cannot be changed"),
        (16, "m", [setting("x", "5")], ErrorCode.INVALID_REQUEST, "type 16 cannot be changed"),
    ]:
        with case(kind, name, changes, code, message):
            command = AlterConfigs([ResourceChange(kind, name, changes)], NODE)
            decision = decide(with_topic("a"), command)
            (refused,) = decision.result
            assert refused.code == code
            assert message in (refused.message or "")
            assert decision.records == []


def test_any_registered_broker_can_be_configured_at_the_controller() -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    node = NodeConfig({"node.id": "1", most: "5"})

    def after(image: Image, name: str, *changes: ConfigChange) -> tuple[AlteredResource, Image]:
        decision = decide(image, AlterConfigs([ResourceChange(4, name, changes)], node))
        return decision.result[0], fold_all(image, enumerate(decision.records, start=image.offset + 1))

    # The settings that this broker was started with do not restrict another broker.
    assert after(THREE, "1", setting(least, "10"))[0].code == ErrorCode.INVALID_REQUEST
    done, image = after(THREE, "2", setting(least, "10"))
    assert done.code == ErrorCode.NONE
    assert image.configs[ConfigResource.BROKER, "2"] == {least: "10"}
    # But the dynamic values of one broker, its own and those for all, must not conflict.
    assert after(image, "2", setting(most, "9"))[0].code == ErrorCode.INVALID_REQUEST
    assert after(image, "", setting(most, "9"))[0].code == ErrorCode.INVALID_REQUEST
    assert after(image, "3", setting(most, "9"))[0].code == ErrorCode.NONE
    assert after(image, "2", setting(least, "ten"))[0].code == ErrorCode.INVALID_REQUEST
    refused, _image = after(image, "02", setting(least, "1"))
    assert "there is no broker '02': the brokers are 1, 2, 3" in (refused.message or "")


def test_a_resource_is_changed_completely_or_not_at_all() -> None:
    image = with_topic("b", 2, image=with_topic("a", 1))
    good, bad = setting("segment.ms", "5"), setting("flush.ms", "-5")
    resources = [ResourceChange(2, "a", [good, bad]), ResourceChange(2, "b", [good])]
    decision = decide(image, AlterConfigs(resources, NODE))
    assert [resource.code for resource in decision.result] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert [record.resource_name for record in decision.records if isinstance(record, ConfigRecord)] == ["b"]


def test_a_resource_that_occurs_twice_is_refused_twice() -> None:
    resources = [ResourceChange(2, "a", [setting("segment.ms", "5")])] * 2
    decision = decide(with_topic("a"), AlterConfigs(resources, NODE))
    assert [resource.code for resource in decision.result] == [ErrorCode.INVALID_REQUEST] * 2
    assert decision.records == []


def test_one_broker_or_all_brokers_can_be_changed() -> None:
    for name in ("1", ""):
        result, configs = altered(ONE, alter(ConfigResource.BROKER, name, setting("log.retention.ms", "5")))
        assert result.code == ErrorCode.NONE
        assert configs == {"log.retention.ms": "5"}


# Brokers


def test_a_broker_gets_a_larger_epoch_with_every_start() -> None:
    command = RegisterBroker(1, [Endpoint("PLAINTEXT", "here", 9092)], topic_id(77), rack="r")
    decision = decide(ONE, command)
    assert decision.result.epoch == ONE.offset + 1
    image = fold_all(ONE, enumerate(decision.records, start=ONE.offset + 1))
    assert image.brokers[1].epoch > ONE.brokers[1].epoch
    assert (image.brokers[1].host, image.brokers[1].rack, image.brokers[1].is_fenced) == ("here", "r", False)
    again = decide(image, command)
    assert (again.records, again.result.epoch) == ([], decision.result.epoch)


class LeavesWhenItLostPower(RegisterBroker):
    """A registration as a later chapter extends it: one decision in one batch."""

    def run(self, image: Image, records: Records) -> Registration:
        known = image.brokers.get(self.broker_id)
        registration = super().run(image, records)
        if records.list and known is not None and self.previous_broker_epoch != known.epoch:
            change = PartitionChangeRecord(topic_id=topic_id(1), partition_id=0, isr=[])
            records.add([change])
        return registration


def test_a_registration_can_decide_about_partitions_in_the_same_batch() -> None:
    endpoints = [Endpoint("PLAINTEXT", "here", 9092)]
    clean = LeavesWhenItLostPower(1, endpoints, topic_id(77), previous_broker_epoch=ONE.brokers[1].epoch)
    assert [type(record) for record in decide(ONE, clean).records] == [RegisterBrokerRecord]
    unclean = LeavesWhenItLostPower(1, endpoints, topic_id(77))
    decision = decide(ONE, unclean)
    assert [type(record) for record in decision.records] == [RegisterBrokerRecord, PartitionChangeRecord]
    assert decision.result.epoch == ONE.offset + 1


def test_blocks_of_producer_ids_never_overlap() -> None:
    image: Image = ONE
    given_ids: set[int] = set()
    for _ in range(3):
        decision = decide(image, AllocateProducerIds(1, image.brokers[1].epoch))
        block = range(decision.result.first, decision.result.first + decision.result.count)
        assert len(block) == 1000
        assert not given_ids & set(block)
        given_ids |= set(block)
        image = fold_all(image, enumerate(decision.records, start=image.offset + 1))


def test_only_registered_brokers_get_producer_ids() -> None:
    for command, code in [
        (AllocateProducerIds(9), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (AllocateProducerIds(1, broker_epoch=5), ErrorCode.STALE_BROKER_EPOCH),
        (AllocateProducerIds(1, count=2**63 - 1), ErrorCode.NONE),
    ]:
        with case(command, code):
            assert decide(ONE, command).result.code == code


def test_producer_ids_can_run_out() -> None:
    image = fold_all(ONE, enumerate(decide(ONE, AllocateProducerIds(1, count=2**63 - 500)).records, start=1))
    decision = decide(image, AllocateProducerIds(1))
    assert (decision.result.code, decision.result.count) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert decision.records == []
