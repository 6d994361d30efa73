"""Draws the record batch of the lesson from the field table that the dump uses, so that it cannot go out of date.

Run it with `python chapters/01-log/bench/draw_batch.py docs/chapters/01-log/figures/batch.svg`.
"""

import sys
from pathlib import Path

from minibroker.log.annotate import FIELDS
from minibroker.simulation.svg import document, element, line, text, text_width

WIDTH, MARGIN, BYTE, BOX = 760, 24, 20.9, 40
ROWS = (0, 7, len(FIELDS))  # the first row ends with the last offset delta
TOPS = (84, 194)
RECORDS_TOP = 304
BROKER = {"base offset", "leader epoch"}
BROKER_TIME = {"crc", "attributes", "max timestamp"}
COLOURS = {"the producer": "0", "the broker": "4", "the broker, with log-append time": "1"}


def writer(field: str) -> str:
    """The writer of a field: the producer or the broker."""
    if field in BROKER:
        return "the broker"
    return "the broker, with log-append time" if field in BROKER_TIME else "the producer"


def draw() -> str:
    """The whole figure."""
    body = [text("A record batch: who writes what", x=MARGIN, y=32, class_="title"), *legend()]
    position = 0
    for row, top in enumerate(TOPS):
        x: float = MARGIN
        for index, (name, size) in enumerate(FIELDS[ROWS[row] : ROWS[row + 1]]):
            body += box(name, position, x, top, size * BYTE, low=index % 2 == 1)
            x += size * BYTE
            position += size
    body += records(RECORDS_TOP, position)
    body += covered()
    names = ", ".join(name for name, _size in FIELDS)
    return document("A record batch", f"The fields of a record batch in order: {names}, records.", WIDTH, 396, body)


def legend() -> list[str]:
    """A square and a word for each writer."""
    parts, x = [], float(MARGIN)
    for name, colour in COLOURS.items():
        parts.append(element("rect", x=x, y=44, width=12, height=12, rx=2, class_=f"fill-{colour}"))
        parts.append(text(name, x=x + 18, y=54.5, class_="note"))
        x += text_width(name) + 40
    return parts


def box(name: str, position: int, x: float, top: float, width: float, *, low: bool) -> list[str]:
    """One field; a name that does not fit inside stands below, every other one lower still."""
    colour = COLOURS[writer(name)]
    parts = [
        element("rect", x=x + 1, y=top, width=width - 2, height=BOX, rx=3, class_=f"fill-{colour}", opacity=0.85),
        text(str(position), x=x + 1, y=top - 5, class_="tick"),
    ]
    if text_width(name) < width:
        return [*parts, text(name, x=x + width / 2, y=top + 25, text_anchor="middle", class_="value")]
    below = top + BOX + (36 if low else 22)
    tick = line(x + width / 2, top + BOX + 6, x + width / 2, below - 11, "axis")
    return [*parts, tick, text(name, x=x + width / 2, y=below, text_anchor="middle", class_="label")]


def records(top: float, position: int) -> list[str]:
    """The records, which no broker writes."""
    width = WIDTH - 2 * MARGIN
    return [
        element("rect", x=MARGIN, y=top, width=width, height=BOX, rx=3, class_="fill-0", opacity=0.85),
        text(str(position), x=MARGIN + 1, y=top - 5, class_="tick"),
        text("records: length, deltas, key, value, headers of each; compressed together, if at all",
             x=WIDTH / 2, y=top + 25, text_anchor="middle", class_="value"),
    ]  # fmt: skip


def covered() -> list[str]:
    """A line along what the checksum covers."""
    first, second = (sum(size for _name, size in FIELDS[:count]) * BYTE for count in (5, ROWS[1]))
    end = sum(size for _name, size in FIELDS[ROWS[1] :]) * BYTE
    spans = ((TOPS[0], first, second), (TOPS[1], 0, end), (RECORDS_TOP, 0, WIDTH - 2 * MARGIN))
    note = "along the green line: every byte from the attributes to the end is under the CRC-32C"
    return [
        *(line(MARGIN + a + 2, top + BOX + 4, MARGIN + b - 2, top + BOX + 4, "curve stroke-2") for top, a, b in spans),
        text(note, x=WIDTH / 2, y=RECORDS_TOP + BOX + 30, text_anchor="middle", class_="note"),
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(), encoding="utf-8")
