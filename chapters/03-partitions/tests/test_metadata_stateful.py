"""Random commands, restarts and power failures, compared with a dictionary."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from metadata_model import NODE, open_voter, registered_voter, topic_id

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import read_records, replay
from minibroker.metadata.broker_commands import AllocateProducerIds
from minibroker.metadata.config_commands import AlterConfigs, ConfigChange, ConfigOperation, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import Image, fold
from minibroker.metadata.topic_commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicReference,
)
from minibroker.wire.codes import ErrorCode

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c.d.e", "bad/name"])
CONFIGS = st.dictionaries(
    st.sampled_from(["segment.ms", "cleanup.policy", "flush.ms"]),
    st.sampled_from(["1", "compact", "-7", "delete"]),
    max_size=2,
)
NUMBERS = {"segment.ms", "flush.ms"}


def is_good(configs: dict[str, str]) -> bool:
    return all((value == "1") == (name in NUMBERS) for name, value in configs.items() if value != "-7") and (
        "-7" not in configs.values()
    )


class MetadataBesideADictionary(RuleBasedStateMachine):
    """`topics` has the id, the number of partitions and the configuration of each topic."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.topics: dict[str, tuple[bytes, int, dict[str, str]]] = {}
        self.number = 0
        self.next_producer_id = 0
        self.seen: list[Image] = []

    @initialize()
    def start(self) -> None:
        self.voter = registered_voter(self.files)
        self.voter.subscribe(lambda _old, new: self.seen.append(new))

    def fresh_id(self) -> bytes:
        self.number += 1
        return topic_id(self.number)

    @rule(name=NAMES, partitions=st.integers(0, 5), configs=CONFIGS, validate_only=st.booleans())
    def create(self, name: str, partitions: int, configs: dict[str, str], validate_only: bool) -> None:
        topic = NewTopic(name, self.fresh_id(), partitions, 1, configs=dict(configs))
        (result,) = self.voter.propose(CreateTopics([topic], NODE, validate_only)).result
        alike = [other for other in self.topics if other.replace(".", "_") == name.replace(".", "_")]
        if name == "bad/name":
            expected = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif name in self.topics:
            expected = ErrorCode.TOPIC_ALREADY_EXISTS
        elif alike and name not in ("a", "b"):
            expected = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not is_good(configs):
            expected = ErrorCode.INVALID_CONFIG
        else:
            expected = ErrorCode.INVALID_PARTITIONS if partitions == 0 else ErrorCode.NONE
        assert result.code == expected, result
        if expected == ErrorCode.NONE and not validate_only:
            self.topics[name] = (topic.topic_id, partitions, configs)

    @rule(name=NAMES, by_id=st.booleans())
    def delete(self, name: str, by_id: bool) -> None:
        known = self.topics.get(name)
        reference = TopicReference(topic_id=known[0]) if by_id and known else TopicReference(name)
        (result,) = self.voter.propose(DeleteTopics([reference])).result
        assert result.code == (ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.topics.pop(name, None)

    @rule(name=NAMES, count=st.integers(0, 9), validate_only=st.booleans())
    def grow(self, name: str, count: int, validate_only: bool) -> None:
        (result,) = self.voter.propose(CreatePartitions([MorePartitions(name, count)], validate_only)).result
        if name not in self.topics:
            assert result.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif count <= self.topics[name][1]:
            assert result.code == ErrorCode.INVALID_PARTITIONS
        else:
            assert result.code == ErrorCode.NONE
            if not validate_only:
                self.topics[name] = (self.topics[name][0], count, self.topics[name][2])

    @rule(name=NAMES, configs=CONFIGS, replaces=st.booleans(), deleted=st.booleans())
    def alter(self, name: str, configs: dict[str, str], replaces: bool, deleted: bool) -> None:
        changes = [ConfigChange(key, value) for key, value in configs.items()]
        if deleted and not replaces and "flush.ms" not in configs:
            changes.append(ConfigChange("flush.ms", None, ConfigOperation.DELETE))
        command = AlterConfigs([ResourceChange(ConfigResource.TOPIC, name, changes)], NODE, replaces=replaces)
        (result,) = self.voter.propose(command).result
        if name == "bad/name":
            assert result.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not is_good(configs):
            assert result.code == ErrorCode.INVALID_CONFIG
        elif name not in self.topics:
            assert result.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            assert result.code == ErrorCode.NONE
            number, count, old = self.topics[name]
            new = dict(configs) if replaces else old | configs
            if changes and changes[-1].operation == ConfigOperation.DELETE:
                new.pop("flush.ms", None)
            self.topics[name] = (number, count, new)

    @rule()
    def allocate(self) -> None:
        result = self.voter.propose(AllocateProducerIds(1)).result
        assert result.first == self.next_producer_id
        self.next_producer_id += result.count

    @rule()
    def start_again(self) -> None:
        before = self.voter.image
        self.voter = open_voter(self.files)
        assert self.voter.image == before

    @rule(chance=st.randoms(use_true_random=False))
    def lose_power(self, chance: Random) -> None:
        before = self.voter.image
        self.files.crash(chance)
        self.voter = open_voter(self.files)
        assert self.voter.image == before

    @invariant()
    def the_image_is_the_dictionary(self) -> None:
        if not hasattr(self, "voter"):
            return
        image = self.voter.image
        assert {
            name: (topic.topic_id, len(topic.partitions), dict(image.topic_configs(name)))
            for name, topic in image.topics.items()
        } == self.topics
        assert image.topic_names == {number: name for name, (number, _count, _configs) in self.topics.items()}
        assert image.next_producer_id == self.next_producer_id
        assert {name for _kind, name in image.configs} <= self.topics.keys()
        assert {name for names in image.collisions.values() for name in names} == {
            name for name in self.topics if "." in name or "_" in name
        }
        for name in image.topics:
            assert sorted(image.topics[name].partitions) == list(range(self.topics[name][1]))
            assert TopicConfig.of(image.configs, name, NODE).log_config is not None

    def teardown(self) -> None:
        if not hasattr(self, "voter"):
            return
        # Folding one by one from any earlier image gives the voter's image.
        log = self.voter._log
        image = Image(cluster_id="a-cluster")
        for offset, record in read_records(log, 0):
            image = fold(image, record, offset)
        assert image == self.voter.image
        for earlier in self.seen[-3:]:
            assert replay(log, earlier) == image


MetadataBesideADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_metadata_agrees_with_a_dictionary = MetadataBesideADictionary.TestCase
