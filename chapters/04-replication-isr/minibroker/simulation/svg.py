"""Writes SVG: elements, escaping, and the style that all figures share. A pure module.

The simulator's diagram and the figures of the benchmarks and labs are drawn with this module.

A figure is shown as an <img>, which cannot see the theme of the page. So it brings its own panel, and its colours
follow the reader's system through `prefers-color-scheme`: readable on a light page and on a dark one.
"""

from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Okabe and Ito's palette, which colour-blind readers can tell apart. The second of each pair is for a dark panel.
PALETTE = (
    ("#0072b2", "#4aa8e0"),
    ("#e69f00", "#e9ab1f"),
    ("#009e73", "#2bbf96"),
    ("#cc79a7", "#d98fb8"),
    ("#d55e00", "#ee7b25"),
    ("#56b4e9", "#9bd4f5"),
)
LIMIT_COLOUR = ("#9aa4ae", "#7d8894")

LIGHT = {"panel": "#ffffff", "edge": "#d5dbe1", "ink": "#1f2328", "muted": "#5b6570", "grid": "#e6eaee"}
DARK = {"panel": "#1f232b", "edge": "#39414c", "ink": "#e6eaef", "muted": "#a3adb8", "grid": "#323944"}


def element(tag: str, *children: str, **attributes: object) -> str:
    """Write an element; children are SVG already. `class_` and `text_anchor` become `class` and `text-anchor`."""
    spelled = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"' for name, value in attributes.items()
    )
    return f"<{tag}{spelled}>{''.join(children)}</{tag}>" if children else f"<{tag}{spelled}/>"


def text(content: str, *, x: float, y: float, **attributes: object) -> str:
    """Write a text, escaped."""
    return element("text", escape(content), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Write a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def text_width(content: str, size_px: float = 13) -> float:
    """Estimate the width of a text, generously, because the reader's font is unknown."""
    return sum(0.36 if letter in " .,:;'il|" else 0.63 for letter in content) * size_px


def document(title: str, description: str, width: float, height: float, body: list[str]) -> str:
    """Put a drawing on its panel, with a title and a description for screen readers."""
    panel = element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=10, class_="panel")
    head = [
        element("title", escape(title), id="title"),
        element("desc", escape(description), id="desc"),
        element("style", style_sheet()),
    ]
    return (
        element(
            "svg",
            *(f"\n{part}" for part in [*head, panel, *body]),
            "\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_value(width)} {_value(height)}",
            width=width,
            height=height,
            role="img",
            aria_labelledby="title desc",
            font_family=FONT,
        )
        + "\n"
    )


def style_sheet() -> str:
    """Write the classes that the drawings use, once for each theme."""
    sizes = (
        ".title{font-size:17px;font-weight:600}.note,.label,.tick,.value{font-size:13px}"
        ".tick{font-size:12px}.value,.group{font-weight:600}.group{font-size:13px}"
        ".grid,.axis{stroke-width:1}.whisker{stroke-width:1.5}.curve{stroke-width:2.5;fill:none;stroke-linejoin:round}"
        ".limit-line{stroke-width:1.5;stroke-dasharray:5 4}"
    )
    dark = _theme(DARK, 1)
    return f"{sizes}{_theme(LIGHT, 0)}@media (prefers-color-scheme:dark){{{dark}}}"


def _theme(theme: dict[str, str], which: int) -> str:
    colours = [*PALETTE, LIMIT_COLOUR]
    names = [*(str(number) for number in range(len(PALETTE))), "limit"]
    series = "".join(
        f".fill-{name}{{fill:{pair[which]}}}.stroke-{name}{{stroke:{pair[which]}}}"
        for name, pair in zip(names, colours, strict=True)
    )
    return (
        f".panel{{fill:{theme['panel']};stroke:{theme['edge']}}}"
        f".title,.label,.value,.group{{fill:{theme['ink']}}}.note,.tick{{fill:{theme['muted']}}}"
        f".grid{{stroke:{theme['grid']}}}.axis,.limit-line{{stroke:{theme['muted']}}}.whisker{{stroke:{theme['ink']}}}"
        f".value{{stroke:{theme['panel']};stroke-width:4px;paint-order:stroke}}{series}"
    )


def _value(value: object) -> str:
    # A tenth of a pixel is fine enough, and rounding gives the same data the same bytes on every machine.
    if isinstance(value, float):
        return f"{value:.1f}".rstrip("0").rstrip(".")
    return str(value)
