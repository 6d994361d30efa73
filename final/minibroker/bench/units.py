"""The units of the course, and how numbers and sizes are written for people.

Blocks and files are counted in powers of two (KiB, MiB); speeds in powers of ten (MB/s), as disks and networks are
sold.
"""

KIB = 1024
MIB = 1024 * KIB
MB = 10**6
GB = 10**9


def number_text(value: float) -> str:
    """Write a figure with about three significant digits: 3,661 or 12.2 or 0.953."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}" if size < 0.001 else f"{value:.3f}"


def tick_text(value: float) -> str:
    """Write a tick of an axis: a round number, so without trailing zeros."""
    if abs(value) >= 1:
        return f"{value:,.10g}"
    return f"{value:.10g}"


def bytes_text(bytes_count: int) -> str:
    """Write a size in the largest unit that divides it: 64 KiB, 1 MiB, 100 B."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if bytes_count >= unit and bytes_count % unit == 0:
            return f"{bytes_count // unit} {name}"
    return f"{bytes_count} B"
