r"""Reads a configuration file in Kafka's format: `name=value` lines, comments, continued lines.

As in Java's properties files, a line that begins with `#` or `!` is a comment, a backslash at the end of a line joins
the next line to it, and `:` or a space may replace the `=`. A name that is set twice is refused, because one of the two
values is probably a mistake.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import click

_LINE = re.compile(r"(?P<name>[^=:\s]+)\s*(?:[=:]|\s)\s*(?P<value>.*)")


@dataclass(frozen=True)
class Properties:
    """The settings of a file, each with its line number."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, name: str) -> str:
        """The file and line of a setting, for a message."""
        return f"{self.path}:{self.lines[name]}"


def read_properties(path: str) -> Properties:
    """Read a configuration file."""
    with open(path, encoding="utf-8") as file:
        try:
            return parse_properties(path, file.read())
        except UnicodeDecodeError as error:
            raise click.ClickException(f"{path} is not a text file: {error.reason} at byte {error.start}") from error


def parse_properties(path: str, text: str) -> Properties:
    """Read the text of a file; the error for a line that is not a setting has the line's number."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in _logical_lines(text):
        found = _LINE.fullmatch(line)
        if found is None:
            raise click.ClickException(
                f"{path}:{number}: {line!r} is not a setting: write name=value, or # before a comment"
            )
        if found["name"] in lines:
            raise click.ClickException(
                f"{path}:{number}: {found['name']} is set twice, first in line {lines[found['name']]}: remove one"
            )
        values[found["name"]] = found["value"]
        lines[found["name"]] = number
    return Properties(path, values, lines)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each setting as one line, and the number of its first line; continued lines are joined, comments left out."""
    begun, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip() if not begun else line.lstrip()
        if not begun and (not stripped or stripped[0] in "#!"):
            continue
        start = start if begun else number
        if stripped.endswith("\\"):
            begun += stripped[:-1]
            continue
        yield start, (begun + stripped).strip()
        begun = ""
    if begun:
        yield start, begun.strip()
