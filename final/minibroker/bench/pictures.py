"""Draws the concepts of lessons as strips of boxes: bytes of a record, batches of a file, segments of a log."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minibroker.simulation.svg import document, element, line, text, text_width

MARGIN = 24
BOX = 36
_SMALL_PX = 12


@dataclass(frozen=True)
class Cell:
    """One box of a strip: its text, its width in pixels, its colour in the palette, and a text below it."""

    label: str
    width: float
    colour: str = "0"
    below: str = ""
    opacity: float = 0.85


def strip(cells: Sequence[Cell], *, y: float, x: float = MARGIN) -> list[str]:
    """Draw boxes side by side. A text that is wider than its box stands lower, every second of these lower still."""
    parts: list[str] = []
    wide = 0
    for cell in cells:
        middle = x + cell.width / 2
        parts.append(
            element("rect", x=x + 1, y=y, width=cell.width - 2, height=BOX, rx=3, class_=f"fill-{cell.colour}",
                    opacity=cell.opacity)
        )  # fmt: skip
        if cell.label:
            parts.append(text(cell.label, x=middle, y=y + 23, text_anchor="middle", class_="value"))
        if cell.below:
            is_wide = text_width(cell.below, _SMALL_PX) > cell.width
            low = y + BOX + (18 if not is_wide else 32 + 16 * (wide % 2))
            wide += is_wide
            if is_wide:
                parts.append(line(middle, y + BOX + 4, middle, low - 12, "grid"))
            parts.append(text(cell.below, x=middle, y=low, text_anchor="middle", class_="tick"))
        x += cell.width
    return parts


def mark(label: str, *, x: float, y: float, bottom: float, anchor: str = "middle") -> list[str]:
    """Draw a vertical line from `y` to `bottom` with a label above it, such as an offset between two boxes."""
    return [
        line(x, y, x, bottom, "curve stroke-4"),
        text(label, x=x, y=y - 6, text_anchor=anchor, class_="label"),
    ]


def note(content: str, *, x: float = MARGIN, y: float, class_: str = "note") -> str:
    """Write a line of text."""
    return text(content, x=x, y=y, class_=class_)


def legend(entries: Sequence[tuple[str, str] | tuple[str, str, float]], *, y: float) -> list[str]:
    """Draw a square of a colour and its meaning, for each entry; an entry may have the opacity of its boxes."""
    parts, x = [], float(MARGIN)
    for colour, meaning, *rest in entries:
        opacity = rest[0] if rest else 0.85
        square = {"x": x, "y": y - 11, "width": 12, "height": 12, "rx": 2}
        parts.append(element("rect", **square, class_=f"fill-{colour}", opacity=opacity))
        parts.append(text(meaning, x=x + 18, y=y, class_="note"))
        x += text_width(meaning) + 40
    return parts


def save(folder: Path, name: str, title: str, description: str, *, size: tuple[float, float], body: list[str]) -> None:
    """Write a picture with a title."""
    heading = text(title, x=MARGIN, y=32, class_="title")
    (folder / f"{name}.svg").write_text(document(title, description, *size, [heading, *body]), encoding="utf-8")
