"""The persistent state of a group of the new protocol: what its records say, and nothing else. A pure module.

Only `apply` changes the state. The coordinator that writes a record applies it, and the next coordinator replays it. So
both have the same state.

A compacted log keeps only the last record of each key. So it may have the records of a member in any order. The record
in which a new owner gets a partition can even come before the record in which the old owner no longer has it. So the
member that got a partition last is its owner, and an old owner releases only partitions that have no other owner.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from minibroker.groups.consumer_members import Member, MemberState, held_in
from minibroker.groups.records import (
    NO_TIMESTAMP,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupKey,
    GroupRecord,
)
from minibroker.groups.server_assignors import Partitions
from minibroker.metadata.image import Image


class ConsumerState:
    """The state of one group. Member epoch ≤ target epoch ≤ group epoch."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.target_timestamp = NO_TIMESTAMP
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Partitions[bytes]] = {}
        self.regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}
        # These four are derived from the members.
        self.owners: dict[bytes, dict[int, str]] = {}
        self.static_members: dict[str, str] = {}
        self.named_topics: Counter[str] = Counter()
        self.regex_users: Counter[str] = Counter()

    def apply(self, record: GroupRecord) -> None:
        """Change the state as a record says. Records of other types are ignored."""
        step = _STEPS.get(type(record.key))
        if step is not None:
            step(self, record.key, record.value)

    # One method for each kind of record -------------------------------------------------------------------------------

    def _on_group(self, _key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
        self.epoch = 0 if value is None else value.epoch
        self.metadata_hash = 0 if value is None else value.metadata_hash

    def _on_target_epoch(
        self, _key: ConsumerGroupTargetAssignmentMetadataKey, value: ConsumerGroupTargetAssignmentMetadataValue | None
    ) -> None:
        self.target_epoch = 0 if value is None else value.assignment_epoch
        self.target_timestamp = NO_TIMESTAMP if value is None else value.assignment_timestamp

    def _on_target(
        self, key: ConsumerGroupTargetAssignmentMemberKey, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            topics = value.topic_partitions
            self.targets[key.member_id] = {it.topic_id: frozenset(it.partitions) for it in topics if it.partitions}

    def _on_regex(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = value

    def _on_subscription(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if old is not None:
            self._forget_subscription(old)
        if value is not None:
            self._add_subscription(replace(old or Member(key.member_id), subscription=value))
        elif old is not None:
            self._release(old)
            del self.members[key.member_id]

    def _forget_subscription(self, member: Member) -> None:
        self.named_topics -= Counter(member.subscription.subscribed_topic_names)
        if member.regex is not None:
            self.regex_users -= Counter([member.regex])
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _add_subscription(self, member: Member) -> None:
        self.members[member.member_id] = member
        self.named_topics.update(member.subscription.subscribed_topic_names)
        if member.regex is not None:
            self.regex_users[member.regex] += 1
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _on_current(
        self, key: ConsumerGroupCurrentMemberAssignmentKey, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if old is not None:
            self._release(old)
            self.members[key.member_id] = Member(key.member_id, old.subscription)
        if value is not None:
            member = replace(
                old or Member(key.member_id),
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=MemberState(value.state),
                assigned=held_in(value.assigned_partitions, value.member_epoch),
                revoking=held_in(value.partitions_pending_revocation, value.member_epoch),
            )
            self.members[key.member_id] = member
            for topic_id, number in member.held():
                self.owners.setdefault(topic_id, {})[number] = key.member_id

    def _release(self, member: Member) -> None:
        """Release the partitions of a member, except those that another member owns by now."""
        for topic_id, number in member.held():
            owners = self.owners.get(topic_id, {})
            if owners.get(number) == member.member_id:
                del owners[number]
                if not owners:
                    del self.owners[topic_id]

    # Queries ----------------------------------------------------------------------------------------------------------

    def topics_of(
        self, member: Member, regexes: Mapping[str, ConsumerGroupRegularExpressionValue] | None = None
    ) -> frozenset[str]:
        """The names of the topics that a member subscribes to, whether they exist or not."""
        known = self.regexes if regexes is None else regexes
        names = frozenset(member.subscription.subscribed_topic_names)
        found = None if member.regex is None else known.get(member.regex)
        return names if found is None else names.union(found.topics)

    def has_unreleased(self, member: Member) -> bool:
        """Whether another member still holds a partition of this member's target."""
        return any(
            self.owners.get(topic_id, {}).get(number, member.member_id) != member.member_id
            for topic_id, numbers in self.targets.get(member.member_id, {}).items()
            for number in numbers
        )


def topic_ids(names: Iterable[str], image: Image) -> frozenset[bytes]:
    """The ids of the topics with these names. Topics that do not exist are left out."""
    return frozenset(image.topics[name].topic_id for name in names if name in image.topics)


def hash_of_topics(names: Iterable[str], image: Image) -> int:
    """A number that changes when one of these topics is created, deleted, or gets partitions. No topics give 0."""
    topics = [image.topics[name] for name in sorted(names) if name in image.topics]
    digest = blake2b(digest_size=8)
    for topic in topics:
        digest.update(topic.topic_id + len(topic.partitions).to_bytes(4))
    return int.from_bytes(digest.digest(), signed=True) if topics else 0


_STEPS: Mapping[type[GroupKey], Callable[[ConsumerState, Any, Any], None]] = {
    ConsumerGroupMetadataKey: ConsumerState._on_group,
    ConsumerGroupMemberMetadataKey: ConsumerState._on_subscription,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerState._on_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerState._on_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerState._on_current,
    ConsumerGroupRegularExpressionKey: ConsumerState._on_regex,
}
