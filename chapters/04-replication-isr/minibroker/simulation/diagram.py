"""A run drawn as a space-time diagram: a vertical line for each node, an arrow for each message, time going down.

Every entry of the trace has a row of its own, so texts do not overlap, and earlier entries are higher. The drawing is
not to scale; the times are at the left. A band on a line shows the node's role (such as leader), a dot a change (such
as the high watermark), and a cross its death. A dashed line is a paused node, a dotted line a dead one.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from minibroker.simulation.svg import PALETTE, document, element, line, text, text_width
from minibroker.simulation.trace import (
    BAND,
    KILLED,
    PAUSED,
    RESUMED,
    STARTED,
    Arrived,
    Entry,
    Happened,
    Lost,
    Sent,
)

ENTRIES_DRAWN = 80

_ROW = 20
_TOP = 78
_LEFT = 92
_COLUMN_MIN, _COLUMN_MAX = 170, 340
_LABEL_MAX = 48
_LONG_MS = 100  # a longer pause between two entries is shown as a gap
_ALARM = 4  # the palette's vermilion


def draw(
    entries: Sequence[Entry],
    *,
    title: str,
    from_ms: int | None = None,
    to_ms: int | None = None,
    nodes: Sequence[str] | None = None,
    shows: Callable[[Entry], bool] = lambda _entry: True,
) -> str:
    """Draw what happened between two times, at some nodes or at all; `shows` selects the entries."""
    first_ms = tail_ms(entries) if from_ms is None else from_ms
    last_ms = entries[-1].at_ms if to_ms is None and entries else to_ms or 0
    before = [entry for entry in entries if entry.at_ms < first_ms]
    during = [entry for entry in entries if first_ms <= entry.at_ms <= last_ms]
    chart = _Chart(nodes or _nodes_of(during), _Messages(during))
    for entry in before:
        chart.remember(entry)
    for entry in during:
        if shows(entry):
            chart.add(entry)
    return chart.drawing(title)


def tail_ms(entries: Sequence[Entry], count: int = ENTRIES_DRAWN) -> int:
    """The time at which the last `count` entries begin."""
    return entries[-count].at_ms if len(entries) >= count else 0


def _nodes_of(entries: Iterable[Entry]) -> list[str]:
    """All nodes of the entries, sorted by name."""
    names = set()
    for entry in entries:
        if isinstance(entry, Sent):
            names |= {entry.source, entry.target}
        elif isinstance(entry, Happened):
            names.add(entry.node)
    return sorted(names)


class _Messages:
    """The messages of the drawn window. `ended` has the numbers of those that arrive or are lost in this window."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.sent: dict[int, Sent] = {}
        self.ended: set[int] = set()
        for entry in entries:
            if isinstance(entry, Sent):
                self.sent[entry.number] = entry
            elif isinstance(entry, Arrived | Lost):
                self.ended.add(entry.number)

    def label(self, number: int) -> str:
        words = str(self.sent[number].message)
        return words if len(words) <= _LABEL_MAX else f"{words[: _LABEL_MAX - 1]}…"


class _Line(NamedTuple):
    """The style of a node's line from the height `y` downwards."""

    y: float
    style: str


class _Band(NamedTuple):
    y: float
    words: str


