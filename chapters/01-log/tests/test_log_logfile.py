"""The log on one file: append, read, truncate, flush, and a disk that fails."""

import errno
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case
from log_strategies import CODECS, build, records, small_batch

from minibroker.log.batch import (
    LENGTH_AT,
    NO_LEADER_EPOCH,
    RECORDS_AT,
    TimestampType,
    batches,
    encode_batch,
    read_header,
)
from minibroker.log.disk import OSFiles
from minibroker.log.errors import CorruptBatch, InvalidRecord, LogError, LogOffline, OffsetOutOfRange, StorageError
from minibroker.log.interfaces import Log
from minibroker.log.logfile import EVERY_APPEND, NEVER, FlushPolicy, LogFile
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.log.record import Record

EVERYTHING = 2**31


def values(log: Log, offset: int = 0, *, bytes_max: int = EVERYTHING, upto_offset: int | None = None) -> list[bytes]:
    found = log.read(offset, bytes_max=bytes_max, upto_offset=upto_offset)
    return [record.value or b"" for batch in batches(found.read()) for record in batch.records()]


def log_of(*sizes: int, files: MemoryFiles | None = None) -> LogFile:
    """A log of batches with these numbers of records, whose values are b"0", b"1", …"""
    log = LogFile.open(files or MemoryFiles(), "a.log")
    for size in sizes:
        log.append(small_batch(*(b"%d" % n for n in range(log.log_end_offset, log.log_end_offset + size))))
    return log


# Appending: invariant 1


@given(st.lists(st.tuples(records(max_size=5), st.sampled_from(CODECS)), max_size=8))
def test_offsets_are_dense_and_records_come_back(given_batches: list[tuple[list[Record], int]]) -> None:
    log = LogFile.open(MemoryFiles(), "a.log")
    expected: list[Record] = []
    for generated, codec in given_batches:
        assert log.append(build(generated, compression=codec)) == len(expected)
        expected += [record._replace(offset=len(expected) + record.offset) for record in generated]
    assert log.log_end_offset == len(expected)
    for offset in range(len(expected) + 1):
        found = log.read(offset, bytes_max=EVERYTHING)
        decoded = [record for batch in batches(found.read()) for record in batch.records()]
        assert [r._replace(headers=list(r.headers)) for r in decoded if r.offset >= offset] == expected[offset:]


def test_a_log_on_a_real_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "a.log")
    log = LogFile.open(OSFiles(), path)
    assert log.append(small_batch(b"a", b"b")) == 0
    log.close()
    again = LogFile.open(OSFiles(), path)
    assert again.append(small_batch(b"c")) == 2
    assert values(again) == [b"a", b"b", b"c"]
    again.close()


def test_a_log_may_begin_at_any_offset() -> None:
    log = LogFile.open(MemoryFiles(), "a.log", base_offset=42)
    assert (log.log_start_offset, log.append(small_batch(b"a")), log.log_end_offset) == (42, 42, 43)


def test_the_batch_is_stamped_in_the_callers_own_buffer() -> None:
    log, batch = log_of(3), small_batch(b"a")
    log.append(batch, leader_epoch=7)
    assert (read_header(batch).base_offset, read_header(batch).leader_epoch) == (3, 7)
    assert log.read(3, bytes_max=0).read() == bytes(batch)


def test_a_memoryview_into_a_larger_buffer_is_enough() -> None:
    batch = small_batch(b"a")
    request = bytearray(b"head") + batch + b"tail"
    log = log_of()
    log.append(memoryview(request)[4 : 4 + len(batch)])
    assert values(log) == [b"a"]
    assert request.startswith(b"head")
    assert request.endswith(b"tail")


@each_case("refused", ["an older epoch", "offline"])
def test_a_refused_append_leaves_the_callers_buffer_alone(refused: str) -> None:
    files = MemoryFiles()
    log = log_of(files=files)
    log.append(small_batch(b"a"), leader_epoch=5)
    if refused == "offline":
        files.fsync_error = OSError(errno.EIO, "input/output error")
        with pytest.raises(LogOffline):
            log.flush()
    batch = small_batch(b"b")
    with pytest.raises(LogError):
        log.append(batch, leader_epoch=4)
    assert batch == small_batch(b"b")


def test_log_append_time_may_be_zero() -> None:
    log = log_of()
    log.append(small_batch(b"a"), log_append_time_ms=0)
    (batch,) = batches(log.read(0, bytes_max=EVERYTHING).read())
    assert [record.timestamp for record in batch.records()] == [0]


