"""Rates, buckets and delays, for any amounts at any times; and which quota applies to whom."""

from itertools import product

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st

from minibroker.metadata.image import QuotaEntity
from minibroker.transfer.arrivals import Arrivals
from minibroker.transfer.matching import applied, applied_to_address, entity
from minibroker.transfer.rates import Bucket, Rate, Windows
from minibroker.transfer.usage import Usage

QUOTA = 1000.0
STEPS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5000)), min_size=1, max_size=60)


def test_a_client_that_waits_as_told_gets_its_quota_in_the_long_run() -> None:
    for amount in (10, 100, 500, 1000, 5000):
        with case(f"{amount} at a time"):
            rate, now_ms, total = Rate(), 0, 0
            while now_ms < 300_000:
                rate.record(amount, now_ms)
                total += amount
                now_ms += rate.delay_ms(QUOTA, now_ms) + 1
            assert 0.95 * QUOTA < total / 300 < 1.05 * QUOTA


@given(STEPS)
def test_a_rate_is_the_amount_of_the_last_samples_over_at_least_ten_seconds(steps: list[tuple[int, int]]) -> None:
    rate, now_ms, taken = Rate(), 0, list[tuple[int, int]]()
    for pause_ms, amount in steps:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        taken.append((now_ms, amount))
        found = rate.per_second(now_ms)
        # A sample begins with its first amount and lasts a second. It counts for eleven seconds from its begin on.
        newest = sum(amount for at_ms, amount in taken if now_ms - at_ms < 10_000)
        oldest = sum(amount for at_ms, amount in taken if now_ms - at_ms < 11_000)
        assert newest / 12 <= found + 1e-6
        assert found <= oldest / 10 + 1e-6


@given(STEPS)
def test_an_amount_that_is_taken_back_leaves_no_trace(steps: list[tuple[int, int]]) -> None:
    rate, other, now_ms = Rate(), Rate(), 0
    for pause_ms, amount in steps:
        now_ms += pause_ms
        for it in (rate, other):
            it.record(amount, now_ms)
        rate.record(77, now_ms)
        rate.record(-77, now_ms)
    assert rate.per_second(now_ms) == pytest.approx(other.per_second(now_ms), abs=1e-6)


def test_the_delay_is_the_time_in_which_the_mean_falls_to_the_quota() -> None:
    """Kafka's formula: (rate - quota) / quota * window."""
    rate = Rate()
    rate.record(15_000, 0)
    assert rate.per_second(0) == 1500
    assert rate.delay_ms(QUOTA, 0) == 5000
    assert rate.delay_ms(QUOTA, 5000) == pytest.approx(5000, abs=1)
    assert rate.delay_ms(1500, 0) == 0
    # After eleven seconds the sample is forgotten.
    assert rate.delay_ms(QUOTA, 11_000) == 0
    assert rate.is_empty(11_000)


def test_rates_over_other_windows() -> None:
    for samples, ms in product((1, 2, 5), (1000, 3000)):
        with case(f"{samples} samples of {ms} ms"):
            rate = Rate(Windows(samples, ms))
            rate.record(1000, 0)
            window_s = max(samples - 1, 1) * ms / 1000
            assert rate.per_second(0) == pytest.approx(1000 / window_s)
            assert rate.per_second(samples * ms) == 0


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 40)), min_size=1, max_size=60))
def test_a_bucket_gives_no_more_than_it_holds_and_what_flows_in(steps: list[tuple[int, int]]) -> None:
    quota, bucket, now_ms, taken = 2.0, Bucket(), 0, 0
    last = 0
    for pause_ms, count in steps:
        now_ms += pause_ms
        if bucket.delay_ms(quota, now_ms) == 0:
            bucket.take(count, quota, now_ms)
            taken, last = taken + count, count
    assert taken - last <= quota * 11 + quota * now_ms / 1000


def test_an_empty_bucket_says_when_it_has_tokens_again() -> None:
    bucket = Bucket()
    bucket.take(22, 2, 0)
    assert bucket.delay_ms(2, 0) == 0
    bucket.take(4, 2, 0)
    assert bucket.delay_ms(2, 0) == 2000
    assert bucket.delay_ms(2, 1500) == 500
    assert bucket.delay_ms(2, 2000) == 0
    assert not bucket.is_full(2, 2000)
    assert bucket.is_full(2, 13_000)


# Matching -------------------------------------------------------------------------------------------------------------

