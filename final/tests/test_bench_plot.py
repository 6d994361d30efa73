"""Claims about figures: the arithmetic of axes, well-formed SVG, every label shown and escaped."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from cases import case

from minibroker.bench.plot import (
    LIMIT,
    WIDTH,
    BarChart,
    BarRow,
    Figure,
    Line,
    LineChart,
    Mark,
    Point,
    series_colours,
)
from minibroker.bench.scales import linear_scale, log_scale, nice_step
from minibroker.simulation.svg import PALETTE, text_width

SVG = "{http://www.w3.org/2000/svg}"


def texts(figure: Figure) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(figure.svg()).iter(f"{SVG}text")]


def bars(*rows: BarRow, log: bool = False, limit: Mark | None = None) -> BarChart:
    return BarChart("Title", "MB/s", rows, log=log, limit=limit)


def bar_widths(figure: Figure) -> list[float]:
    root = ElementTree.fromstring(figure.svg())
    return [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect") if rect.attrib["height"] == "17"]


CURVES = LineChart(
    "Append by size",
    "batch size",
    "MB/s",
    [Line("ours", [Point(1, 10), Point(10, 80, 70, 90)]), Line("theirs", [Point(1, 5), Point(10, 20)])],
    limit=Mark(100, "memcpy"),
)


def test_linear_axes_start_at_zero_and_have_round_ticks() -> None:
    for values, ticks in [
        ([3661.0], (0, 1000, 2000, 3000, 4000)),
        ([0.3], (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
        ([-5.0, 10.0], (-5, 0, 5, 10)),
        ([0.0], (0, 1)),
        ([], (0, 1)),
    ]:
        with case(values, ticks):
            scale = linear_scale(values)
            assert scale.ticks == pytest.approx(ticks)
            assert (scale.low, scale.high) == (ticks[0], ticks[-1])


def test_steps_are_one_two_or_five() -> None:
    for distance, expected in [(6, 1), (6.1, 2), (12, 2), (30, 5), (31, 10), (0.06, 0.01)]:
        with case(distance, expected):
            assert nice_step(distance, 6) == pytest.approx(expected)


def test_log_axes_over_many_decades_name_the_powers_of_ten() -> None:
    scale = log_scale([5.5, 10600.0])
    assert (scale.low, scale.high) == (5, 20000)
    assert scale.ticks == (10, 100, 1000, 10000)


def test_log_axes_over_few_decades_name_two_and_five_as_well() -> None:
    assert log_scale([1.0, 10.0]).ticks == (1, 2, 5, 10)


def test_a_log_axis_of_bars_begins_below_the_smallest_value() -> None:
    assert log_scale([10.0, 1000.0], for_bars=True).low == 1
    assert log_scale([5.0, 1000.0], for_bars=True).low == 1


def test_a_log_axis_without_a_positive_value_is_still_an_axis() -> None:
    for values in [[], [0.0], [0.0, 0.0]]:
        with case(values):
            assert (log_scale(values).low, log_scale(values).high) == (1, 10)


def test_one_value_lies_strictly_inside_or_at_the_end_of_its_axes() -> None:
    for value in [1e-9, 0.5, 1.0, 7.0, 1e12]:
        with case(value):
            scale = log_scale([value], for_bars=True)
            assert 0 < scale.share(value) <= 1
            assert 0 < linear_scale([value]).share(value) <= 1


def test_shares_run_from_zero_to_one_and_values_outside_are_put_at_the_ends() -> None:
    scale = log_scale([1.0, 1000.0])
    assert [scale.share(value) for value in (1, 10, 1000)] == pytest.approx([0, 1 / 3, 1])
    assert [scale.share(value) for value in (0, -5, 10**6)] == [0, 0, 1]
    assert linear_scale([10.0]).share(5) == 0.5


def test_bars_are_as_long_as_their_values() -> None:
    first, second = bar_widths(bars(BarRow("a", 100), BarRow("b", 50)))
    assert first == pytest.approx(2 * second, abs=0.2)


def test_bars_on_a_log_axis_are_as_long_as_the_logarithm() -> None:
    first, second = bar_widths(bars(BarRow("a", 1000), BarRow("b", 100), log=True))
    # The axis begins at ten.
    assert first / second == pytest.approx(math.log(1000 / 10) / math.log(100 / 10), abs=0.01)


def test_every_label_and_every_figure_is_shown() -> None:
    shown = texts(bars(BarRow("bare write", 3661, 3500, 3720, series=LIMIT), BarRow("ours", 3480, series="ours")))
    assert {"Title", "MB/s", "bare write", "3,661", "ours", "3,480", "limit", "2,000"} <= set(shown)


def test_groups_are_named_once() -> None:
    shown = texts(bars(BarRow("a", 1, group="Disk"), BarRow("b", 2, group="Disk"), BarRow("c", 3, group="Memory")))
    assert (shown.count("Disk"), shown.count("Memory")) == (1, 1)


def test_the_limit_is_named_and_inside_the_axis() -> None:
    figure = bars(BarRow("ours", 10), limit=Mark(95, "bare write"))
    assert {"bare write", "100"} <= set(texts(figure))
    assert "bare write: 95.0" in figure.svg()


def test_a_zero_has_a_label_and_no_bar() -> None:
    for log in (False, True):
        figure = bars(BarRow("nothing", 0), BarRow("something", 5), log=log)
        assert len(bar_widths(figure)) == 1
        assert {"nothing", "0"} <= set(texts(figure))


def test_text_is_escaped() -> None:
    nasty = 'a < b & "c" </text>'
    figure = BarChart(nasty, nasty, [BarRow(nasty, 1, series=nasty, group=nasty), BarRow("b", 1, series="s")])
    assert texts(figure).count(nasty) == 5  # title, axis, label, group, legend
    curves = LineChart(nasty, nasty, nasty, [Line(nasty, [Point(1, 1)]), Line("b", [Point(1, 2)])])
    assert texts(curves).count(nasty) == 4


def test_a_figure_has_a_title_and_a_description_for_screen_readers() -> None:
    figures: list[Figure] = [bars(BarRow("a", 3, 2, 4), limit=Mark(5, "limit")), CURVES]
    for figure in figures:
        with case(figure):
            root = ElementTree.fromstring(figure.svg())
            assert root.attrib["role"] == "img"
            assert root.findtext(f"{SVG}title")
            assert "MB/s" in (root.findtext(f"{SVG}desc") or "")


def test_the_same_data_give_the_same_bytes() -> None:
    figures: list[Figure] = [bars(BarRow("a", 3, 2, 4)), CURVES]
    for figure in figures:
        with case(figure):
            assert figure.svg() == figure.svg()


def test_a_figure_brings_its_own_panel_for_both_themes() -> None:
    svg = bars(BarRow("a", 1)).svg()
    assert 'class="panel"' in svg
    assert "prefers-color-scheme:dark" in svg


def test_curves_show_axes_names_and_limit() -> None:
    assert {"Append by size", "batch size", "MB/s", "ours", "theirs", "memcpy", "100"} <= set(texts(CURVES))
    root = ElementTree.fromstring(CURVES.svg())
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
    assert len(list(root.iter(f"{SVG}circle"))) == 4


def test_named_ticks_replace_the_numbers_of_the_horizontal_axis() -> None:
    points = [Point(1024, 1), Point(65536, 9)]
    ticks = [(1024, "1 KiB"), (65536, "64 KiB")]
    figure = LineChart("t", "size", "MB/s", [Line("a", points)], log_x=True, x_ticks=ticks)
    shown = texts(figure)
    assert {"1 KiB", "64 KiB"} <= set(shown)
    assert "10,000" not in shown


def test_curves_may_hold_zeros_and_a_single_point() -> None:
    for log in [False, True]:
        with case(log):
            for points in ([Point(0, 0)], [Point(5, 5)], [Point(0, 0), Point(1, 1)]):
                ElementTree.fromstring(LineChart("t", "x", "y", [Line("a", points)], log_x=log, log_y=log).svg())


def test_limits_are_grey_and_take_no_colour_from_the_others() -> None:
    assert series_colours([LIMIT, "a", "b", "a"]) == {LIMIT: "limit", "a": "0", "b": "1"}


def test_ours_has_the_same_colour_in_every_figure() -> None:
    assert series_colours(["kafka-python", "minibroker"]) == {"kafka-python": "1", "minibroker": "0"}
    assert series_colours(["minibroker", LIMIT, "a", "b"]) == {"minibroker": "0", LIMIT: "limit", "a": "1", "b": "2"}


def test_colours_repeat_when_there_are_more_series() -> None:
    names = [str(number) for number in range(len(PALETTE) + 1)]
    assert series_colours(names)[names[-1]] == "0"


def test_names_that_do_not_fit_continue_in_another_row() -> None:
    names = [f"a series with a rather long name, number {number}" for number in range(6)]
    figure = LineChart("Title", "x", "y", [Line(name, [Point(1, 1)]) for name in names])
    places = {
        each.text: (float(each.attrib["x"]), float(each.attrib["y"]))
        for each in ElementTree.fromstring(figure.svg()).iter(f"{SVG}text")
    }
    assert all(places[name][0] + text_width(name) <= WIDTH for name in names)
    assert len({places[name][1] for name in names}) > 1
    # The axes begin below the last of them.
    assert max(places[name][1] for name in names) < places["y"][1]
