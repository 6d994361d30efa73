"""The facts about a group of the new protocol: its state, its time limits, and queries about them. A pure module.

`ConsumerFacts` applies records, checks requests against the state, and removes members. `ConsumerGroup`, in `consumer`,
handles the requests of the new protocol; `consumer_classic` handles those of members that use the classic protocol.
"""

import enum
from collections.abc import Callable, Collection, Mapping

from minibroker.groups.consumer_members import Held, Member, MemberState, removal_records
from minibroker.groups.consumer_state import ConsumerState
from minibroker.groups.consumer_timers import MemberTimers
from minibroker.groups.conversion import can_downgrade, to_classic
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.rebalancing import Plan, Surroundings, preferred_assignor
from minibroker.groups.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    GroupRecord,
)
from minibroker.groups.regexes import Matcher, regex_record
from minibroker.groups.server_assignors import Partitions
from minibroker.groups.steps import Step
from minibroker.groups.tables.consumer_group_describe import (
    CLASSIC_MEMBER_TYPE,
    CONSUMER_MEMBER_TYPE,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)
from minibroker.groups.tables.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode

REMOVAL_RETRY_MS = 1000
"""How long to wait before the next attempt if the log has refused the records that remove a member."""
MEMBER_EPOCH_VERSION = 9  # the first version of OffsetCommit that has the epoch of a member
TOPIC_ID_VERSION = 10  # the first version of OffsetCommit with topic ids


