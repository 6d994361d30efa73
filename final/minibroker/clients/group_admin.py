"""Administration of groups: listing, describing, moving their offsets, deleting."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.client.errors import BrokerError, UnsupportedByBroker
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import Consumer, OffsetReset
from minibroker.clients.coordination import Coordinator, Reaction, reaction_to
from minibroker.clients.core import Ask, Core, Dialogue
from minibroker.clients.dialogues import raise_errors
from minibroker.groups.subscription import CONSUMER_PROTOCOL, InvalidSubscription, decode_assignment
from minibroker.groups.tables.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from minibroker.groups.tables.delete_groups import DeleteGroupsRequest
from minibroker.groups.tables.describe_groups import DescribedGroup, DescribeGroupsRequest
from minibroker.groups.tables.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

CLASSIC, CONSUMER = "classic", "consumer"
_LOOK_BYTES = 64 * 1024  # per partition: only the first record is needed


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, its kind (classic or consumer), and its state, such as Stable. An old broker sends no kind."""

    group_id: str
    kind: str
    protocol_type: str
    state: str


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
        for it in client.run(_list(client.core, node_id)).groups:
            kind = it.group_type.lower() or CLASSIC
            found[it.group_id] = GroupListing(it.group_id, kind, it.protocol_type, it.group_state)
    return [found[group_id] for group_id in sorted(found)]


def _list(core: Core, node_id: int) -> Dialogue[ListGroupsResponse]:
    """Ask one broker; wait while it loads its groups."""
    attempts = core.attempts()
    while True:
        response: ListGroupsResponse = yield Ask(ListGroupsRequest(), node_id)
        if not response.error_code:
            return response
        error = BrokerError(response.error_code, about=f"listing the groups of node {node_id}")
        if reaction_to(error.code) not in (Reaction.RETRY, Reaction.SEARCH):
            raise error
        yield from core.pause_or_raise(attempts, error)


def describe_group(client: Client, group_id: str) -> GroupDescription:
    """The state and the members of a group; a BrokerError with GROUP_ID_NOT_FOUND if there is no such group."""
    return client.run(_describe(Coordinator(client.core, group_id)))


def _describe(coordinator: Coordinator) -> Dialogue[GroupDescription]:
    group_id = coordinator.group_id
    try:
        asked = ConsumerGroupDescribeRequest(group_ids=[group_id])
        response = yield from coordinator.ask_until_answered(lambda: asked, _group_codes)
        found = response.groups[0]
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise_errors({f"group {group_id}": (found.error_code, found.error_message)})
            return _of_consumer_group(found, coordinator.node_id or 0)
    except UnsupportedByBroker:
        pass  # an old broker has only classic groups
    request = DescribeGroupsRequest(groups=[group_id])
    response = yield from coordinator.ask_until_answered(lambda: request, _group_codes)
    classic = response.groups[0]
    is_dead = classic.group_state == "Dead"
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


def committed_offsets(client: Client, group_id: str) -> dict[TopicPartition, int]:
    """All offsets that a group has committed."""
    return client.run(Coordinator(client.core, group_id).committed())


def commit_offsets(client: Client, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    refused = client.run(Coordinator(client.core, group_id).commit(offsets))
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
            # At the end of a partition, no more records follow that an application may see.
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
        response = client.run(_delete(Coordinator(client.core, group_id), request))
        for it in response.results:
            if it.error_code:
                refused[group_id] = BrokerError(it.error_code, about=f"group {group_id}")
    return refused


def _delete(coordinator: Coordinator, request: DeleteGroupsRequest) -> Dialogue[Any]:
    return (
        yield from coordinator.ask_until_answered(lambda: request, lambda it: [one.error_code for one in it.results])
    )
