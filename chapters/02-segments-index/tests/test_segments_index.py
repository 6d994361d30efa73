"""The indexes: searched like a list, kept in pages, built anew when wrong."""

import errno
import struct
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case

from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.segments.index import OffsetIndex, TimeIndex

RISING = st.lists(st.integers(1, 50), max_size=1500).map(lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))])


def index_of(keys: list[int]) -> OffsetIndex:
    index = OffsetIndex(MemoryFiles().open("a.index"))
    for slot, key in enumerate(keys):
        index.append(key, slot)
    return index


@given(RISING, st.lists(st.integers(-5, 80_000), max_size=30))
def test_floor_is_the_last_entry_not_above(keys: list[int], targets: list[int]) -> None:
    index = index_of(keys)
    for target in [*targets, *keys[:5], *keys[-5:]]:
        slot = bisect_right(keys, target) - 1
        assert index.floor(target) == (None if slot < 0 else (keys[slot], slot))
        assert index.floor_slot(target) == slot


@each_case("count", [511, 512, 513, 1023, 1024, 1025, 5000])
def test_floor_is_right_at_the_edges_of_pages(count: int) -> None:
    index = index_of([10 * n for n in range(count)])
    for slot in (0, 1, 510, 511, 512, 513, 1022, 1023, 1024, count - 1):
        if slot < count:
            assert index.floor(10 * slot) == index.floor(10 * slot + 9) == (10 * slot, slot)
            assert index.floor_slot(10 * slot) == index.floor_slot(10 * slot + 9) == slot


@given(RISING, st.integers(0, 1600))
def test_truncating_keeps_the_first_entries(keys: list[int], kept: int) -> None:
    index = index_of(keys)
    index.truncate(kept)
    assert [index.entry(slot)[0] for slot in range(index.count)] == keys[:kept]
    index.append(10**6, 7)
    assert index.last == (10**6, 7)
    assert index.floor(10**6) == (10**6, 7)


@each_case("kept", [0, 1, 511, 512, 513, 1500])
def test_a_search_is_right_again_after_truncating(kept: int) -> None:
    index = index_of(list(range(0, 20_000, 10)))
    assert index.floor(19_995) == (19_990, 1999)
    index.truncate(kept)
    assert index.floor(19_995) == (None if kept == 0 else (10 * (kept - 1), kept - 1))
    for slot in range(kept, kept + 1100):
        index.append(10 * slot + 5, slot)
    assert index.floor(10 * kept + 5) == (10 * kept + 5, kept)
    assert index.floor(19_995 + 10**6) == (10 * (kept + 1099) + 5, kept + 1099)


def test_entries_are_in_the_file_after_write_and_not_before_a_page_is_full() -> None:
    file = MemoryFiles().open("a.index")
    index = OffsetIndex(file)
    for slot in range(511):
        index.append(slot, slot)
    assert file.size() == 0
    index.append(511, 511)
    assert file.size() == 4096
    index.append(512, 512)
    index.write()
    assert file.pread(8, 4096) == struct.pack(">ii", 512, 512)
    assert OffsetIndex(file).last == (512, 512)


def test_a_time_index_takes_only_younger_timestamps() -> None:
    index = TimeIndex(MemoryFiles().open("a.timeindex"))
    for timestamp, offset in [(5, 0), (5, 1), (3, 2), (6, 3)]:
        index.append_if_younger(timestamp, offset)
    assert [index.entry(slot) for slot in range(index.count)] == [(5, 0), (6, 3)]


@each_case(
    ("content", "sane"),
    [
        (b"", True),
        (struct.pack(">ii", 3, 100), True),
        (struct.pack(">iiii", 3, 100, 9, 200), True),
        (struct.pack(">ii", 3, 100)[:-1], False),
        (struct.pack(">iiii", 9, 100, 3, 200), False),
        (struct.pack(">iiii", 3, 100, 0, 0), False),  # zeros that were never written
        (struct.pack(">ii", -3, 100), False),
    ],
)
def test_what_cannot_be_an_index_is_not_sane(content: bytes, sane: bool) -> None:
    file = MemoryFiles().open("a.index")
    file.pwrite(content, 0)
    assert OffsetIndex(file).is_sane() == sane


def counted_reads(file: MemoryFile) -> list[int]:
    """The sizes of the reads from a file, from now on."""
    sizes: list[int] = []
    pread = file.pread

    def counted(count: int, position: int) -> bytes:
        sizes.append(count)
        return pread(count, position)

    file.pread = counted  # type: ignore[method-assign]
    return sizes


def test_a_search_reads_one_page_however_many_there_are() -> None:
    file = MemoryFiles().open("a.index")
    index = OffsetIndex(file)
    for slot in range(512 * 50):
        index.append(slot, slot)
    index.floor(1)
    sizes = counted_reads(file)
    for key in (0, 511, 512, 20_000, 30_000):
        index.floor(key)
    assert sizes == [4096] * 5


def test_entries_that_could_not_be_written_stay_pending() -> None:
    files = MemoryFiles()
    index = OffsetIndex(files.open("a.index"))
    files.room_bytes = 0
    for slot in range(600):
        index.append(slot, slot)
    assert (index.count, index.last, index.floor(550)) == (600, (599, 599), (550, 550))
    files.room_bytes = 10_000
    index.write()
    assert OffsetIndex(files.open("a.index")).last == (599, 599)


def test_an_index_is_flushed_only_if_it_has_changed() -> None:
    files = MemoryFiles()
    index = OffsetIndex(files.open("a.index"))
    index.append(1, 1)
    index.flush()
    files.fsync_error = OSError(errno.EIO, "input/output error")
    index.flush()
    index.append(2, 2)
    with pytest.raises(OSError, match="input/output"):
        index.flush()


def test_a_torn_entry_is_gone_after_a_reset() -> None:
    file = MemoryFiles().open("a.index")
    file.pwrite(struct.pack(">ii", 3, 100) + b"\x00", 0)
    index = OffsetIndex(file)
    index.reset()
    assert (index.count, index.is_sane(), file.size()) == (0, True, 0)
