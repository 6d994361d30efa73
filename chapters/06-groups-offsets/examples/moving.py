"""Watch partitions move in a group of the new protocol (KIP-848), heartbeat by heartbeat, in memory.

python chapters/06-groups-offsets/examples/moving.py
"""

from dataclasses import replace
from typing import Any

from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.keys import GroupSettings
from minibroker.groups.steps import Client
from minibroker.groups.tables.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image, PartitionImage, TopicImage

TOPIC_ID = bytes(range(16))
PARTITION = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
IMAGE = Image(
    topics={"orders": TopicImage("orders", TOPIC_ID, dict.fromkeys(range(4), PARTITION))},
    topic_names={TOPIC_ID: "orders"},
    offset=1,
)
# Without an interval, each change has a target of its own.
SETTINGS = replace(GroupSettings.of(NodeConfig()), consumer_assignment_interval_ms=0)


class Member:
    """A client: its epoch, and the partitions that it owns."""

    def __init__(self, name: str, group: ConsumerGroup) -> None:
        self.name, self.group = name, group
        self.epoch, self.owned = 0, list[int]()

    def heartbeat(self) -> None:
        """Report the own epoch and partitions, and do what the answer says."""
        is_joining = self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id="shop",
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if is_joining else -1,
            subscribed_topic_names=["orders"] if is_joining else None,
            topic_partitions=[HeartbeatTopicPartitions(topic_id=TOPIC_ID, partitions=self.owned)] if self.owned else [],
        )
        step = self.group.on_heartbeat("ticket", request, 1, Client(self.name, "/127.0.0.1"), IMAGE, now_ms=0)
        for record in step.records:
            self.group.apply(record, 0)
        answer: Any = step.replies[0].response
        asked = f"{self.name}: epoch {self.epoch}, owns {numbers(self.owned)}"
        self.epoch = answer.member_epoch
        given = "nothing new"
        if answer.assignment is not None:
            self.owned = [it for topic in answer.assignment.topic_partitions for it in topic.partitions]
            given = f"shall have {numbers(self.owned)}"
        print(f"{asked:<24} -> epoch {self.epoch}, {given}")


def numbers(partitions: list[int]) -> str:
    """Partitions as text."""
    return " ".join(map(str, partitions)) or "-"


if __name__ == "__main__":
    group = ConsumerGroup("shop", lambda: SETTINGS, lambda _regex: lambda _name: False, lambda name: name)
    a, b = Member("a", group), Member("b", group)
    for turn in (a, b, a, b, a, b):
        turn.heartbeat()
