"""A group changes its protocol while it runs, and has members of both protocols meanwhile (KIP-848)."""

from dataclasses import replace
from typing import Any

import pytest
from cases import case
from classic_driver import Driver
from consumer_driver import ConsumerDriver, assigned_in, image_of

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.conversion import check_upgrade, to_consumer
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import MigrationPolicy
from minibroker.groups.records import GroupMetadataValue, GroupRecord, decode, encode
from minibroker.groups.steps import Client, Step
from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.wire.codes import ErrorCode


def subscription(owned: list[int] | None = None) -> bytes:
    parts = [] if owned is None else [OwnedTopicPartitions(topic="orders", partitions=owned)]
    return encode_subscription(ConsumerProtocolSubscription(topics=["orders"], owned_partitions=parts))


def assignment(*numbers: int) -> bytes:
    topics = [AssignedTopicPartitions(topic="orders", partitions=[*numbers])]
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics))


def stable_classic() -> Driver:
    """A classic group in which `a-1` and `b-2` have two partitions each."""
    driver = Driver(initial_rebalance_delay_ms=0)
    protocols = {"range": subscription()}
    driver.join("a0", protocols=protocols, version=3)
    driver.sync("a1", "a-1", {"a-1": assignment(0, 1, 2, 3)})
    driver.join("b0", protocols=protocols, version=3)
    driver.join("a2", "a-1", protocols=protocols)
    driver.sync("a3", "a-1", {"a-1": assignment(0, 1), "b-2": assignment(2, 3)})
    driver.sync("b1", "b-2")
    return driver


class Mixed(ConsumerDriver):
    """A group that was classic until now."""

    def __init__(self, classic: ClassicGroup, **changes: Any) -> None:
        super().__init__(image_of(orders=4), **changes)
        self.take(Step(to_consumer(classic, self.image)))
        self.classic: GroupMetadataValue | None = None

    def take(self, step: Step) -> Any:
        """Note the record of a classic group, if the group becomes one."""
        for record in step.records:
            if isinstance(record.value, GroupMetadataValue):
                self.classic = record.value
        return super().take(step)

    def classic_join(self, member_id: str, owned: list[int] | None = None, **fields: Any) -> Any:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            group_instance_id=fields.get("instance_id"),
            protocol_type=fields.get("protocol_type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=fields.get("protocol", "range"), metadata=subscription(owned))],
        )
        client = Client("client", "/127.0.0.1")
        return self.take(self.group.on_classic_join("ticket", request, 9, client, self.image, self.now_ms))

    def classic_sync(self, member_id: str, generation_id: int) -> Any:
        request = SyncGroupRequest(group_id="g", generation_id=generation_id, member_id=member_id, assignments=[])
        answer = self.take(self.group.on_classic_sync("ticket", request, 5, self.image, self.now_ms))
        if isinstance(answer, ErrorCode):
            return answer
        return [it.partitions for it in decode_assignment(answer.assignment).assigned_partitions]

    def classic_beat(self, member_id: str, generation_id: int) -> ErrorCode:
        request = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id=member_id)
        return self.group.on_classic_heartbeat(request, self.now_ms)

    def classic_leave(self, *members: tuple[str, str | None]) -> list[int]:
        identities = [MemberIdentity(member_id=one, group_instance_id=other) for one, other in members]
        request = LeaveGroupRequest(group_id="g", members=identities)
        answer = self.take(self.group.on_classic_leave("ticket", request, 5, self.now_ms))
        return [it.error_code for it in answer.members]


def test_a_converted_group_has_the_same_members_partitions_and_generation() -> None:
    classic = stable_classic().group
    driver = Mixed(classic)
    assert driver.group.epoch == classic.generation_id == 2
    assert {it: driver.assigned(it) for it in driver.group.members} == {"a-1": [0, 1], "b-2": [2, 3]}
    assert driver.group.state.value == "Stable"
    assert driver.classic_beat("a-1", 2) is ErrorCode.NONE
    first = to_consumer(classic, driver.image)[0]
    assert first.value is None, "the classic group is deleted first"


