"""Claims about the plans of `topics reassign` and `topics alter`, without a cluster."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from minibroker.cli.replica_placement import NoBrokerLeft, drain_plan, factor_plan, spread_plan
from minibroker.segments.checkpoint import TopicPartition

Placed = Mapping[TopicPartition, Sequence[int]]


def placed(*replicas: Sequence[int], topic: str = "orders") -> dict[TopicPartition, Sequence[int]]:
    return {TopicPartition(topic, number): tuple(it) for number, it in enumerate(replicas)}


def racks(*brokers: int, **named: Sequence[int]) -> dict[int, str | None]:
    return {**dict.fromkeys(brokers), **{it: rack for rack, them in named.items() for it in them}}


def loads(after: Placed) -> Counter[int]:
    return Counter(it for replicas in after.values() for it in replicas)


def leads(after: Placed) -> Counter[int]:
    return Counter(replicas[0] for replicas in after.values())


def range_of(counts: Counter[int], brokers: Sequence[int]) -> int:
    found = [counts[it] for it in brokers]
    return max(found) - min(found)


def test_a_new_replica_takes_the_place_of_the_one_it_replaces() -> None:
    before = placed([4, 1, 2], [1, 4, 3], [1, 2, 3])
    assert drain_plan(before, racks(1, 2, 3, 4), 4) == placed([3, 1, 2], [1, 2, 3])


def test_the_replicas_of_a_drained_node_are_shared_among_the_others() -> None:
    before = placed(*([4, 1] for _ in range(9)), *([2, 4] for _ in range(3)), *([3, 2] for _ in range(3)))
    after = before | drain_plan(before, racks(1, 2, 3, 4), 4)
    assert loads(after)[4] == 0
    assert all(len(set(it)) == 2 for it in after.values())
    # Nine partitions have lost their first replica: the broker that leads least is put first.
    assert range_of(leads(after), (2, 3)) <= 1


def test_a_new_rack_for_the_partition_counts_more_than_a_low_load() -> None:
    before = placed([1, 3], [2, 5], [2, 5], [2, 5], [2, 5])
    where = racks(a=[1, 2], b=[3], c=[4, 5])
    assert drain_plan(before, where, 3) == placed([1, 4])
    assert drain_plan(placed([1, 3], [4, 1], [4, 1]), racks(a=[1, 2], b=[3, 4]), 3) == placed([1, 4])


def test_only_live_brokers_get_replicas_and_one_topic_can_be_named() -> None:
    before = placed([4, 1]) | placed([4, 1], topic="others")
    assert drain_plan(before, racks(1, 2), 4, topic="others") == placed([2, 1], topic="others")
    assert drain_plan(before, racks(1, 2), 3) == {}


def test_a_partition_that_every_other_broker_has_already_is_named() -> None:
    with pytest.raises(NoBrokerLeft, match="orders-1 is on 1,2,3"):
        drain_plan(placed([1, 2], [1, 2, 3]), racks(1, 2, 3), 3)


def test_a_new_broker_gets_its_share_with_the_fewest_moves() -> None:
    before = placed(*([1, 2, 3], [2, 3, 1], [3, 1, 2]) * 4)
    plan = spread_plan(before, racks(1, 2, 3, 4))
    after = before | plan
    assert loads(after) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert leads(after) == {1: 3, 2: 3, 3: 3, 4: 3}
    came = sum(4 in it for it in plan.values())
    assert came == 9
    # Every other change is one of order, so no other records are copied.
    assert all(set(it) - {4} <= set(before[name]) for name, it in plan.items())


def test_every_topic_gives_as_much_and_an_even_placement_stays() -> None:
    before = placed(*[(1, 2)] * 4) | placed(*[(1, 2)] * 4, topic="others")
    after = before | spread_plan(before, racks(1, 2, 3, 4))
    came = Counter(name.topic for name, it in after.items() for node in it if node in (3, 4))
    assert came["orders"] == came["others"]
    assert spread_plan(after, racks(1, 2, 3, 4)) == {}


def test_uneven_leaders_alone_only_change_the_order_of_replicas() -> None:
    assert spread_plan(placed([1, 2], [1, 2], [1, 2], [1, 2]), racks(1, 2)) == placed([2, 1], [2, 1])


def test_a_broker_that_is_not_running_keeps_its_replicas() -> None:
    before = placed(*[(3, 1)] * 4)
    after = before | spread_plan(before, racks(1, 2))
    assert loads(after) == {3: 4, 1: 2, 2: 2}
    assert leads(after) == {3: 4}


def test_every_plan_leaves_partitions_on_as_many_racks_and_brokers_as_possible() -> None:
    for seed in range(20):
        check_plans(seed)


def check_plans(seed: int) -> None:
    chance = random.Random(seed)
    where: dict[int, str | None] = {it: chance.choice("abc") for it in range(chance.randint(5, 8))}
    brokers = list(where)
    before = placed(*(chance.sample(brokers, chance.randint(1, 3)) for _ in range(chance.randint(1, 30))))

    def racks_of(replicas: Sequence[int]) -> set[str | None]:
        return {where[it] for it in replicas}

    even = spread_plan(before, where)
    assert all(len(racks_of(it)) >= len(racks_of(before[name])) for name, it in even.items()), f"seed {seed}"
    gone = chance.choice(brokers)
    moved = drain_plan(before, where, gone)
    assert set(moved) == {name for name, it in before.items() if gone in it}, f"seed {seed}"
    for name, replicas in moved.items():
        left = [it for it in before[name] if it != gone]
        others = racks_of([it for it in brokers if it not in before[name]])
        assert len(racks_of(replicas)) == len(racks_of(left)) + bool(others - racks_of(left)), f"seed {seed}: {name}"
    assert all(len(set(it)) == len(before[name]) for plan in (even, moved) for name, it in plan.items()), f"seed {seed}"


def test_more_replicas_go_to_other_racks_and_to_the_least_loaded_brokers() -> None:
    before = placed([1], [1], [2]) | placed([3, 1], topic="others")
    after = before | factor_plan(before, racks(1, 2, 3), "orders", 2)
    assert [it[0] for it in after.values()] == [1, 1, 2, 3]
    assert all(len(set(it)) == 2 for it in after.values())
    assert range_of(loads(after), (1, 2, 3)) <= 1
    assert factor_plan(placed([1]), racks(a=[1, 2], b=[3]), "orders", 2) == placed([1, 3])
    assert factor_plan(placed([1, 2]), racks(1, 2), "orders", 2) == {}
    with pytest.raises(NoBrokerLeft):
        factor_plan(placed([1, 2]), racks(1, 2), "orders", 3)
