"""Claims about retries: waits grow up to a bound and end before the deadline."""

from hypothesis import given
from hypothesis import strategies as st

from minibroker.clients.retries import Attempts, RetryPolicy

chances = st.floats(0, 1, exclude_max=True)


@given(attempt=st.integers(0, 10**6), chance=chances)
def test_a_wait_is_bounded_for_any_number_of_attempts(attempt: int, chance: float) -> None:
    policy = RetryPolicy(backoff_ms=50, backoff_ms_max=400, jitter=0.2)
    assert 40 <= policy.delay_ms(attempt, chance) <= 480


def test_waits_double_up_to_the_bound() -> None:
    policy = RetryPolicy(backoff_ms=100, backoff_ms_max=1000)
    assert [policy.delay_ms(attempt, 0.5) for attempt in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]


@given(st.lists(st.tuples(st.integers(0, 500), chances), max_size=50))
def test_no_attempt_begins_past_the_deadline(failures: list[tuple[int, float]]) -> None:
    attempts = Attempts(RetryPolicy(), deadline_ms=3000)
    now_ms = 0.0
    for took_ms, chance in failures:
        now_ms += took_ms
        delay_ms = attempts.next_delay_ms(now_ms=now_ms, chance=chance)
        if delay_ms is None:
            return
        now_ms += delay_ms
        assert now_ms < 3000
        assert attempts.left_ms(now_ms) == 3000 - now_ms
