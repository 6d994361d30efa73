"""What a node of the quorum can be, and why it becomes something else. A pure module.

`NEXT` is the whole table: what is not in it does not happen. The diagram in the lesson is drawn from it.
"""

from enum import Enum


class Role(Enum):
    """What a node is at a moment. A node that is no voter is only ever unattached or a follower."""

    UNATTACHED = "unattached"  # it knows the epoch, but not who leads it
    FOLLOWER = "follower"  # it knows the leader and fetches from it
    PROSPECTIVE = "prospective"  # it asks whether it would be elected, and disturbs nobody (KIP-996)
    CANDIDATE = "candidate"  # it has begun an epoch and voted for itself
    LEADER = "leader"  # a majority has voted for it
    RESIGNED = "resigned"  # it led this epoch, and will not lead it again


class Cause(Enum):
    """Why a role changes."""

    TIMED_OUT = "no word of a leader in time"
    WOULD_WIN = "a majority would vote for it"
    WON = "a majority has voted for it"
    LOST = "a majority has not"
    LEADER_FOUND = "somebody leads the epoch"
    NEWER_EPOCH = "somebody is in a newer epoch"
    LEFT_ALONE = "no majority fetches any more"
    LEAVING = "it is shut down, or removed"


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
    (Role.LEADER, Cause.LEFT_ALONE): Role.RESIGNED,
    (Role.LEADER, Cause.LEAVING): Role.RESIGNED,
    (Role.LEADER, Cause.NEWER_EPOCH): Role.UNATTACHED,
    (Role.RESIGNED, Cause.TIMED_OUT): Role.PROSPECTIVE,
    (Role.RESIGNED, Cause.NEWER_EPOCH): Role.UNATTACHED,
}
