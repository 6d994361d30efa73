"""The roles of a node of the quorum, and the causes by which they change. A pure module.

`NEXT` is the whole table: a transition that is not in it does not happen. The diagram in the lesson is drawn from it.
"""

from enum import Enum


class Role(Enum):
    """The role of a node. A node that was never a voter is always unattached or a follower."""

    UNATTACHED = "unattached"  # it knows the epoch, but not the leader
    FOLLOWER = "follower"  # it knows the leader and fetches from it
    PROSPECTIVE = "prospective"  # it asks whether it would be elected, without a new epoch (KIP-996)
    CANDIDATE = "candidate"  # it has begun an epoch and voted for itself
    LEADER = "leader"  # a majority has voted for it
    RESIGNED = "resigned"  # it led this epoch, and will not lead it again


class Cause(Enum):
    """Why a role changes."""

    TIMED_OUT = "timeout"
    WOULD_WIN = "pre-votes won"  # a majority would vote for it
    WON = "votes won"  # a majority has voted for it
    LOST = "votes lost"  # a majority has refused
    LEADER_FOUND = "leader known"  # the epoch has a leader
    NEWER_EPOCH = "newer epoch"  # another node is in it
    LOST_QUORUM = "no quorum"  # no majority fetches from it
    STEPPED_DOWN = "shut down, or removed"


NEXT: dict[tuple[Role, Cause], Role] = {
    (Role.UNATTACHED, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.UNATTACHED, Cause.LEADER_FOUND): Role.FOLLOWER,
    (Role.UNATTACHED, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.FOLLOWER, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.FOLLOWER, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.PROSPECTIVE, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.PROSPECTIVE, Cause.WOULD_WIN): Role.CANDIDATE,
    (Role.PROSPECTIVE, Cause.LEADER_FOUND): Role.FOLLOWER,
    (Role.PROSPECTIVE, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.CANDIDATE, Cause.WON): Role.LEADER,
    (Role.CANDIDATE, Cause.LOST): Role.PROSPECTIVE,
    (Role.CANDIDATE, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.CANDIDATE, Cause.LEADER_FOUND): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.LEADER, Cause.LOST_QUORUM): Role.RESIGNED,
    (Role.LEADER, Cause.STEPPED_DOWN): Role.RESIGNED,
    (Role.LEADER, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.RESIGNED, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.RESIGNED, Cause.NEWER_EPOCH): Role.UNATTACHED,
}
