"""Claims about measuring: order, medians, ratios. The clock is a parameter, so nothing here depends on time."""

import gc
from functools import partial

import pytest
from cases import case

from minibroker.bench.measure import Case, Result, Sample, Spread, measure


class HandClock:
    """A clock that moves only when a case moves it."""

    def __init__(self) -> None:
        self.now = Sample(100.0, 50.0)

    def __call__(self) -> Sample:
        return self.now

    def advance(self, wall_s: float, cpu_s: float = 0.0) -> None:
        self.now = Sample(self.now.wall_s + wall_s, self.now.cpu_s + cpu_s)


def result(
    wall_s: list[float],
    cpu_s: list[float] | None = None,
    *,
    name: str = "case",
    bytes_count: int = 0,
    operations_count: int = 0,
) -> Result:
    samples = tuple(Sample(*pair) for pair in zip(wall_s, cpu_s or wall_s, strict=True))
    return Result(Case(name, lambda: None, bytes_count, operations_count), samples)


def test_cases_run_in_turn_and_the_first_round_is_a_warm_up() -> None:
    ran: list[str] = []
    cases = [Case(name, partial(ran.append, name), operations_count=1) for name in "abc"]
    results = measure(cases, repeats=2)
    assert ran == list("abc" * 3)
    assert [len(each.samples) for each in results.values()] == [2, 2, 2]


def test_the_warm_up_round_does_not_count() -> None:
    clock = HandClock()
    durations_s = iter([1000.0, 1.0, 2.0, 3.0])
    case = Case("a", lambda: clock.advance(next(durations_s)), operations_count=1)
    assert [sample.wall_s for sample in measure([case], repeats=3, clock=clock)["a"].samples] == [
        1.0,
        2.0,
        3.0,
    ]


def test_wall_and_cpu_time_are_kept_apart() -> None:
    clock = HandClock()
    case = Case("a", lambda: clock.advance(2.0, 0.5), operations_count=1)
    measured = measure([case], repeats=3, clock=clock)["a"]
    assert (measured.wall_s.median, measured.cpu_s.median) == (2.0, 0.5)


def test_set_up_and_tear_down_are_not_timed() -> None:
    clock = HandClock()
    order: list[str] = []

    def step(name: str, wall_s: float) -> None:
        order.append(name)
        clock.advance(wall_s)

    case = Case(
        "a",
        lambda: step("run", 1.0),
        operations_count=1,
        before=lambda: step("before", 50.0),
        after=lambda: step("after", 70.0),
    )
    assert measure([case], repeats=1, clock=clock)["a"].wall_s.median == 1.0
    assert order == ["before", "run", "after"] * 2


def test_tear_down_happens_when_the_case_fails() -> None:
    torn_down: list[bool] = []
    case = Case("a", lambda: 1 / 0, operations_count=1, after=lambda: torn_down.append(True))
    with pytest.raises(ZeroDivisionError):
        measure([case], repeats=1)
    assert torn_down == [True]


def test_garbage_is_collected_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: events.append("collect"))

    def clock() -> Sample:
        events.append("clock")
        return Sample(0.0, 0.0)

    measure([Case("a", lambda: events.append("run"), operations_count=1)], repeats=1, clock=clock)
    assert events == ["collect", "clock", "run", "clock"] * 2


def test_progress_is_reported_before_each_step() -> None:
    steps: list[tuple[int, int, str]] = []
    cases = [Case(name, lambda: None, operations_count=1) for name in "ab"]
    measure(cases, repeats=1, progress=lambda *step: steps.append(step))
    assert steps == [(0, 1, "a"), (0, 1, "b"), (1, 1, "a"), (1, 1, "b")]


def test_two_cases_of_one_name_are_refused() -> None:
    case = Case("a", lambda: None, operations_count=1)
    with pytest.raises(ValueError, match="same name"):
        measure([case, case])


def test_a_case_must_count_its_work() -> None:
    with pytest.raises(ValueError, match="bytes_count or operations_count"):
        Case("a", lambda: None)


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(median=3.0, low=2.0, high=4.0)
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]).percent == pytest.approx(100 / 3)


def test_spread_of_one_repeat_is_that_repeat() -> None:
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert Spread.of([0.0]).percent == 0.0


def test_figures_are_derived_from_work_and_time() -> None:
    for metric, expected in [
        ("mb_per_s", 250.0),  # 500 MB in 2 s
        ("ops_per_s", 500.0),  # 1000 in 2 s
        ("us_per_op", 2000.0),
        ("cpu_us_per_op", 1000.0),  # 1 s of CPU
        ("cpu_s_per_gb", 2.0),
    ]:
        with case(metric, expected):
            measured = result([2.0], [1.0], bytes_count=500 * 10**6, operations_count=1000)
            assert measured.spread(metric) == Spread(expected, expected, expected)


def test_a_case_has_no_figure_for_work_it_does_not_count() -> None:
    assert result([1.0], bytes_count=1).spread("ops_per_s") is None
    assert result([1.0], operations_count=1).spread("mb_per_s") is None
    assert result([1.0], operations_count=1).spread("ratio") is None


def test_ratio_is_taken_repeat_by_repeat_so_that_shared_noise_cancels() -> None:
    # A neighbour slows the second round tenfold, for both.
    ours = result([2.0, 20.0, 2.0], bytes_count=100)
    limit = result([1.0, 10.0, 1.0], bytes_count=100, name="limit")
    assert ours.spread("ratio", limit) == Spread(0.5, 0.5, 0.5)


def test_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians() -> None:
    ours = result([1.0, 4.0, 6.0], bytes_count=100)
    limit = result([3.0, 2.0, 6.0], bytes_count=100, name="limit")
    # The pairs give 3, 0.5 and 1; the medians would give 3 / 4.
    spread = ours.spread("ratio", limit)
    assert spread is not None
    assert spread.median == 1.0


def test_ratio_takes_account_of_different_amounts_of_work() -> None:
    ours, limit = result([1.0], bytes_count=100), result([1.0], name="limit", bytes_count=400)
    assert ours.spread("ratio", limit) == Spread(0.25, 0.25, 0.25)


def test_cpu_ratio_compares_cpu_time_for_the_same_work() -> None:
    ours = result([9.0], [3.0], bytes_count=100)
    limit = result([1.0], [2.0], name="limit", bytes_count=200)
    assert ours.spread("cpu_ratio", limit) == Spread(3.0, 3.0, 3.0)


def test_us_beyond_is_the_difference_of_one_operation() -> None:
    ours = result([3.0, 5.0, 30.0], operations_count=10**6)
    limit = result([1.0, 2.0, 29.0], name="limit", operations_count=10**6)
    assert ours.spread("us_beyond", limit) == Spread(median=2.0, low=1.5, high=2.5)


def test_there_is_no_us_beyond_a_case_that_counts_no_operations() -> None:
    limit = result([1.0], name="limit", bytes_count=1)
    assert result([1.0], bytes_count=1, operations_count=1).spread("us_beyond", limit) is None


def test_bytes_and_operations_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different work"):
        result([1.0], bytes_count=1).spread("ratio", result([1.0], name="limit", operations_count=1))


def test_a_case_too_quick_for_the_clock_does_not_divide_by_zero() -> None:
    measured = result([0.0], bytes_count=10**6)
    assert measured.spread("mb_per_s") is not None
    assert measured.spread("ratio", measured) == Spread(0.0, 0.0, 0.0)
