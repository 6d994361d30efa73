"""What everybody writes first: a log as lines of JSON. This breaks one in every way a disk can, and counts.

Run it with `python chapters/01-log/bench/naive.py`. The lesson begins with what it prints.
"""

import json
from typing import Any

RECORDS = [{"offset": n, "key": f"user-{n % 3}", "value": f"order {n}: {n * 7} EUR"} for n in range(20)]


def write() -> bytes:
    """The whole log, a record a line."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS)


def read(content: bytes) -> list[Any]:
    """Every record, or ValueError if the file is damaged: all the checking that JSON offers."""
    return [json.loads(line) for line in content.splitlines()]


def flip_every_bit(content: bytes) -> tuple[int, int]:
    """Flip each bit alone; count how often reading complains, and how often it gives other records without a word."""
    noticed = wrong = 0
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            try:
                wrong += read(bytes(flipped)) != RECORDS
            except ValueError:
                noticed += 1
    return noticed, wrong


def append_after_every_cut(content: bytes) -> tuple[int, int]:
    """Tear the last line at each byte, append one more record, and count how often that one cannot be read back."""
    last = content[:-1].rindex(b"\n") + 1
    lost = 0
    more = {"offset": 20, "key": "user-2", "value": "order 20: 140 EUR"}
    for cut in range(last, len(content)):
        torn = content[:cut] + json.dumps(more).encode() + b"\n"
        try:
            lost += read(torn)[-1] != more
        except ValueError:
            lost += 1
    return lost, len(content) - last


def main() -> None:
    """Print the counts."""
    content = write()
    noticed, wrong = flip_every_bit(content)
    print(f"{8 * len(content)} single flipped bits: {noticed} noticed, {wrong} read back as something else, silently")
    lost, cuts = append_after_every_cut(content)
    print(f"{cuts} torn last lines: {lost} times the next record, appended and acknowledged, was lost too")


if __name__ == "__main__":
    main()
