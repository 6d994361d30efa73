"""The figures: horizontal bars with whiskers, and curves, written by hand as SVG.

The same data give the same bytes, so a figure in git changes only when its data do.

```python
BarChart("Append", "MB/s", [BarRow("bare write", 3661, low=3500, high=3720, series="limit"), BarRow("ours", 3480)])
LineChart("Append", "batch size, KiB", "MB/s", [Line("ours", [Point(1, 210), Point(16, 1800)])], log_x=True)
```
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minibroker.bench.scales import Scale, scale_for
from minibroker.bench.units import number_text
from minibroker.simulation.svg import PALETTE, document, element, line, text, text_width

WIDTH = 760
MARGIN = 24
TITLE_HEIGHT = 46
NOTE_HEIGHT = 22
LEGEND_HEIGHT = 26
AXIS_HEIGHT = 58
ROW_HEIGHT = 27
BAR_HEIGHT = 17
GROUP_HEIGHT = 30
CURVES_HEIGHT = 300

# The series that is drawn in grey: the limits of the machine.
LIMIT = "limit"
# The series that has the first colour of the palette in every figure: this broker.
OURS = "minibroker"


class Figure(Protocol):
    """Anything that can draw itself."""

    def svg(self) -> str:
        """Draw the figure as an SVG document."""


class Mark(NamedTuple):
    """A dashed line across a figure, at a value that has a name."""

    value: float
    label: str


class Frame(NamedTuple):
    """The rectangle in which values are drawn."""

    left: float
    top: float
    right: float
    bottom: float

    def x(self, scale: Scale, value: float) -> float:
        """The position of a value on the horizontal axis."""
        return self.left + scale.share(value) * (self.right - self.left)

    def y(self, scale: Scale, value: float) -> float:
        """The position of a value on the vertical axis; high values are at the top."""
        return self.bottom - scale.share(value) * (self.bottom - self.top)


class BarRow(NamedTuple):
    """One bar: its value, and the quartiles for its whisker."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    series: str = ""
    group: str = ""


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars, so that long labels can be read; the rows of a group are under its heading."""

    title: str
    value_label: str
    rows: Sequence[BarRow]
    log: bool = False
    limit: Mark | None = None
    note: str = ""

    def svg(self) -> str:
        """Draw the chart."""
        values = [number for row in self.rows for number in _extent(row)]
        scale = scale_for(values + self._limit_values(), log=self.log, for_bars=True)
        colours = series_colours([row.series for row in self.rows])
        head = heading(self.title, self.note, colours)
        frame = self._frame(head.bottom + (16 if self.limit else 0))
        body = [*head.parts, *x_grid(frame, scale.labels(), scale), x_title(frame, self.value_label)]
        # The limit is drawn over the bars, and the values over the limit, so that each stays readable.
        tops = self._tops(frame.top)
        for row, top in zip(self.rows, tops, strict=True):
            body += bar(frame, scale, row, top, colours[row.series])
        zero_x = frame.x(scale, 0)
        body.append(line(zero_x, frame.top, zero_x, frame.bottom, "axis"))
        body += x_mark(frame, scale, self.limit) if self.limit else []
        body += [bar_value(frame, scale, row, top) for row, top in zip(self.rows, tops, strict=True)]
        body += self._group_names(tops)
        return document(self.title, self._description(), WIDTH, frame.bottom + AXIS_HEIGHT, body)

    def _limit_values(self) -> list[float]:
        return [self.limit.value] if self.limit else []

    def _frame(self, top: float) -> Frame:
        labels_px = min(310.0, max(text_width(row.label) for row in self.rows))
        values_px = max(text_width(number_text(row.value)) for row in self.rows)
        bottom = self._tops(top)[-1] + ROW_HEIGHT + 4
        return Frame(MARGIN + labels_px + 10, top, WIDTH - MARGIN - values_px - 8, bottom)

    def _tops(self, top: float) -> list[float]:
        tops = []
        for number in range(len(self.rows)):
            top += GROUP_HEIGHT if self._starts_group(number) else 0
            tops.append(top)
            top += ROW_HEIGHT
        return tops

    def _starts_group(self, number: int) -> bool:
        group = self.rows[number].group
        return bool(group) and (number == 0 or group != self.rows[number - 1].group)

    def _group_names(self, tops: list[float]) -> list[str]:
        return [
            text(row.group, x=MARGIN, y=tops[number] - 7, class_="group")
            for number, row in enumerate(self.rows)
            if self._starts_group(number)
        ]

    def _description(self) -> str:
        rows = "; ".join(f"{row.label}: {number_text(row.value)}" for row in self.rows)
        limit = f" {self.limit.label}: {number_text(self.limit.value)}." if self.limit else ""
        return f"Bars, {self.value_label}. {rows}.{limit}"


class Point(NamedTuple):
    """One point of a curve, and the quartiles for its whisker."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class LineChart:
    """Curves over one pair of axes; `x_ticks` are the horizontal ticks, if their labels are not numbers."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[tuple[float, str]] = ()
    limit: Mark | None = None
    note: str = ""

    def svg(self) -> str:
        """Draw the chart."""
        points = [point for curve in self.lines for point in curve.points]
        x_scale = scale_for([point.x for point in points], log=self.log_x)
        if self.x_ticks:
            x_scale = _ticked(x_scale, self.x_ticks)
        limits = [self.limit.value] if self.limit else []
        y_scale = scale_for([number for point in points for number in _point_extent(point)] + limits, log=self.log_y)
        colours = series_colours([curve.name for curve in self.lines])
        head = heading(self.title, self.note, colours)
        frame = self._frame(head.bottom, y_scale)
        body = [*head.parts, *self._axes(frame, x_scale, y_scale)]
        for curve in self.lines:
            body += curve_parts(frame, x_scale, y_scale, curve, colours[curve.name])
        return document(self.title, self._description(), WIDTH, frame.bottom + AXIS_HEIGHT, body)

    def _frame(self, top: float, y_scale: Scale) -> Frame:
        ticks_px = max(text_width(label, 12) for _, label in y_scale.labels())
        # The name of the vertical axis is above it, where it need not be rotated.
        return Frame(MARGIN + ticks_px + 8, top + 30, WIDTH - MARGIN - 12, top + 30 + CURVES_HEIGHT)

    def _axes(self, frame: Frame, x_scale: Scale, y_scale: Scale) -> list[str]:
        parts = [text(self.y_label, x=MARGIN, y=frame.top - 16, class_="note")]
        parts += y_grid(frame, y_scale)
        parts += x_ticks(frame, self.x_ticks or x_scale.labels(), x_scale)
        parts += [
            x_title(frame, self.x_label),
            line(frame.left, frame.bottom, frame.right, frame.bottom, "axis"),
        ]
        return parts + (y_mark(frame, y_scale, self.limit) if self.limit else [])

    def _description(self) -> str:
        curves = ". ".join(
            f"{curve.name}: {', '.join(f'{number_text(p.y)} at {number_text(p.x)}' for p in curve.points)}"
            for curve in self.lines
        )
        return f"Curves, {self.y_label} over {self.x_label}. {curves}."


class Heading(NamedTuple):
    """The parts above the frame, and the position of their lower end."""

    parts: list[str]
    bottom: float


def series_colours(names: Sequence[str]) -> dict[str, str]:
    """Give each series a class of the style sheet: grey for limits, the first colour for ours, then the others."""
    fixed = {LIMIT: "limit", OURS: "0"}
    others = itertools.count(1 if OURS in names else 0)
    return {name: fixed.get(name) or str(next(others) % len(PALETTE)) for name in dict.fromkeys(names)}


def heading(title: str, note: str, colours: dict[str, str]) -> Heading:
    """Draw the title, a line of explanation, and the legend where there is more than one series."""
    parts = [text(title, x=MARGIN, y=34, class_="title")]
    bottom = TITLE_HEIGHT
    if note:
        parts.append(text(note, x=MARGIN, y=bottom + 9, class_="note"))
        bottom += NOTE_HEIGHT
    named = {name: colour for name, colour in colours.items() if name}
    if len(named) > 1:
        named_parts, rows = legend(named, bottom)
        parts += named_parts
        bottom += rows * LEGEND_HEIGHT
    return Heading(parts, bottom + 8)


def legend(colours: dict[str, str], top: float) -> tuple[list[str], int]:
    """Draw a swatch and a name for each series; return the number of rows."""
    parts: list[str] = []
    left, rows = float(MARGIN), 1
    for name, colour in colours.items():
        if left > MARGIN and left + 18 + text_width(name) > WIDTH - MARGIN:
            left, top, rows = float(MARGIN), top + LEGEND_HEIGHT, rows + 1
        parts.append(element("rect", x=left, y=top + 4, width=12, height=12, rx=3, class_=f"fill-{colour}"))
        parts.append(text(name, x=left + 18, y=top + 14.5, class_="label"))
        left += 18 + text_width(name) + 22
    return parts, rows


def bar(frame: Frame, scale: Scale, row: BarRow, top: float, colour: str) -> list[str]:
    """Draw the label of a row, its bar and its whisker."""
    middle = top + ROW_HEIGHT / 2
    low, high = _extent(row)
    start, end = sorted((frame.x(scale, 0), frame.x(scale, row.value)))
    parts = [text(row.label, x=frame.left - 10, y=middle + 4.5, text_anchor="end", class_="label")]
    if end > start:
        size = {"width": end - start, "height": BAR_HEIGHT}
        parts.append(element("rect", x=start, y=middle - BAR_HEIGHT / 2, **size, rx=2, class_=f"fill-{colour}"))
    if high > low:
        parts += whisker_across(frame.x(scale, low), frame.x(scale, high), middle)
    return parts


def bar_value(frame: Frame, scale: Scale, row: BarRow, top: float) -> str:
    """Write the value of a row after its bar and its whisker."""
    end = max(frame.x(scale, number) for number in (0, row.value, *_extent(row)))
    return text(number_text(row.value), x=end + 7, y=top + ROW_HEIGHT / 2 + 4.5, class_="value")


def whisker_across(low_x: float, high_x: float, y: float) -> list[str]:
    """Draw the quartiles of a bar."""
    return [
        line(low_x, y, high_x, y, "whisker"),
        line(low_x, y - 4, low_x, y + 4, "whisker"),
        line(high_x, y - 4, high_x, y + 4, "whisker"),
    ]


def whisker_up(x: float, low_y: float, high_y: float, colour: str) -> list[str]:
    """Draw the quartiles of a point, in the colour of its curve."""
    class_ = f"whisker stroke-{colour}"
    return [
        line(x, low_y, x, high_y, class_),
        line(x - 4, low_y, x + 4, low_y, class_),
        line(x - 4, high_y, x + 4, high_y, class_),
    ]


def curve_parts(frame: Frame, x_scale: Scale, y_scale: Scale, curve: Line, colour: str) -> list[str]:
    """Draw one curve: whiskers, the line, a dot at each point."""
    parts: list[str] = []
    places = [(frame.x(x_scale, point.x), frame.y(y_scale, point.y)) for point in curve.points]
    for point, (x, _) in zip(curve.points, places, strict=True):
        low, high = _point_extent(point)
        if high > low:
            parts += whisker_up(x, frame.y(y_scale, low), frame.y(y_scale, high), colour)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(element("polyline", points=path, class_=f"curve stroke-{colour}"))
    parts += [element("circle", cx=x, cy=y, r=4, class_=f"fill-{colour}") for x, y in places]
    return parts


def x_ticks(frame: Frame, ticks: Sequence[tuple[float, str]], scale: Scale) -> list[str]:
    """Write the ticks of the horizontal axis."""
    return [
        text(label, x=frame.x(scale, value), y=frame.bottom + 18, text_anchor="middle", class_="tick")
        for value, label in ticks
    ]


def x_grid(frame: Frame, ticks: Sequence[tuple[float, str]], scale: Scale) -> list[str]:
    """Draw the ticks of the horizontal axis and a line up from each."""
    lines = []
    for value, _ in ticks:
        x = frame.x(scale, value)
        lines.append(line(x, frame.top, x, frame.bottom + 4, "grid"))
    return lines + x_ticks(frame, ticks, scale)


def y_grid(frame: Frame, scale: Scale) -> list[str]:
    """Draw the ticks of the vertical axis and a line across from each."""
    parts = []
    for value, label in scale.labels():
        y = frame.y(scale, value)
        parts.append(line(frame.left, y, frame.right, y, "grid"))
        parts.append(text(label, x=frame.left - 8, y=y + 4, text_anchor="end", class_="tick"))
    return parts


def x_title(frame: Frame, label: str) -> str:
    """Write the name of the horizontal axis."""
    middle = (frame.left + frame.right) / 2
    return text(label, x=middle, y=frame.bottom + 40, text_anchor="middle", class_="note")


def x_mark(frame: Frame, scale: Scale, mark: Mark) -> list[str]:
    """Draw a dashed line down at a value of the horizontal axis, with its name above."""
    x = frame.x(scale, mark.value)
    # Near an edge the name moves to the side that has space.
    half = text_width(mark.label) / 2
    name_x = min(max(x, MARGIN + half), WIDTH - MARGIN - half)
    return [
        line(x, frame.top - 2, x, frame.bottom, "limit-line"),
        text(mark.label, x=name_x, y=frame.top - 7, text_anchor="middle", class_="note"),
    ]


def y_mark(frame: Frame, scale: Scale, mark: Mark) -> list[str]:
    """Draw a dashed line across at a value of the vertical axis, with its name on it."""
    y = frame.y(scale, mark.value)
    return [
        line(frame.left, y, frame.right, y, "limit-line"),
        text(mark.label, x=frame.right, y=y - 6, text_anchor="end", class_="note"),
    ]


def _extent(row: BarRow) -> tuple[float, float]:
    return (row.value if row.low is None else row.low, row.value if row.high is None else row.high)


def _point_extent(point: Point) -> tuple[float, float]:
    return (point.y if point.low is None else point.low, point.y if point.high is None else point.high)


def _ticked(scale: Scale, ticks: Sequence[tuple[float, str]]) -> Scale:
    # Named ticks are the sizes that were measured, and the axis is a little longer than their range.
    low, high = min(value for value, _ in ticks), max(value for value, _ in ticks)
    if scale.log:
        return Scale(low / 1.3, high * 1.3, tuple(value for value, _ in ticks), log=True)
    return Scale(min(0.0, low), high * 1.03, tuple(value for value, _ in ticks))
