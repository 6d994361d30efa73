"""The cache of epochs answers what the log itself would answer, whatever happens to the log."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

import pytest
from cases import case
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from replication_nodes import batch_of

from minibroker.log.batch import batches
from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files
from minibroker.log.memory import MemoryFiles
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.epochs import LEADER_EPOCH_CHECKPOINT, UNKNOWN, EpochCache, EpochEntry, decode, encode
from minibroker.segments import checkpoint
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.dump import dump_of
from minibroker.segments.segmented import SegmentedLog

DIRECTORY = "data/orders-0"
PATH = f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}"


def cache_of(*entries: tuple[int, int], files: MemoryFiles | None = None) -> EpochCache:
    cache = EpochCache(files or MemoryFiles(), DIRECTORY)
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def open_log(files: MemoryFiles, segment_bytes: int = 1 << 20) -> tuple[SegmentedLog, EpochCache]:
    cache = EpochCache(files, DIRECTORY)
    config = LogConfig(segment_bytes=segment_bytes)
    return DataDirectory(files, "data").open_log(TopicPartition("orders", 0), config, companions=[cache]), cache


def content(files: MemoryFiles) -> bytes:
    file = files.open(PATH, create=False)
    return file.pread(file.size(), 0)


def append(log: SegmentedLog, epoch: int, count: int = 1) -> None:
    log.append(batch_of(*[b"v"] * count), leader_epoch=epoch)


@contextmanager
def unwritable(error: OSError) -> Iterator[None]:
    """The checkpoint of the epochs cannot be written; all other checkpoints can."""
    write = checkpoint.write

    def write_or_fail(files: Files, path: str, data: bytes, *, durably: bool = True) -> None:
        if path.endswith(LEADER_EPOCH_CHECKPOINT):
            raise error
        write(files, path, data, durably=durably)

    with patch.object(checkpoint, "write", write_or_fail):
        yield


def filled(files: MemoryFiles, *epochs: int) -> SegmentedLog:
    """A log with one record of each of these epochs."""
    log, _cache = open_log(files)
    for epoch in epochs:
        append(log, epoch)
    return log


# Questions ------------------------------------------------------------------------------------------------------------

# The log of the module's picture: epoch 3 from 0, epoch 5 from 40, epoch 6 from 90, and its end is 120.
HISTORY = [(3, 0), (5, 40), (6, 90)]


def test_an_epoch_ends_where_the_next_one_begins_and_the_latest_with_the_log() -> None:
    """KIP-101."""
    cases = [(3, EpochEnd(3, 40)), (5, EpochEnd(5, 90)), (6, EpochEnd(6, 120))]
    for epoch, expected in cases:
        with case(epoch, expected):
            assert cache_of(*HISTORY).end_of(epoch, log_end_offset=120) == expected


def test_an_epoch_without_a_record_is_answered_with_the_largest_below_it() -> None:
    """KIP-279: the answer names the epoch that it is about."""
    assert cache_of(*HISTORY).end_of(4, log_end_offset=120) == EpochEnd(3, 40)


def test_nothing_is_known_of_no_epoch_and_of_a_later_one() -> None:
    for epoch in [-1, 7, 100]:
        with case(epoch):
            assert cache_of(*HISTORY).end_of(epoch, log_end_offset=120) == UNKNOWN == EpochEnd(-1, -1)


def test_an_epoch_before_all_others_ends_where_the_first_one_begins() -> None:
    """As in Kafka: the log starts later now, and its records of that epoch were deleted."""
    assert cache_of((3, 50), (5, 90)).end_of(2, log_end_offset=120) == EpochEnd(2, 50)


def test_an_empty_cache_knows_nothing() -> None:
    cache = cache_of()
    assert (cache.latest_epoch, cache.epoch_of(0)) == (-1, -1)
    assert cache.end_of(-1, log_end_offset=0) == cache.end_of(0, log_end_offset=0) == UNKNOWN


def test_the_epoch_of_an_offset_is_that_of_the_last_entry_not_above() -> None:
    cache = cache_of((3, 10), (5, 40))
    assert [cache.epoch_of(offset) for offset in (9, 10, 39, 40, 1000)] == [-1, 3, 3, 5, 5]


# Changes --------------------------------------------------------------------------------------------------------------


def test_a_leader_that_wrote_nothing_leaves_no_entry() -> None:
    cache = cache_of((3, 0), (4, 40), (5, 40))
    assert cache.entries == [(3, 0), (5, 40)]


def test_an_epoch_begins_once() -> None:
    for epoch in [5, 4]:
        with case(epoch):
            cache = cache_of((3, 0), (5, 40))
            cache.assign(epoch, 60)
            assert cache.entries == [(3, 0), (5, 40)]


def test_a_log_that_starts_later_keeps_the_epoch_it_starts_in() -> None:
    cache = cache_of(*HISTORY)
    cache.truncate_start(60)
    assert cache.entries == [(5, 60), (6, 90)]
    cache.truncate_start(90)
    assert cache.entries == [(6, 90)]
    cache.truncate_start(80)
    assert cache.entries == [(6, 90)]


def test_a_log_that_ends_earlier_forgets_the_epochs_without_a_record() -> None:
    cache = cache_of(*HISTORY)
    cache.truncate_end(91)
    assert cache.entries == HISTORY
    cache.truncate_end(90)
    assert cache.entries == HISTORY[:2]


# The file -------------------------------------------------------------------------------------------------------------


def test_the_file_is_kafkas_byte_for_byte() -> None:
    files = MemoryFiles()
    filled(files, 0, 7)
    assert content(files) == b"0\n2\n0 0\n7 1\n"


def test_the_file_of_a_log_can_be_dumped() -> None:
    files = MemoryFiles()
    filled(files, 2, 4)
    assert list(dump_of(files, PATH).lines(records=False, annotated=False)) == [
        "version 0",
        "entries 2",
        "leader epoch 2 from offset 0",
        "leader epoch 4 from offset 1",
        "2 entries: all good",
    ]


def test_a_malformed_file_is_refused_and_the_log_is_read_instead() -> None:
    cases = [
        b"",
        b"0\n",
        b"x\n1\n0 0\n",
        b"0\nx\n0 0\n",
        b"1\n1\n0 0\n",
        b"0\n2\n0 0\n",
        b"0\n1\n0\n",
        b"0\n1\n0 0 0\n",
        b"0\n2\n0 0\n1 10",
        b"0\n1\nzero 0\n",
        b"0\n1\n\xff 0\n",
        b"0\n2\n1 0\n1 5\n",
        b"0\n2\n1 5\n2 5\n",
    ]
    for data in cases:
        with case(data):
            with pytest.raises(LogError, match=LEADER_EPOCH_CHECKPOINT):
                decode(data)
            files = MemoryFiles()
            filled(files, 1, 1, 3)
            files.open(PATH).truncate(0)
            files.open(PATH).pwrite(data, 0)
            assert open_log(files)[1].entries == [(1, 0), (3, 2)]


def test_what_is_written_comes_back() -> None:
    entries = [EpochEntry(0, 0), EpochEntry(7, 2**40)]
    assert decode(encode(entries)) == entries
    assert decode(encode([])) == []


def test_an_epoch_is_written_with_its_first_record_and_not_before() -> None:
    """Otherwise a node that becomes leader of a thousand partitions would write a thousand files."""
    files = MemoryFiles()
    log, cache = open_log(files)
    append(log, 1)
    cache.assign(4, 1)
    assert content(files) == b"0\n1\n1 0\n"
    append(log, 4)
    assert content(files) == b"0\n2\n1 0\n4 1\n"


def test_an_epoch_is_on_the_disk_before_the_recovery_point_passes_its_first_record() -> None:
    """The first record of an epoch does not cause a flush: a thousand partitions may get theirs at once."""
    files = MemoryFiles()
    filled(files, 1, 4).flush()
    files.crash()
    assert content(files) == b"0\n2\n1 0\n4 1\n"


def test_after_the_recovery_point_the_log_is_trusted_and_not_the_file() -> None:
    """Epoch 5 was truncated, and epochs 3, 4 and 6 took its place. Then a power cut brought the old file back."""
    files = MemoryFiles()
    log, _cache = open_log(files)
    append(log, 3, 2)
    log.flush()
    append(log, 5, 2)
    old = content(files)
    log.truncate(2)
    append(log, 3, 1)
    append(log, 4, 2)
    append(log, 6, 1)
    files.open(PATH).truncate(0)
    files.open(PATH).pwrite(old, 0)
    _log, cache = open_log(files)
    assert cache.entries == [(3, 0), (4, 3), (6, 5)]


def test_a_file_that_a_power_cut_has_torn_is_not_trusted() -> None:
    for size in range(14):
        with case(size):
            files = MemoryFiles()
            log, cache = open_log(files)
            append(log, 1, 30)
            append(log, 4)
            whole = content(files)
            assert len(whole) == 13
            files.open(PATH).truncate(size)
            _log, again = open_log(files)
            assert again.entries == cache.entries == [(1, 0), (4, 30)]


def test_a_full_disk_does_not_take_a_log_offline_because_of_its_epochs() -> None:
    files = MemoryFiles()
    log, cache = open_log(files)
    append(log, 1)
    with unwritable(OSError(errno.ENOSPC, "no space left on device")):
        append(log, 4)
    assert (log.failure, cache.entries) == (None, [(1, 0), (4, 1)])
    append(log, 4)
    assert content(files) == b"0\n2\n1 0\n4 1\n"


def test_an_epoch_that_was_not_written_to_the_file_is_found_in_the_last_batch() -> None:
    files = MemoryFiles()
    log, _cache = open_log(files)
    append(log, 1, 3)
    before = content(files)
    append(log, 4, 3)
    files.open(PATH).truncate(0)
    files.open(PATH).pwrite(before, 0)
    log, cache = open_log(files)
    assert cache.entries == [(1, 0), (4, 3)]


# Compared with a model ------------------------------------------------------------------------------------------------


class CacheBesideTheLog(RuleBasedStateMachine):
    """The model is the log: every record of it, with the epoch in its batch. `led` is an epoch without a record."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.led: int | None = None
        self.epoch = 0
        self.open()

    def open(self) -> None:
        self.log, self.cache = open_log(self.files, segment_bytes=400)
        self.led = None

    def kill(self) -> None:
        self.files.crashes += 1
        self.open()

    @rule(count=st.integers(1, 3), later=st.sampled_from([0, 0, 1, 2]))
    def append(self, count: int, later: int) -> None:
        self.epoch += later
        append(self.log, self.epoch, count)
        self.led = None

    @rule()
    def lead(self) -> None:
        self.epoch += 1
        self.led = self.epoch
        self.cache.assign(self.epoch, self.log.log_end_offset)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.truncate(start + round(share * (end - start)))
        if self.log.log_end_offset < end:
            self.led = None

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.delete_before(start + round(share * (end - start)))

    @rule(beyond=st.integers(0, 5))
    def begin_anew(self, beyond: int) -> None:
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + beyond)
        self.led = None

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def reopen(self) -> None:
        self.kill()

    @rule(count=st.integers(1, 3))
    def die_between_the_batch_and_the_checkpoint(self, count: int) -> None:
        self.epoch += 1
        with unwritable(OSError("dead")):
            append(self.log, self.epoch, count)
        self.kill()
        assert self.cache.latest_epoch == self.epoch

    @rule(seed=st.integers(0, 2**16))
    def cut_power(self, seed: int) -> None:
        self.files.crash(Random(seed))
        self.open()

    def model(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            for batch in batches(self.log.read(offset, bytes_max=1 << 20).read()):
                epoch = batch.header.leader_epoch
                found += [(it, epoch) for it in range(offset, batch.header.next_offset)]
                offset = batch.header.next_offset
        return found

    @invariant()
    def entries_rise(self) -> None:
        assert decode(encode(self.cache.entries)) == self.cache.entries

    @precondition(lambda self: self.log.log_start_offset < self.log.log_end_offset)
    @invariant()
    def the_cache_says_what_the_log_says(self) -> None:
        records, end = self.model(), self.log.log_end_offset
        known = {epoch for _offset, epoch in records} | ({self.led} if self.led is not None else set())
        assert self.cache.latest_epoch == max(known)
        assert [self.cache.epoch_of(offset) for offset, _epoch in records] == [epoch for _offset, epoch in records]
        for epoch in range(max(known) + 1):
            first_above = min((offset for offset, it in records if it > epoch), default=end)
            largest_below = max((it for it in known if it <= epoch), default=epoch)
            assert self.cache.end_of(epoch, log_end_offset=end) == (largest_below, first_above)


TestCacheBesideTheLog = CacheBesideTheLog.TestCase
TestCacheBesideTheLog.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
