"""Offsets and groups that expire. A pure module.

Offsets that are no longer used expire after `offsets.retention.minutes`, which is seven days by default:

    kind of group     offsets that expire                             counted from
    simple            all                                             the commit of the offset
    classic, empty    all                                             the time at which the last member left
    classic, stable   those of topics to which no member subscribes   the commit of the offset
    consumer          those of topics to which no member subscribes   the commit of the offset

An empty group without offsets is deleted. A shard may have a million offsets, so a check is done in slices.
"""

from collections.abc import Callable, Iterator, Mapping

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.describing import Group
from minibroker.groups.keys import GroupSettings
from minibroker.groups.offsets import CommittedOffsets
from minibroker.groups.pending import PendingOffsets
from minibroker.groups.records import NO_TIMESTAMP, GroupMetadataKey, GroupRecord
from minibroker.groups.steps import Step
from minibroker.groups.subscription import CONSUMER_PROTOCOL

_SLICE_OFFSETS = 5000


def has_members(group: Group) -> bool:
    """Whether a group has members. Then it cannot be deleted."""
    return group.state is not GroupState.EMPTY if isinstance(group, ClassicGroup) else bool(group.members)


def is_subscribed_in(group: Group | None) -> Callable[[str], bool]:
    """A function that says whether a group subscribes to a topic. A group without members subscribes to none."""
    if isinstance(group, ConsumerGroup):
        return group.is_subscribed
    if group is None or not group.members():
        return lambda _topic: False
    topics = group.subscribed_topics()
    # A consumer whose subscription cannot be decoded may read any topic.
    is_unknown = topics is None and group.protocol_type == CONSUMER_PROTOCOL
    return lambda topic: is_unknown or (topics is not None and topic in topics)


def tombstones_of(group_id: str, group: Group | None) -> list[GroupRecord]:
    """The records that delete a group, but not its offsets."""
    if isinstance(group, ConsumerGroup):
        return group.tombstones()
    return [GroupRecord(GroupMetadataKey(group_id=group_id), None)]


class Expiry:
    """The regular check of one shard for expired offsets."""

    def __init__(
        self,
        offsets: CommittedOffsets,
        pending: PendingOffsets,
        groups: Mapping[str, Group],
        settings: Callable[[str], GroupSettings],
    ) -> None:
        self._offsets = offsets
        self._pending = pending
        self._groups = groups
        self._settings = settings
        self._left: Iterator[str] | None = None
        """The groups that the current check has not reached yet; None between two checks."""
        self.deadline_ms: int | None = None
        """When the next slice is due; None before `start`."""

    def start(self, now_ms: int) -> None:
        """Schedule the next check, one interval from now."""
        self.deadline_ms = now_ms + self._settings("").offsets_retention_check_interval_ms

    def on_time(self, now_ms: int) -> Iterator[Step]:
        """Run one slice of the check, if it is due. The steps delete expired offsets and groups."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return
        if self._left is None:
            self._left = iter([*self._groups, *(it for it in self._offsets.group_ids() if it not in self._groups)])
        seen = 0
        for group_id in self._left:
            seen += 1 + self._offsets.count(group_id)
            records = self._expired(group_id, now_ms)
            if records:
                yield Step(records)
            if seen >= _SLICE_OFFSETS:
                return
        self._left = None
        self.start(now_ms)

    def _expired(self, group_id: str, now_ms: int) -> list[GroupRecord]:
        group = self._groups.get(group_id)
        empty_since_ms = NO_TIMESTAMP
        if isinstance(group, ClassicGroup):
            if group.state is GroupState.EMPTY:
                empty_since_ms = group.state_since_ms
            elif group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL:
                return []
        records = self._offsets.tombstones_of_expired(
            group_id,
            is_subscribed=is_subscribed_in(group),
            empty_since_ms=empty_since_ms,
            retention_ms=self._settings(group_id).offsets_retention_ms,
            now_ms=now_ms,
        )
        is_without_offsets = len(records) == self._offsets.count(group_id)
        if group is not None and is_without_offsets and not has_members(group) and not self._is_pending(group_id):
            records += tombstones_of(group_id, group)
        return records

    def _is_pending(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of a group."""
        return bool(self._pending) and bool(self._pending.of_group(group_id))
