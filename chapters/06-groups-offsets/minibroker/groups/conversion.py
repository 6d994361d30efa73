"""Conversion of a running group from the classic protocol to the new one, and back. A pure module.

Consumers are upgraded one after the other. The first one that joins with the new protocol converts the group. When the
last member of the new protocol leaves, the group is converted back. Members of the classic protocol stay in a group of
the new protocol: they join, sync and send heartbeats as before, and their generation is their member epoch. No member
loses its partitions in a conversion.

A cooperative member may be about to give up partitions when its group is converted: it owned them when it joined, and
its assignment does not have them. No other member gets them before this member has joined again without them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_members import Member as ClassicMember
from minibroker.groups.consumer_members import (
    Held,
    Member,
    MemberState,
    Owned,
    current_record,
    partitions_of,
    subscription_record,
    target_record,
)
from minibroker.groups.consumer_state import ConsumerState, hash_of_topics
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.rebalancing import epoch_record, target_epoch_record
from minibroker.groups.records import (
    NO_TIMESTAMP,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
)
from minibroker.groups.server_assignors import Partitions
from minibroker.groups.subscription import (
    CONSUMER_PROTOCOL,
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    InvalidSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode

# From classic to the new protocol -------------------------------------------------------------------------------------


def check_upgrade(classic: ClassicGroup, settings: GroupSettings) -> None:
    """Raise GroupRefused if a classic group cannot be converted to the new protocol."""
    can_be = classic.protocol_type == CONSUMER_PROTOCOL and len(classic.members()) <= settings.consumer_max_size
    if not (can_be and settings.migration_policy.is_upgrade_enabled):
        message = f"group {classic.group_id[:64]!a} is a classic group, and cannot be converted"
        raise GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND, message)


def to_consumer(classic: ClassicGroup, image: Image) -> list[GroupRecord]:
    """The records that convert a classic group to the new protocol. The first record deletes the classic group.

    The generation becomes the epoch of the group, of the target and of all members. The members keep their partitions.
    """
    group_id, epoch = classic.group_id, max(classic.generation_id, 0)
    try:
        found = {it.member_id: _subscription_of(it, classic.protocol_name) for it in classic.members()}
        members = [_consumer_member(it, found[it.member_id], epoch, image) for it in classic.members()]
    except InvalidSubscription as error:
        raise GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND, str(error)) from error
    members = _revoking(members, {it: (one.generation_id, owned_by(one, image)) for it, one in found.items()})
    names = {name for it in members for name in it.subscription.subscribed_topic_names}
    records = [GroupRecord(GroupMetadataKey(group_id=group_id), None)]
    records += [subscription_record(group_id, it) for it in members]
    records.append(epoch_record(group_id, epoch, hash_of_topics(names, image)))
    records += [target_record(group_id, it.member_id, partitions_of(it.assigned)) for it in members]
    records.append(target_epoch_record(group_id, epoch, NO_TIMESTAMP))
    return records + [current_record(group_id, it) for it in members]


def _subscription_of(member: ClassicMember, protocol: str | None) -> ConsumerProtocolSubscription:
    # Before the first generation the group has no protocol. Then the member's first protocol is used, because a
    # consumer sends the same subscription with each of its protocols.
    return decode_subscription(member.protocols.get(protocol or "") or next(iter(member.protocols.values())))


def owned_by(subscription: ConsumerProtocolSubscription, image: Image) -> Owned:
    """The partitions that a member of the classic protocol lists as its own. In the eager protocol it lists none."""
    return {
        image.topics[it.topic].topic_id: frozenset(it.partitions)
        for it in subscription.owned_partitions
        if it.topic in image.topics
    }


def _revoking(members: Iterable[Member], owned: Mapping[str, tuple[int, Owned]]) -> list[Member]:
    """The members, each with the partitions that it owned when it joined and that are assigned to no member now."""
    after = {it.member_id: it for it in members}
    taken = {partition for it in after.values() for partition in it.held()}
    # Of two members that list the same partition, the one with the later generation owns it (KIP-792).
    for member_id in sorted(after, key=lambda it: -owned[it][0]):
        member, revoking = after[member_id], {}
        for topic_id, numbers in owned[member_id][1].items():
            if left := {it: member.epoch for it in sorted(numbers) if (topic_id, it) not in taken}:
                revoking[topic_id] = left
                taken.update((topic_id, it) for it in left)
        if revoking:
            after[member_id] = replace(member, state=MemberState.UNREVOKED, revoking=revoking)
    return list(after.values())


def _consumer_member(member: ClassicMember, found: ConsumerProtocolSubscription, epoch: int, image: Image) -> Member:
    subscription = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=found.rack_id,
        client_id=member.client.id,
        client_host=member.client.host,
        subscribed_topic_names=sorted(set(found.topics)),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=classic_metadata(member.session_timeout_ms, member.protocols),
    )
    assigned = {
        image.topics[it.topic].topic_id: dict.fromkeys(it.partitions, epoch)
        for it in decode_assignment(member.assignment).assigned_partitions
        if it.topic in image.topics and it.partitions
    }
    return Member(member.member_id, subscription, epoch, epoch, assigned=assigned)


def classic_metadata(session_timeout_ms: int, protocols: Mapping[str, bytes]) -> ClassicMemberMetadata:
    """The data that a group of the new protocol stores about a member of the classic protocol."""
    supported = [ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()]
    return ClassicMemberMetadata(session_timeout_ms=session_timeout_ms, supported_protocols=supported)


# From the new protocol to classic -------------------------------------------------------------------------------------


def can_downgrade(state: ConsumerState, leaving: Collection[str], settings: GroupSettings) -> bool:
    """Whether the group may become classic: without the members in `leaving`, all use the classic protocol."""
    left = [it for it in state.members.values() if it.member_id not in leaving]
    has_only_classic = bool(left) and all(it.classic is not None for it in left)
    return has_only_classic and settings.migration_policy.is_downgrade_enabled and len(left) <= settings.max_size


def to_classic(state: ConsumerState, leaving: Collection[str], image: Image, now_ms: int) -> GroupMetadataValue:
    """The record of the group as a classic one. A rebalance must then assign the partitions of the leaving members."""
    members = [it for it in state.members.values() if it.member_id not in leaving]
    protocol = common_protocol(members)
    return GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL,
        generation=state.epoch,
        protocol=protocol,
        leader=members[0].member_id,
        current_state_timestamp=now_ms,
        members=[_classic_member(it, protocol, state.targets.get(it.member_id, {}), image) for it in members],
    )


def common_protocol(members: Collection[Member]) -> str:
    """The protocol, such as range, that the first classic member prefers among those that all of them support."""
    names = [[it.name for it in member.classic.supported_protocols] for member in members if member.classic]
    return next(name for name in names[0] if all(name in others for others in names))


def _classic_member(member: Member, protocol: str, target: Partitions[bytes], image: Image) -> MemberMetadata:
    assert member.classic is not None, f"member {member.member_id} does not use the classic protocol"
    metadata = next(it.metadata for it in member.classic.supported_protocols if it.name == protocol)
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.subscription.client_id,
        client_host=member.subscription.client_host,
        rebalance_timeout=member.subscription.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=assignment_bytes(target, metadata, image),
    )


def assignment_bytes(held: Partitions[bytes] | Held, metadata: bytes, image: Image) -> bytes:
    """An assignment encoded for a member of the classic protocol, in the version of its subscription."""
    named = {image.topic_names[it]: sorted(numbers) for it, numbers in held.items() if it in image.topic_names}
    assigned = [AssignedTopicPartitions(topic=it, partitions=named[it]) for it in sorted(named)]
    version = min(max(int.from_bytes(metadata[:2], signed=True), 0), 3)
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned), version)
