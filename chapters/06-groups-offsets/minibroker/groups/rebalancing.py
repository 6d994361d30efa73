"""Plans a change of a group of the new protocol as records (KIP-848). A pure module.

Every heartbeat goes through three steps, which usually change nothing:

    1 update_member   the subscription of a member, or a topic, has changed      group epoch + 1
    2 update_target   the target is behind the group epoch                       target epoch = group epoch
    3 reconcile       the member is behind its target                            member epoch → target epoch

A plan only reads the state. The state changes when the records of the plan are applied.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from minibroker.groups.consumer_members import (
    Member,
    Owned,
    current_record,
    removal_records,
    subscription_record,
    target_record,
)
from minibroker.groups.consumer_state import ConsumerState, hash_of_topics, topic_ids
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.reconciliation import reconcile
from minibroker.groups.records import (
    NO_TIMESTAMP,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupRecord,
)
from minibroker.groups.regexes import InvalidRegex, Matcher, is_due, regex_record, resolve
from minibroker.groups.server_assignors import ASSIGNORS, MemberSpec, Partitions
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode


class Surroundings(NamedTuple):
    """The inputs of a plan, besides the state of the group."""

    settings: GroupSettings
    matcher: Matcher
    image: Image
    now_ms: int


class Plan:
    """The records of one change. `epoch` and `target_epoch` are those after the change."""

    def __init__(self, state: ConsumerState, surroundings: Surroundings) -> None:
        self.records: list[GroupRecord] = []
        self.epoch = state.epoch
        self.target_epoch = state.target_epoch
        self._state = state
        self._settings, self._matcher, self._image, self._now_ms = surroundings
        self._regexes = dict(state.regexes)

    # Step 1 -----------------------------------------------------------------------------------------------------------

    def update_member(self, before: Member | None, after: Member, *, has_new_topics: bool) -> None:
        """Add the records for a member that joins, changes its subscription, or replaces `before`.

        `has_new_topics` says that the topics of the cluster may have changed since the last heartbeat.
        """
        group_id = self._state.group_id
        is_replaced = before is not None and before.member_id != after.member_id
        if before is not None and is_replaced:
            self.records += removal_records(group_id, before.member_id)
            self.records.append(target_record(group_id, after.member_id, self._target_before(before, after)))
        if before is None or is_replaced or before.subscription != after.subscription:
            self.records.append(subscription_record(group_id, after))
        gone = [] if before is None else [before]
        self._resolve(after.regex)
        self._forget_regexes(gone, after)
        # If there are no records, the subscription has not changed. Then the topics, which may be many, need not be
        # compared.
        is_changed = before is None or (bool(self.records) and self._state.topics_of(before) != self._topics_of(after))
        if is_changed or has_new_topics:
            self._update_epoch(gone, after, is_changed=is_changed)

    def _target_before(self, before: Member | None, after: Member) -> Partitions[bytes]:
        member_id = after.member_id if before is None else before.member_id
        return self._state.targets.get(member_id, {})

    def _topics_of(self, member: Member) -> frozenset[str]:
        return self._state.topics_of(member, self._regexes)

    def _resolve(self, regex: str | None) -> None:
        """Find the topics that match a regular expression, if the last search is too old or there was none."""
        if regex is None:
            return
        known = self._regexes.get(regex)
        interval_ms = self._settings.regex_refresh_interval_ms
        if known is not None and not is_due(known, self._image, self._now_ms, refresh_interval_ms=interval_ms):
            return
        try:
            self._regexes[regex] = resolve(regex, self._matcher, self._image, self._now_ms)
        except InvalidRegex as error:
            raise GroupRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
        self.records.append(regex_record(self._state.group_id, regex, self._regexes[regex]))

    def _forget_regexes(self, gone: Iterable[Member], come: Member | None) -> None:
        """Delete the regular expressions that no member uses any more."""
        used = _minus(self._state.regex_users, (it.regex for it in gone if it.regex is not None))
        used.update(() if come is None or come.regex is None else [come.regex])
        for regex in sorted(self._state.regex_users.keys() - used):
            self.records.append(regex_record(self._state.group_id, regex, None))

    def _update_epoch(self, gone: Collection[Member], come: Member | None, *, is_changed: bool) -> None:
        """Increase the group epoch if a subscription or a subscribed topic has changed."""
        state = self._state
        names = _minus(state.named_topics, (name for it in gone for name in it.subscription.subscribed_topic_names))
        for regex in _minus(state.regex_users, (it.regex for it in gone if it.regex is not None)):
            names.update(self._regexes[regex].topics if regex in self._regexes else ())
        names.update(() if come is None else self._topics_of(come))
        metadata_hash = hash_of_topics(names, self._image)
        if is_changed or metadata_hash != state.metadata_hash:
            self.epoch += 1
            self.records.append(epoch_record(state.group_id, self.epoch, metadata_hash))

    def remove_members(self, members: Collection[Member]) -> None:
        """Add the records that remove members, which have left or whose time limit has ended."""
        for member in members:
            self.records += removal_records(self._state.group_id, member.member_id)
        self._forget_regexes(members, None)
        self._update_epoch(members, None, is_changed=True)

    # Step 2 -----------------------------------------------------------------------------------------------------------

    def update_target(self, before: Member | None, after: Member) -> Partitions[bytes]:
        """Compute the target assignment if it is older than the group epoch. Return the member's target."""
        if self.epoch == self.target_epoch or self._is_too_early():
            return self._target_before(before, after)
        members = {it: member for it, member in self._state.members.items() if before is None or it != before.member_id}
        members[after.member_id] = after
        old = {**self._state.targets, after.member_id: self._target_before(before, after)}
        targets = self._assign(members, old)
        for member_id, target in targets.items():
            if target != old.get(member_id):
                self.records.append(target_record(self._state.group_id, member_id, target))
        self.target_epoch = self.epoch
        self.records.append(target_epoch_record(self._state.group_id, self.epoch, self._now_ms))
        return targets[after.member_id]

    def _is_too_early(self) -> bool:
        """Whether the last target was computed less than the assignment interval ago."""
        timestamp, interval_ms = self._state.target_timestamp, self._settings.consumer_assignment_interval_ms
        return timestamp != NO_TIMESTAMP and 0 <= self._now_ms - timestamp < interval_ms

    def _assign(
        self, members: Mapping[str, Member], targets: Mapping[str, Partitions[bytes]]
    ) -> dict[str, Partitions[bytes]]:
        name = preferred_assignor(members.values(), self._settings.consumer_assignors)
        topics_of = self._topics_finder()
        specs = {
            it.member_id: MemberSpec(topics_of(it), targets.get(it.member_id, {}), it.instance_id)
            for it in members.values()
        }
        topics = frozenset().union(*{spec.topics for spec in specs.values()})
        names = self._image.topic_names
        counts = {topic_id: len(self._image.topics[names[topic_id]].partitions) for topic_id in topics}
        return ASSIGNORS[name](specs, counts)

    def _topics_finder(self) -> Callable[[Member], frozenset[bytes]]:
        """A function from a member to its topics. Members with the same subscription get the same object."""
        known: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}

        def topics_of(member: Member) -> frozenset[bytes]:
            key = tuple(member.subscription.subscribed_topic_names), member.regex
            if key not in known:
                known[key] = topic_ids(self._topics_of(member), self._image)
            return known[key]

        return topics_of

    # Step 3 -----------------------------------------------------------------------------------------------------------

    def reconcile(self, before: Member | None, after: Member, target: Partitions[bytes], owned: Owned | None) -> Member:
        """Bring the member one step nearer to its target."""
        own = {after.member_id, None if before is None else before.member_id, None}
        owners = self._state.owners
        reconciled = reconcile(
            after,
            target_epoch=self.target_epoch,
            target=target,
            topics=topic_ids(self._topics_of(after), self._image),
            owned=owned,
            is_free=lambda topic_id, number: owners.get(topic_id, {}).get(number) in own,
        )
        # A member that waits for partitions of other members often does not change. Then no record is written.
        if reconciled == after and before is not None:
            return after
        self.records.append(current_record(self._state.group_id, reconciled))
        return reconciled


def _minus(counts: Counter[str], gone: Iterable[str]) -> set[str]:
    """The names that remain in use. `counts` says how often each name is used, and `gone` has the uses that end."""
    lost = Counter(gone)
    return {name for name, count in counts.items() if count > lost[name]}


def preferred_assignor(members: Iterable[Member], allowed: tuple[str, ...]) -> str:
    """The assignor that most members ask for. In a tie, the first one in the configuration is used."""
    votes = Counter(it.subscription.server_assignor for it in members)
    return max(allowed, key=lambda name: votes[name])


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """The record of a group's epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> GroupRecord:
    """The record of a target's epoch."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)
