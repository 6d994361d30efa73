"""The dump of indexes, checkpoints and directories, against transcripts that people have read."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from log_cases import each_case

from minibroker.log.batch import BatchBuilder
from minibroker.log.errors import LogError
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.segments.config import COMPACT, LogConfig
from minibroker.segments.dump import CHECKPOINTS, DirectoryDump, Dump, dump_of
from minibroker.segments.segmented import SegmentedLog

SCENARIOS = Path(__file__).parent / "scenarios"
TIME = 1_700_000_000_000
FIRST, SECOND = "00000000000000000100", "00000000000000000106"


def directory() -> MemoryFiles:
    """A partition whose log starts at offset 100: two closed segments, and one still written to."""
    files = MemoryFiles()
    log = SegmentedLog.open(files, "t-0", LogConfig(segment_bytes=430, index_interval_bytes=100), log_start_offset=100)
    for number in range(14):
        builder = BatchBuilder()
        builder.append(timestamp=TIME + number * 10 - (number % 3) * 15, key=None, value=b"%02d" % number)
        log.append(builder.build(), leader_epoch=number // 5)
    log.close()
    return files


def opened(files: MemoryFiles, name: str) -> MemoryFile:
    return files.open(f"t-0/{name}", create=False)


def dumped(name: str, change: Callable[[MemoryFiles], object] = lambda files: None) -> Dump:
    files = directory()
    change(files)
    return dump_of(files, f"t-0/{name}")


def shown(dump: Dump, *, annotated: bool = False) -> Iterator[str]:
    return dump.lines(records=True, annotated=annotated)


def as_json(dump: Dump) -> Iterator[str]:
    return (json.dumps(found) for found in dump.objects(records=True))


def checkpoint(name: str, text: bytes) -> Dump:
    files = MemoryFiles()
    files.open(f"data/{name}").pwrite(text, 0)
    return dump_of(files, f"data/{name}")


def wrong_offsets(files: MemoryFiles) -> None:
    """An entry for the wrong offset; the next one is right."""
    opened(files, f"{FIRST}.index").pwrite(struct.pack(">i", 3), 0)


def wrong_times(files: MemoryFiles) -> None:
    opened(files, f"{FIRST}.timeindex").pwrite(struct.pack(">q", TIME + 1), 0)


def damaged(files: MemoryFiles) -> None:
    """Something in every file of the first segment, a missing index, an index too many, and an odd checkpoint."""
    wrong_offsets(files)
    opened(files, f"{FIRST}.timeindex").truncate(13)
    opened(files, f"{SECOND}.log").pwrite(b"!", 150)
    files.unlink(f"t-0/{SECOND}.index")
    files.open("t-0/00000000000000000055.index")
    files.open("t-0/leader-epoch-checkpoint").pwrite(b"0\n3\n0 100\n1 105\n", 0)


def preallocated(files: MemoryFiles) -> None:
    opened(files, f"{FIRST}.index").truncate(10_000)


EPOCHS = b"0\n2\n0 0\n3 120\n"
POINTS = b"0\n2\norders 0 1523\nwith-dash 11 88\n"
TORN = b"0\n3\norders 0 1523\norders one 9\n"


@each_case(
    ("name", "lines"),
    [
        ("index", lambda: shown(dumped(f"{FIRST}.index"))),
        ("index-bytes", lambda: shown(dumped(f"{FIRST}.index"), annotated=True)),
        ("index-json", lambda: as_json(dumped(f"{FIRST}.index"))),
        ("index-damaged", lambda: shown(dumped(f"{FIRST}.index", wrong_offsets))),
        ("index-verify-damaged", lambda: dumped(f"{FIRST}.index", wrong_offsets).damaged_lines()),
        ("index-preallocated", lambda: shown(dumped(f"{FIRST}.index", preallocated))),
        ("timeindex", lambda: shown(dumped(f"{FIRST}.timeindex"))),
        ("timeindex-bytes", lambda: shown(dumped(f"{SECOND}.timeindex"), annotated=True)),
        ("timeindex-json", lambda: as_json(dumped(f"{SECOND}.timeindex"))),
        ("timeindex-verify-damaged", lambda: dumped(f"{FIRST}.timeindex", wrong_times).damaged_lines()),
        ("offset-checkpoint", lambda: shown(checkpoint("recovery-point-offset-checkpoint", POINTS))),
        ("offset-checkpoint-bytes", lambda: shown(checkpoint("log-start-offset-checkpoint", POINTS), annotated=True)),
        ("offset-checkpoint-json", lambda: as_json(checkpoint("cleaner-offset-checkpoint", POINTS))),
        ("offset-checkpoint-damaged", lambda: shown(checkpoint("replication-offset-checkpoint", TORN))),
        ("epoch-checkpoint", lambda: shown(checkpoint("leader-epoch-checkpoint", EPOCHS))),
        ("directory-verify-good", lambda: DirectoryDump(directory(), "t-0").damaged_lines()),
        ("directory-verify-damaged", lambda: directory_dump(damaged).damaged_lines()),
        ("directory-verify-json", lambda: as_json(directory_dump(damaged))),
    ],
)
def test_a_dump_reads_as_recorded(
    name: str, lines: Callable[[], Iterator[str]], transcript: Callable[[Path, str], None]
) -> None:
    transcript(SCENARIOS / f"dump-{name}.txt", "\n".join(lines()) + "\n")


def directory_dump(change: Callable[[MemoryFiles], object]) -> DirectoryDump:
    files = directory()
    change(files)
    return DirectoryDump(files, "t-0")


# Which file is what -------------------------------------------------------------------------------------------------


@each_case("suffix", [".deleted", ".cleaned", ".swap"])
def test_a_segment_on_its_way_in_or_out_is_shown_too(suffix: str) -> None:
    files = directory()
    for kind in ("log", "index", "timeindex"):
        files.rename(f"t-0/{FIRST}.{kind}", f"t-0/{FIRST}.{kind}{suffix}")
    for kind in ("log", "index", "timeindex"):
        *_lines, last = shown(dump_of(files, f"t-0/{FIRST}.{kind}{suffix}"))
        assert last.endswith(": all good"), "the log beside it has the same suffix"


@each_case("name", ["00000000000000000000.txnindex", "notes.md", "data", "checkpoint"])
def test_an_unknown_kind_is_refused_with_the_kinds_that_are_known(name: str) -> None:
    with pytest.raises(LogError, match=name) as error:
        dump_of(MemoryFiles(), f"t-0/{name}")
    assert "\n" not in str(error.value)
    for known in ("*.log", "*.index", "*.timeindex", *CHECKPOINTS):
        assert known in str(error.value)


def test_an_index_without_a_base_offset_in_its_name_is_refused() -> None:
    files = MemoryFiles()
    files.open("t-0/orders.index")
    with pytest.raises(LogError, match="20 digits"):
        dump_of(files, "t-0/orders.index")


# Indexes ------------------------------------------------------------------------------------------------------------


def verdict(dump: Dump) -> tuple[bool, str]:
    *_lines, last = dump.damaged_lines()
    return dump.is_damaged, last


def test_every_file_of_a_sound_directory_is_good() -> None:
    files = directory()
    assert len(files.list("t-0")) == 9
    for name in files.list("t-0"):
        is_damaged, last = verdict(dump_of(files, f"t-0/{name}"))
        assert not is_damaged
        assert last.endswith(": all good")


def test_without_its_log_only_the_order_of_an_index_is_checked() -> None:
    is_damaged, last = verdict(dumped(f"{FIRST}.index", lambda files: files.unlink(f"t-0/{FIRST}.log")))
    assert not is_damaged
    assert "there is no log file to check the entries against" in last

    def unordered(files: MemoryFiles) -> None:
        files.unlink(f"t-0/{FIRST}.log")
        opened(files, f"{FIRST}.index").pwrite(struct.pack(">ii", 9, 1000), 0)

    assert verdict(dumped(f"{FIRST}.index", unordered))[0]


def test_beside_a_damaged_log_an_index_is_shown_with_a_note() -> None:
    is_damaged, last = verdict(
        dumped(f"{FIRST}.index", lambda files: opened(files, f"{FIRST}.log").pwrite(b"\x09", 16))
    )
    assert not is_damaged
    assert "the log file is damaged: batch at position 0: magic 9" in last


def test_zeros_that_kafka_preallocated_are_named_and_no_damage() -> None:
    for name in (f"{FIRST}.index", f"{FIRST}.timeindex"):
        files = directory()
        size = opened(files, name).size()
        opened(files, name).truncate(size + 120_000)
        is_damaged, last = verdict(dump_of(files, f"t-0/{name}"))
        assert not is_damaged
        assert "120000 zero bytes follow" in last


def test_an_index_that_is_nothing_but_zeros_has_no_entries() -> None:
    def zeros(files: MemoryFiles) -> None:
        opened(files, f"{FIRST}.index").truncate(0)
        opened(files, f"{FIRST}.index").truncate(8 * 10_000)

    is_damaged, last = verdict(dumped(f"{FIRST}.index", zeros))
    assert (is_damaged, last.split(";")[0]) == (False, "0 entries: all good")


def test_a_time_index_of_a_closed_segment_must_reach_its_youngest_batch() -> None:
    def cut(name: str) -> Callable[[MemoryFiles], None]:
        return lambda files: opened(files, name).truncate(12)

    is_damaged, last = verdict(dumped(f"{FIRST}.timeindex", cut(f"{FIRST}.timeindex")))
    assert is_damaged
    assert "ends before the largest timestamp" in last
    # The last segment may still be written to: its index may lag behind.
    last_name = sorted(directory().list("t-0"))[-1]
    assert last_name.endswith(".timeindex")
    assert not verdict(dumped(last_name, cut(last_name)))[0]


def test_an_index_with_a_torn_entry_is_damaged() -> None:
    is_damaged, last = verdict(dumped(f"{FIRST}.index", lambda files: opened(files, f"{FIRST}.index").truncate(13)))
    assert is_damaged
    assert "13 bytes are not a multiple of 8" in last


# Checkpoints --------------------------------------------------------------------------------------------------------


@each_case(
    ("text", "damage"),
    [
        (b"", []),  # Kafka creates the file before it has anything to write
        (b"0\n0\n", []),
        (b"1\n0\n", ["only version 0 is known"]),
        (b"0\n2\n5 6\n", ["the file has 1 entry"]),
        (b"0\n1\n5 6 7\n", ["expected leader_epoch start_offset"]),
        (b"0\n1\n\xff 6\n", ["expected leader_epoch start_offset"]),
    ],
)
def test_a_malformed_checkpoint_is_damaged(text: bytes, damage: list[str]) -> None:
    dump = checkpoint("leader-epoch-checkpoint", text)
    assert [found["damage"] for found in dump.objects(records=True) if found["damage"]] == damage
    assert dump.is_damaged == bool(damage)


# Directories --------------------------------------------------------------------------------------------------------


def test_a_directory_without_logs_is_refused() -> None:
    with pytest.raises(LogError, match="no log files"):
        DirectoryDump(MemoryFiles(), "t-0")


def test_kafkas_preallocated_indexes_are_no_damage_in_the_last_segment() -> None:
    files = directory()
    last = files.list("t-0")[-1]
    opened(files, last).truncate(12 * 1000)
    assert verdict(DirectoryDump(files, "t-0"))[0] is False


def test_a_segment_that_is_gone_is_a_gap_and_one_that_overlaps_is_damage() -> None:
    files = directory()
    for kind in ("log", "index", "timeindex"):
        files.unlink(f"t-0/{SECOND}.{kind}")
    dump = DirectoryDump(files, "t-0")
    note, _last = dump.damaged_lines()
    assert "6 offsets missing before this file: the log was compacted, or a segment is missing" in note
    assert not dump.is_damaged

    files = directory()
    for kind in ("log", "index", "timeindex"):
        files.rename(f"t-0/{SECOND}.{kind}", f"t-0/00000000000000000104.{kind}")
    overlap = DirectoryDump(files, "t-0")
    assert any("the next segment begins with 104" in line for line in overlap.damaged_lines())
    assert overlap.is_damaged


def test_gaps_within_segments_are_what_compaction_leaves() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=300, index_interval_bytes=50, cleanup_policy=frozenset({COMPACT}))
    log = SegmentedLog.open(files, "t-0", config)
    for offset in range(0, 100, 10):
        builder = BatchBuilder(base_offset=offset, leader_epoch=0)
        builder.append(timestamp=TIME, key=b"k", value=b"v")
        log.append_as_follower(memoryview(builder.build()))
    log.close()
    dump = DirectoryDump(files, "t-0")
    assert all("compacted" in line for line in list(dump.damaged_lines())[:-1])
    assert not dump.is_damaged
