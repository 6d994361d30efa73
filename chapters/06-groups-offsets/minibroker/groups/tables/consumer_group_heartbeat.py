"""ConsumerGroupHeartbeat (key 68): the only request of a member of the new protocol (KIP-848). A pure module.

With it a member joins, renews its session, reports the partitions that it owns, learns its assignment, and leaves. A
member sends a field only if it has changed. Version 1 adds subscriptions by regular expression, and the client makes
the member id (KIP-1082).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string, struct, uuid

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class HeartbeatTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible="0+"):
    """A member joins, renews its session, or leaves."""

    group_id: str = string(about="the group")
    member_id: str = string(about="the member; empty in version 0 when the member joins")
    member_epoch: int = int32(about="its epoch; 0 joins, -1 leaves, -2 leaves for a short time as a static member")
    instance_id: str | None = string(
        nullable="0+", default=None, about="the id of a static member; null if there is none, or if it is unchanged"
    )
    rack_id: str | None = string(nullable="0+", default=None, about="the member's rack; null if it is unchanged")
    rebalance_timeout_ms: int = int32(
        default=-1, about="how long the member may take to give up partitions; -1 if it is unchanged"
    )
    subscribed_topic_names: list[str] | None = array(
        string, nullable="0+", default=None, about="the topics that it reads; null if they are unchanged"
    )
    subscribed_topic_regex: str | None = string(
        versions="1+",
        nullable="1+",
        default=None,
        about="a regular expression for topics that it reads; null if it is unchanged, empty if there is none",
    )
    server_assignor: str | None = string(
        nullable="0+", default=None, about="the assignor that it asks for; null if it is unchanged"
    )
    topic_partitions: list[HeartbeatTopicPartitions] | None = array(
        HeartbeatTopicPartitions,
        nullable="0+",
        default=None,
        about="the partitions that it owns; null if they are unchanged",
    )


class ConsumerGroupAssignment(Struct):
    """The partitions of a member."""

    topic_partitions: list[HeartbeatTopicPartitions] = array(
        HeartbeatTopicPartitions, default=(), about="the partitions that the member may read"
    )


class ConsumerGroupHeartbeatResponse(Response, key=68, versions="0-1", flexible="0+"):
    """The epoch and the assignment of the member."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the heartbeat was refused")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    member_id: str | None = string(nullable="0+", default=None, about="the member; null if there is an error")
    member_epoch: int = int32(default=0, about="its epoch from now on")
    heartbeat_interval_ms: int = int32(default=0, about="how long to wait before the next heartbeat")
    assignment: ConsumerGroupAssignment | None = struct(
        ConsumerGroupAssignment, nullable="0+", default=None, about="its partitions; null if they are unchanged"
    )


declare(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse)
