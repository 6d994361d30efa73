"""The dump, against transcripts that people have read: `pytest --rewrite` records them anew."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from log_cases import each_case
from log_strategies import build, small_batch

from minibroker.log.batch import LEADER_EPOCH_AT, stamp_log_append_time
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker
from minibroker.log.dump import Summary, damaged_lines, lines, objects
from minibroker.log.logfile import LogFile
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.log.record import Record

SCENARIOS = Path(__file__).parent / "scenarios"
TIME = 1_700_000_000_000

FULL_BATCH = [
    Record(0, TIME, b"alice", b"book", [("trace", b"\x01\x02"), ("empty", None)]),
    Record(1, TIME + 5, None, b"pen"),
    Record(2, TIME - 1, b"bob", None),
]


def file_of(*given: bytearray, epochs: tuple[int, ...] = ()) -> MemoryFile:
    files = MemoryFiles()
    log = LogFile.open(files, "a.log")
    for index, batch in enumerate(given):
        log.append(batch, leader_epoch=epochs[index] if epochs else 0)
    return files.open("a.log")


def everything() -> MemoryFile:
    """One file with every kind of batch."""
    append_time = small_batch(b"appended")
    stamp_log_append_time(append_time, timestamp=TIME + 99)
    return file_of(
        build(FULL_BATCH),
        small_batch(b"x" * 100, bytes(range(200)), compression=Compression.LZ4),
        append_time,
        build(
            [Record(0, -1, None, b"in a transaction")],
            producer_id=7,
            producer_epoch=1,
            base_sequence=0,
            is_transactional=True,
        ),
        build_marker(ControlType.COMMIT, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp=TIME),
        build([Record(0, 2**62, b"far future", b"")]),
        epochs=(0, 0, 1, 1, 1, 2),
    )


def flipped(file: MemoryFile, position: int) -> MemoryFile:
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 0x10]), position)
    return file


def damaged() -> MemoryFile:
    file = file_of(*(small_batch(b"value %d" % n) for n in range(5)), epochs=(3, 3, 3, 3, 3))
    size = file.size() // 5
    flipped(file, size + 70)  # a record of the second batch
    flipped(file, 2 * size + 7)  # the third's base offset
    flipped(file, 3 * size + LEADER_EPOCH_AT + 3)  # the fourth's epoch
    file.truncate(file.size() - 10)  # a torn tail
    return file


@each_case(
    ("name", "shown"),
    [
        ("dump-records", lambda: lines(everything(), Summary())),
        ("dump-batches", lambda: lines(everything(), Summary(), records=False)),
        ("dump-bytes", lambda: lines(everything(), Summary(), annotated=True)),
        ("dump-damaged", lambda: lines(damaged(), Summary())),
        ("dump-verify-damaged", lambda: damaged_lines(damaged(), Summary())),
        ("dump-verify-good", lambda: damaged_lines(everything(), Summary())),
        ("dump-json", lambda: (json.dumps(o) for o in objects(everything(), Summary()))),
        ("dump-json-damaged", lambda: (json.dumps(o) for o in objects(damaged(), Summary()))),
    ],
)
def test_a_dump_reads_as_recorded(
    name: str, shown: Callable[[], Iterator[str]], transcript: Callable[[Path, str], None]
) -> None:
    transcript(SCENARIOS / f"{name}.txt", "\n".join(shown()) + "\n")


def test_an_empty_file_is_good() -> None:
    assert list(lines(MemoryFiles().open("a.log"), Summary())) == ["0 batches, 0 records, 0 bytes: all good"]


def test_every_byte_of_an_uncompressed_batch_is_annotated_once() -> None:
    batch = build(FULL_BATCH)
    shown = [line for line in lines(file_of(batch), Summary(), annotated=True) if line.startswith("   ")]
    digits = "".join(line[9:34].replace(" ", "") for line in shown)
    assert bytes.fromhex(digits) == bytes(file_of(batch).pread(10_000, 0))


def test_a_gap_is_shown_but_is_no_damage() -> None:
    file = file_of(small_batch(b"a"), small_batch(b"b"))
    file.pwrite(struct.pack(">q", 9), file.size() // 2)
    summary = Summary()
    assert any("(gap of 8 offsets before)" in line for line in lines(file, summary))
    assert not summary.is_damaged
