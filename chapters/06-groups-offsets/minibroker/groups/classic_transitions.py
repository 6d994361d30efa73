"""The states of a classic group, and the causes by which they change. A pure module.

`NEXT` has all transitions: any other one is a bug. The diagram in the lesson is drawn from this table.
"""

from enum import Enum


class GroupState(Enum):
    """The state of a classic group, with the name that Kafka's tools show."""

    EMPTY = "Empty"  # it has no members; it may have committed offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # it waits for all members to join
    COMPLETING_REBALANCE = "CompletingRebalance"  # all members have joined, and it waits for the leader's assignment
    STABLE = "Stable"  # every member has an assignment
    DEAD = "Dead"  # it is deleted, or has become a group of another kind


class Cause(Enum):
    """Why the state changes."""

    MEMBERS_CHANGE = "a member joins, changes, leaves or expires"
    JOINED = "all members have joined, or the time for it is over"
    NONE_LEFT = "no member is left"
    ASSIGNED = "the leader has sent the assignment"
    ENDED = "the group is deleted or converted"


NEXT: dict[tuple[GroupState, Cause], GroupState] = {
    (GroupState.EMPTY, Cause.MEMBERS_CHANGE): GroupState.PREPARING_REBALANCE,
    (GroupState.EMPTY, Cause.ENDED): GroupState.DEAD,
    (GroupState.PREPARING_REBALANCE, Cause.JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Cause.NONE_LEFT): GroupState.EMPTY,
    (GroupState.PREPARING_REBALANCE, Cause.ENDED): GroupState.DEAD,
    (GroupState.COMPLETING_REBALANCE, Cause.ASSIGNED): GroupState.STABLE,
    (GroupState.COMPLETING_REBALANCE, Cause.MEMBERS_CHANGE): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, Cause.ENDED): GroupState.DEAD,
    (GroupState.STABLE, Cause.MEMBERS_CHANGE): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, Cause.ENDED): GroupState.DEAD,
    (GroupState.DEAD, Cause.ENDED): GroupState.DEAD,
}