ORDER: list[QuotaEntity] = [
    entity(user="ada", client_id="app"),
    entity(user="ada", client_id=None),
    entity(user="ada"),
    entity(user=None, client_id="app"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="app"),
    entity(client_id=None),
]


def test_the_most_specific_quota_wins_in_kafkas_order() -> None:
    for first, expected in enumerate(ORDER):
        with case(f"{expected}"):
            quotas = {it: {"rate": 100.0 + number} for number, it in enumerate(ORDER) if number >= first}
            quotas |= {it: {"other": 1.0} for it in ORDER[:first]}
            found = applied(quotas, "rate", "ada", "app")
            assert found is not None
            assert found.value == 100 + first
    assert applied({}, "rate", "ada", "app") is None
    assert applied({entity(user="eve"): {"rate": 1.0}}, "rate", "ada", "app") is None


def test_clients_share_the_count_of_the_entity_that_names_them() -> None:
    for name, clients, counts in (
        (entity(user="ada"), [("ada", "a"), ("ada", "b")], 1),
        (entity(user=None), [("ada", "a"), ("ada", "b"), ("eve", "a")], 2),
        (entity(client_id="a"), [("ada", "a"), ("eve", "a")], 1),
        (entity(client_id=None), [("ada", "a"), ("eve", "b"), ("eve", "a")], 2),
        (entity(user="ada", client_id=None), [("ada", "a"), ("ada", "b")], 2),
        (entity(user=None, client_id=None), [("ada", "a"), ("eve", "a"), ("eve", "a")], 2),
    ):
        with case(f"{name}"):
            usage = Usage()
            usage.set_quotas({name: {"producer_byte_rate": 10.0}})
            found = {id(it.rate) for it in (usage.of(user, client, 0).produce for user, client in clients) if it}
            assert len(found) == counts


def test_a_change_of_a_quota_keeps_what_was_used() -> None:
    usage, name = Usage(), entity(user="ada")
    usage.set_quotas({name: {"producer_byte_rate": 10.0}})
    limited = usage.of("ada", "a", 0).produce
    assert limited is not None
    assert limited.delay_ms(200, 0) == 10_000
    usage.set_quotas({name: {"producer_byte_rate": 20.0}})
    again = usage.of("ada", "b", 0).produce
    assert again is not None
    assert again.delay_ms(100, 0) == 5_000
    usage.set_quotas({})
    assert not usage.is_set
    assert usage.of("ada", "a", 0).produce is None


def test_an_address_has_its_own_quota_or_the_default() -> None:
    quotas = {entity(ip="10.0.0.1"): {"rate": 1.0}, entity(ip=None): {"rate": 2.0}}
    assert applied_to_address(quotas, "rate", "10.0.0.1") == 1.0
    assert applied_to_address(quotas, "rate", "10.0.0.2") == 2.0
    assert applied_to_address({}, "rate", "10.0.0.2") is None


def test_names_that_never_come_again_do_not_fill_the_memory() -> None:
    usage = Usage()
    usage.set_quotas({entity(client_id=None): {"producer_byte_rate": 10.0, "controller_mutation_rate": 1.0}})
    for number in range(30_000):
        usage.of("ada", f"client-{number}", now_ms := number * 10)
    assert len(usage._rates) + len(usage._buckets) + len(usage._allowances) <= 10_000 + 3
    assert usage.of("ada", "client-1", now_ms).produce is not None


# New connections ------------------------------------------------------------------------------------------------------


def test_an_address_above_its_rate_is_refused_and_the_refused_do_not_count() -> None:
    usage = Usage()
    usage.set_quotas({entity(ip="10.0.0.1"): {"connection_creation_rate": 2.0}})
    arrivals = Arrivals(usage, rate_max=1_000)
    found = [arrivals.judge("10.0.0.1", 0) for _ in range(40)]
    assert sum(not it.is_refused for it in found) == 20
    assert all(0 < it.delay_ms <= 1000 for it in found if it.is_refused)
    assert not arrivals.judge("10.0.0.2", 0).is_refused
    assert not arrivals.judge("10.0.0.1", 11_000).is_refused


def test_connections_above_the_rate_of_the_node_are_served_later() -> None:
    arrivals = Arrivals(Usage(), rate_max=2)
    found = [arrivals.judge(f"10.0.0.{number}", 0) for number in range(30)]
    assert [it.delay_ms > 0 for it in found] == [False] * 20 + [True] * 10
    assert not any(it.is_refused for it in found)