def test_log_append_time_is_the_brokers() -> None:
    log = log_of()
    log.append(small_batch(b"a", b"b"), log_append_time_ms=99)
    (batch,) = batches(log.read(0, bytes_max=EVERYTHING).read())
    batch.check_crc()
    assert batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in batch.records()] == [99, 99]


def broken(position: int) -> bytearray:
    batch = small_batch(b"abc")
    batch[position] ^= 1
    return batch


def with_last_offset_delta(last_offset_delta: int) -> bytearray:
    batch = small_batch(b"abc")
    return encode_batch(read_header(batch)._replace(last_offset_delta=last_offset_delta), batch[RECORDS_AT:])


@each_case(
    ("batch", "error"),
    [
        (broken(-1), CorruptBatch),
        (small_batch(b"abc")[:-1], CorruptBatch),
        (small_batch(b"abc") + b"\x00", CorruptBatch),
        (small_batch(b"a") + small_batch(b"b"), CorruptBatch),
        (bytearray(), CorruptBatch),
        (bytearray(10), CorruptBatch),
        (broken(LENGTH_AT + 3), CorruptBatch),  # the checksum does not cover the length
        (broken(RECORDS_AT - 1), CorruptBatch),  # a record count that was damaged on its way may be sent again
        (build([]), InvalidRecord),
        (with_last_offset_delta(1), InvalidRecord),
    ],
)
def test_a_batch_that_is_not_one_whole_valid_batch_changes_nothing(batch: bytearray, error: type[LogError]) -> None:
    log = log_of(2)
    with pytest.raises(error):
        log.append(batch)
    assert log.log_end_offset == 2
    assert values(log) == [b"0", b"1"]


def test_a_written_batch_may_leave_a_gap_before_it() -> None:
    log = log_of(2)
    batch = build([Record(0, 0, None, b"7")], base_offset=7, leader_epoch=3)
    log.write(batch, read_header(batch))
    assert (log.log_end_offset, log.leader_epoch) == (8, 3)
    assert values(log, 2) == [b"7"]


def test_an_older_epoch_is_refused() -> None:
    log = log_of()
    log.append(small_batch(b"a"), leader_epoch=5)
    with pytest.raises(LogError, match="leader epoch 4 is older than 5"):
        log.append(small_batch(b"b"), leader_epoch=4)


# Reading


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    log = log_of(3, 3, 3)
    assert values(log, 4) == [b"3", b"4", b"5", b"6", b"7", b"8"]


def test_a_read_gives_whole_batches_within_the_limit_and_always_one() -> None:
    log = log_of(1, 1, 1)
    size = log.read(0, bytes_max=0).count
    assert values(log, bytes_max=0) == [b"0"]
    assert values(log, bytes_max=2 * size - 1) == [b"0"]
    assert values(log, bytes_max=2 * size) == [b"0", b"1"]


def test_a_read_ends_before_the_bound() -> None:
    log = log_of(2, 2, 2)
    assert values(log, upto_offset=6) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert values(log, upto_offset=5) == [b"0", b"1", b"2", b"3"]
    assert values(log, 2, upto_offset=2) == []
    assert values(log, 4, upto_offset=2) == []


def test_a_read_at_the_end_is_empty_and_past_it_an_error() -> None:
    log = log_of(2)
    assert log.read(2, bytes_max=9).count == 0
    for offset in (-1, 3):
        with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} is not in \[0, 2\]"):
            log.read(offset, bytes_max=9)


def test_a_slice_can_be_read_in_pieces() -> None:
    found = log_of(5).read(0, bytes_max=EVERYTHING)
    assert b"".join(found.chunks(7)) == found.read()


# Truncating


def test_truncating_removes_the_batch_that_holds_the_offset() -> None:
    log = log_of(2, 2, 2)
    log.truncate(3)
    assert (log.log_end_offset, values(log)) == (2, [b"0", b"1"])
    assert log.append(small_batch(b"new")) == 2
    assert values(log) == [b"0", b"1", b"new"]


def test_truncating_at_or_past_the_end_changes_nothing() -> None:
    log = log_of(2)
    log.truncate(2)
    log.truncate(9)
    assert log.log_end_offset == 2


def test_truncating_before_the_start_is_an_error() -> None:
    with pytest.raises(OffsetOutOfRange):
        LogFile.open(MemoryFiles(), "a.log", base_offset=5).truncate(4)


def test_truncating_an_open_log_moves_its_flushed_offset_to_the_end() -> None:
    log = log_of(2, 2, 2)
    log.truncate(4)
    assert log.flushed_offset == log.log_end_offset == 4


