"""The log in segments: appended, rolled, read, truncated, kept in bounds."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case
from segments_model import batch_of, read_on, values_batch

from minibroker.log.batch import BatchHeader, batches, read_header, stamp
from minibroker.log.disk import OSFiles
from minibroker.log.errors import CorruptBatch, LogOffline, OffsetOutOfRange, StorageError
from minibroker.log.interfaces import FileSlice
from minibroker.log.logfile import LogFile
from minibroker.log.memory import MemoryFiles
from minibroker.log.record import Record
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

DIRECTORY = "data/orders-0"
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def log_of(count: int, config: LogConfig = SMALL, files: MemoryFiles | None = None) -> SegmentedLog:
    """A log of so many batches of one record each, valued b"0", b"1", … with timestamps 0, 10, 20, …"""
    log = SegmentedLog.open(files or MemoryFiles(), DIRECTORY, config)
    for n in range(count):
        log.append(values_batch(b"%d" % n, timestamp=10 * n))
    return log


def values(log: SegmentedLog, offset: int | None = None) -> list[bytes]:
    return [record.value or b"" for record in read_on(log, log.log_start_offset if offset is None else offset)]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, stop)]


# Rolling


def test_a_log_rolls_by_size_and_names_segments_after_their_base_offset() -> None:
    files = MemoryFiles()
    log = log_of(20, files=files)
    names = [name for name in files.list(DIRECTORY) if name.endswith(".log")]
    assert names == [f"{segment.base_offset:020}.log" for segment in log.segments]
    assert len(names) > 2
    assert all(segment.size <= 400 for segment in log.segments)
    assert values(log) == numbers(0, 20)


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = log_of(2)
    log.append(values_batch(bytes(5000)))
    log.append(values_batch(b"after"))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def test_a_log_rolls_by_the_time_in_its_records() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, LogConfig(segment_ms=1000))
    for timestamp in (5000, 5500, 6000, 6001, 7000, 7002):
        log.append(values_batch(b"x", timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]


def test_the_time_to_roll_is_remembered_over_a_restart() -> None:
    files, config = MemoryFiles(), LogConfig(segment_ms=1000)
    log = SegmentedLog.open(files, DIRECTORY, config)
    log.append(values_batch(b"x", timestamp=5000))
    log.close()
    log = SegmentedLog.open(files, DIRECTORY, config, is_clean=True)
    log.append(values_batch(b"y", timestamp=6001))
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_log_rolls_when_an_index_is_full() -> None:
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=5 * 12)
    log = log_of(20, config)
    assert len(log.segments) > 3
    for segment in log.segments[:-1]:
        assert segment.indexes.times.size <= 5 * 12
    assert values(log) == numbers(0, 20)


def test_a_log_rolls_before_an_offset_is_too_far_for_its_index() -> None:
    log = log_of(1, LogConfig())
    for offset in (2**31, 2**33):  # a follower may be given any gap
        far = values_batch(b"far")
        stamp(far, base_offset=offset, leader_epoch=0)
        log.append_as_follower(memoryview(far))
    # The second begins where the first ends; the third cannot, for its offset would not fit into four bytes.
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2**33]
    assert [record.offset for record in read_on(log, 0)] == [0, 2**31, 2**33]


@each_case("name", ["segment_bytes", "segment_index_bytes"])
def test_a_size_that_positions_of_four_bytes_cannot_reach_is_refused(name: str) -> None:
    for value in (0, 2**31):
        with pytest.raises(ValueError, match=f"{name.replace('_', '.')}={value} is not in"):
            LogConfig(**{name: value})  # type: ignore[arg-type]


def test_rolling_an_empty_segment_does_nothing() -> None:
    log = log_of(3)
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 3]


# Finding


@given(
    st.lists(st.lists(st.integers(0, 500), min_size=1, max_size=4), min_size=1, max_size=40),
    st.integers(60, 600),
    st.integers(0, 300),
)
def test_a_time_is_found_as_the_first_record_that_is_not_older(
    timestamps: list[list[int]], segment_bytes: int, interval_bytes: int
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, config)
    model: list[Record] = []
    for batch in timestamps:
        log.append(batch_of([Record(0, timestamp, None, b"v") for timestamp in batch]))
        model += [Record(len(model) + n, timestamp, None, b"v") for n, timestamp in enumerate(batch)]
    for timestamp in range(0, 505, 7):
        expected = next((record for record in model if record.timestamp >= timestamp), None)
        assert log.find_time(timestamp) == expected
    youngest = max(model, key=lambda record: (record.timestamp, -record.offset))
    assert log.find_max_timestamp() == youngest


def test_a_time_does_not_lead_before_the_logs_start() -> None:
    log = log_of(10)
    log.delete_before(4)
    found = log.find_time(0)
    assert found is not None
    assert found.offset == 4


def test_a_time_leads_to_no_record_that_was_deleted_from_its_batch() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    log.append(batch_of([Record(0, timestamp, None, b"v") for timestamp in (900, 10, 20)]))
    log.append(batch_of([Record(0, timestamp, None, b"v") for timestamp in (800, 30)]))
    log.delete_before(1)
    found = log.find_time(700)
    assert found is not None
    assert found.offset == 3


def test_records_without_a_time_are_found_by_no_time() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    for n in range(10):
        log.append(values_batch(b"%d" % n, timestamp=-1))
    assert (log.find_time(0), log.find_max_timestamp()) == (None, None)
    assert values(log) == numbers(0, 10)


def test_a_read_is_one_slice_of_one_file_with_a_whole_first_batch() -> None:
    log = log_of(20)
    found = log.read(1, bytes_max=1)
    assert found.count == read_header(found.read()).size
    assert [batch.header.base_offset for batch in batches(found.read())] == [1]


def test_a_read_ends_before_the_bound_wherever_that_is() -> None:
    log = log_of(20)
    for bound in range(21):
        assert len(read_on(log, 0, upto_offset=bound)) == bound
        assert log.read(bound, bytes_max=10**6, upto_offset=bound).count == 0


def test_a_read_outside_the_log_is_an_error_with_its_bounds() -> None:
    log = log_of(10)
    log.delete_before(4)
    for offset in (3, 11):
        with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} is not in \[4, 10\]"):
            log.read(offset, bytes_max=1)


# Indexes that are wrong


class Remembering:
    """Collects every recovery point."""

    def __init__(self) -> None:
        self.points: list[int] = []

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        self.points.append(offset)

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        return


def flip(files: MemoryFiles, name: str, position: int) -> None:
    file = files.open(f"{DIRECTORY}/{name}")
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 0x44]), position)


@each_case("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_built_anew_with_the_same_bytes(suffix: str) -> None:
    files = MemoryFiles()
    log_of(40, files=files).close()
    names = [name for name in files.list(DIRECTORY) if name.endswith(suffix)]
    before = {name: files.open(f"{DIRECTORY}/{name}").pread(10_000, 0) for name in names}
    for name in names:
        files.unlink(f"{DIRECTORY}/{name}")
    log = SegmentedLog.open(files, DIRECTORY, SMALL, is_clean=True)
    found = log.find_time(100)
    assert found is not None
    assert found.offset == 10
    assert values(log) == numbers(0, 40)
    log.close()
    assert {name: files.open(f"{DIRECTORY}/{name}").pread(10_000, 0) for name in names} == before


def test_a_flipped_index_never_leads_to_a_wrong_record() -> None:
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=100)
    files = MemoryFiles()
    log_of(60, config, files).close()
    name = f"{0:020}.index"
    original = files.open(f"{DIRECTORY}/{name}").pread(10_000, 0)
    for position in range(len(original)):
        flip(files, name, position)
        log = SegmentedLog.open(files, DIRECTORY, config, is_clean=True)
        for offset in range(0, 60, 3):
            found = log.read(offset, bytes_max=1)
            assert read_header(found.read()).base_offset == offset, (position, offset)
        file = files.open(f"{DIRECTORY}/{name}")
        file.truncate(0)
        file.pwrite(original, 0)


# Truncating and deleting


@each_case("offset", range(21))
def test_a_truncated_log_keeps_earlier_records_and_can_be_appended_to(offset: int) -> None:
    log = log_of(20)
    log.truncate(offset)
    assert values(log) == numbers(0, offset)
    assert log.append(values_batch(b"new")) == offset
    assert values(log) == [*numbers(0, offset), b"new"]


def test_truncating_takes_the_epoch_and_the_times_back() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    for n in range(20):
        log.append(values_batch(b"%d" % n, timestamp=10 * n), leader_epoch=n // 5)
    log.truncate(7)
    assert log.leader_epoch == 1
    assert log.find_time(61) is None
    youngest = log.find_max_timestamp()
    assert youngest is not None
    assert youngest.offset == 6


def test_truncating_into_a_batch_that_is_half_deleted_leaves_an_empty_log() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    log.append(values_batch(b"0", b"1", b"2"))
    log.delete_before(1)
    log.truncate(2)
    assert (log.log_start_offset, log.log_end_offset, values(log)) == (1, 1, [])
    assert log.append(values_batch(b"new")) == 1


def test_a_follower_may_start_anew_anywhere() -> None:
    files = MemoryFiles()
    log = log_of(20, files=files)
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (500, 500, 500)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".log")] == [f"{500:020}.log"]
    assert log.append(values_batch(b"x")) == 500


def test_truncating_to_a_segments_edge_keeps_the_epoch_of_the_segment_before() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    for n in range(20):
        log.append(values_batch(b"%d" % n), leader_epoch=n)
    edge = log.segments[2].base_offset
    log.truncate(edge)
    assert log.leader_epoch == edge - 1


def test_deleting_records_moves_the_start_at_once_and_files_by_segments() -> None:
    files = MemoryFiles()
    log = log_of(20, files=files)
    second, third = log.segments[1].base_offset, log.segments[2].base_offset
    log.delete_before(third - 1)
    assert log.log_start_offset == third - 1
    assert log.segments[0].base_offset == second
    assert values(log) == numbers(third - 1, 20)
    assert min(name for name in files.list(DIRECTORY) if name.endswith(".log")) == f"{second:020}.log"


def test_a_slice_can_be_read_after_its_segment_is_gone(tmp_path: Path) -> None:
    log = SegmentedLog.open(OSFiles(), str(tmp_path / "orders-0"), SMALL)
    for n in range(20):
        log.append(values_batch(b"%d" % n))
    held = log.read(0, bytes_max=10**6)
    before = held.read()
    log.delete_before(20)
    assert not (tmp_path / "orders-0" / f"{0:020}.log").exists()
    assert held.read() == before
    log.close()


# Retention


def test_segments_are_deleted_when_their_newest_record_is_too_old() -> None:
    log = log_of(20, LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=50))
    second = log.segments[1]
    assert log.retain(second.base_offset * 10 - 10 + 50) == 0
    assert log.retain(second.base_offset * 10 - 10 + 51) == 1
    assert log.log_start_offset == second.base_offset
    assert values(log) == numbers(second.base_offset, 20)


def test_segments_are_deleted_while_enough_bytes_are_left() -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_bytes=700, retention_ms=-1)
    log = log_of(40, config)
    log.retain(0)
    assert 700 <= log.size < 700 + 400
    assert values(log) == numbers(log.log_start_offset, 40)


def test_the_active_segment_and_those_that_reach_the_watermark_stay() -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=0, retention_bytes=0)
    log = log_of(20, config)
    third = log.segments[2].base_offset
    log.retain(10**9, upto_offset=third)
    assert log.log_start_offset == third
    log.retain(10**9)
    assert len(log.segments) == 1
    assert values(log) == numbers(log.segments[0].base_offset, 20)


def test_a_compacted_topic_is_not_deleted_from() -> None:
    config = LogConfig(segment_bytes=400, retention_ms=0, cleanup_policy=frozenset({"compact"}))
    assert log_of(20, config).retain(10**9) == 0


def test_records_without_a_time_do_not_expire() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, LogConfig(segment_bytes=200, retention_ms=0))
    for _ in range(10):
        log.append(values_batch(b"x", timestamp=-1))
    assert log.retain(10**15) == 0


# Followers


def test_a_follower_copies_its_leader_to_the_byte() -> None:
    leader_files, follower_files = MemoryFiles(), MemoryFiles()
    leader = log_of(30, files=leader_files)
    follower = SegmentedLog.open(follower_files, DIRECTORY, SMALL)
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.read(follower.log_end_offset, bytes_max=250)
        follower.append_as_follower(memoryview(bytearray(fetched.read())))
    for files in (leader_files, follower_files):
        assert files.list(DIRECTORY) == leader_files.list(DIRECTORY)
    leader.close()
    follower.close()
    for name in leader_files.list(DIRECTORY):
        ours, theirs = (files.open(f"{DIRECTORY}/{name}").pread(10_000, 0) for files in (leader_files, follower_files))
        assert ours == theirs


def test_a_follower_refuses_a_flipped_bit_and_a_decreasing_offset() -> None:
    log = log_of(5)
    flipped = values_batch(b"x")
    flipped[-1] ^= 1
    with pytest.raises(CorruptBatch, match="crc"):
        log.append_as_follower(memoryview(flipped))
    with pytest.raises(CorruptBatch, match="base offset 0, expected 5"):
        log.append_as_follower(memoryview(values_batch(b"again")))
    assert values(log) == numbers(0, 5)


def test_a_follower_writes_the_batches_of_a_fetch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = LogFile.write

    def counted(tail: LogFile, data: bytearray | memoryview, header: BatchHeader) -> None:
        writes.append(len(data))
        write(tail, data, header)

    log = log_of(1, LogConfig())
    fetched = log_of(20, LogConfig()).read(1, bytes_max=10_000).read()
    monkeypatch.setattr(LogFile, "write", counted)
    log.append_as_follower(memoryview(fetched))
    assert writes == [len(fetched)]
    assert values(log) == numbers(0, 20)


def test_a_follower_keeps_the_batches_before_a_damaged_one() -> None:
    for config in (SMALL, LogConfig()):
        fetched = bytearray(b"".join(it.read() for it in _slices(log_of(6, config))))
        fetched[-1] ^= 1
        log = SegmentedLog.open(MemoryFiles(), DIRECTORY, config)
        with pytest.raises(CorruptBatch, match="crc"):
            log.append_as_follower(memoryview(fetched))
        assert values(log) == numbers(0, 5)


def test_a_follower_rolls_where_its_leader_does_in_the_middle_of_a_fetch() -> None:
    leader = log_of(30)
    follower = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    follower.append_as_follower(memoryview(b"".join(it.read() for it in _slices(leader))))
    assert [it.base_offset for it in follower.segments] == [it.base_offset for it in leader.segments]
    assert values(follower) == numbers(0, 30)


def test_a_follower_whose_flush_fails_does_not_write_the_same_batches_again() -> None:
    fetched = memoryview(b"".join(it.read() for it in _slices(log_of(30))))
    files = MemoryFiles()
    follower = SegmentedLog.open(files, DIRECTORY, replace(SMALL, flush_messages=1))
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline, match="a flush failed"):
        follower.append_as_follower(fetched)
    assert values(follower) == numbers(0, follower.log_end_offset)


def _slices(log: SegmentedLog) -> list[FileSlice]:
    """The whole log, a slice for each segment."""
    return [log.read(it.base_offset, bytes_max=10_000) for it in log.segments]


# A disk that fails


def test_a_full_disk_leaves_a_readable_log_and_a_clear_error() -> None:
    files = MemoryFiles()
    log = log_of(20, files=files)
    files.room_bytes = 30
    with pytest.raises(StorageError, match="no space left"):
        log.append(values_batch(b"20"))
    end = log.log_end_offset
    assert values(log) == numbers(0, end)
    files.room_bytes = None
    log.append(values_batch(b"%d" % end))
    assert values(log) == numbers(0, end + 1)


def test_a_flush_that_fails_in_the_background_takes_the_log_offline() -> None:
    files = MemoryFiles()
    waiting: list[Callable[[], None]] = []
    log = SegmentedLog.open(files, DIRECTORY, SMALL, background=waiting.append)
    while not waiting:
        log.append(values_batch(b"x"))
    files.fsync_error = OSError(errno.EIO, "input/output error")
    waiting.pop()()
    files.fsync_error = None
    with pytest.raises(LogOffline, match="a flush failed"):
        log.append(values_batch(b"y"))


@each_case("segment_bytes", [400, 4000])
def test_a_read_at_the_logs_end_finds_the_same_as_one_that_looks_it_up(segment_bytes: int) -> None:
    """The positions of the last appends are remembered; a log that was opened anew has to read them from the disk."""
    files = MemoryFiles()
    config = replace(SMALL, segment_bytes=segment_bytes)
    log = SegmentedLog.open(files, DIRECTORY, config)

    def check() -> None:
        cold = SegmentedLog.open(files, DIRECTORY, config)
        end = log.log_end_offset
        for offset in range(max(end - 25, 0), end + 1):
            for bound in (None, *range(offset, end + 1)):
                for bytes_max in (0, 150, 10**6):
                    found = log.read(offset, bytes_max=bytes_max, upto_offset=bound)
                    expected = cold.read(offset, bytes_max=bytes_max, upto_offset=bound)
                    assert found.read() == expected.read(), (offset, bound, bytes_max)

    for n in range(22):
        log.append(values_batch(*[b"%d" % n] * (1 + n % 3)))
    check()
    log.truncate(log.log_end_offset - 3)
    check()
    log.append(values_batch(b"again"))
    check()


def test_the_recovery_point_waits_for_a_rolled_segment_to_be_flushed() -> None:
    files = MemoryFiles()
    waiting: list[Callable[[], None]] = []
    memory = Remembering()
    log = SegmentedLog.open(files, DIRECTORY, SMALL, background=waiting.append, memory=memory)
    while len(waiting) < 2:
        log.append(values_batch(b"x"))
    second = log.segments[2].base_offset
    assert (log.flushed_offset, memory.points) == (0, [])
    waiting[1]()
    assert (log.flushed_offset, memory.points) == (0, [])  # the first is still missing
    waiting[0]()
    assert log.flushed_offset == second
    assert memory.points == [second]


def test_a_late_flush_of_a_truncated_segment_moves_no_recovery_point() -> None:
    files = MemoryFiles()
    waiting: list[Callable[[], None]] = []
    memory = Remembering()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig(), background=waiting.append, memory=memory)
    for n in range(100):
        log.append(values_batch(b"%d" % n))
    log.roll()
    log.truncate(50)
    for _ in range(5):
        log.append(values_batch(b"new"))
    log.roll()
    waiting.pop(0)()
    assert log.flushed_offset < 55
    assert all(point <= 50 for point in memory.points)


def test_a_failed_flush_is_not_repaired_by_the_next_one() -> None:
    files = MemoryFiles()
    waiting: list[Callable[[], None]] = []
    memory = Remembering()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig(), background=waiting.append, memory=memory)
    for n in range(20):
        log.append(values_batch(b"%d" % n))
        if n in (9, 19):
            log.roll()
    files.fsync_error = OSError(errno.EIO, "input/output error")
    waiting[0]()
    files.fsync_error = None
    waiting[1]()
    with pytest.raises(LogOffline):
        log.append(values_batch(b"x"))
    assert memory.points == []


@each_case("change", ["append", "truncate", "truncate fully", "roll", "flush"])
def test_an_offline_log_stays_offline_whatever_is_asked_of_it(change: str) -> None:
    files = MemoryFiles()
    log = log_of(10, files=files)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.flush()
    files.fsync_error = None
    asked: dict[str, Callable[[], object]] = {
        "append": lambda: log.append(values_batch(b"x")),
        "truncate": lambda: log.truncate(3),
        "truncate fully": lambda: log.truncate_fully_and_start_at(99),
        "roll": log.roll,
        "flush": log.flush,
    }
    for _ in range(2):
        with pytest.raises(LogOffline):
            asked[change]()


def test_a_full_disk_does_not_keep_a_log_from_being_truncated() -> None:
    files = MemoryFiles()
    log = log_of(30, LogConfig(segment_bytes=100_000, index_interval_bytes=0), files)
    files.room_bytes = 0
    log.truncate(10)
    assert values(log) == numbers(0, 10)


def test_a_roll_that_the_disk_refuses_leaves_no_files() -> None:
    class NoNewNames(MemoryFiles):
        refuse = False

        def fsync_directory(self, directory: str) -> None:
            if self.refuse:
                raise OSError(errno.EIO, "input/output error")
            super().fsync_directory(directory)

    files = NoNewNames()
    log = log_of(3, LogConfig(), files)
    before = files.list(DIRECTORY)
    files.refuse = True
    with pytest.raises(StorageError, match="no new segment could be created at offset 3"):
        log.roll()
    assert files.list(DIRECTORY) == before
    files.refuse = False
    log.append(values_batch(b"3"))
    assert values(log) == numbers(0, 4)


def test_a_followers_first_offset_may_be_far_from_its_logs_start() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig())
    far = values_batch(b"far")
    stamp(far, base_offset=3_000_000_000, leader_epoch=0)
    log.append_as_follower(memoryview(far))
    assert [segment.base_offset for segment in log.segments] == [3_000_000_000]
    log.close()
    again = SegmentedLog.open(files, DIRECTORY, LogConfig())
    assert [record.offset for record in read_on(again, again.log_start_offset)] == [3_000_000_000]


def test_a_batch_length_past_the_end_of_a_closed_segment_is_damage() -> None:
    files = MemoryFiles()
    log = log_of(20, files=files)
    name = f"{DIRECTORY}/{0:020}.log"
    files.open(name).pwrite(b"\x7f\xff\xff\xff", 8)
    for offset in (0, 1):
        with pytest.raises(CorruptBatch, match="past the file's end"):
            log.read(offset, bytes_max=10)
    assert log.read(3, bytes_max=10).count > 0  # an index leads past it
