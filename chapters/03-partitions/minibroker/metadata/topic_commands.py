"""Commands that create and delete topics, and add partitions. A pure module.

Each topic of a command is decided separately, and has its own result with Kafka's error code. The checks are in Kafka's
order, so that a request with two errors gets the same answer as from Kafka.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import NodeConfig, check_topic_configs
from minibroker.metadata.decision import Command, Outcome, Records, duplicates
from minibroker.metadata.errors import InvalidConfig, InvalidTopicName, Refused
from minibroker.metadata.image import Image, TopicImage
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC, can_collide, check_topic_name, collision_key, quoted
from minibroker.metadata.placement import Placing, check_assignment, new_partition, place
from minibroker.metadata.records import ConfigRecord, MetadataRecord, RemoveTopicRecord, TopicRecord
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import NO_UUID, uuid_text

DEFAULT = -1


class _Named(Protocol):
    """One topic of a request, with the topic's name."""

    @property
    def name(self) -> str: ...


W = TypeVar("W", bound=_Named)
R = TypeVar("R")


def _decide_each(topics: Sequence[W], decide: Callable[[W], R], refused: Callable[[str, ErrorCode, str], R]) -> list[R]:
    """Decide about each topic. A topic that occurs more than once is refused once, before all others."""
    twice = duplicates(topic.name for topic in topics)
    results = [
        refused(name, ErrorCode.INVALID_REQUEST, f"the topic {quoted(name)} is in the request more than once")
        for name in dict.fromkeys(topic.name for topic in topics)
        if name in twice
    ]
    for topic in topics:
        if topic.name not in twice:
            try:
                results.append(decide(topic))
            except Refused as error:
                results.append(refused(topic.name, error.code, str(error)))
    return results


# Create ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. A count of -1 means the broker's default. An assignment lists the brokers of a partition."""

    name: str
    topic_id: bytes
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class CreatedTopic(Outcome[str]):
    """The result for one topic of CreateTopics."""

    topic_id: bytes = NO_UUID
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CreateTopics(Command[list[CreatedTopic]]):
    """Create topics. The caller gives each one a new random id. `node` is the configuration with the defaults."""

    topics: Sequence[NewTopic]
    node: NodeConfig
    validate_only: bool = False
    placing: Placing = place

    def run(self, image: Image, records: Records) -> list[CreatedTopic]:
        """Decide about each topic."""
        records.reserve(len(self.topics))
        taken: dict[str, str] = {}
        return _decide_each(self.topics, lambda topic: self._create(image, topic, taken, records), CreatedTopic)

    def _create(self, image: Image, topic: NewTopic, taken: dict[str, str], records: Records) -> CreatedTopic:
        _check_name(image, topic.name, taken)
        assert topic.topic_id != NO_UUID, "a new topic needs an id"
        assert topic.topic_id not in image.topic_names, "a new topic needs an id that no other topic has"
        configs = self._checked_configs(topic)
        assignments = self._assignments(image, topic, records)
        made: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic.topic_id)]
        made += [_config_record(topic.name, name, value) for name, value in configs.items()]
        made += [new_partition(image, topic.topic_id, number, replicas) for number, replicas in assignments]
        records.add(made)
        return CreatedTopic(
            topic.name,
            topic_id=topic.topic_id,
            partition_count=len(assignments),
            replication_factor=len(assignments[0][1]),
            configs=configs,
        )

    def _checked_configs(self, topic: NewTopic) -> dict[str, str]:
        nulls = [name for name, value in topic.configs.items() if value is None]
        if nulls:
            raise InvalidConfig(f"{nulls[0]} has no value: give it a value, or remove the key from the request")
        configs = {name: value for name, value in topic.configs.items() if value is not None}
        check_topic_configs(configs, self.node)
        return configs

    def _assignments(self, image: Image, topic: NewTopic, records: Records) -> list[tuple[int, Sequence[int]]]:
        """The replicas of each partition: the client's assignment, or chosen by `placing`."""
        if topic.assignments:
            return _client_assignment(image, topic)
        _check_counts(topic)
        partition_count = self.node.num_partitions if topic.partition_count == DEFAULT else topic.partition_count
        replication_factor = topic.replication_factor
        if replication_factor == DEFAULT:
            replication_factor = self.node.default_replication_factor
        records.reserve(1 + len(topic.configs) + partition_count)
        placed = self.placing(
            image,
            topic_id=topic.topic_id,
            first_partition=0,
            partition_count=partition_count,
            replication_factor=replication_factor,
        )
        return list(enumerate(placed))

    def refuse(self, code: ErrorCode, message: str) -> list[CreatedTopic]:
        """The same error for every topic."""
        return [CreatedTopic(name, code, message) for name in dict.fromkeys(topic.name for topic in self.topics)]