def test_truncating_takes_the_epoch_and_the_flushed_offset_back() -> None:
    log = log_of()
    log.append(small_batch(b"a"), leader_epoch=1)
    log.append(small_batch(b"b"), leader_epoch=3)
    log.flush()
    log.truncate(1)
    assert (log.leader_epoch, log.flushed_offset) == (1, 1)
    log.append(small_batch(b"c"), leader_epoch=2)
    log.truncate(0)
    assert (log.leader_epoch, log.flushed_offset) == (NO_LEADER_EPOCH, 0)


# Flushing


def flushed_after_each(policy: FlushPolicy, appends: int = 4) -> list[int]:
    log = LogFile.open(MemoryFiles(), "a.log", flush_policy=policy)
    flushed = []
    for _ in range(appends):
        log.append(small_batch(b"a", b"b"))
        flushed.append(log.flushed_offset)
    return flushed


def test_each_policy_flushes_when_it_says() -> None:
    assert flushed_after_each(NEVER) == [0, 0, 0, 0]
    assert flushed_after_each(EVERY_APPEND) == [2, 4, 6, 8]
    assert flushed_after_each(FlushPolicy(interval_messages=4)) == [0, 4, 4, 8]


def test_a_new_policy_counts_the_records_that_are_not_flushed_yet() -> None:
    log = log_of(2)
    log.follow(FlushPolicy(interval_messages=3))
    assert log.flushed_offset == 0
    log.append(small_batch(b"2"))
    assert log.flushed_offset == 3


def test_an_interval_in_time_flushes_at_the_first_tick_after_it() -> None:
    log = LogFile.open(MemoryFiles(), "a.log", flush_policy=FlushPolicy(interval_ms=100))
    log.tick(1000)
    log.append(small_batch(b"a"))
    log.tick(1099)
    assert log.flushed_offset == 0
    log.tick(1100)
    assert log.flushed_offset == 1


def test_each_interval_begins_with_the_last_flush_or_with_idleness() -> None:
    log = LogFile.open(MemoryFiles(), "a.log", flush_policy=FlushPolicy(interval_ms=100))
    flushed = []
    for now_ms, appends in [(0, 1), (100, 1), (150, 0), (200, 0), (250, 1), (300, 0), (350, 0)]:
        log.tick(now_ms)
        flushed.append(log.flushed_offset)
        for _ in range(appends):
            log.append(small_batch(b"x"))
    assert flushed == [0, 1, 1, 2, 2, 2, 3]


def test_opening_a_log_flushes_its_valid_part() -> None:
    files = MemoryFiles()
    log_of(3, files=files)
    again = LogFile.open(files, "a.log")
    assert again.flushed_offset == again.log_end_offset == 3
    files.crash()
    assert LogFile.open(files, "a.log").log_end_offset == 3


def test_a_tick_without_an_interval_in_time_does_nothing() -> None:
    log = log_of(1)
    log.tick(10**9)
    assert log.flushed_offset == 0


def test_flushed_records_survive_a_power_failure_and_others_need_not() -> None:
    files = MemoryFiles()
    log = log_of(2, files=files)
    log.flush()
    log.append(small_batch(b"lost"))
    files.crash()
    assert values(LogFile.open(files, "a.log")) == [b"0", b"1"]


def test_closing_flushes() -> None:
    files = MemoryFiles()
    log_of(2, files=files).close()
    files.crash()
    assert values(LogFile.open(files, "a.log")) == [b"0", b"1"]


# A disk that fails


def test_a_full_disk_keeps_nothing_of_the_batch_and_says_what_to_do() -> None:
    files = MemoryFiles()
    log = log_of(2, files=files)
    size = log.read(0, bytes_max=EVERYTHING).count
    files.room_bytes = 10  # a short write first, then ENOSPC
    with pytest.raises(StorageError, match=r"no space left.*free some disk"):
        log.append(small_batch(b"too much"))
    assert files.open("a.log").size() == size
    assert values(log) == [b"0", b"1"]
    files.room_bytes = None
    assert log.append(small_batch(b"2")) == 2
    assert values(log) == [b"0", b"1", b"2"]


class ShortWrites(MemoryFiles):
    """A disk that writes at most a fixed number of bytes at a time, and never fails."""

    def take_room(self, growth: int, count: int) -> int:
        return min(count, 17)


def test_a_batch_that_is_taken_in_pieces_is_written_whole() -> None:
    log = log_of(2, files=ShortWrites())
    log.append(small_batch(b"in many pieces"))
    for batch in batches(log.read(0, bytes_max=EVERYTHING).read()):
        batch.check_crc()
    assert values(log) == [b"0", b"1", b"in many pieces"]


def test_closing_a_log_closes_its_file_once() -> None:
    log = log_of(1)
    log.close()
    log.close()
    with pytest.raises(OSError, match="closed"):
        log.read(0, bytes_max=1)


