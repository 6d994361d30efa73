"""A log as lines of JSON and the log of this chapter, in the same two experiments.

The chapter begins with what `python chapters/01-log/bench/naive.py` prints, and ends with `--ours`.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.errors import LogError
from minibroker.log.logfile import LogFile
from minibroker.log.memory import MemoryFiles

VALUES = [f"order {n}: {n * 7} EUR" for n in range(20)]
MORE = "order 20: 140 EUR"

Write = Callable[[list[str]], bytes]
Records = list[tuple[int | None, str]]  # the offset and the value of each record
Read = Callable[[bytes], tuple[Records, bool]]  # the records, and whether damage was noticed
Append = Callable[[bytes, str], bytes]


# Lines of JSON


def write_json(values: list[str]) -> bytes:
    """The whole log, a record a line."""
    return b"".join(json.dumps({"offset": n, "value": value}).encode() + b"\n" for n, value in enumerate(values))


def read_json(content: bytes) -> tuple[Records, bool]:
    """Every record up to the first that does not parse: all the checking that JSON offers."""
    records: Records = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
            records.append((record.get("offset"), record["value"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return records, True
    return records, False


def append_json(content: bytes, value: str) -> bytes:
    """Append one more line to whatever is there."""
    return content + json.dumps({"offset": 20, "value": value}).encode() + b"\n"


# The log of chapter 01


def write_log(values: list[str]) -> bytes:
    """The same records, one batch each."""
    content = b""
    for value in values:
        content = append_log(content, value)
    return content


def read_log(content: bytes) -> tuple[Records, bool]:
    """Open the file as after a crash, and read what is valid."""
    log = open_log(content)
    found = log.read(0, bytes_max=len(content)).read()
    records: Records = [
        (record.offset, (record.value or b"").decode()) for batch in batches(found) for record in batch.records()
    ]
    return records, log.recovered.damage is not None


def append_log(content: bytes, value: str) -> bytes:
    """Open the file as after a crash, and append to what is valid."""
    log = open_log(content)
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=value.encode())
    log.append(builder.build())
    return log.read(0, bytes_max=2**31).read()


def open_log(content: bytes) -> LogFile:
    """A log on a disk in memory that holds these bytes."""
    files = MemoryFiles()
    files.open("a.log").pwrite(content, 0)
    return LogFile.open(files, "a.log")


# The experiments


def flip_every_bit(content: bytes, read: Read) -> Counter[str]:
    """Flip each bit alone; count how often that is noticed, and what it does when it is not."""
    effects: Counter[str] = Counter()
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            effects[effect(*read(bytes(flipped)))] += 1
    return effects


def effect(records: Records, is_noticed: bool) -> str:
    """What a flipped bit did to the records that are read."""
    if is_noticed:
        return "noticed"
    if [value for _offset, value in records] != VALUES:
        return "value"
    return "neither" if [offset for offset, _value in records] == list(range(len(VALUES))) else "offset"


def append_after_every_cut(content: bytes, last: int, read: Read, append: Append) -> int:
    """Tear the last record at each byte, append one more, and count how often that one cannot be read back."""
    lost = 0
    for cut in range(last, len(content)):
        try:
            records, _is_noticed = read(append(content[:cut], MORE))
        except LogError:
            records = []
        lost += [value for _offset, value in records[-1:]] != [MORE]
    return lost


def main(write: Write, read: Read, append: Append) -> None:
    """Print the counts."""
    content, last = write(VALUES), len(write(VALUES[:-1]))
    count = flip_every_bit(content, read)
    print(f"{count.total()} flipped bits, one at a time: {count['noticed']} noticed")
    print(f"  not noticed: {count['value']} changed a value, {count['offset']} an offset, {count['neither']} neither")
    lost = append_after_every_cut(content, last, read, append)
    print(f"{len(content) - last} torn last records: the next record, written whole after it, was lost {lost} times")


if __name__ == "__main__":
    if "--ours" in sys.argv:
        main(write_log, read_log, append_log)
    else:
        main(write_json, read_json, append_json)
