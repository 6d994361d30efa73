"""ConsumerGroupDescribe (key 69): the states and the members of groups of the new protocol (KIP-848). A pure module.

Version 1 says whether a member uses the classic protocol or the new one (KIP-1099).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, struct, uuid
from minibroker.wire.tables.metadata import NO_AUTHORIZED_OPERATIONS

UNKNOWN_MEMBER_TYPE = -1
CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


class ConsumerGroupDescribeRequest(Request, key=69, versions="0-1", flexible="0+"):
    """Ask about groups."""

    group_ids: list[str] = array(string, about="the groups")
    include_authorized_operations: bool = boolean(
        default=False, about="whether to include the operations that the client may do on each group"
    )


class DescribedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid(about="the topic's id")
    topic_name: str = string(about="the topic's name")
    partitions: list[int] = array(int32, about="its partitions")


class DescribedAssignment(Struct):
    """The partitions of one member."""

    topic_partitions: list[DescribedTopicPartitions] = array(
        DescribedTopicPartitions, default=(), about="the partitions"
    )


class DescribedConsumerGroupMember(Struct):
    """One member of a group."""

    member_id: str = string(about="the member")
    instance_id: str | None = string(nullable="0+", default=None, about="the id of a static member")
    rack_id: str | None = string(nullable="0+", default=None, about="its rack")
    member_epoch: int = int32(about="its epoch")
    client_id: str = string(about="its client id")
    client_host: str = string(about="its address")
    subscribed_topic_names: list[str] = array(string, about="the topics that it reads")
    subscribed_topic_regex: str | None = string(
        nullable="0+", default=None, about="the regular expression for topics that it reads, or null"
    )
    assignment: DescribedAssignment = struct(DescribedAssignment, about="the partitions that it has")
    target_assignment: DescribedAssignment = struct(DescribedAssignment, about="the partitions of its target")
    member_type: int = int8(
        versions="1+",
        default=UNKNOWN_MEMBER_TYPE,
        ignorable=True,
        about="0: it uses the classic protocol; 1: the new protocol; -1: unknown",
    )


class DescribedConsumerGroup(Struct):
    """One group."""

    error_code: int = int16(default=0, about="0, or why the group cannot be described")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    group_id: str = string(about="the group")
    group_state: str = string(
        default="", about="Empty, Assigning, Reconciling, Stable or Dead; empty if there is an error"
    )
    group_epoch: int = int32(default=0, about="grows when a member or a subscribed topic changes")
    assignment_epoch: int = int32(default=0, about="the group epoch for which the target was computed")
    assignor_name: str = string(default="", about="the assignor that computes the target")
    members: list[DescribedConsumerGroupMember] = array(DescribedConsumerGroupMember, default=(), about="its members")
    authorized_operations: int = int32(
        default=NO_AUTHORIZED_OPERATIONS, about="one bit for each operation that the client may do"
    )


class ConsumerGroupDescribeResponse(Response, key=69, versions="0-1", flexible="0+"):
    """The groups."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup, about="one for each group of the request")


declare(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse)
