"""Claims about the plans of `topics reassign --from` and `--spread`: functions of facts, without a cluster."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from minibroker.cli.spreading import NowhereToGo, drained, spread
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


def test_a_replica_that_comes_takes_the_place_of_the_one_that_goes() -> None:
    before = placed([4, 1, 2], [1, 4, 3], [1, 2, 3])
    assert drained(before, racks(1, 2, 3, 4), 4) == placed([3, 1, 2], [1, 2, 3])


def test_what_a_node_had_is_shared_among_the_others() -> None:
    before = placed(*([4, 1] for _ in range(9)), *([2, 4] for _ in range(3)), *([3, 2] for _ in range(3)))
    after = before | drained(before, racks(1, 2, 3, 4), 4)
    assert loads(after)[4] == 0
    assert all(len(set(it)) == 2 for it in after.values())
    # Nine partitions have lost their first replica: who leads least comes first.
    assert range_of(leads(after), (2, 3)) <= 1


def test_a_replica_goes_where_its_partition_has_fewest_racks_before_it_goes_where_least_is() -> None:
    before = placed([1, 3], [2, 5], [2, 5], [2, 5], [2, 5])
    where = racks(a=[1, 2], b=[3], c=[4, 5])
    assert drained(before, where, 3) == placed([1, 4])
    assert drained(placed([1, 3], [4, 1], [4, 1]), racks(a=[1, 2], b=[3, 4]), 3) == placed([1, 4])


def test_only_live_brokers_get_anything_and_one_topic_can_be_meant() -> None:
    before = placed([4, 1]) | placed([4, 1], topic="others")
    assert drained(before, racks(1, 2), 4, topic="others") == placed([2, 1], topic="others")
    assert drained(before, racks(1, 2), 3) == {}


def test_a_replica_that_nobody_could_take_is_named() -> None:
    with pytest.raises(NowhereToGo, match="orders-1 is on 1,2,3"):
        drained(placed([1, 2], [1, 2, 3]), racks(1, 2, 3), 3)


def test_a_new_broker_gets_its_share_with_no_move_too_many() -> None:
    before = placed(*([1, 2, 3], [2, 3, 1], [3, 1, 2]) * 4)
    plan = spread(before, racks(1, 2, 3, 4))
    after = before | plan
    assert loads(after) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert leads(after) == {1: 3, 2: 3, 3: 3, 4: 3}
    came = sum(4 in it for it in plan.values())
    assert came == 9
    # Whatever else changes is only an order: no other records are copied.
    assert all(set(it) - {4} <= set(before[name]) for name, it in plan.items())


def test_topics_give_alike_and_what_is_even_stays() -> None:
    before = placed(*[(1, 2)] * 4) | placed(*[(1, 2)] * 4, topic="others")
    after = before | spread(before, racks(1, 2, 3, 4))
    came = Counter(name.topic for name, it in after.items() for node in it if node in (3, 4))
    assert came["orders"] == came["others"]
    assert spread(after, racks(1, 2, 3, 4)) == {}


def test_what_is_only_led_unevenly_is_put_in_another_order() -> None:
    assert spread(placed([1, 2], [1, 2], [1, 2], [1, 2]), racks(1, 2)) == placed([2, 1], [2, 1])


def test_who_is_not_there_at_the_moment_keeps_what_it_has() -> None:
    before = placed(*[(3, 1)] * 4)
    after = before | spread(before, racks(1, 2))
    assert loads(after) == {3: 4, 1: 2, 2: 2}
    assert leads(after) == {3: 4}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_planned_partitions_stand_on_as_many_racks_and_brokers_as_they_can(seed: int) -> None:
    chance = random.Random(seed)
    where: dict[int, str | None] = {it: chance.choice("abc") for it in range(chance.randint(5, 8))}
    brokers = list(where)
    before = placed(*(chance.sample(brokers, chance.randint(1, 3)) for _ in range(chance.randint(1, 30))))

    def racks_of(replicas: Sequence[int]) -> set[str | None]:
        return {where[it] for it in replicas}

    even = spread(before, where)
    assert all(len(racks_of(it)) >= len(racks_of(before[name])) for name, it in even.items())
    gone = chance.choice(brokers)
    moved = drained(before, where, gone)
    assert set(moved) == {name for name, it in before.items() if gone in it}
    for name, replicas in moved.items():
        left = [it for it in before[name] if it != gone]
        others = racks_of([it for it in brokers if it not in before[name]])
        assert len(racks_of(replicas)) == len(racks_of(left)) + bool(others - racks_of(left))
    assert all(len(set(it)) == len(before[name]) for plan in (even, moved) for name, it in plan.items())
