"""A member of a group of the new protocol, and the partitions that it holds. A pure module.

A member is immutable, and contains what its two records contain: its subscription (type 5) and its current assignment
(type 8). A partition that a member holds has an *assignment epoch*: the member epoch at which the member got it. A
member that still uses an older epoch may commit an offset for the partition if it had the partition in that epoch
(KIP-1251).
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from minibroker.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    CurrentTopicPartitions,
    GroupRecord,
    TargetTopicPartitions,
)
from minibroker.groups.server_assignors import Partitions
from minibroker.groups.tables.consumer_group_heartbeat import STATIC_LEAVE_EPOCH, HeartbeatTopicPartitions

Held = Mapping[bytes, Mapping[int, int]]
"""The partitions that a member holds, by topic id, with their assignment epochs. No topic is without partitions."""
Owned = Mapping[bytes, frozenset[int]]
"""The partitions that a member reports as its own, by topic id."""

NOTHING: Held = MappingProxyType({})
_NO_SUBSCRIPTION = ConsumerGroupMemberMetadataValue(
    client_id="", client_host="", subscribed_topic_names=[], classic_member_metadata=None
)


class MemberState(enum.Enum):
    """Whether a member has reached its target. The values are those of Kafka's records."""

    STABLE = 0
    UNREVOKED = 1  # it must give up partitions first
    UNRELEASED = 2  # it waits for partitions that other members must give up


@dataclass(frozen=True, slots=True)
class Member:
    """One member. It may read `assigned`, and must give up `revoking`."""

    member_id: str
    subscription: ConsumerGroupMemberMetadataValue = field(default_factory=lambda: _NO_SUBSCRIPTION)
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=lambda: NOTHING)
    revoking: Held = field(default_factory=lambda: NOTHING)

    @property
    def instance_id(self) -> str | None:
        """The id of a static member, which survives a restart."""
        return self.subscription.instance_id

    @property
    def regex(self) -> str | None:
        """The regular expression that the member subscribes to, or None."""
        return self.subscription.subscribed_topic_regex or None

    @property
    def classic(self) -> ClassicMemberMetadata | None:
        """The data of a member of the classic protocol; None for a member of the new one."""
        return self.subscription.classic_member_metadata

    @property
    def has_left_for_a_while(self) -> bool:
        """Whether this is a static member that is expected to come back within its session."""
        return self.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether the member has exactly the partitions of its target."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def held(self) -> Iterable[tuple[bytes, int]]:
        """All partitions that no other member may get: those assigned, and those not given up yet."""
        for topics in (self.assigned, self.revoking):
            for topic_id, epochs in topics.items():
                for number in epochs:
                    yield topic_id, number

    def assignment_epoch(self, topic_id: bytes, number: int) -> int | None:
        """The assignment epoch of a partition, or None if the member does not hold it."""
        for topics in (self.assigned, self.revoking):
            if number in topics.get(topic_id, {}):
                return topics[topic_id][number]
        return None


def meets(owned: Owned, held: Held) -> bool:
    """Whether `owned` and `held` have a partition in common."""
    return any(not numbers.isdisjoint(held.get(topic_id, ())) for topic_id, numbers in owned.items())


def is_within(owned: Owned, held: Held) -> bool:
    """Whether all partitions of `owned` are in `held`."""
    return all(numbers <= held.get(topic_id, {}).keys() for topic_id, numbers in owned.items())


def owned_in(topics: Iterable[HeartbeatTopicPartitions] | None) -> Owned | None:
    """The partitions that a heartbeat reports, or None if it leaves the field out."""
    return None if topics is None else {it.topic_id: frozenset(it.partitions) for it in topics}


# Records --------------------------------------------------------------------------------------------------------------


def subscription_record(group_id: str, member: Member) -> GroupRecord:
    """The record of a member's subscription."""
    return GroupRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), member.subscription
    )


def current_record(group_id: str, member: Member) -> GroupRecord:
    """The record of a member's current assignment."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=_listed(member.assigned),
        partitions_pending_revocation=_listed(member.revoking),
    )
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def target_record(group_id: str, member_id: str, target: Partitions[bytes]) -> GroupRecord:
    """The record of a member's target assignment."""
    topics = [TargetTopicPartitions(topic_id=it, partitions=sorted(target[it])) for it in sorted(target)]
    return GroupRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def removal_records(group_id: str, member_id: str) -> list[GroupRecord]:
    """The tombstones of a member's records. The current assignment comes first, as in Kafka."""
    kinds = (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
    return [GroupRecord(kind(group_id=group_id, member_id=member_id), None) for kind in kinds]


def _listed(held: Held) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(held[topic_id]),
            assignment_epochs=[held[topic_id][number] for number in sorted(held[topic_id])],
        )
        for topic_id in sorted(held)
    ]


def held_in(topics: Iterable[CurrentTopicPartitions], member_epoch: int) -> Held:
    """The partitions of a record. Older brokers wrote no assignment epochs; then the member epoch counts."""
    return {
        it.topic_id: dict(zip(it.partitions, it.assignment_epochs or [member_epoch] * len(it.partitions), strict=True))
        for it in topics
        if it.partitions
    }


def partitions_of(held: Held) -> Partitions[bytes]:
    """The partitions without their assignment epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}
