"""Claims about the physical limits: each does the work that it counts, and leaves nothing behind."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import case
from labs import disk

from minibroker.bench import limits, network
from minibroker.bench.context import Context, is_quick, open_context, scaled
from minibroker.bench.measure import Case, measure
from minibroker.bench.units import KIB, MIB, bytes_text, number_text


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with open_context(directory=tmp_path, repeats=1) as opened:
        yield opened


MAKERS: dict[str, Callable[[Context, int], Case]] = {
    "memcpy": lambda _, file: disk.memcpy(64 * KIB, 16 * KIB),
    "write": lambda _, file: limits.write(file, 64 * KIB, 16 * KIB),
    "checked write": lambda _, file: limits.write(file, 64 * KIB, 16 * KIB, with_crc32c=True),
    "append": lambda _, file: limits.append(file, 64 * KIB, 16 * KIB, flush_every_bytes=32 * KIB),
    "checked append": lambda _, file: limits.append(file, 64 * KIB, 16 * KIB, with_crc32c=True),
    "write and flush": lambda _, file: limits.write_flush(file, 64 * KIB, 16 * KIB),
    "sequential read": lambda _, file: disk.read(file, range(0, 64 * KIB, 16 * KIB), 16 * KIB),
    "random read": lambda _, file: disk.read(file, disk.shuffled_positions(64 * KIB, 16 * KIB), 16 * KIB),
    "overwrite": lambda _, file: disk.overwrite(file, range(0, 64 * KIB, 16 * KIB), 16 * KIB, to_device=True),
    "loopback": lambda context, file: network.loopback(context, 64 * KIB, 16 * KIB),
}


def test_warming_memory_leaves_no_file(context: Context) -> None:
    limits.warm_memory(context, 3 * MIB + 1)
    assert list(context.directory.iterdir()) == []


def test_each_limit_is_a_case_that_counts_its_blocks(context: Context) -> None:
    for name, maker in MAKERS.items():
        with case(name):
            limit = maker(context, limits.scratch_file(context, name, 64 * KIB))
            assert (limit.bytes_count, limit.operations_count) == (64 * KIB, 4)
            assert len(measure([limit], repeats=2)[limit.name].samples) == 2


def test_write_goes_over_the_same_warm_file(context: Context) -> None:
    file = limits.scratch_file(context, "scratch", 64 * KIB)
    measure([limits.write(file, 64 * KIB, 16 * KIB)], repeats=3)
    assert os.fstat(file).st_size == 64 * KIB


def test_append_starts_from_an_empty_file_each_time(context: Context) -> None:
    file = limits.scratch_file(context, "scratch")
    case = limits.append(file, 64 * KIB, 16 * KIB)
    measure([case], repeats=3)
    assert os.fstat(file).st_size == 64 * KIB
    assert case.before is not None
    case.before()
    assert os.fstat(file).st_size == 0


def test_append_flushes_as_often_as_it_says(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    for every_bytes, flushes in [(None, 0), (16 * KIB, 4), (32 * KIB, 2), (64 * KIB, 1)]:
        with case(every_bytes, flushes):
            flushed: list[int] = []
            file = limits.scratch_file(context, f"scratch-{flushes}")
            monkeypatch.setattr(limits, "flush", flushed.append)
            limits.append(file, 64 * KIB, 16 * KIB, flush_every_bytes=every_bytes).run()
            assert len(flushed) == flushes


@pytest.mark.skipif(not disk.can_drop_cache, reason="this system cannot drop the page cache of a file")
def test_a_read_from_the_device_drops_the_page_cache_before_each_repeat(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    file = limits.scratch_file(context, "scratch", 64 * KIB)
    monkeypatch.setattr(disk, "drop_cache", dropped.append)
    measure([disk.read(file, [0], 16 * KIB, from_device=True)], repeats=2)
    assert dropped == [file] * 3


def test_reading_past_the_end_is_an_error_and_no_fast_read(context: Context) -> None:
    file = limits.scratch_file(context, "scratch", 16 * KIB)
    with pytest.raises(EOFError, match="position 16384"):
        disk.read(file, range(0, 32 * KIB, 16 * KIB), 16 * KIB).run()


def test_random_positions_are_each_block_once_and_the_same_in_every_run() -> None:
    positions = disk.shuffled_positions(256 * KIB, 4 * KIB)
    assert sorted(positions) == list(range(0, 256 * KIB, 4 * KIB))
    assert positions != sorted(positions)
    assert positions == disk.shuffled_positions(256 * KIB, 4 * KIB)


def test_a_file_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one block"):
        limits.block_positions(100, 4 * KIB)


def test_flush_falls_back_to_fsync_where_there_is_no_fdatasync() -> None:
    assert limits.flush is getattr(os, "fdatasync", os.fsync)


def test_a_context_leaves_nothing_behind(tmp_path: Path) -> None:
    closed: list[str] = []

    def interrupted() -> None:
        with open_context(directory=tmp_path) as context:
            limits.scratch_file(context, "scratch", KIB)
            network.loopback(context, KIB, KIB)
            context.on_close(closed.append, "first")
            context.on_close(closed.append, "second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    assert closed == ["second", "first"]


def test_the_environment_selects_quick_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value, expected in [("1", True), ("yes", True), ("0", False), ("", False)]:
        with case(value, expected):
            monkeypatch.setenv("MINIBROKER_QUICK", value)
            assert is_quick() is expected
            assert scaled(full=100, quick=1) == (1 if expected else 100)
            with open_context(directory=tmp_path) as context:
                assert context.repeats == (1 if expected else 11)


def test_numbers_are_written_with_three_digits_and_sizes_in_whole_units() -> None:
    values = [0, 3661.4, -3661.4, 12.24, 1.5, 0.9534, 0.00001234]
    assert [number_text(value) for value in values] == [
        "0",
        "3,661",
        "-3,661",
        "12.2",
        "1.50",
        "0.953",
        "1.23e-05",
    ]
    assert [bytes_text(size) for size in (100, 1024, 1536, 65536, 1048576)] == [
        "100 B",
        "1 KiB",
        "1536 B",
        "64 KiB",
        "1 MiB",
    ]
