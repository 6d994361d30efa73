"""The log: one append-only file of batches.

A producer's batch is checked, stamped and written. A reader gets a slice of the file. Records are never decoded. After
a crash the file may be damaged at its end. `open` finds the last valid batch and cuts off the rest.
The numbers of invariants in the comments are those of the chapter's README.
"""

from typing import NamedTuple, NoReturn

from minibroker.log.batch import (
    NO_LEADER_EPOCH,
    BatchHeader,
    read_header,
    stamp,
    stamp_log_append_time,
)
from minibroker.log.checks import check_whole
from minibroker.log.errors import CorruptBatch, LogError, LogOffline, OffsetOutOfRange, StorageError
from minibroker.log.interfaces import File, Files, FileSlice, directory_of, write_all
from minibroker.log.recovery import Recovered, headers, recover


class FlushPolicy(NamedTuple):
    """When appended records are forced to the disk. Kafka: `log.flush.interval.messages` and `.ms`.

    With neither set, the operating system writes the data within about half a minute. A power failure loses the data
    not yet written; replication protects against that. An interval of one message flushes before every ack.
    """

    interval_messages: int | None = None
    interval_ms: int | None = None


_NO_INTERVAL = 2**63  # never reached: more messages than a log can hold

NEVER = FlushPolicy()
EVERY_APPEND = FlushPolicy(interval_messages=1)


