"""A disk that refuses one call, whichever it is: the log goes on or goes offline, and the next start finds a valid log.

Each run does the usual things in a random order. One call to the disk fails, with EIO or ENOSPC; a write takes a part
of its bytes first, as a full disk does. A few steps later the process is killed or the power is cut, and the log is
opened again. Then everything that was flushed must be there, nothing may be there that was never written, and the log
works.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from log_cases import each_case
from segments_model import batch_of, read_on

from minibroker.log.compression import Bytes
from minibroker.log.errors import LogError, LogOffline
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.log.record import Record
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.compaction import clean
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.scrub import Finding, scrub

PARTITION = TopicPartition("orders", 0)
RUNS = 1000


class FailingFile(MemoryFile):
    """Asks before each change whether it fails."""

    _files: "FailingFiles"

    def pwrite(self, data: Bytes, position: int) -> int:
        if self._files.fails():
            taken = len(data) // 2
            if taken == 0:
                raise self._files.error()
            # The rest is asked for with the next call, and that one fails.
            self._files.calls_left = 0
            return super().pwrite(bytes(data)[:taken], position)
        return super().pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._files.check()
        super().truncate(size)

    def fsync(self) -> None:
        if self._files.fails():
            self._files.has_failed_to_flush = True
            self._open_node().pending = []  # as Linux does: the pages count as clean
            raise self._files.error()
        super().fsync()


class FailingFiles(MemoryFiles):
    """A disk on which some changes fail, after a number of good ones."""

    def __init__(self) -> None:
        super().__init__()
        self.number = errno.EIO
        self.calls_left = 10**9
        self.failures_left = 0
        self.failures = 0
        self.has_failed_to_flush = False

    def fails(self) -> bool:
        if self.calls_left > 0:
            self.calls_left -= 1
            return False
        if self.failures_left == 0:
            return False
        self.failures_left -= 1
        self.failures += 1
        return True

    def error(self) -> OSError:
        return OSError(self.number, "the disk refuses")

    def check(self) -> None:
        if self.fails():
            raise self.error()

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        if create and path not in self._names:
            self.check()
        super().open(path, create=create, writable=writable)
        return FailingFile(self, self._node(path))

    def list(self, directory: str) -> list[str]:
        # Memory forgets a directory in which nothing is; a disk does not.
        names = super().list(directory)
        return sorted({*names, PARTITION.directory}) if directory == "data" else names

    def rename(self, source: str, target: str) -> None:
        self.check()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.check()
        super().unlink(path)

    def fsync_directory(self, directory: str) -> None:
        self.check()
        super().fsync_directory(directory)


class Run:
    """A log, the changes that were made to it, and the records that it must have."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.files = FailingFiles()
        self.config = LogConfig(
            segment_bytes=self.chance.choice([200, 500]),
            index_interval_bytes=100,
            retention_ms=3000,
            delete_retention_ms=0,
            cleanup_policy=frozenset(self.chance.choice([{"delete"}, {"compact"}, {"compact", "delete"}])),
            flush_messages=self.chance.choice([None, None, 1, 3]),
        )
        self.now_ms = 10_000
        self.written: dict[int, list[Record]] = {}  # all that was ever written at an offset, acknowledged or not
        self.acked: dict[int, Record] = {}  # what must be there, unless compaction replaced it
        self.durable_end = 0
        self.start_max = 0  # the highest offset that the log was told to start with
        self.open()

    def open(self) -> None:
        self.data = DataDirectory(self.files, "data")
        self.log = self.data.open_log(PARTITION, self.config)

    # What can be done ---------------------------------------------------------------------------------------------

    def append(self) -> None:
        self.now_ms += 100
        count = self.chance.randint(1, 3)
        keys = [b"%d" % self.chance.randrange(4) for _ in range(count)]
        records = [Record(0, self.now_ms, key, b"%d" % self.chance.randrange(10**9)) for key in keys]
        base_offset = self.log.log_end_offset
        placed = [record._replace(offset=base_offset + n) for n, record in enumerate(records)]
        for record in placed:
            self.written.setdefault(record.offset, []).append(record)
        assert self.log.append(batch_of(records)) == base_offset
        self.acked |= {record.offset: record for record in placed}

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush()
        assert self.log.flushed_offset == self.log.log_end_offset

    def compact(self) -> None:
        if self.config.compacts:
            first = self.data.first_dirty_offset(PARTITION)
            done = clean(self.log, first_dirty_offset=first, now_ms=self.now_ms)
            self.data.set_first_dirty_offset(PARTITION, done.first_dirty_offset)

    def retain(self) -> None:
        self.now_ms += self.chance.randrange(2000)
        try:
            self.log.retain(self.now_ms)
        finally:
            self.start_max = max(self.start_max, self.log.log_start_offset)

    def delete_before(self) -> None:
        offset = self.chance.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.start_max = max(self.start_max, offset)
        self.log.delete_before(offset)

    def truncate(self) -> None:
        first = self.log.log_start_offset
        if self.config.compacts:
            # A leader truncates nothing that was compacted.
            first = max(first, min(self.data.first_dirty_offset(PARTITION), self.log.log_end_offset))
        offset = self.chance.randint(first, self.log.log_end_offset)
        if offset == self.log.log_end_offset:
            return
        # The batch that holds the offset goes as a whole; before it offsets may be missing.
        staying = [it.next_offset for it, _batch in self.log._batches_from(0) if it.last_offset < offset]
        end = max(staying, default=self.log.segments[0].base_offset)
        self.acked = {it: record for it, record in self.acked.items() if it < end}
        self.durable_end = min(self.durable_end, end)
        self.log.truncate(offset)
        assert self.log.log_end_offset == max(end, self.log.log_start_offset)

    def restart(self) -> None:
        before = self.log.log_end_offset
        is_sound = self.log.failure is None
        with self.may_be_refused():
            self.data.close()
        # A broker that could not start is started again.
        while True:
            failures = self.files.failures
            try:
                self.open()
            except (LogError, OSError):
                assert self.files.failures > failures
            else:
                break
        if is_sound and not self.files.failures:
            assert self.data.is_clean
            assert self.log.log_end_offset == before
        self.acked = {offset: record for offset, record in self.acked.items() if offset < self.log.log_end_offset}

    WAYS = (append,) * 8 + (roll, flush, compact, retain, delete_before, truncate, restart)

    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.log.log_start_offset > self.log.log_end_offset:
                # It was to be begun anew, and could not: nothing but a restart helps.
                assert self.log.failure is not None
                self.restart()
            with self.may_be_refused():
                self.chance.choice(self.WAYS)(self)
            if self.log.failure is None and not self.log._durability.rolled:
                self.durable_end = max(self.durable_end, self.log.flushed_offset)
            self.check_readable()

    @contextmanager
    def may_be_refused(self) -> Iterator[None]:
        """Every error must name the disk's error; any other is a bug."""
        try:
            yield
        except (LogError, OSError):
            assert self.files.failures, "nothing has failed, so nothing may be refused"

    # What must be true --------------------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """What the log serves was written to it, at that offset; and a log that is online has all of it."""
        failures = self.files.failures
        try:
            found = read_on(self.log, self.log.log_start_offset)
        except LogError:
            # An offline log may be unreadable; one that works may not, unless the disk refused just now.
            assert self.log.failure is not None or self.files.failures > failures
            return
        for record in found:
            assert record in self.written[record.offset]
        if self.log.failure is None:
            self.check_complete({record.offset for record in found}, upto_offset=self.log.log_end_offset)

    def check_complete(self, found: set[int], *, upto_offset: int) -> None:
        start = max(self.log.log_start_offset, self.start_max)
        expected = [record for record in self.acked.values() if start <= record.offset < upto_offset]
        if self.config.compacts:
            expected = list({record.key: record for record in expected}.values())
            expected = [it for it in expected if not self.has_newer(it)]
        assert {record.offset for record in expected} <= found

    def has_newer(self, record: Record) -> bool:
        """Whether a later record of that key was written, acknowledged or not, and may have replaced it."""
        return any(it.key == record.key for o, all_of in self.written.items() if o > record.offset for it in all_of)

    def reopen(self, *, with_power_cut: bool) -> None:
        """Kill the process, or cut the power; then everything that was flushed must be there."""
        self.files.failures_left = 0
        acked_end = max(self.acked, default=-1) + 1
        if with_power_cut:
            self.files.crash(self.chance)
        self.open()
        log = self.log
        assert log.log_end_offset >= self.durable_end
        if not with_power_cut and not self.files.has_failed_to_flush:
            assert log.log_end_offset >= acked_end
        found = read_on(log, log.log_start_offset)
        for record in found:
            assert record in self.written[record.offset]
        assert log.log_start_offset <= max(self.start_max, 0)
        self.check_complete({record.offset for record in found}, upto_offset=self.durable_end)
        assert all(segment.indexes.is_sane() for segment in log.segments)  # rebuilt where they were removed
        assert [it for it in scrub(self.files, log) if isinstance(it, Finding)] == []
        # And it works: records that are appended now stay.
        self.acked = {record.offset: record for record in found}
        self.append()
        self.log.flush()
        self.check_readable()


def run(seed: int) -> Run:
    one = Run(seed)
    one.steps(one.chance.randrange(12))
    one.files.number = one.chance.choice([errno.EIO, errno.ENOSPC])
    one.files.calls_left = one.chance.randrange(60)
    one.files.failures_left = one.chance.choice([1, 1, 1, 2, 5])
    one.steps(one.chance.randrange(1, 15))
    one.reopen(with_power_cut=one.chance.random() < 0.5)
    one.reopen(with_power_cut=True)
    return one


def test_whatever_call_the_disk_refuses_nothing_flushed_is_lost() -> None:
    failed = 0
    for seed in range(RUNS):
        try:
            failed += run(seed).files.failures > 0
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert failed > RUNS / 2


@each_case("number", [errno.EIO, errno.ENOSPC])
def test_a_log_on_a_disk_that_refuses_everything_says_so_and_comes_back(number: int) -> None:
    one = Run(1)
    one.steps(10)
    one.files.number, one.files.calls_left, one.files.failures_left = number, 0, 10**9
    with pytest.raises((LogError, OSError)):
        one.append()
    with pytest.raises(LogOffline):
        one.append()
    one.reopen(with_power_cut=True)