def test_closing_closes_the_file_even_if_the_flush_fails() -> None:
    files = MemoryFiles()
    log = log_of(1, files=files)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.close()
    with pytest.raises(OSError, match="closed"):
        log.read(0, bytes_max=1)


def test_a_deleted_log_leaves_its_file_to_a_readers_slice() -> None:
    log = log_of(2)
    found = log.read(0, bytes_max=EVERYTHING)
    log.failure = "the log was deleted"
    log.release_files()
    assert len(found.read()) == found.count > 0
    # The operating system closes a file when nothing refers to it any more.
    file = weakref.ref(found.file)
    del found
    assert file() is None


def test_a_log_that_cannot_be_opened_closes_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    log_of(2, files=files).close()
    closed = []
    monkeypatch.setattr(MemoryFile, "close", lambda file: closed.append(file))
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(OSError, match="input/output error"):
        LogFile.open(files, "a.log")
    with pytest.raises(CorruptBatch):
        LogFile.open(files, "a.log", recovery_point=3)
    assert len(closed) == 2


def test_an_offline_log_is_not_truncated_and_still_read() -> None:
    files = MemoryFiles()
    log = log_of(2, files=files)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.flush()
    with pytest.raises(LogOffline):
        log.truncate(0)
    assert values(log) == [b"0", b"1"]


def test_a_failed_flush_takes_the_log_offline_for_good() -> None:
    files = MemoryFiles()
    log = log_of(1, files=files)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline, match=r"a flush failed \(input/output error\)"):
        log.flush()
    files.fsync_error = None  # the disk seems to work again: the second fsync would succeed without writing
    for refused in (log.flush, lambda: log.append(small_batch(b"x"))):
        with pytest.raises(LogOffline, match="offline until a restart"):
            refused()
    assert log.flushed_offset == 0
    log.close()


def test_an_append_whose_flush_fails_is_not_acked() -> None:
    files = MemoryFiles()
    log = LogFile.open(files, "a.log", flush_policy=EVERY_APPEND)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.append(small_batch(b"a"))


class Unrepairable(MemoryFiles):
    """A disk on which a half-written batch cannot be cut off either."""

    def take_room(self, growth: int, count: int) -> int:
        if self.room_bytes == 0:
            raise OSError(errno.EIO, "input/output error")
        return super().take_room(growth, count)


def test_a_half_written_batch_that_cannot_be_cut_off_takes_the_log_offline() -> None:
    files = Unrepairable()
    log = log_of(1, files=files)
    files.room_bytes = 10
    with pytest.raises(LogOffline, match="half-written batch could not be cut off"):
        log.append(small_batch(b"x"))
    assert values(log) == [b"0"]  # bytes after the log's end are not read
    files.room_bytes = None
    again = LogFile.open(files, "a.log")  # a restart recovers
    assert values(again) == [b"0"]


def test_a_truncation_that_fails_takes_the_log_offline() -> None:
    files = Unrepairable()
    log = log_of(2, 2, files=files)
    files.room_bytes = 0
    with pytest.raises(LogOffline, match="could not be cut to"):
        log.truncate(2)
    assert values(log) == [b"0", b"1", b"2", b"3"]
    with pytest.raises(LogOffline, match="offline until a restart"):
        log.append(small_batch(b"x"))


@each_case(("offset", "flushed_offset"), [(0, 0), (3, 2)])
def test_a_truncation_whose_flush_fails_counts_no_more_as_flushed(offset: int, flushed_offset: int) -> None:
    files = MemoryFiles()
    log = log_of(2, files=files)
    log.flush()
    log.append(small_batch(b"2"))
    log.append(small_batch(b"3"))
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.truncate(offset)
    assert (log.log_end_offset, log.flushed_offset) == (offset, flushed_offset)


def test_a_restart_after_a_failed_flush_reads_the_disk_and_not_the_page_cache() -> None:
    files = MemoryFiles()
    log = LogFile.open(files, "a.log", flush_policy=EVERY_APPEND)
    log.append(small_batch(b"acked"))
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogOffline):
        log.append(small_batch(b"never reached the disk"))
    files.fsync_error = None
    again = LogFile.open(files, "a.log", flush_policy=EVERY_APPEND)
    assert values(again) == [b"acked"]
    again.append(small_batch(b"acked too"))
    files.crash()
    assert values(LogFile.open(files, "a.log")) == [b"acked", b"acked too"]


def test_a_truncation_is_durable() -> None:
    files = MemoryFiles()
    log = log_of(2, 2, files=files)
    log.flush()
    log.truncate(2)
    files.crash()
    assert values(LogFile.open(files, "a.log")) == [b"0", b"1"]
