"""Heartbeat (key 12): a member of a classic group renews its session, and learns of a rebalance. A pure module.

Version 3 adds static members (KIP-345).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, string


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    """Renew the session of a member."""

    group_id: str = string(about="the group")
    generation_id: int = int32(about="the generation that the member has joined")
    member_id: str = string(about="the member")
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", default=None, about="the id of a static member"
    )


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    """Whether the member is still in the group, and whether it must join again."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(default=0, about="0, REBALANCE_IN_PROGRESS, or why the heartbeat was refused")


declare(HeartbeatRequest, HeartbeatResponse)