def _check_name(image: Image, name: str, taken: dict[str, str]) -> None:
    """Refuse a name that cannot be used. `taken` has the names in the same request, by collision key."""
    if name == CLUSTER_METADATA_TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is the metadata log itself and cannot be created")
    check_topic_name(name)
    if name in image.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {name} exists already")
    if can_collide(name):
        key = collision_key(name)
        others = image.collisions.get(key) or {taken.setdefault(key, name)} - {name}
        if others:
            raise InvalidTopicName(
                f"{name} collides with the topic {min(others)}: names must differ in more than '.' and '_'"
            )


def _check_counts(topic: NewTopic) -> None:
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        message = f"{topic.replication_factor} replicas are not possible: ask for at least 1, or for -1, the default"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if topic.partition_count < DEFAULT or topic.partition_count == 0:
        message = f"{topic.partition_count} partitions are not possible: ask for at least 1, or for -1, the default"
        raise Refused(ErrorCode.INVALID_PARTITIONS, message)


def _client_assignment(image: Image, topic: NewTopic) -> list[tuple[int, Sequence[int]]]:
    """The client's assignment: partitions from 0 on without a gap, all with the same number of replicas."""
    if topic.partition_count != DEFAULT or topic.replication_factor != DEFAULT:
        message = "an assignment determines the numbers of partitions and replicas: both counts must be -1"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    numbers = sorted(number for number, _replicas in topic.assignments)
    if numbers != list(range(len(numbers))):
        message = (
            f"the assignment is for the partitions {numbers[:10]}: they must be 0 to {len(numbers) - 1}, each once"
        )
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    replication_factor = None
    for _number, replicas in topic.assignments:
        check_assignment(image, replicas, replication_factor=replication_factor)
        replication_factor = len(replicas)
    return sorted(topic.assignments, key=lambda assignment: assignment[0])


def _config_record(topic: str, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=ConfigResource.TOPIC, resource_name=topic, name=name, value=value)


# Delete ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopicReference:
    """A topic, by its name or by its id."""

    name: str | None = None
    topic_id: bytes = NO_UUID

    def __str__(self) -> str:
        return quoted(self.name) if self.name is not None else f"id {uuid_text(self.topic_id)}"


@dataclass(frozen=True)
class DeletedTopic:
    """The result for one topic of DeleteTopics."""

    name: str | None
    topic_id: bytes = NO_UUID
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True)
class DeleteTopics(Command[list[DeletedTopic]]):
    """Delete topics and their records."""

    topics: Sequence[TopicReference]

    def run(self, image: Image, records: Records) -> list[DeletedTopic]:
        """Decide about each topic."""
        found = {reference: _find(image, reference) for reference in self.topics}
        twice = duplicates(topic.topic_id for topic in found.values() if topic is not None)
        repeated = duplicates(self.topics)
        results = []
        for reference, topic in found.items():
            try:
                _check_reference(reference, is_repeated=reference in repeated)
                results.append(_delete(reference, topic, twice, records))
            except Refused as refused:
                results.append(DeletedTopic(reference.name, reference.topic_id, refused.code, str(refused)))
        return results

    def refuse(self, code: ErrorCode, message: str) -> list[DeletedTopic]:
        """The same error for every topic."""
        return [DeletedTopic(it.name, it.topic_id, code, message) for it in dict.fromkeys(self.topics)]


