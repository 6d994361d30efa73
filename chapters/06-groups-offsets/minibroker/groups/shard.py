"""The groups of one partition of `__consumer_offsets`, and their committed offsets. A pure module.

A group's id determines which partition has its state. The leader of that partition is the group's coordinator, and has
one `GroupShard` for the partition. The shard finds or creates the group of a request, and passes the request to it:

    kind        has                                         created by
    simple      offsets only                                a commit without a member
    classic     a `ClassicGroup`, perhaps offsets           JoinGroup
    consumer    a `ConsumerGroup`, perhaps offsets          ConsumerGroupHeartbeat with epoch 0

The driver calls the shard in two ways. While it loads the partition, it passes every record to `replay`, and then calls
`on_loaded`. Afterwards each request is a call that returns a `Step`. The driver applies the records of a step before it
calls the shard again.
"""

from collections.abc import Callable, Iterator

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.consumer import ConsumerGroup, check_request
from minibroker.groups.conversion import check_upgrade, to_consumer
from minibroker.groups.deadlines import Deadlines
from minibroker.groups.describing import Group, described_classic, listed
from minibroker.groups.errors import GroupRefused
from minibroker.groups.expiring import Expiry, has_members, is_subscribed_in, tombstones_of
from minibroker.groups.keys import GroupSettings
from minibroker.groups.offsets import CommittedOffsets, packed, tombstones
from minibroker.groups.pending import PendingOffsets, Place, Producer, Verification
from minibroker.groups.records import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    GroupValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode,
    encode,
)
from minibroker.groups.regexes import Matcher
from minibroker.groups.steps import Client, EndMarker, Reply, Step, Ticket
from minibroker.groups.subscription import CONSUMER_PROTOCOL
from minibroker.groups.tables.consumer_group_describe import (
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from minibroker.groups.tables.consumer_group_heartbeat import JOIN_EPOCH, ConsumerGroupHeartbeatRequest
from minibroker.groups.tables.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from minibroker.groups.tables.describe_groups import DescribeGroupsResponse
from minibroker.groups.tables.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from minibroker.groups.tables.list_groups import ListedGroup, ListGroupsResponse
from minibroker.groups.tables.offset_commit import OffsetCommitRequest
from minibroker.groups.tables.offset_delete import OffsetDeleteRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponse, OffsetFetchResponseGroup

NOT_FOUND_FROM = 9  # the first version of OffsetCommit with GROUP_ID_NOT_FOUND
MANY_LEAVE_FROM = 3
MANY_GROUPS_FROM = 8


class GroupShard:
    """The groups and the committed offsets of one partition."""

    encode = staticmethod(encode)
    decode = staticmethod(decode)

    def __init__(
        self,
        *,
        settings: Callable[[str], GroupSettings],
        new_member_id: Callable[[str], str],
        matcher: Matcher,
        image: Image,
    ) -> None:
        """`settings` gives the configuration of a group, `matcher` compiles a regular expression."""
        self.image = image
        self.pending = PendingOffsets()
        self.verification = Verification()
        self.offsets = CommittedOffsets(self.pending.has)
        self._settings = settings
        self._new_member_id = new_member_id
        self._matcher = matcher
        self._groups: dict[str, Group] = {}
        self._deadlines = Deadlines(self._deadline_of)
        self._loaded: dict[str, GroupMetadataValue] = {}
        """The last record of each classic group, while the log is loaded."""
        self._expiry = Expiry(self.offsets, self.pending, self._groups, settings)

    def group(self, group_id: str) -> Group | None:
        """A group that has or had members; None for a group that has only offsets."""
        return self._groups.get(group_id)

    @property
    def summary(self) -> str:
        """How much state there is, for the broker's log."""
        return f"{len(self.offsets)} committed offsets"

    # Records ----------------------------------------------------------------------------------------------------------

    def replay(self, record: GroupRecord, offset: int, producer: Producer | None = None) -> None:
        """Apply a record of the log while the shard is being loaded."""
        key, value = record
        if type(key) is OffsetCommitKey:
            self._apply_offset(key, value, offset, producer)
        elif type(key) is GroupMetadataKey:
            self._loaded.pop(key.group_id, None)
            if value is not None:
                assert isinstance(value, GroupMetadataValue)
                self._loaded[key.group_id] = value
        else:
            self._apply_to_consumer_group(record, 0)

    def on_loaded(self, now_ms: int) -> None:
        """The whole log has been replayed. The sessions of all members begin now."""
        for group_id, value in self._loaded.items():
            self._load_classic(group_id, value, now_ms)
        self._loaded.clear()
        for group_id, it in self._groups.items():
            if isinstance(it, ConsumerGroup):
                it.on_loaded(now_ms)
            self._deadlines.update(group_id)
        self._expiry.start(now_ms)

    def apply(self, record: GroupRecord, offset: int, now_ms: int, producer: Producer | None = None) -> None:
        """Apply a record that this shard has returned in a step. It may be part of a producer's transaction."""
        key, value = record
        if type(key) is OffsetCommitKey:
            self._apply_offset(key, value, offset, producer)
        elif type(key) is GroupMetadataKey:
            self._apply_to_classic_group(key.group_id, value, now_ms)
        else:
            self._apply_to_consumer_group(record, now_ms)

    def _apply_offset(
        self, key: OffsetCommitKey, value: GroupValue | None, offset: int, producer: Producer | None
    ) -> None:
        assert value is None or isinstance(value, OffsetCommitValue)
        if producer is not None and value is not None:
            self.pending.add(producer, (key.group_id, key.topic, key.partition), packed(value, offset))
            return
        self.offsets.apply(key, value, offset)
        if value is None and self.pending:
            self.pending.remove((key.group_id, key.topic, key.partition))

    def apply_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """A transaction has ended. If it has committed, its pending offsets are committed now."""
        self.verification.end(producer)
        offsets = self.pending.end(producer.id)
        if is_commit:
            for place, stored in offsets.items():
                self.offsets.apply_pending(place, stored)

    def _apply_to_classic_group(self, group_id: str, value: GroupValue | None, now_ms: int) -> None:
        is_classic = isinstance(self._groups.get(group_id), ClassicGroup)
        if value is None and is_classic:
            del self._groups[group_id]
        elif value is not None and not is_classic:
            # The last member of the new protocol has left. A rebalance must assign its partitions to the others.
            assert isinstance(value, GroupMetadataValue)
            self._load_classic(group_id, value, now_ms).rebalance(now_ms)
            self._deadlines.update(group_id)
        # Otherwise nothing changes: the handler has already changed the group.

    def _load_classic(self, group_id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        group = self._groups[group_id] = self._new_classic(group_id)
        group.load(value, now_ms)
        self._deadlines.update(group_id)
        return group

    def _apply_to_consumer_group(self, record: GroupRecord, now_ms: int) -> None:
        group_id = record.key.group_id
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            # A tombstone of a group that does not exist, or is a classic one, changes nothing.
            if record.value is None:
                return
            group = self._groups[group_id] = self._new_consumer(group_id)
        group.apply(record, now_ms)
        if record.value is None and type(record.key) is ConsumerGroupMetadataKey:
            del self._groups[group_id]

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, lambda: self._settings(group_id), self._new_member_id)

    def _new_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, lambda: self._settings(group_id), self._matcher, self._new_member_id)

    # Classic groups ---------------------------------------------------------------------------------------------------

    def on_join(self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, now_ms: int) -> Step:
        """Handle JoinGroup. The first member creates the group."""
        group_id, group = request.group_id, self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and group.members:
            return self._done(group, group.on_classic_join(ticket, request, version, client, self.image, now_ms))
        if isinstance(group, ClassicGroup):
            return self._done(group, group.on_join(ticket, request, version, client, now_ms))
        if request.member_id:
            return Step(replies=[Reply(ticket, ErrorCode.UNKNOWN_MEMBER_ID)])
        new = self._new_classic(group_id)
        step = new.on_join(ticket, request, version, client, now_ms)
        if new.is_unused or new.state is GroupState.DEAD:
            return step
        # An empty group of the new protocol is deleted, and a classic one takes its place.
        removed = [] if group is None else group.tombstones()
        self._groups[group_id] = new
        step = self._done(new, step)
        return Step(removed + step.records, step.replies, lambda code: self._undo_join(step, group, code))

    def _undo_join(self, step: Step, before: ConsumerGroup | None, code: ErrorCode) -> Step:
        """Undo a join, because the log has refused the first records of its classic group."""
        undone = step.refused(code)
        if before is not None:
            self._groups[before.group_id] = before
        return undone

    def on_sync(self, ticket: Ticket, request: SyncGroupRequest, version: int, now_ms: int) -> Step:
        """Handle SyncGroup."""
        group = self._groups.get(request.group_id)
        if group is None:
            return Step(replies=[Reply(ticket, ErrorCode.UNKNOWN_MEMBER_ID)])
        if isinstance(group, ConsumerGroup):
            return self._done(group, group.on_classic_sync(ticket, request, version, self.image, now_ms))
        return self._done(group, group.on_sync(ticket, request, version, now_ms))

    def on_heartbeat(self, ticket: Ticket, request: HeartbeatRequest, now_ms: int) -> Step:
        """Handle Heartbeat. It only moves time limits to later times, so `_deadlines` needs no update."""
        group = self._groups.get(request.group_id)
        if group is None:
            return Step(replies=[Reply(ticket, ErrorCode.UNKNOWN_MEMBER_ID)])
        if isinstance(group, ConsumerGroup):
            code = group.on_classic_heartbeat(request, now_ms)
        else:
            code = group.on_heartbeat(request, now_ms)
        return Step(replies=[Reply(ticket, HeartbeatResponse(error_code=code))])

    def on_leave(self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int) -> Step:
        """Handle LeaveGroup."""
        group = self._groups.get(request.group_id)
        if group is None:
            return Step(replies=[Reply(ticket, _left_nothing(request, version))])
        if isinstance(group, ConsumerGroup):
            return self._done(group, group.on_classic_leave(ticket, request, version, now_ms))
        return self._done(group, group.on_leave(ticket, request, version, now_ms))

    def _done(self, group: Group, step: Step) -> Step:
        """Update the table of groups after a step, and again if the log refuses the records and the step is undone."""
        self._keep_or_forget(group)
        if not step.records:
            return step
        undo = Step(step.records, step.replies, step.on_refused).refused

        def refused(code: ErrorCode) -> Step:
            undone = undo(code)
            self._keep_or_forget(group)
            return undone

        return Step(step.records, step.replies, refused)

    def _keep_or_forget(self, group: Group) -> None:
        """Note the group's time limit. A group that is dead or unused is dropped."""
        if isinstance(group, ClassicGroup) and (group.state is GroupState.DEAD or group.is_unused):
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
        else:
            self._deadlines.update(group.group_id)

    # Groups of the new protocol ---------------------------------------------------------------------------------------

    def on_consumer_heartbeat(
        self, ticket: Ticket, request: ConsumerGroupHeartbeatRequest, version: int, client: Client, now_ms: int
    ) -> Step:
        """Handle ConsumerGroupHeartbeat. The first member creates the group, or converts a classic one."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._done(group, group.on_heartbeat(ticket, request, version, client, self.image, now_ms))
        try:
            check_request(request, version, self._settings(request.group_id).consumer_assignors)
            if request.member_epoch != JOIN_EPOCH:
                raise GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND)
            records = [] if group is None else self._as_consumer_group(group)
        except GroupRefused as refused:
            return Step(replies=[Reply(ticket, refused.code)])
        new = self._new_consumer(request.group_id)
        for record in records:
            new.apply(record, now_ms)
        step = new.on_heartbeat(ticket, request, version, client, self.image, now_ms)
        # If the join is refused, there are no records, and the new group is dropped.
        return self._replace(group, new, Step(records + step.records, step.replies), now_ms) if step.records else step

    def _as_consumer_group(self, group: ClassicGroup) -> list[GroupRecord]:
        """The records that convert a classic group to the new protocol. An empty group is only deleted."""
        if not has_members(group):
            return tombstones_of(group.group_id, group)
        check_upgrade(group, self._settings(group.group_id))
        return to_consumer(group, self.image)

    def _replace(self, old: ClassicGroup | None, new: ConsumerGroup, step: Step, now_ms: int) -> Step:
        """Replace a classic group by one of the new protocol. The parked requests of the old group are answered.

        If the log refuses the records, the old group is restored, with new sessions. If it was in the middle of a
        rebalance, it begins another one, because its parked requests were answered.
        """
        group_id = new.group_id
        snapshot = None if old is None or not old.is_stored else old.snapshot()
        is_rebalancing = old is not None and old.state not in (GroupState.EMPTY, GroupState.STABLE)
        if old is not None:
            step.replies[:0] = old.end(ErrorCode.REBALANCE_IN_PROGRESS).replies
        self._groups[group_id] = new
        self._deadlines.update(group_id)

        def restore(code: ErrorCode) -> Step:
            del self._groups[group_id]
            if snapshot is not None:
                group = self._load_classic(group_id, snapshot, now_ms)
                if is_rebalancing and group.members():
                    group.rebalance(now_ms)
                    self._deadlines.update(group_id)
            return Step(replies=[Reply(it.ticket, code) for it in step.replies])

        step.on_refused = restore
        return step

    # Offsets ----------------------------------------------------------------------------------------------------------

    def on_commit(self, ticket: Ticket, request: OffsetCommitRequest, version: int, now_ms: int) -> Step:
        """Handle OffsetCommit."""
        try:
            self._check_commit(request, version, now_ms)
        except GroupRefused as refused:
            return Step(replies=[Reply(ticket, refused.code)])
        settings = self._settings(request.group_id)
        records, response = self.offsets.commit(request, version, self.image, settings, now_ms)
        return Step(records, [Reply(ticket, response)])

    def is_open(self, producer: Producer, transactional_id: str) -> bool:
        """Whether this producer's transaction already has offsets here, so that its coordinator need not be asked."""
        is_verified = self.verification.is_verified(producer, transactional_id)
        return is_verified and self.pending.epoch_of(producer.id) == producer.epoch

    def on_transactional_commit(
        self, ticket: Ticket, request: OffsetCommitRequest, producer: Producer, transactional_id: str, now_ms: int
    ) -> Step:
        """Handle TxnOffsetCommit, as a commit of a producer whose transaction is open."""
        known = self.pending.epoch_of(producer.id)
        if known is not None and producer.epoch < known:
            return Step(replies=[Reply(ticket, ErrorCode.INVALID_PRODUCER_EPOCH)])
        self.verification.verified(producer, transactional_id)
        try:
            self._check_transactional_commit(request, now_ms)
        except GroupRefused as refused:
            is_stale = refused.code is ErrorCode.STALE_MEMBER_EPOCH
            return Step(replies=[Reply(ticket, ErrorCode.ILLEGAL_GENERATION if is_stale else refused.code)])
        settings = self._settings(request.group_id)
        records, response = self.offsets.commit(request, NOT_FOUND_FROM, self.image, settings, now_ms)
        return Step(records, [Reply(ticket, response)], producer=producer)

    def _check_transactional_commit(self, request: OffsetCommitRequest, now_ms: int) -> None:
        group, epoch = self._groups.get(request.group_id), request.generation_id_or_member_epoch
        member_id, instance_id = request.member_id, request.group_instance_id
        if isinstance(group, ClassicGroup):
            group.check_commit(member_id, epoch, instance_id, now_ms, is_transactional=True)
        elif epoch >= 0 or member_id or instance_id is not None:
            # An older producer does not name the member whose offsets it commits, so nothing can be checked.
            if group is not None:
                group.check_commit(request, NOT_FOUND_FROM, self.image)
            elif epoch >= 0:
                raise GroupRefused(ErrorCode.ILLEGAL_GENERATION)

    def on_marker(self, ticket: Ticket, marker: EndMarker) -> Step:
        """Write a marker. The reply is sent when the marker is applied to the offsets and replicated."""
        return Step(replies=[Reply(ticket, ErrorCode.NONE)], marker=marker)

    def _check_commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> None:
        group, epoch = self._groups.get(request.group_id), request.generation_id_or_member_epoch
        if isinstance(group, ConsumerGroup):
            group.check_commit(request, version, self.image)
        elif group is not None:
            group.check_commit(request.member_id, epoch, request.group_instance_id, now_ms)
        elif epoch >= 0:
            # A group without members has no generation, so the request's generation is wrong.
            is_new = version >= NOT_FOUND_FROM
            raise GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)

    def on_fetch(self, ticket: Ticket, request: OffsetFetchRequestGroup, version: int, *, require_stable: bool) -> Step:
        """Handle OffsetFetch for one group. An unknown group has no offsets, which is not an error."""
        group = self._groups.get(request.group_id)
        try:
            if isinstance(group, ConsumerGroup):
                group.check_fetch(request.member_id, request.member_epoch)
        except GroupRefused as refused:
            return Step(replies=[Reply(ticket, refused.code)])
        topics = self.offsets.fetch(
            request.group_id, request.topics, version, self.image, require_stable=require_stable
        )
        if version < MANY_GROUPS_FROM:
            return Step(replies=[Reply(ticket, OffsetFetchResponse(topics=topics))])
        answer = OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)
        return Step(replies=[Reply(ticket, OffsetFetchResponse(groups=[answer]))])

    def on_delete_offsets(self, ticket: Ticket, request: OffsetDeleteRequest) -> Step:
        """Handle OffsetDelete."""
        group = self._groups.get(request.group_id)
        if group is None and request.group_id not in self.offsets:
            return Step(replies=[Reply(ticket, ErrorCode.GROUP_ID_NOT_FOUND)])
        # The coordinator cannot decode the subscriptions of members that are not consumers.
        if isinstance(group, ClassicGroup) and group.members() and group.protocol_type != CONSUMER_PROTOCOL:
            return Step(replies=[Reply(ticket, ErrorCode.NON_EMPTY_GROUP)])
        records, response = self.offsets.delete(request, is_subscribed_in(group))
        return Step(records, [Reply(ticket, response)])

    # Administration ---------------------------------------------------------------------------------------------------

    def on_describe(self, ticket: Ticket, group_id: str, version: int) -> Step:
        """Handle DescribeGroups for one group."""
        has_offsets = group_id in self.offsets
        described = described_classic(group_id, self._groups.get(group_id), version, has_offsets=has_offsets)
        return Step(replies=[Reply(ticket, DescribeGroupsResponse(groups=[described]))])

    def on_consumer_describe(self, ticket: Ticket, group_id: str) -> Step:
        """Handle ConsumerGroupDescribe for one group."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            described = group.describe(self.image)
        else:
            # Kafka's admin client asks in this way about classic groups, too, and shows this text to the user. So it is
            # Kafka's text.
            is_classic = group is not None or group_id in self.offsets
            why = "is not a consumer group" if is_classic else "not found"
            message = f"Group {group_id[:64]} {why}."
            code = ErrorCode.GROUP_ID_NOT_FOUND
            described = DescribedConsumerGroup(group_id=group_id, error_code=code, error_message=message)
        return Step(replies=[Reply(ticket, ConsumerGroupDescribeResponse(groups=[described]))])

    def on_list(self, ticket: Ticket, passes: Callable[[ListedGroup], bool]) -> Step:
        """Handle ListGroups for the groups of this shard that pass the filter of the request."""
        simple = (it for it in self.offsets.group_ids() if it not in self._groups)
        found = [listed(it, self._groups.get(it)) for it in (*self._groups, *simple)]
        return Step(replies=[Reply(ticket, ListGroupsResponse(groups=[it for it in found if passes(it)]))])

    def on_delete(self, ticket: Ticket, group_id: str) -> Step:
        """Handle DeleteGroups for one group: one step has the tombstones of all its records.

        If only some of the records were deleted, a part of the group would come back after a restart.
        """
        group, code = self._groups.get(group_id), ErrorCode.NONE
        if group is None and group_id not in self.offsets and not self.pending.of_group(group_id):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif group is not None and has_members(group):
            code = ErrorCode.NON_EMPTY_GROUP
        response = DeleteGroupsResponse(results=[DeletableGroupResult(group_id=group_id, error_code=code)])
        if code is not ErrorCode.NONE:
            return Step(replies=[Reply(ticket, response)])
        # The pending offsets are deleted, too. Otherwise a marker would bring the group back.
        offsets = [*self.offsets.tombstones_of_group(group_id), *self._pending_only(self.pending.of_group(group_id))]
        records = [*offsets, *tombstones_of(group_id, group)]
        return Step(records, [Reply(ticket, response)])

    def _pending_only(self, places: list[Place]) -> list[GroupRecord]:
        """The tombstones of pending offsets for partitions without a committed offset."""
        return tombstones(place for place in places if self.offsets.get(*place) is None)

    # Time and metadata ------------------------------------------------------------------------------------------------

    def _deadline_of(self, group_id: str) -> int | None:
        group = self._groups.get(group_id)
        return None if group is None else group.deadline_ms()

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None."""
        times = [it for it in (self._deadlines.earliest_ms, self._expiry.deadline_ms) if it is not None]
        return min(times, default=None)

    def on_time(self, now_ms: int) -> Iterator[Step]:
        """Act on the time limits that have ended. The driver applies each step before it takes the next one."""
        for group_id in list(self._deadlines.due(now_ms)):
            group = self._groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                yield self._done(group, group.on_time(self.image, now_ms))
            elif group is not None:
                yield self._done(group, group.on_time(now_ms))
        yield from self._expiry.on_time(now_ms)

    def on_image(self, old: Image, new: Image) -> Iterator[Step]:
        """The metadata have changed: delete the offsets of deleted topics."""
        self.image = new
        if new.topics is old.topics:
            return
        for topic in old.topics.values():
            kept = new.topics.get(topic.name)
            if kept is None or kept.topic_id != topic.topic_id:
                records = self.offsets.tombstones_of_topic(topic.name, topic.topic_id)
                if kept is None:
                    records += self._pending_only(self.pending.of_topic(topic.name))
                if records:
                    yield Step(records)


def _left_nothing(request: LeaveGroupRequest, version: int) -> Response | ErrorCode:
    """The answer to members that leave an unknown group."""
    if version < MANY_LEAVE_FROM:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=it.member_id,
                group_instance_id=it.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for it in request.members
        ]
    )
