"""Drives one group of the new protocol in tests: heartbeats with few words, a clock, topics, and the log.

Records go to the log as bytes, so that a replay sees what a new coordinator would see.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from minibroker.groups.consumer import ConsumerGroup, InvalidRegex
from minibroker.groups.keys import GroupSettings
from minibroker.groups.records import GroupRecord, decode, encode
from minibroker.groups.steps import Client, Step
from minibroker.groups.tables.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.wire.codes import ErrorCode

REBALANCE_MS = 60_000
SESSION_MS = 45_000
Topics = Mapping[str, Iterable[int]]


def prefix_matcher(regex: str) -> Callable[[str], bool]:
    """A matcher that knows only expressions such as `orders.*`."""
    if not regex.endswith(".*"):
        raise InvalidRegex(f"{regex} does not end with .*")
    return lambda name: name.startswith(regex[:-2])


def topic_id(name: str) -> bytes:
    """An id that a test can tell."""
    return name.encode().rjust(16, b".")


def image_of(offset: int = 1, **counts: int) -> Image:
    """The metadata of topics with so many partitions each."""
    part = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    topics = {it: TopicImage(it, topic_id(it), dict.fromkeys(range(count), part)) for it, count in counts.items()}
    return Image(topics=topics, topic_names={topic_id(it): it for it in counts}, offset=offset)


class ConsumerDriver:
    """One group, its members' heartbeats, and its log."""

    def __init__(self, image: Image | None = None, **changes: Any) -> None:
        changes = {"consumer_assignment_interval_ms": 0, **changes}
        self.settings = replace(GroupSettings.of(NodeConfig()), **changes)
        self.image = image_of(orders=4) if image is None else image
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.refuses = False
        self._made = 0
        self.group = self.new_group()

    def new_group(self) -> ConsumerGroup:
        """The group as a coordinator without any records has it."""
        return ConsumerGroup("g", lambda: self.settings, prefix_matcher, self.new_member_id)

    def new_member_id(self, name: str) -> str:
        """A new id."""
        self._made += 1
        return f"{name}-{self._made}"

    def take(self, step: Step) -> Any:
        """Append and apply the records; return the only answer, or None."""
        if step.records and self.refuses:
            step = step.refused(ErrorCode.NOT_COORDINATOR)
        for record in step.records:
            self.log.append(encode(record))
            self.group.apply(_decoded(*self.log[-1]), self.now_ms)
        return step.replies[0].response if step.replies else None

    def replayed(self) -> ConsumerGroup:
        """The group as a coordinator has it that has read the whole log."""
        group = self.new_group()
        for key, value in self.log:
            group.apply(_decoded(key, value), 0)
        group.on_loaded(self.now_ms)
        return group

    def beat(self, member_id: str, epoch: int, owned: Topics | None = None, version: int = 1, **fields: Any) -> Any:
        """A heartbeat, and its answer."""
        partitions = None
        if owned is not None:
            partitions = [HeartbeatTopicPartitions(topic_id=topic_id(it), partitions=[*owned[it]]) for it in owned]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, topic_partitions=partitions, **fields
        )
        client = Client("client", "/127.0.0.1")
        return self.take(self.group.on_heartbeat("ticket", request, version, client, self.image, self.now_ms))

    def join(self, member_id: str, *topics: str, **fields: Any) -> Any:
        """A member joins; without topics it reads `orders`."""
        names = [*topics] or ["orders"]
        fields = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": names, **fields}
        return self.beat(member_id, 0, {}, **fields)

    def alive(self, member_id: str) -> Any:
        """A heartbeat of a client that does at once what it is told: it owns what it is assigned."""
        member = self.group.members[member_id]
        owned = {self.image.topic_names.get(it, "gone"): [*epochs] for it, epochs in member.assigned.items()}
        return self.beat(member_id, member.epoch, owned)

    def settle(self, rounds: int = 10) -> None:
        """All members send heartbeats until nothing changes."""
        for _round in range(rounds):
            before = len(self.log)
            for member_id in list(self.group.members):
                if not self.group.members[member_id].has_left_for_a_while:
                    self.alive(member_id)
            if len(self.log) == before:
                return
        raise AssertionError("the group does not settle")

    def wait(self, milliseconds: int) -> None:
        """Time passes, and the group acts on it."""
        self.now_ms += milliseconds
        deadline_ms = self.group.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.take(self.group.on_time(self.image, self.now_ms))

    def assigned(self, member_id: str, topic: str = "orders") -> list[int]:
        """The partitions of a topic that a member may read."""
        return sorted(self.group.members[member_id].assigned.get(topic_id(topic), ()))


def assigned_in(response: Any, topic: str = "orders") -> list[int] | None:
    """The partitions of a topic in an answer, or None if the answer has no assignment."""
    if response.assignment is None:
        return None
    found = [it.partitions for it in response.assignment.topic_partitions if it.topic_id == topic_id(topic)]
    return found[0] if found else []


def state_of(group: ConsumerGroup) -> dict[str, Any]:
    """All persistent state, to compare two groups."""
    return vars(group.facts)


def _decoded(key: bytes, value: bytes | None) -> GroupRecord:
    record = decode(key, value)
    assert record is not None
    return record
