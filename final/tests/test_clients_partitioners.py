"""Claims about partitioners: how even the load is, and which keys keep their order."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.partitioners import partition_of
from minibroker.clients.partitioners import Default, FallThrough, GeoRouting, Partitioner, RoundRobin, Salted

counts = st.integers(min_value=1, max_value=64)


def default(seed: int = 0) -> Default:
    return Default(random.Random(seed).randrange)


def chosen(partitioner: Partitioner, keys: Iterable[bytes | None], partition_count: int) -> list[int]:
    return [partitioner.partition("orders", key, partition_count) for key in keys]


def every_kind() -> list[Partitioner]:
    return [
        default(),
        RoundRobin(),
        GeoRouting(["eu", "us", "asia"], default()),
        Salted(default(), salts=3, hot_keys=[b"", b"hot"]),
        FallThrough(default(), threshold=2, window_ms=1000, clock=lambda: 0),
    ]


# All of them.


@given(st.lists(st.none() | st.binary(max_size=12) | st.sampled_from([b"hot", b"eu:1"])), st.lists(counts, min_size=1))
def test_every_choice_is_a_partition_of_the_topic_even_if_their_number_changes(
    keys: list[bytes | None], partition_counts: list[int]
) -> None:
    for partitioner in every_kind():
        for partition_count in partition_counts:
            for key in keys:
                partition = partitioner.partition("orders", key, partition_count)
                assert 0 <= partition < partition_count
                partitioner.on_new_batch("orders", partition_count, partition)


def test_the_same_seed_and_the_same_records_choose_the_same_partitions() -> None:
    keys = [None if n % 3 else b"key-%d" % (n % 11) for n in range(300)]
    for first, second in zip(every_kind(), every_kind(), strict=True):
        assert chosen(first, keys, 7) == chosen(second, keys, 7), type(first).__name__


# Default.


@given(st.binary(max_size=100), counts)
def test_a_record_with_a_key_goes_to_the_partition_of_its_hash(key: bytes, partition_count: int) -> None:
    assert default().partition("orders", key, partition_count) == partition_of(key, partition_count)


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_full() -> None:
    partitioner = default()
    first = chosen(partitioner, [None] * 100, 6)
    assert len(set(first)) == 1
    partitioner.on_new_batch("orders", 6, first[0])
    second = chosen(partitioner, [None] * 100, 6)
    assert len(set(second)) == 1
    assert second[0] != first[0]


def test_a_full_batch_of_another_partition_moves_nothing() -> None:
    partitioner = default()
    sticky = partitioner.partition("orders", None, 6)
    partitioner.on_new_batch("orders", 6, (sticky + 1) % 6)
    partitioner.on_new_batch("payments", 6, sticky)
    assert partitioner.partition("orders", None, 6) == sticky


def test_a_topic_with_one_partition_always_uses_it() -> None:
    partitioner = default()
    assert partitioner.partition("orders", None, 1) == 0
    partitioner.on_new_batch("orders", 1, 0)
    assert partitioner.partition("orders", None, 1) == 0


@given(st.integers(), st.integers(min_value=2, max_value=12))
def test_over_many_batches_every_partition_gets_its_share(seed: int, partition_count: int) -> None:
    partitioner = default(seed)
    batches: Counter[int] = Counter()
    for _ in range(200 * partition_count):
        sticky = partitioner.partition("orders", None, partition_count)
        batches[sticky] += 1
        partitioner.on_new_batch("orders", partition_count, sticky)
    assert len(batches) == partition_count
    assert max(batches.values()) < 2 * 200


def test_the_load_of_many_keys_is_nearly_even() -> None:
    load = Counter(chosen(default(), [b"user-%d" % n for n in range(10_000)], 8))
    assert max(load.values()) < 1.1 * 10_000 / 8


# RoundRobin.


@given(st.integers(min_value=1, max_value=12), st.integers(min_value=0, max_value=100))
def test_round_robin_loads_differ_by_one_at_most(partition_count: int, records: int) -> None:
    load = Counter(chosen(RoundRobin(), [b"same"] * records, partition_count))
    loads = [load[partition] for partition in range(partition_count)]
    assert max(loads) - min(loads) <= 1


def test_each_topic_has_its_own_turn() -> None:
    partitioner = RoundRobin()
    assert [partitioner.partition(topic, None, 3) for topic in ("a", "b", "a", "b")] == [0, 0, 1, 1]


# GeoRouting.


@given(st.sampled_from(["eu", "us", "asia"]), st.binary(max_size=10), counts)
def test_a_region_stays_in_its_partitions(region: str, rest: bytes, partition_count: int) -> None:
    partitioner = GeoRouting(["eu", "us", "asia"], default())
    partition = partitioner.partition("orders", region.encode() + b":" + rest, partition_count)
    assert partition in partitioner.partitions_of(region, partition_count)


@given(st.integers(min_value=3, max_value=64))
def test_every_partition_belongs_to_exactly_one_region(partition_count: int) -> None:
    partitioner = GeoRouting(["eu", "us", "asia"], default())
    blocks = [partitioner.partitions_of(region, partition_count) for region in ("eu", "us", "asia")]
    assert [partition for block in blocks for partition in block] == list(range(partition_count))


def test_a_key_without_a_region_goes_to_the_partition_of_its_hash() -> None:
    for key in (b"mars:1", b"eu", b"", b":"):
        assert GeoRouting(["eu", "us"], default()).partition("orders", key, 6) == partition_of(key, 6), key


# Salted.


@given(st.integers(min_value=1, max_value=5), counts)
def test_a_hot_key_is_found_in_the_partitions_of_its_salts_and_in_no_others(salts: int, partition_count: int) -> None:
    partitioner = Salted(default(), salts=salts, hot_keys=[b"hot"])
    expected = partitioner.partitions_of("orders", b"hot", partition_count)
    assert sorted(set(chosen(partitioner, [b"hot"] * 10 * salts, partition_count))) == expected
    assert len(expected) <= salts


@given(st.binary(max_size=10).filter(lambda key: key != b"hot"), counts)
def test_a_key_that_is_not_hot_is_not_salted(key: bytes, partition_count: int) -> None:
    partitioner = Salted(default(), salts=5, hot_keys=[b"hot"])
    assert set(chosen(partitioner, [key] * 10, partition_count)) == {partition_of(key, partition_count)}
    assert partitioner.partitions_of("orders", key, partition_count) == [partition_of(key, partition_count)]


def test_the_salts_of_a_hot_key_take_even_shares() -> None:
    load = Counter(chosen(Salted(default(), salts=3, hot_keys=[b"hot"]), [b"hot"] * 300, 1000))
    assert sorted(load.values()) == [100, 100, 100]


def test_one_salt_keeps_the_order_of_the_hot_key() -> None:
    assert len(set(chosen(Salted(default(), salts=1, hot_keys=[b"hot"]), [b"hot"] * 50, 12))) == 1


def test_zero_salts_are_refused() -> None:
    with pytest.raises(ValueError, match="salts=0"):
        Salted(default(), salts=0, hot_keys=[])


# FallThrough.


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 5_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_key_leaves_its_partition_past_the_threshold_and_returns_in_the_next_window() -> None:
    clock = ManualClock()
    partitioner = FallThrough(default(), threshold=4, window_ms=1000, clock=clock)
    home = partition_of(b"hot", 3)
    first = chosen(partitioner, [b"hot"] * 10, 3)
    assert first[:4] == [home] * 4
    assert sorted(Counter(first[4:]).values()) == [2, 2, 2]
    clock.now_ms += 1000
    assert chosen(partitioner, [b"hot"] * 4, 3) == [home] * 4


def test_a_key_below_the_threshold_keeps_its_partition_beside_hot_keys() -> None:
    partitioner = FallThrough(default(), threshold=10, window_ms=1000, clock=lambda: 0)
    placed = [
        (key, partitioner.partition("orders", key, 8))
        for n in range(100)
        for key in ([b"hot"] if n % 10 else [b"hot", b"cold"])
    ]
    assert {partition for key, partition in placed if key == b"cold"} == {partition_of(b"cold", 8)}


@given(st.integers(min_value=2, max_value=12))
def test_records_past_the_threshold_are_spread_evenly(partition_count: int) -> None:
    partitioner = FallThrough(default(), threshold=0, window_ms=1000, clock=lambda: 0)
    load = Counter(chosen(partitioner, [b"hot"] * 12 * partition_count, partition_count))
    assert set(load.values()) == {12}


def test_a_key_is_counted_separately_in_each_topic() -> None:
    partitioner = FallThrough(default(), threshold=2, window_ms=1000, clock=lambda: 0)
    home = partition_of(b"k", 5)
    assert [partitioner.partition(topic, b"k", 5) for topic in ("a", "b", "a", "b")] == [home] * 4


def test_a_window_of_0_ms_is_refused() -> None:
    with pytest.raises(ValueError, match="window_ms=0"):
        FallThrough(default(), threshold=1, window_ms=0, clock=lambda: 0)
