"""Numbers with units, read from the command line and written for people.

Bytes are in powers of ten (KB, MB, GB, TB), as disks and networks are sold, or in powers of two (KiB, MiB, GiB, TiB),
as memory is. Durations are in ms, s, m, h, d. A duration without a unit is refused, because it is ambiguous.
"""

import re
from collections.abc import Callable

import click

PREFIXES = "KMGTP"
BYTES: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(PREFIXES, start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(PREFIXES, start=1)},
}
MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DAY_SECONDS = 86400

_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)")


def parse_bytes(text: str) -> float:
    """Read `10TB`, `512 KiB` or a plain number of bytes."""
    number, unit = _split(text, "a size such as 10TB, 512KiB or 1000")
    known = {name.lower(): factor for name, factor in BYTES.items()}
    if unit.lower() not in known and unit:
        raise ValueError(f"{text!r} has no known unit of bytes: use {', '.join(BYTES)}")
    return number * (known[unit.lower()] if unit else 1)


def parse_seconds(text: str) -> float:
    """Read `7d`, `12h` or `500ms`."""
    number, unit = _split(text, "a duration such as 7d or 12h")
    if unit not in MILLISECONDS:
        raise ValueError(f"{text!r} has no known unit of time: use {', '.join(MILLISECONDS)}")
    return number * MILLISECONDS[unit] / 1000


def _split(text: str, example: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not {example}")
    return float(found["number"]), found["unit"]


def size_text(bytes_count: float) -> str:
    """Write bytes with four digits and a power of ten: `210 TB`, `115.7 MB`."""
    return _scaled_text(bytes_count, {name: BYTES[name] for name in BYTES if "i" not in name})


def rate_text(bytes_per_second: float) -> str:
    """Write bytes per second: `115.7 MB/s`."""
    return f"{size_text(bytes_per_second)}/s"


def duration_text(seconds: float) -> str:
    """Write a duration in the largest unit that divides it: `7 d`, `36 h`."""
    unit = [name for name, size_ms in MILLISECONDS.items() if name == "ms" or seconds * 1000 % size_ms == 0][-1]
    return f"{seconds * 1000 / MILLISECONDS[unit]:g} {unit}"


def _scaled_text(value: float, units: dict[str, int]) -> str:
    # 999.96 would be rounded to 1000, so it gets the next unit.
    fitting = [name for name, factor in units.items() if value >= factor * 0.99995]
    unit = fitting[-1] if fitting else next(iter(units))
    return f"{value / units[unit]:.4g} {unit}"


def size(text: str) -> float:
    """The type of an option that takes bytes with a unit."""
    return _converted(parse_bytes, text)


def duration(text: str) -> float:
    """The type of an option that takes a duration with a unit."""
    return _converted(parse_seconds, text)


def _converted(parse: Callable[[str], float], text: str) -> float:
    try:
        number = parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
    if number <= 0:
        raise click.BadParameter(f"{text!r} must be more than 0.")
    return number
