"""How listings are printed: aligned columns under headings for people, JSON for programs."""

import json
from collections.abc import Sequence

import click

NOT_KNOWN = "-"
"""The text of a cell whose value is not known."""

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align columns, two spaces apart; columns of numbers are aligned to the right, even with unknown cells."""
    cells = [[str(cell) for cell in row] for row in rows]
    is_right = [_is_of_numbers([row[number] for row in rows]) for number in range(len(columns))]
    lines = [list(columns), *cells]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_of_numbers(column: Sequence[object]) -> bool:
    known = [cell for cell in column if cell != NOT_KNOWN]
    return bool(known) and all(isinstance(cell, int | float) for cell in known)


def echo_json(document: object) -> None:
    """Print a document as JSON."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def counted(count: int, one: str) -> str:
    """A number and its noun, such as `1 node` or `2 nodes`."""
    return f"{count} {one if count == 1 else one + 's'}"
