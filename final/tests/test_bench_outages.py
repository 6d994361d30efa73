"""Claims about outages, computed from the times of acknowledgements."""

from cases import case

from minibroker.bench.outages import Outages, distribution, longest_gap_ms


def test_only_acknowledgements_between_the_two_moments_count() -> None:
    for times_s, gap_ms in [
        ([], 2000),
        ([10.5], 1500),
        ([9.0, 10.0, 10.1, 11.4, 11.9, 12.0, 40.0], 1300),
        ([10.1, 10.2, 10.3], 1700),
    ]:
        with case(times_s, gap_ms):
            assert longest_gap_ms(times_s, begun_s=10.0, ended_s=12.0) == gap_ms


def test_outages_are_shown_as_percentiles_and_as_a_budget_per_year() -> None:
    outages = Outages("killed", (100, 300, 200, 2000))
    assert (outages.at(50), outages.at(99)) == (200, 2000)
    assert " ".join(outages.text().split()) == "killed 4 times p50 200 ms p99 2000 ms max 2000 ms"
    assert outages.document()["lasted_ms"] == [100, 300, 200, 2000]
    assert (
        outages.budget_text(0.9999)
        == "99.990% of a year leaves 3,154 s for outages: 15,768 of the median length, or 1,577 of the longest"
    )


def test_a_distribution_rises_to_one_in_the_order_of_the_pauses() -> None:
    found = [Outages("killed", (300, 100)), Outages("stopped", (20,))]
    chart = distribution(found, title="Pauses", x_label="ms", y_label="share")
    assert [(line.name, [point[:2] for point in line.points]) for line in chart.lines] == [
        ("killed", [(100, 0.5), (300, 1)]),
        ("stopped", [(20, 1)]),
    ]