class LogFile:
    """A `Log` in one file. One thread at a time may use it."""

    def __init__(self, file: File, recovered: Recovered, *, base_offset: int, flush_policy: FlushPolicy) -> None:
        self._file = file
        self.size = recovered.size
        self.follow(flush_policy)
        self._flushed_ms: int | None = None
        self.failure: str | None = None
        self.is_closed = False
        self.recovered = recovered
        self.leader_epoch = recovered.leader_epoch
        self.log_start_offset = base_offset
        self.log_end_offset = recovered.log_end_offset
        self.flushed_offset = recovered.log_end_offset

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        *,
        base_offset: int = 0,
        recovery_point: int = 0,
        flush_policy: FlushPolicy = NEVER,
    ) -> "LogFile":
        """Open or create a log, and cut off a tail that a crash damaged. A disk error raises OSError.

        Records before `recovery_point` were flushed. If they are damaged, `open` raises an error: the disk has failed,
        and cutting off the damage would lose flushed batches.
        """
        file = files.open(path)
        try:
            recovered = cls._recovered(file, path, base_offset, recovery_point)
            # Records that are served from now on must survive a power failure, and so must the file's name
            # (invariant 4).
            file.fsync()
            files.fsync_directory(directory_of(path))
        except BaseException:
            file.close()
            raise
        return cls(file, recovered, base_offset=base_offset, flush_policy=flush_policy)

    @staticmethod
    def _recovered(file: File, path: str, base_offset: int, recovery_point: int) -> Recovered:
        recovered = Recovered(size=0, log_end_offset=base_offset)
        if file.size() > 0:
            # After a failed flush the kernel may hold clean pages that never reached the disk. Drop them before the
            # check.
            file.drop_cache()
            recovered = recover(file, start=recovered, recovery_point=recovery_point)
        if recovered.log_end_offset < recovery_point:
            raise CorruptBatch(_damaged_below(path, recovered, recovery_point))
        if recovered.damage is not None:
            file.truncate(recovered.size)
        return recovered

    # Appending -----------------------------------------------------------------------------------------------------

    def append(
        self, batch: bytearray | memoryview, *, leader_epoch: int = 0, log_append_time_ms: int | None = None
    ) -> int:
        """Check one batch, stamp it in place, write it; return its new base offset."""
        # Check the batch, and that the log accepts writes (invariant 2).
        check_whole(batch)
        self.check_writable(leader_epoch)
        # Give the batch its place in the log without touching a record (invariant 3), and write it.
        base_offset = self.log_end_offset
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        if log_append_time_ms is not None:
            stamp_log_append_time(batch, timestamp=log_append_time_ms)
        self.write(batch, read_header(batch))
        # Flush the log if the policy says so.
        self.flush_if_due()
        return base_offset

    def check_writable(self, leader_epoch: int) -> None:
        """Require that the log is online, and that an epoch is not older than the log's last one."""
        if self.failure is not None:
            raise self._offline()
        if leader_epoch < self.leader_epoch:
            raise LogError(f"leader epoch {leader_epoch} is older than {self.leader_epoch}, the log's last one")

    def write(self, batch: bytearray | memoryview, header: BatchHeader) -> None:
        """Write a batch that was checked and stamped; its base offset is at the log's end or after it."""
        assert header.base_offset >= self.log_end_offset
        try:
            written = self._file.pwrite(batch, self.size)
            if written < len(batch):
                write_all(self._file, memoryview(batch)[written:], self.size + written)
        except OSError as error:
            self._cut_back()
            raise StorageError(
                f"append of {len(batch)} bytes at position {self.size} failed ({error.strerror}): "
                "none of it was kept; free some disk space and send the batch again"
            ) from error
        # The batch is written. The end moves only now, so after a failed write the next batch gets the same offsets.
        self.size += len(batch)
        self.log_end_offset = header.base_offset + header.last_offset_delta + 1
        self.leader_epoch = header.leader_epoch

    def _cut_back(self) -> None:
        try:
            self._file.truncate(self.size)
        except OSError as error:
            # Readers stop at the log's size and never see the half-written bytes. But no further batch may be written.
            self._go_offline(f"a half-written batch could not be cut off ({error.strerror})", error)

    # Flushing ------------------------------------------------------------------------------------------------------

    def follow(self, flush_policy: FlushPolicy) -> None:
        """Use this flush policy from the next append on."""
        messages = flush_policy.interval_messages
        self._flush_messages = _NO_INTERVAL if messages is None else messages
        self._flush_ms = flush_policy.interval_ms

    def flush_if_due(self) -> None:
        """Flush if `interval_messages` records have been appended since the last flush."""
        if self.log_end_offset - self.flushed_offset >= self._flush_messages:
            self.flush()

    def flush(self) -> None:
        """Make everything appended so far survive a power failure."""
        if self.failure is not None:
            raise self._offline()
        # Read the end first: a flush covers only what was written before it began.
        flushed_offset = self.log_end_offset
        try:
            self._file.fsync()
        except OSError as error:
            self._go_offline(f"a flush failed ({error.strerror})", error)
        self.flushed_offset = flushed_offset
        assert self.log_start_offset <= self.flushed_offset <= self.log_end_offset  # invariant 5

    def tick(self, now_ms: int) -> None:
        """Flush once records have waited for `interval_ms`. The owner calls this regularly, with a monotonic clock."""
        if self._flush_ms is None:
            return
        if self._flushed_ms is None or self.flushed_offset == self.log_end_offset:
            self._flushed_ms = now_ms
        elif now_ms - self._flushed_ms >= self._flush_ms:
            self.flush()
            self._flushed_ms = now_ms

    def _go_offline(self, failure: str, error: OSError) -> NoReturn:
        # After a failed fsync Linux marks the pages clean: a second fsync would succeed without having written them.
        # So the log stays offline until it is opened again. Opening reads the data that is really on the disk.
        self.failure = failure
        raise self._offline() from error

    def _offline(self) -> LogOffline:
        return LogOffline(f"{self.failure}: the log is offline until a restart has checked it")

    # Reading and truncating ----------------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        """Find whole batches, beginning with the one that holds `offset`. The first may exceed `bytes_max`."""
        # Refuse an offset outside the log, and name the bounds: offset 7 is not in [0, 5].
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]")
        bound = self.log_end_offset if upto_offset is None else min(upto_offset, self.log_end_offset)
        # Walk from the file's start, because there is no index of offsets yet; chapter 02 adds one. Skip the batches
        # that end before the offset. Take the following ones while they fit into `bytes_max` and end before the bound.
        start = stop = self.size
        for position, header in headers(self._file, size=self.size):
            if header.next_offset <= offset:
                continue
            start = min(start, position)
            if header.next_offset > bound or (position > start and position + header.size - start > bytes_max):
                return FileSlice(self._file, start, position - start)
        return FileSlice(self._file, start, stop - start)

    def truncate(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the log's start {self.log_start_offset}")
        if self.failure is not None:
            raise self._offline()
        leader_epoch = NO_LEADER_EPOCH
        for position, header in headers(self._file, size=self.size):
            if header.next_offset > offset:
                self._truncate_file(position)
                self.size = position
                self.log_end_offset = header.base_offset
                self.flushed_offset = min(self.flushed_offset, header.base_offset)
                self.leader_epoch = leader_epoch
                # Without a flush a power failure could bring back the batches that were removed.
                self.flush()
                return
            leader_epoch = header.leader_epoch

    def _truncate_file(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._go_offline(f"the file could not be cut to {size} bytes ({error.strerror})", error)

    def release_files(self) -> None:
        """Release the file of an offline log that is being deleted. A reader's slice still keeps the file open."""
        assert self.failure is not None
        del self._file

    def close(self) -> None:
        """Flush and close the file; a second close does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if self.failure is None:
                self.flush()
        finally:
            self._file.close()


def _damaged_below(path: str, recovered: Recovered, recovery_point: int) -> str:
    return (
        f"{path}: readable up to offset {recovered.log_end_offset}, but records up to {recovery_point} were flushed. "
        f"{recovered.damage or 'The file ends early'}. This is not a torn tail: restore the file, "
        "or open it with a lower recovery point to cut it there"
    )