class _Chart:
    """A drawing that grows: each entry takes the next row."""

    def __init__(self, nodes: Sequence[str], messages: _Messages) -> None:
        self._nodes = list(nodes)
        self._messages = messages
        widths = [text_width(messages.label(number), 12) + 40 for number in messages.sent]
        self._column = min(max([_COLUMN_MIN, *widths]), _COLUMN_MAX)
        self._y = float(_TOP)
        self._at_ms: int | None = None
        self._starts: dict[int, float] = {}
        self._lines: dict[str, list[_Line]] = {node: [_Line(_TOP - 14, "up")] for node in nodes}
        self._bands: dict[str, list[_Band]] = {node: [] for node in nodes}
        self._colours: dict[str, int] = {}
        self._over: list[str] = []
        self._under: list[str] = []

    def _x(self, node: str) -> float:
        return _LEFT + self._column / 2 + self._column * self._nodes.index(node)

    # Entries ----------------------------------------------------------------------------------------------------------

    def remember(self, entry: Entry) -> None:
        """Remember the state of a node from before the window: dead, paused, or leader."""
        if isinstance(entry, Happened) and entry.node in self._lines:
            self._become(entry)
            self._lines[entry.node] = [self._lines[entry.node][-1]._replace(y=_TOP - 14)]
            self._bands[entry.node] = [it._replace(y=_TOP - 14) for it in self._bands[entry.node][-1:]]

    def add(self, entry: Entry) -> None:
        """Draw one more entry in a row of its own."""
        if not self._is_drawn(entry):
            return
        self._step(entry.at_ms)
        match entry:
            case Sent(_, number, source, target, _):
                self._starts[number] = self._y
                self._label(number, self._x(source), self._x(target))
            case Arrived(_, number):
                self._arrow(self._messages.sent[number], self._y, reaches=1.0)
            case Lost(_, number, _):
                self._arrow(self._messages.sent[number], self._y, reaches=0.55)
            case Happened():
                self._become(entry)
                if entry.what != BAND or entry.text:
                    self._mark(entry)

    def _is_drawn(self, entry: Entry) -> bool:
        if isinstance(entry, Happened):
            return entry.node in self._lines
        sent = self._messages.sent.get(entry.number)
        if sent is None or sent.source not in self._lines or sent.target not in self._lines:
            return False
        return isinstance(entry, Sent) or entry.number in self._starts

    def _step(self, at_ms: int) -> None:
        """Go to the next row; write the time if it has changed."""
        silence_ms = 0 if self._at_ms is None else at_ms - self._at_ms
        self._y += _ROW * (2 if silence_ms > _LONG_MS else 1)
        if at_ms != self._at_ms:
            self._at_ms = at_ms
            self._under.append(line(_LEFT - 8, self._y, self._right, self._y, "grid"))
            time = f"{at_ms / 1000:.3f} s"
            self._over.append(text(time, x=_LEFT - 14, y=self._y + 4, class_="tick", text_anchor="end"))

    def _become(self, entry: Happened) -> None:
        styles = {KILLED: "down", STARTED: "up", PAUSED: "paused", RESUMED: "up"}
        if entry.what in styles:
            self._lines[entry.node].append(_Line(self._y, styles[entry.what]))
        if entry.what == BAND or entry.what == KILLED:
            self._bands[entry.node].append(_Band(self._y, entry.text if entry.what == BAND else ""))

    # Shapes -----------------------------------------------------------------------------------------------------------

    def _label(self, number: int, x1: float, x2: float) -> None:
        # The text begins at the sender, above its arrow.
        side = 1 if x2 > x1 else -1
        anchor = "start" if side > 0 else "end"
        words = self._messages.label(number)
        self._over.append(
            text(words, x=x1 + 12 * side, y=self._y - 2, class_="value", font_size=12, text_anchor=anchor)
        )

    def _arrow(self, sent: Sent, y2: float, *, reaches: float, is_under_way: bool = False) -> None:
        x1, y1, x2 = self._x(sent.source), self._starts.pop(sent.number), self._x(sent.target)
        x, y = x1 + (x2 - x1) * reaches, y1 + (y2 - y1) * reaches
        colour = "limit" if is_under_way else str(_ALARM) if reaches < 1 else "0"
        shaft = {"x1": x1, "y1": y1, "x2": x, "y2": y, "class_": f"whisker stroke-{colour}"}
        self._over.append(element("line", **shaft))
        if is_under_way:
            return
        self._over.append(_cross(x, y) if reaches < 1 else _head(x1, y1, x, y))

    def _mark(self, entry: Happened) -> None:
        x = self._x(entry.node)
        if entry.what == KILLED:
            self._over.append(_cross(x, self._y))
        else:
            self._over.append(element("circle", cx=x, cy=self._y, r=3, class_="fill-0"))
        # An entry of these kinds has no text, or a reason as its text. So the kind is written first.
        kind = entry.what if entry.what in (KILLED, STARTED, PAUSED, RESUMED) else ""
        words = ": ".join(filter(None, (kind, entry.text)))
        self._over.append(text(words[:_LABEL_MAX], x=x + 12, y=self._y + 4, class_="value", font_size=12))

    # The drawing ------------------------------------------------------------------------------------------------------

    @property
    def _right(self) -> float:
        return _LEFT + self._column * len(self._nodes)

    def drawing(self, title: str) -> str:
        """The whole drawing as an SVG document."""
        bottom = self._y + _ROW
        # A message that is still under way when the window ends is drawn as a line without an arrowhead.
        for number in list(self._starts):
            self._arrow(self._messages.sent[number], bottom, reaches=0.8, is_under_way=True)
        heads = [text(node, x=self._x(node), y=_TOP - 22, class_="group", text_anchor="middle") for node in self._nodes]
        body = [
            text(title, x=18, y=28, class_="title"),
            *self._under,
            *(part for node in self._nodes for part in self._column_of(node, bottom)),
            *self._over,
            *heads,
        ]
        count = len(self._messages.sent)
        description = f"A space-time diagram of {', '.join(self._nodes)}: {count} messages, time going down."
        return document(title, description, self._right + 24, bottom + 24, body)

    def _column_of(self, node: str, bottom: float) -> list[str]:
        x, parts = self._x(node), []
        bands = [*self._bands[node], _Band(bottom, "")]
        for band, next_band in pairwise(bands):
            if band.words:
                colour = self._colours.setdefault(band.words, len(self._colours) % len(PALETTE))
                shape = {"x": x - 7, "y": band.y, "width": 14, "height": max(next_band.y - band.y, 1)}
                parts.append(element("rect", **shape, rx=3, class_=f"fill-{colour}", fill_opacity=0.35))
        lines = [*self._lines[node], _Line(bottom, "end")]
        for one, next_one in pairwise(lines):
            dashes = {"down": "1 6", "paused": "7 5"}.get(one.style, "none")
            ends = {"x1": x, "y1": one.y, "x2": x, "y2": next_one.y}
            parts.append(element("line", **ends, class_="axis", stroke_dasharray=dashes))
        return parts


def _cross(x: float, y: float, size: float = 6) -> str:
    path = f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
    return element("path", d=path, class_=f"curve stroke-{_ALARM}")


def _head(x1: float, y1: float, x2: float, y2: float, size: float = 8) -> str:
    """The head of an arrow that comes from (x1, y1)."""
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1.0)
    dx, dy = (x2 - x1) / length * size, (y2 - y1) / length * size
    points = [(x2, y2), (x2 - dx - dy / 2, y2 - dy + dx / 2), (x2 - dx + dy / 2, y2 - dy - dx / 2)]
    return element("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_="fill-0")