def test_a_static_classic_member_restarts_with_the_new_protocol() -> None:
    """A static member of the classic protocol does not leave when it stops, so its successor does not wait for that."""
    classic = Driver(initial_rebalance_delay_ms=0)
    classic.join("a0", instance_id="i", protocols={"range": subscription()})
    classic.sync("a1", "i-1", {"i-1": assignment(0, 1, 2, 3)}, instance_id="i")
    driver = Mixed(classic.group)
    assert assigned_in(driver.join("new", instance_id="i")) == [0, 1, 2, 3]
    assert list(driver.group.members) == ["new"]
    assert driver.group.members["new"].classic is None
    assert driver.classic_beat("i-1", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_of_a_classic_member_notices_that_a_topic_has_grown() -> None:
    driver = Mixed(stable_classic().group)
    driver.image = image_of(2, orders=6)
    driver.classic_join("a-1", owned=[0, 1])
    assert driver.group.epoch == 3
    assert len(driver.assigned("a-1")) == 3


def test_a_classic_member_gives_up_partitions_to_one_of_the_new_protocol() -> None:
    driver = Mixed(stable_classic().group)
    new = driver.join("c")
    assert (new.member_epoch, assigned_in(new)) == (3, [])
    # The heartbeat tells the member to join; the sync tells it what to keep; then it joins again without the rest.
    assert driver.classic_beat("b-2", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = driver.classic_join("b-2", owned=[2, 3])
    assert (joined.generation_id, joined.leader, joined.members) == (2, "", [])
    assert driver.classic_sync("b-2", 2) == [[2]]
    assert driver.classic_beat("b-2", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.classic_join("b-2", owned=[2]).generation_id == 3
    assert driver.classic_sync("b-2", 3) == [[2]]
    assert driver.classic_beat("b-2", 3) is ErrorCode.NONE
    assert assigned_in(driver.beat("c", 3)) == [3]
    # A member that gives up everything before it joins needs only one join.
    assert driver.classic_join("a-1", owned=[]).generation_id == 3
    assert driver.classic_sync("a-1", 3) == [[0, 1]]
    assert driver.group.state.value == "Stable"


def test_a_partition_that_a_cooperative_member_is_giving_up_stays_its_own() -> None:
    """It may still commit the partition's offset until it joins again; another owner would commit there, too."""
    classic = Driver(initial_rebalance_delay_ms=0)
    classic.join("a0", protocols={"cooperative-sticky": subscription()}, version=3)
    classic.sync("a1", "a-1", {"a-1": assignment(0, 1, 2, 3)})
    classic.join("b0", protocols={"cooperative-sticky": subscription()}, version=3)
    classic.join("a2", "a-1", protocols={"cooperative-sticky": subscription([0, 1, 2, 3])})
    classic.sync("a3", "a-1", {"a-1": assignment(0, 1), "b-2": assignment()})
    driver = Mixed(classic.group)
    driver.join("c")
    assert (driver.assigned("a-1"), driver.assigned("c")) == ([0, 1], []), "2 and 3 are not free yet"
    assert driver.classic_sync("a-1", 2) == [[0, 1]]
    assert driver.classic_beat("a-1", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.classic_join("a-1", [0, 1], protocol="cooperative-sticky")
    assert assigned_in(driver.beat("c", 3)), "the member has joined again without them"


def test_requests_of_classic_members_are_checked_like_those_in_a_classic_group() -> None:
    driver = Mixed(stable_classic().group, consumer_max_size=3)
    assert driver.classic_join("").error_code == ErrorCode.MEMBER_ID_REQUIRED
    driver.join("c")
    for answer, code in (
        (driver.classic_join("x"), ErrorCode.GROUP_MAX_SIZE_REACHED),
        (driver.classic_join("b-2", protocol="roundrobin"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (driver.classic_join("b-2", protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (driver.classic_sync("b-2", 1), ErrorCode.ILLEGAL_GENERATION),
        (driver.classic_sync("b-2", 2), ErrorCode.REBALANCE_IN_PROGRESS),
        (driver.classic_sync("c", 3), ErrorCode.UNKNOWN_MEMBER_ID),
        (driver.classic_beat("x", 2), ErrorCode.UNKNOWN_MEMBER_ID),
        (driver.classic_beat("b-2", 3), ErrorCode.ILLEGAL_GENERATION),
    ):
        with case(code):
            assert answer == code
    assert driver.classic_leave(("x", None), ("b-2", None)) == [25, 0]


def test_an_administrator_removes_members_of_both_protocols() -> None:
    """LeaveGroup by the member id, or by the instance id alone (KIP-345), whatever protocol the member uses."""
    driver = Mixed(stable_classic().group)
    for member_id, instance_id in (("c", None), ("d", "i"), ("e", None)):
        driver.join(member_id, instance_id=instance_id)
    assert driver.classic_leave(("c", None), ("", "i"), ("", "j"), ("b-2", None)) == [0, 0, 25, 0]
    assert sorted(driver.group.members) == ["a-1", "e"]


def test_a_classic_member_that_does_not_join_again_or_does_not_sync_is_removed() -> None:
    for joins in (False, True):
        with case(joins):
            driver = Mixed(stable_classic().group)
            driver.join("c")
            if joins:
                driver.classic_join("b-2", owned=[])
            for _ in range(7):
                driver.classic_beat("b-2", driver.group.members["b-2"].epoch)
                driver.classic_join("a-1", owned=[])
                driver.classic_sync("a-1", 3)
                driver.beat("c", driver.group.members["c"].epoch)
                driver.wait(9_000)
            assert "b-2" not in driver.group.members
            assert "a-1" in driver.group.members


def test_a_silent_classic_member_is_removed_after_its_own_session_timeout() -> None:
    driver = Mixed(stable_classic().group)
    driver.join("c")
    driver.wait(10_000)
    assert list(driver.group.members) == ["c"]


def test_the_group_is_classic_again_when_the_last_member_of_the_new_protocol_goes() -> None:
    driver = Mixed(stable_classic().group)
    driver.join("c")
    driver.classic_join("b-2", owned=[])
    driver.classic_join("a-1", owned=[])
    driver.beat("c", -1)
    assert driver.group.members == {}
    assert driver.classic is not None
    assert (driver.classic.protocol_type, driver.classic.protocol, driver.classic.generation) == (
        "consumer",
        "range",
        3,
    )
    back = Driver()
    back.group.load(driver.classic, back.now_ms)
    assert [it.member_id for it in back.group.members()] == ["a-1", "b-2"]
    # The last record for the group's epoch is a tombstone, so a replay finds no group of the new protocol.
    assert driver.replayed().epoch == 0


def test_a_group_stays_what_it_is_if_the_policy_says_so() -> None:
    classic = stable_classic()
    check_upgrade(classic.group, classic.settings)
    for changes in (
        {"migration_policy": MigrationPolicy.DISABLED},
        {"migration_policy": MigrationPolicy.DOWNGRADE},
        {"consumer_max_size": 1},
    ):
        with case(changes), pytest.raises(GroupRefused) as refused:
            check_upgrade(classic.group, replace(classic.settings, **changes))
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    driver = Mixed(classic.group, migration_policy=MigrationPolicy.UPGRADE)
    driver.join("c")
    driver.beat("c", -1)
    assert (driver.classic, list(driver.group.members)) == (None, ["a-1", "b-2"])


def test_a_group_with_malformed_subscriptions_cannot_be_converted() -> None:
    classic = Driver(initial_rebalance_delay_ms=0)
    classic.join("a0", protocols={"range": b"\x00"}, version=3)
    with pytest.raises(GroupRefused) as refused:
        to_consumer(classic.group, image_of(orders=4))
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_records_of_a_converted_group_survive_the_log() -> None:
    records = to_consumer(stable_classic().group, image_of(orders=4))
    assert [GroupRecord(*(decode(*encode(it)) or ())) for it in records] == records
