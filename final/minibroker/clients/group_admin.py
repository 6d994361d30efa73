"""Administration of groups: listing, describing, moving their offsets, deleting."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.client.errors import BrokerError, UnsupportedByBroker
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import Consumer, OffsetReset
from minibroker.clients.coordination import GroupCoordinator, ask_while_loading
from minibroker.clients.core import Ask, Dialogue
from minibroker.clients.dialogues import raise_errors
from minibroker.groups.subscription import CONSUMER_PROTOCOL, InvalidSubscription, decode_assignment
from minibroker.groups.tables.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from minibroker.groups.tables.delete_groups import DeleteGroupsRequest
from minibroker.groups.tables.describe_groups import DescribedGroup, DescribeGroupsRequest
from minibroker.groups.tables.list_groups import ListGroupsRequest
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import codes_in
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

CLASSIC, CONSUMER = "classic", "consumer"
DEAD = "Dead"  # the state of a group that does not exist, for brokers that have no error for it
_FETCH_BY_NAME = 9  # the last version of OffsetFetch with names instead of ids
_LOOK_BYTES = 64 * 1024  # the maximum to fetch of each partition; only its first record is needed


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, its kind (classic or consumer), its state, such as Stable, and its coordinator.

    An old broker sends no kind.
    """

    group_id: str
    kind: str
    protocol_type: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its assignor, and its members."""

    group_id: str
    kind: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: int
    members: Sequence[MemberDescription]


# Listing and describing ---------------------------------------------------------------------------------------------


def list_groups(client: Client) -> list[GroupListing]:
    """All groups, sorted by name. Each broker lists the groups that it coordinates."""
    client.metadata([])
    found: dict[str, GroupListing] = {}
    for node_id in sorted(client.core.routes.nodes):
        about = f"listing the groups of node {node_id}"
        for it in client.run(ask_while_loading(client.core, ListGroupsRequest(), node_id, about=about)).groups:
            kind = it.group_type.lower() or CLASSIC
            found[it.group_id] = GroupListing(it.group_id, kind, it.protocol_type, it.group_state, node_id)
    return [found[group_id] for group_id in sorted(found)]


def describe_all(client: Client) -> list[GroupDescription]:
    """All groups, sorted by name. Each broker is asked once for the groups of each kind that it coordinates."""
    listed = list_groups(client)
    together: dict[tuple[int, str], list[str]] = {}
    for it in listed:
        together.setdefault((it.coordinator, it.kind), []).append(it.group_id)
    found: dict[str, GroupDescription] = {}
    for (node_id, kind), group_ids in together.items():
        found |= client.run(_describe_together(node_id, kind, group_ids))
    for it in listed:
        # The group may have moved to another node, or have been converted or deleted, since it was listed.
        if it.group_id not in found and (description := describe_if_there(client, it.group_id)):
            found[it.group_id] = description
    return [found[group_id] for group_id in sorted(found)]


def _describe_together(node_id: int, kind: str, group_ids: list[str]) -> Dialogue[dict[str, GroupDescription]]:
    """Ask one broker for many groups of one kind. Groups that it does not know as that kind are left out."""
    if kind == CONSUMER:
        response = yield Ask(ConsumerGroupDescribeRequest(group_ids=group_ids), node_id)
        return {it.group_id: _of_consumer_group(it, node_id) for it in response.groups if not it.error_code}
    response = yield Ask(DescribeGroupsRequest(groups=group_ids), node_id)
    known = [it for it in response.groups if not it.error_code and it.group_state != DEAD]
    return {it.group_id: _of_classic_group(it, node_id) for it in known}


def describe_if_there(client: Client, group_id: str) -> GroupDescription | None:
    """Like `describe_group`, but None if there is no such group."""
    try:
        return describe_group(client, group_id)
    except BrokerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def describe_group(client: Client, group_id: str) -> GroupDescription:
    """The state and the members of a group; a BrokerError with GROUP_ID_NOT_FOUND if there is no such group."""
    return client.run(_describe(GroupCoordinator(client.core, group_id)))


def _describe(coordinator: GroupCoordinator) -> Dialogue[GroupDescription]:
    group_id = coordinator.group_id
    try:
        asked = ConsumerGroupDescribeRequest(group_ids=[group_id])
        response = yield from coordinator.ask_until_answered(asked, _group_codes)
        found = response.groups[0]
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise_errors({f"group {group_id}": (found.error_code, found.error_message)})
            return _of_consumer_group(found, coordinator.node_id or 0)
    except UnsupportedByBroker:
        pass  # an old broker has only classic groups
    request = DescribeGroupsRequest(groups=[group_id])
    response = yield from coordinator.ask_until_answered(request, _group_codes)
    classic = response.groups[0]
    is_dead = classic.group_state == DEAD
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_dead and not classic.error_code else classic.error_code
    raise_errors({f"group {group_id}": (code, classic.error_message)})
    return _of_classic_group(classic, coordinator.node_id or 0)


def _group_codes(response: Any) -> list[int]:
    return [it.error_code for it in response.groups]


def _of_consumer_group(group: DescribedConsumerGroup, coordinator: int) -> GroupDescription:
    members = [
        MemberDescription(
            it.member_id,
            it.instance_id,
            it.client_id,
            it.client_host,
            sorted(
                TopicPartition(topic.topic_name, number)
                for topic in it.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for it in group.members
    ]
    return GroupDescription(
        group.group_id, CONSUMER, CONSUMER_PROTOCOL, group.group_state, group.assignor_name, coordinator, members
    )


def _of_classic_group(group: DescribedGroup, coordinator: int) -> GroupDescription:
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    members = [
        MemberDescription(
            it.member_id,
            it.group_instance_id,
            it.client_id,
            it.client_host,
            _assigned(bytes(it.member_assignment)) if is_consumer else [],
        )
        for it in group.members
    ]
    return GroupDescription(
        group.group_id, CLASSIC, group.protocol_type, group.group_state, group.protocol_data, coordinator, members
    )


def _assigned(data: bytes) -> list[TopicPartition]:
    try:
        topics = decode_assignment(data).assigned_partitions
    except InvalidSubscription:
        return []
    return sorted(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


# Offsets ------------------------------------------------------------------------------------------------------------


def committed_offsets(client: Client, group_id: str, *, is_stable: bool = True) -> dict[TopicPartition, int]:
    """All offsets that a group has committed. If `is_stable`, wait for the transactions that will change them."""
    return client.run(GroupCoordinator(client.core, group_id).committed(is_stable=is_stable))


def committed_offsets_of_all(
    client: Client, groups: Iterable[GroupDescription]
) -> dict[str, dict[TopicPartition, int]]:
    """All offsets that groups have committed. Each coordinator is asked once for all of its groups."""
    together: dict[int, list[str]] = {}
    for it in groups:
        together.setdefault(it.coordinator, []).append(it.group_id)
    found: dict[str, dict[TopicPartition, int]] = {}
    for node_id, group_ids in together.items():
        # An old broker knows only requests for one group.
        with contextlib.suppress(UnsupportedByBroker):
            found |= client.run(_committed_together(node_id, group_ids))
        for group_id in group_ids:
            if group_id not in found:
                found[group_id] = committed_offsets(client, group_id)
    return found


def _committed_together(node_id: int, group_ids: list[str]) -> Dialogue[dict[str, dict[TopicPartition, int]]]:
    """Ask one coordinator for many groups; those for which it cannot answer now are left out."""
    asked = [OffsetFetchRequestGroup(group_id=it, topics=None) for it in group_ids]
    response = yield Ask(OffsetFetchRequest(groups=asked), node_id, _FETCH_BY_NAME)
    return {
        group.group_id: {
            TopicPartition(topic.name, it.partition_index): it.committed_offset
            for topic in group.topics
            for it in topic.partitions
            if it.committed_offset >= 0
        }
        for group in response.groups
        if not any(codes_in(group))
    }


def commit_offsets(client: Client, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    refused = client.run(GroupCoordinator(client.core, group_id).commit(offsets))
    raise_errors({f"group {group_id}, {partition}": (code, None) for partition, code in refused.items()})


def first_timestamps(client: Client, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """For each partition, the timestamp of the first record at or after an offset, if there is such a record."""
    found: dict[TopicPartition, int] = {}
    with Consumer(client, offset_reset=OffsetReset.EARLIEST, partition_max_bytes=_LOOK_BYTES) as consumer:
        consumer.assign(offsets, offsets)
        deadline_ms = precise_ms() + client.config.timeout_ms
        while consumer.assignment and precise_ms() < deadline_ms:
            for fetched in consumer.poll():
                record = next(iter(fetched), None)
                if record is not None:
                    found[fetched.topic_partition] = record.timestamp
            # Partitions with a result are done. So are those that were read to the end and have no record to return.
            left = [it for it in consumer.assignment if it not in found and not _is_at_end(consumer, it)]
            consumer.assign(left)
    return found


def _is_at_end(consumer: Consumer, partition: TopicPartition) -> bool:
    position = consumer.known_position(partition)
    return position is not None and 0 <= consumer.high_watermark(partition) <= position


# Change -------------------------------------------------------------------------------------------------------------


def delete_groups(client: Client, group_ids: Iterable[str]) -> dict[str, BrokerError]:
    """Delete groups without members, and their offsets; return the errors of those that were refused."""
    refused: dict[str, BrokerError] = {}
    for group_id in group_ids:
        request = DeleteGroupsRequest(groups_names=[group_id])
        response = client.run(_delete(GroupCoordinator(client.core, group_id), request))
        for it in response.results:
            if it.error_code:
                refused[group_id] = BrokerError(it.error_code, about=f"group {group_id}")
    return refused


def _delete(coordinator: GroupCoordinator, request: DeleteGroupsRequest) -> Dialogue[Any]:
    return (yield from coordinator.ask_until_answered(request, lambda it: [one.error_code for one in it.results]))