class ConsumerGroupState(enum.Enum):
    """Whether the group has members, and whether they have reached their target. The values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target assignment has not been computed for the group epoch yet
    RECONCILING = "Reconciling"  # some members have not reached their target
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerFacts:
    """The state of one group of the new protocol, with its time limits."""

    def __init__(
        self,
        group_id: str,
        settings: Callable[[], GroupSettings],
        matcher: Matcher,
        new_member_id: Callable[[str], str],
    ) -> None:
        self.group_id = group_id
        self.facts = ConsumerState(group_id)
        self.timers = MemberTimers()
        self.image = Image()
        """The metadata image of the last event that had one."""
        self._settings = settings
        self._matcher = matcher
        self._new_member_id = new_member_id

    # Records ----------------------------------------------------------------------------------------------------------

    def apply(self, record: GroupRecord, now_ms: int) -> None:
        """Apply a record. Nothing else changes the state of the group."""
        self.facts.apply(record)
        member_id = getattr(record.key, "member_id", None)
        member = None if member_id is None else self.facts.members.get(member_id)
        if member is not None:
            self._update_timers(member, now_ms)
        elif member_id is not None:
            self.timers.remove(member_id)

    def _update_timers(self, member: Member, now_ms: int) -> None:
        if not self.timers.has_session(member.member_id):
            self.timers.renew_session(member.member_id, now_ms + self._session_ms(member))
        if member.classic is not None:
            return
        if member.state is not MemberState.UNREVOKED:
            self.timers.has_acted(member.member_id)
        elif not self.timers.is_waiting_for(member.member_id):
            self.timers.wait_for(member.member_id, now_ms + member.subscription.rebalance_timeout_ms)

    def _session_ms(self, member: Member) -> int:
        return self._settings().consumer_session_timeout_ms if not member.classic else member.classic.session_timeout_ms

    def on_loaded(self, now_ms: int) -> None:
        """All records have been replayed. Every member gets a new session, and new time to give up partitions."""
        for member in self.facts.members.values():
            self.timers.remove(member.member_id)
            self._update_timers(member, now_ms)

    def tombstones(self) -> list[GroupRecord]:
        """The records that delete the group."""
        group_id = self.group_id
        records = [record for it in self.facts.members for record in removal_records(group_id, it)]
        records += [regex_record(group_id, regex, None) for regex in self.facts.regexes]
        records.append(GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
        # Kafka up to 4.0 may have left such a record in the log.
        records.append(GroupRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None))
        records.append(GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), None))
        return records

    # Removing members -------------------------------------------------------------------------------------------------

    def surroundings(self, now_ms: int) -> Surroundings:
        """The settings, the metadata and the time, on which a plan for this group depends."""
        return Surroundings(self._settings(), self._matcher, self.image, now_ms)

    def removal(self, members: Collection[Member], now_ms: int) -> list[GroupRecord]:
        """The records that remove members. If only classic members are left, the group becomes a classic one."""
        leaving = {it.member_id for it in members}
        if can_downgrade(self.facts, leaving, self._settings()):
            value = to_classic(self.facts, leaving, self.image, now_ms)
            return [*self.tombstones(), GroupRecord(GroupMetadataKey(group_id=self.group_id), value)]
        plan = Plan(self.facts, self.surroundings(now_ms))
        plan.remove_members(members)
        return plan.records

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None. No time limit ends before that time."""
        return self.timers.earliest_ms

    def on_time(self, image: Image, now_ms: int) -> Step:
        """Remove the members whose session has ended, or that have not acted in time."""
        self.image = image
        due = self.timers.due(now_ms, REMOVAL_RETRY_MS)
        gone = [self.facts.members[it] for it in due if it in self.facts.members]
        for member_id in set(due) - self.facts.members.keys():
            self.timers.remove(member_id)
        return Step(self.removal(gone, now_ms)) if gone else Step()

    # Queries ----------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by id."""
        return self.facts.members

    @property
    def epoch(self) -> int:
        """The group epoch."""
        return self.facts.epoch

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group, computed from the epochs."""
        facts = self.facts
        if not facts.members:
            return ConsumerGroupState.EMPTY
        if facts.epoch > facts.target_epoch:
            return ConsumerGroupState.ASSIGNING
        is_stable = all(it.is_reconciled_to(facts.target_epoch) for it in facts.members.values())
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    def is_subscribed(self, topic: str) -> bool:
        """Whether any member subscribes to a topic."""
        if topic in self.facts.named_topics:
            return True
        return any(topic in self.facts.regexes[it].topics for it in self.facts.regex_users if it in self.facts.regexes)

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """The member that sent a request, or raise GroupRefused."""
        known_id = member_id if instance_id is None else self.facts.static_members.get(instance_id)
        if known_id is None or known_id not in self.facts.members:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if known_id != member_id:
            raise GroupRefused(ErrorCode.FENCED_INSTANCE_ID)
        return self.facts.members[known_id]

    # Commits ----------------------------------------------------------------------------------------------------------

    def check_commit(self, request: OffsetCommitRequest, version: int, image: Image) -> None:
        """Raise GroupRefused if the sender of a commit is unknown, or its epoch is not valid."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.facts.members:
            return
        member = self.facts.members.get(request.member_id)
        if member is None:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.classic is None and version < MEMBER_EPOCH_VERSION:
            raise GroupRefused(ErrorCode.UNSUPPORTED_VERSION)
        if member.classic is not None or epoch > member.epoch:
            _check_epoch(member, epoch)
        elif epoch < member.epoch:
            for topic in request.topics:
                _check_assignment_epochs(member, epoch, topic, _topic_id(topic, version, image))

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise GroupRefused if a member fetches offsets with a wrong epoch. A fetch without a member is valid."""
        if member_id is None and member_epoch < 0:
            return
        member = self.facts.members.get(member_id or "")
        if member is None:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        _check_epoch(member, member_epoch)

    # Describe ---------------------------------------------------------------------------------------------------------

    def describe(self, image: Image) -> DescribedConsumerGroup:
        """The group for ConsumerGroupDescribe."""
        return DescribedConsumerGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            group_epoch=self.facts.epoch,
            assignment_epoch=self.facts.target_epoch,
            assignor_name=preferred_assignor(self.facts.members.values(), self._settings().consumer_assignors),
            members=[self._described(it, image) for it in self.facts.members.values()],
        )

    def _described(self, member: Member, image: Image) -> DescribedConsumerGroupMember:
        subscription = member.subscription
        return DescribedConsumerGroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            member_epoch=member.epoch,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=subscription.subscribed_topic_names,
            subscribed_topic_regex=member.regex,
            assignment=_named(member.assigned, image),
            target_assignment=_named(self.facts.targets.get(member.member_id, {}), image),
            member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
        )


def _check_epoch(member: Member, epoch: int) -> None:
    if epoch != member.epoch:
        raise GroupRefused(ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION)


def _topic_id(topic: OffsetCommitRequestTopic, version: int, image: Image) -> bytes | None:
    if version >= TOPIC_ID_VERSION:
        return topic.topic_id
    return image.topics[topic.name].topic_id if topic.name in image.topics else None


def _check_assignment_epochs(
    member: Member, epoch: int, topic: OffsetCommitRequestTopic, topic_id: bytes | None
) -> None:
    """Raise GroupRefused unless the member has held each of the partitions since `epoch`, or since an earlier epoch."""
    for it in topic.partitions:
        since = None if topic_id is None else member.assignment_epoch(topic_id, it.partition_index)
        if since is None or epoch < since:
            raise GroupRefused(ErrorCode.STALE_MEMBER_EPOCH)


def _named(held: Partitions[bytes] | Held, image: Image) -> DescribedAssignment:
    """Partitions with the names of their topics. Deleted topics are left out."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=it, topic_name=image.topic_names[it], partitions=sorted(held[it]))
            for it in sorted(held)
            if it in image.topic_names
        ]
    )
