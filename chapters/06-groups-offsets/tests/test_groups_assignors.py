"""Assignors: every partition once, balanced, sticky, deterministic, and equal to those of other programs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from minibroker.groups.client_assignors import (
    CLIENT_ASSIGNORS,
    Assigned,
    Subscriber,
    cooperative_sticky_assignor,
    range_assignor,
    round_robin_assignor,
    sticky_assignor,
)
from minibroker.groups.server_assignors import ASSIGNORS, MemberSpec, assign_range, assign_uniform
from minibroker.segments.checkpoint import TopicPartition

TOPICS = ("t0", "t1", "t2")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
subscriptions = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]), st.frozensets(st.sampled_from(TOPICS)), min_size=1
)
Subscriptions = dict[str, frozenset[str]]


def members_of(topics: Subscriptions, owned: Assigned | None = None, generation: int = 1) -> dict[str, Subscriber]:
    return {it: Subscriber(topics[it], tuple((owned or {}).get(it, ())), generation) for it in topics}


def loads(assigned: Mapping[str, Any]) -> list[int]:
    return [len(it) for it in assigned.values()]


def expected(topics: Subscriptions, sizes: Mapping[str, int]) -> Counter[TopicPartition]:
    """Every partition of a subscribed topic, once."""
    names = {topic for it in topics.values() for topic in it if topic in sizes}
    return Counter(TopicPartition(topic, number) for topic in names for number in range(sizes[topic]))


@settings(deadline=None)
@given(subscriptions, counts)
def test_every_partition_of_a_subscribed_topic_has_exactly_one_owner_that_subscribes_to_it(
    topics: Subscriptions, sizes: dict[str, int]
) -> None:
    for name, assignor in CLIENT_ASSIGNORS.items():
        with case(name):
            assigned = assignor(members_of(topics), sizes)
            assert assigned.keys() == topics.keys()
            assert Counter(partition for it in assigned.values() for partition in it) == expected(topics, sizes)
            assert all(it.topic in topics[member] for member, found in assigned.items() for it in found)
            backwards = dict(reversed(members_of(topics).items()))
            assert assignor(backwards, sizes) == assigned, "the order of the members must not matter"


@settings(deadline=None)
@given(st.integers(1, 9), counts, st.data())
def test_with_equal_subscriptions_the_numbers_of_partitions_differ_by_one_at_most(
    size: int, sizes: dict[str, int], data: st.DataObject
) -> None:
    topics = {f"m{number}": frozenset(sizes) for number in range(size)}
    for name in ("roundrobin", "sticky", "cooperative-sticky"):
        with case(name):
            found = loads(CLIENT_ASSIGNORS[name](members_of(topics), sizes))
            assert max(found) - min(found) <= 1
    # Also from any state before, as far as the partitions need not be free first.
    owners = data.draw(st.lists(st.integers(0, size - 1), min_size=30, max_size=30))
    owned: Assigned = {member: [] for member in topics}
    for owner, partition in zip(owners, sorted(expected(topics, sizes)), strict=False):
        owned[f"m{owner}"].append(partition)
    after = sticky_assignor(members_of(topics, owned), sizes)
    assert max(loads(after)) - min(loads(after)) <= 1
    # A member gives up only what is above its share.
    share = sum(sizes.values()) // size
    for member in topics:
        kept = set(owned[member]) & set(after[member])
        assert len(kept) >= min(len(owned[member]), share)


@settings(deadline=None)
@given(subscriptions, counts)
def test_sticky_changes_nothing_without_need_and_moves_only_what_a_leaving_member_owned(
    topics: Subscriptions, sizes: dict[str, int]
) -> None:
    before = sticky_assignor(members_of(topics), sizes)
    assert sticky_assignor(members_of(topics, before), sizes) == before
    equal = {member: frozenset(TOPICS) for member in topics}
    before = sticky_assignor(members_of(equal), sizes)
    left = {member: equal[member] for member in sorted(equal)[1:]}
    after = sticky_assignor(members_of(left, before), sizes)
    for member in left:
        assert set(before[member]) <= set(after[member])


def test_sticky_believes_the_latest_generation_and_no_two_members_of_one_generation() -> None:
    both = frozenset({"t0"})
    zero, one = TopicPartition("t0", 0), TopicPartition("t0", 1)
    late = {"a": Subscriber(both, (zero, one), 4), "b": Subscriber(both, (one,), 5)}
    assert sticky_assignor(late, {"t0": 2}) == {"a": [zero], "b": [one]}
    # Neither claim counts, so the assignment is that of members that own nothing.
    equal = {"a": Subscriber(both, (one,), 5), "b": Subscriber(both, (one,), 5)}
    assert sticky_assignor(equal, {"t0": 2}) == {"a": [zero], "b": [one]}
    # Partitions that are gone, or that the member does not read any more, do not count.
    gone = {"a": Subscriber(both, (TopicPartition("t0", 9), TopicPartition("t1", 0)), 5)}
    assert sticky_assignor(gone, {"t0": 1, "t1": 1}) == {"a": [zero]}


@settings(deadline=None)
@given(subscriptions, subscriptions, counts)
def test_cooperative_never_gives_a_partition_away_before_its_owner_has_released_it(
    topics: Subscriptions, later: Subscriptions, sizes: dict[str, int]
) -> None:
    owned = cooperative_sticky_assignor(members_of(topics), sizes)
    for generation in range(2, 5):
        members = members_of(later, owned, generation)
        in_use = {it: member for member in later for it in members[member].owned}
        after = cooperative_sticky_assignor(members, sizes)
        for member, found in after.items():
            assert all(in_use.get(it, member) == member for it in found)
        if after == owned:
            break
        # Each member releases what it has lost, and joins again.
        owned = {it: after[it] for it in later}
    assert Counter(it for found in owned.values() for it in found) == expected(later, sizes), "it comes to an end"


@given(st.integers(1, 9), st.integers(1, 30))
def test_range_cuts_equal_topics_in_the_same_places(size: int, count: int) -> None:
    topics = {f"m{number}": frozenset({"t0", "t1"}) for number in range(size)}
    for found in range_assignor(members_of(topics), {"t0": count, "t1": count}).values():
        numbers = {topic: [it.partition for it in found if it.topic == topic] for topic in ("t0", "t1")}
        assert numbers["t0"] == numbers["t1"]


def test_a_member_that_gets_nothing_has_an_empty_mapping_and_no_topic_an_empty_set() -> None:
    members = {name: MemberSpec(frozenset({"t0", "t1"})) for name in ("a", "b", "c")}
    assert assign_range(members, {"t0": 2, "t1": 1}) == {
        "a": {"t0": {0}, "t1": {0}},
        "b": {"t0": {1}},
        "c": {},
    }


def test_static_members_come_first_so_that_a_restart_changes_nothing() -> None:
    both = frozenset({"t0"})
    before = {"z": Subscriber(both, instance_id="i"), "b": Subscriber(both)}
    after = {"a": Subscriber(both, instance_id="i"), "b": Subscriber(both)}
    for name in ("range", "roundrobin"):
        with case(name):
            assign = CLIENT_ASSIGNORS[name]
            assert assign(before, {"t0": 3})["z"] == assign(after, {"t0": 3})["a"]
            assert TopicPartition("t0", 0) in assign(before, {"t0": 3})["z"]


# Beside kafka-python --------------------------------------------------------------------------------------------------


class FakeCluster:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._sizes[topic])) if topic in self._sizes else None


class FakeMember:
    group_instance_id = None

    def __init__(self, member_id: str, topics: frozenset[str], assignor: Any) -> None:
        self.member_id = member_id
        self.metadata = assignor.metadata(sorted(topics))


def of_kafka_python(assignor: Any, topics: Subscriptions, sizes: Mapping[str, int]) -> Assigned:
    found = assignor.assign(FakeCluster(sizes), [FakeMember(it, topics[it], assignor) for it in topics])
    return {
        member: sorted(
            TopicPartition(topic, number) for topic, numbers in part.assigned_partitions for number in numbers
        )
        for member, part in found.items()
    }


@settings(deadline=None)
@given(subscriptions, counts)
def test_range_and_round_robin_agree_with_kafka_python(topics: Subscriptions, sizes: dict[str, int]) -> None:
    assert range_assignor(members_of(topics), sizes) == of_kafka_python(RangePartitionAssignor, topics, sizes)
    # kafka-python 3.0 fails if the subscriptions differ.
    equal = {member: frozenset(TOPICS) for member in topics}
    found = round_robin_assignor(members_of(equal), sizes)
    assert found == of_kafka_python(RoundRobinPartitionAssignor, equal, sizes)


def test_round_robin_skips_members_that_do_not_read_the_topic() -> None:
    # The example in Kafka's documentation.
    topics = {"c0": frozenset({"t0"}), "c1": frozenset({"t0", "t1"}), "c2": frozenset(TOPICS)}
    found = round_robin_assignor(members_of(topics), {"t0": 1, "t1": 2, "t2": 3})
    assert {member: [str(it) for it in found[member]] for member in found} == {
        "c0": ["t0-0"],
        "c1": ["t1-0"],
        "c2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


# The coordinator's ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(subscriptions, subscriptions, counts)
def test_uniform_leaves_no_single_move_that_would_help_and_keeps_its_own_result(
    topics: Subscriptions, later: Subscriptions, sizes: dict[str, int]
) -> None:
    before = assign_uniform({it: MemberSpec(topics[it]) for it in topics}, sizes)
    after = assign_uniform({it: MemberSpec(later[it], before.get(it, {})) for it in later}, sizes)
    found = Counter(TopicPartition(topic, number) for it in after.values() for topic in it for number in it[topic])
    assert found == expected(later, sizes)
    load = {member: sum(map(len, after[member].values())) for member in after}
    for giver, owned in after.items():
        for topic in owned:
            takers = [it for it in later if topic in later[it]]
            assert all(load[giver] - load[it] <= 1 for it in takers)
    again = assign_uniform({it: MemberSpec(later[it], after[it]) for it in later}, sizes)
    assert again == after


def test_assignors_do_nothing_without_members_or_topics() -> None:
    for name, assignor in ASSIGNORS.items():
        with case(name):
            assert assignor({}, {}) == {}
            assert assignor({"a": MemberSpec(frozenset({b"t"}))}, {}) == {"a": {}}
            assert assignor({"a": MemberSpec(frozenset[bytes](), {b"t": frozenset({1})})}, {b"t": 2}) == {"a": {}}


@pytest.mark.parametrize("assign", [assign_uniform, assign_range])
def test_ten_thousand_members_and_a_hundred_thousand_partitions_are_balanced(assign: Any) -> None:
    topics = [number.to_bytes(16) for number in range(10)]
    members = {f"m{number:05}": MemberSpec(frozenset(topics)) for number in range(10_000)}
    found = assign(members, dict.fromkeys(topics, 10_000))
    assert {sum(map(len, it.values())) for it in found.values()} == {10}
