"""The answers of DescribeGroups, ListGroups and ConsumerGroupDescribe about a group. A pure module."""

from collections.abc import Callable, Collection

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.subscription import CONSUMER_PROTOCOL
from minibroker.groups.tables.describe_groups import DescribedGroup, DescribedGroupMember
from minibroker.groups.tables.list_groups import ListedGroup
from minibroker.partitions.operations import Operation
from minibroker.wire.codes import ErrorCode

GROUP_OPERATIONS = sum(
    1 << operation
    for operation in (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
)
"""All operations on a group, as bits. There is no authorizer, so a client may do all of them."""

_NOT_FOUND_FROM = 6

Group = ClassicGroup | ConsumerGroup


def described_classic(group_id: str, group: Group | None, version: int, *, has_offsets: bool) -> DescribedGroup:
    """A group for DescribeGroups. A group that has only offsets is `Empty`. A group of the new protocol is `Dead`."""
    if isinstance(group, ClassicGroup):
        return _described(group)
    if group is None and has_offsets:
        return DescribedGroup(group_id=group_id, group_state=GroupState.EMPTY.value)
    if version >= _NOT_FOUND_FROM:
        message = f"there is no classic group {group_id[:64]!a}"
        code = ErrorCode.GROUP_ID_NOT_FOUND
        return DescribedGroup(
            group_id=group_id, error_code=code, error_message=message, group_state=GroupState.DEAD.value
        )
    return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)


def _described(group: ClassicGroup) -> DescribedGroup:
    # Before the group is stable, its members have no common protocol and no assignment.
    is_stable = group.state is GroupState.STABLE
    protocol = group.protocol_name or ""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=it.member_id,
                group_instance_id=it.instance_id,
                client_id=it.client.id,
                client_host=it.client.host,
                member_metadata=it.protocols.get(protocol, b"") if is_stable else b"",
                member_assignment=it.assignment if is_stable else b"",
            )
            for it in group.members()
        ],
    )


def listed(group_id: str, group: Group | None) -> ListedGroup:
    """A group for ListGroups. A group that has only offsets has no protocol type."""
    if isinstance(group, ConsumerGroup):
        return ListedGroup(
            group_id=group_id,
            protocol_type=CONSUMER_PROTOCOL,
            group_state=group.state.value,
            group_type="consumer",
        )
    return ListedGroup(
        group_id=group_id,
        protocol_type="" if group is None else group.protocol_type or "",
        group_state=GroupState.EMPTY.value if group is None else group.state.value,
        group_type="classic",
    )


def filter_of(states: Collection[str], types: Collection[str]) -> Callable[[ListedGroup], bool]:
    """A function that says whether ListGroups asks for a group. Case is ignored. An empty filter matches all."""
    wanted_states = {it.strip().lower() for it in states}
    wanted_types = {it.strip().lower() for it in types}

    def passes(group: ListedGroup) -> bool:
        is_state = not wanted_states or group.group_state.lower() in wanted_states
        return is_state and (not wanted_types or group.group_type.lower() in wanted_types)

    return passes