def _find(image: Image, reference: TopicReference) -> TopicImage | None:
    name = reference.name if reference.name is not None else image.topic_names.get(reference.topic_id)
    return None if name is None else image.topics.get(name)


def _check_reference(reference: TopicReference, *, is_repeated: bool) -> None:
    problem = None
    if reference.name is None and reference.topic_id == NO_UUID:
        problem = "a topic has neither a name nor an id: give one of them"
    elif reference.name is not None and reference.topic_id != NO_UUID:
        problem = f"the topic {reference} has a name and an id: give one of them"
    elif is_repeated:
        problem = f"the topic {reference} is in the request more than once"
    if problem is not None:
        raise Refused(ErrorCode.INVALID_REQUEST, problem)


def _delete(reference: TopicReference, topic: TopicImage | None, twice: set[bytes], records: Records) -> DeletedTopic:
    if topic is None and reference.name is not None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {reference}")
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the {reference}")
    if topic.topic_id in twice:
        message = f"the topic {topic.name} is in the request by its name and by its id: give one of them"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    records.add([RemoveTopicRecord(topic_id=topic.topic_id)])
    return DeletedTopic(topic.name, topic.topic_id)


# Grow -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MorePartitions:
    """A topic, and its new total number of partitions. The assignments are for the added partitions, in order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class GrownTopic(Outcome[str]):
    """The result for one topic of CreatePartitions."""


@dataclass(frozen=True)
class CreatePartitions(Command[list[GrownTopic]]):
    """Add partitions to topics. The number never decreases, because removing a partition would lose its records."""

    topics: Sequence[MorePartitions]
    validate_only: bool = False
    placing: Placing = place

    def run(self, image: Image, records: Records) -> list[GrownTopic]:
        """Decide about each topic."""
        return _decide_each(self.topics, lambda topic: self._grow(image, topic, records), GrownTopic)

    def _grow(self, image: Image, topic: MorePartitions, records: Records) -> GrownTopic:
        known = image.topics.get(topic.name)
        if known is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {quoted(topic.name)}")
        count = len(known.partitions)
        if topic.count <= count:
            message = f"{topic.name} has {count} partitions, so {topic.count} is not an increase: ask for more"
            raise Refused(ErrorCode.INVALID_PARTITIONS, message)
        records.reserve(topic.count - count)
        placed = enumerate(_new_replicas(image, known, topic, self.placing), start=count)
        records.add(new_partition(image, known.topic_id, number, replicas) for number, replicas in placed)
        return GrownTopic(topic.name)

    def refuse(self, code: ErrorCode, message: str) -> list[GrownTopic]:
        """The same error for every topic."""
        return [GrownTopic(name, code, message) for name in dict.fromkeys(topic.name for topic in self.topics)]


def _new_replicas(image: Image, known: TopicImage, topic: MorePartitions, placing: Placing) -> Sequence[Sequence[int]]:
    """The replicas of each new partition, as many as the topic's first partition has."""
    count = len(known.partitions)
    first = known.partitions[0]
    # During a reassignment, `replicas` has the old and the new replicas. Only the old ones count.
    replication_factor = len(set(first.replicas) - set(first.adding_replicas))
    if topic.assignments is None:
        return placing(
            image,
            topic_id=known.topic_id,
            first_partition=count,
            partition_count=topic.count - count,
            replication_factor=replication_factor,
        )
    if len(topic.assignments) != topic.count - count:
        message = f"{topic.count - count} new partitions, but {len(topic.assignments)} assignments: give one for each"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    for replicas in topic.assignments:
        check_assignment(image, replicas, replication_factor=replication_factor)
    return topic.assignments
