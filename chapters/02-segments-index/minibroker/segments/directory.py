"""A data directory: the logs of many partitions, and what is remembered of them between two starts.

    <data>/orders-0/…                          one directory for each partition
    <data>/orders-0.<32 digits>-delete/…       a partition that is being deleted, at the next start at the latest
    <data>/recovery-point-offset-checkpoint    how far each log was flushed; the next start checks the rest
    <data>/log-start-offset-checkpoint         where each log starts, if that is not at its first segment
    <data>/cleaner-offset-checkpoint           how far each log is compacted
    <data>/.kafka_cleanshutdown                exists only after a clean shutdown

Names and formats are Kafka's. Checkpoints are also written on a background thread, so one lock guards them.
"""

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files
from minibroker.segments import checkpoint
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.durability import run_now
from minibroker.segments.segmented import SegmentedLog

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
NAME_BYTES_MAX = 255  # what file systems allow
_DELETED = re.compile(r".+-\d+\.[0-9a-f]{32}-delete")
_CLEAN_SHUTDOWN_TEXT = b'{"version":0,"brokerEpoch":-1}'


class DataDirectory:
    """Opens the logs of a data directory and keeps its checkpoints."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        background: Callable[[Callable[[], None]], None] = run_now,
        more_checkpoints: Sequence[str] = (),
        token: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Read the checkpoints. A later chapter adds further ones with `more_checkpoints`.

        A directory that is to be deleted gets a name with a unique `token` in it.
        """
        self._files = files
        self._path = path
        self._background = background
        self._token = token
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._deleted: set[TopicPartition] = set()  # partitions that may still be in a checkpoint
        self._queued: set[str] = set()  # checkpoints that the background will write
        self._is_closing = False
        files.mkdir(path)
        names = files.list(path)
        for name in filter(_DELETED.fullmatch, names):
            self._try_to_remove(f"{path}/{name}")
        present = set(self.partitions())
        names_kept = (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS, *more_checkpoints)
        self._checkpoints = {name: self._read(name) for name in names_kept}
        self.missing = {
            partition: offset
            for partition, offset in self._checkpoints[RECOVERY_POINTS].items()
            if partition not in present
        }
        """Partitions whose directory is gone, each with its recovery point, before which records were flushed."""
        for offsets in self._checkpoints.values():
            for partition in offsets.keys() - present:
                del offsets[partition]
                self._deleted.add(partition)
        self.is_clean = CLEAN_SHUTDOWN in names
        self._unopened = set(present) if self.is_clean else set()
        if self.is_clean:
            files.unlink(f"{path}/{CLEAN_SHUTDOWN}")
        # Without the marker the next start is not clean. Flush the removal, even if there was no marker: an earlier
        # start may have removed it, and crashed before the removal was durable.
        files.fsync_directory(path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        return checkpoint.read(self._files, f"{self._path}/{name}")

    def directory_of(self, partition: TopicPartition) -> str:
        """The path of a partition's directory."""
        return f"{self._path}/{partition.directory}"

    def open_log(
        self,
        partition: TopicPartition,
        config: LogConfig | None = None,
        *,
        companions: Sequence[Companion] = (),
    ) -> SegmentedLog:
        """Open a partition's log, and check it from its recovery point on, unless the shutdown was clean."""
        # A clean shutdown counts only for the first opening of a log, because the log may fail later.
        is_clean = partition in self._unopened
        self._unopened.discard(partition)
        if partition in self._deleted:
            # A new partition of the same name must not inherit the offsets of the deleted one, not even after a crash.
            for name in self._checkpoints:
                self.write(name)
            self._deleted.clear()
        log = SegmentedLog.open(
            self._files,
            self.directory_of(partition),
            config,
            recovery_point=self._checkpoints[RECOVERY_POINTS].get(partition, 0),
            is_clean=is_clean,
            log_start_offset=self._checkpoints[LOG_STARTS].get(partition, 0),
            companions=companions,
            background=self._background,
            memory=_Remembered(self, partition),
        )
        self._logs[partition] = log
        # Opening may have repaired and flushed the log, so its recovery point may have changed.
        self._checkpoints[RECOVERY_POINTS][partition] = log.flushed_offset
        return log

    def delete_log(self, partition: TopicPartition) -> None:
        """Remove a partition. It is renamed first, so that a crash leaves all of it or nothing."""
        for error in self.delete_logs([partition]).values():
            raise error

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OSError]:
        """Remove many partitions, with one flush for all renames. Return those that failed, with the error."""
        failures: dict[TopicPartition, OSError] = {}
        doomed: list[str] = []
        for partition in partitions:
            try:
                doomed.append(self._rename(partition, "delete"))
            except OSError as error:
                failures[partition] = error
        if doomed:
            self._files.fsync_directory(self._path)
        # A file that cannot be removed now is removed at the next start. Readers of a slice keep its file open.
        for directory in doomed:
            self._background(lambda directory=directory: self._try_to_remove(directory))  # type: ignore[misc]
        return failures

    def set_aside(self, partition: TopicPartition) -> str:
        """Rename the directory of a partition that the metadata do not know; return the new name."""
        name = self._rename(partition, "stray")
        self._files.fsync_directory(self._path)
        return name

    def _rename(self, partition: TopicPartition, reason: str) -> str:
        """Rename a partition's directory, and remove the partition from all checkpoints."""
        suffix = f"-{partition.partition}.{self._token()}-{reason}"
        target = f"{self._path}/{partition.topic[: NAME_BYTES_MAX - len(suffix)]}{suffix}"
        self._files.rename(self.directory_of(partition), target)
        log = self._logs.pop(partition, None)
        if log is not None:
            log.release_files()
        self._unopened.discard(partition)
        for offsets in self._checkpoints.values():
            offsets.pop(partition, None)
        self._deleted.add(partition)
        return target

    def _try_to_remove(self, directory: str) -> None:
        with suppress(OSError):
            for name in self._files.list(directory):
                self._files.unlink(f"{directory}/{name}")
            self._files.rmdir(directory)

    def remembered(self, name: str, partition: TopicPartition) -> int | None:
        """The offset of a partition in a checkpoint."""
        return self._checkpoints[name].get(partition)

    def remember(self, name: str, partition: TopicPartition, offset: int, *, is_urgent: bool) -> None:
        """Set an offset in a checkpoint, which is written at once if urgent, else in the background or at close."""
        self._checkpoints[name][partition] = offset
        if is_urgent:
            self.write(name)
        elif not self._is_closing and name not in self._queued:
            self._queued.add(name)
            self._background(lambda: self._try_to_write(name))

    def _try_to_write(self, name: str) -> None:
        # Offsets that change from here on belong to the next write. A checkpoint that cannot be written only means
        # more work at the next start, so an error is ignored: retention must work on a full disk.
        self._queued.discard(name)
        with suppress(OSError):
            self.write(name)

    def write(self, name: str) -> None:
        """Write a checkpoint with the current offsets, durably."""
        with self._lock:
            data = checkpoint.encode(dict(self._checkpoints[name]))
            checkpoint.write(self._files, f"{self._path}/{name}", data)

    def first_dirty_offset(self, partition: TopicPartition) -> int:
        """The offset up to which a log is compacted."""
        base_offset = self._logs[partition].segments[0].base_offset
        return max(self._checkpoints[CLEANER_OFFSETS].get(partition, 0), base_offset)

    def set_first_dirty_offset(self, partition: TopicPartition, offset: int) -> None:
        """Remember the offset up to which a log is compacted."""
        self.remember(CLEANER_OFFSETS, partition, offset, is_urgent=True)

    def close(self) -> None:
        """Close all logs. Mark the shutdown as clean, unless a log is offline or was never opened and checked."""
        self._is_closing = True
        failures = []
        for log in self._logs.values():
            try:
                log.close()
            except (LogError, OSError) as error:
                failures.append(error)
        for name in self._checkpoints:
            self.write(name)
        if failures:
            raise failures[0]
        is_sound = all(log.failure is None for log in self._logs.values())
        if is_sound and set(self.partitions()) <= set(self._logs) | self._unopened:
            checkpoint.write(self._files, f"{self._path}/{CLEAN_SHUTDOWN}", _CLEAN_SHUTDOWN_TEXT)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here."""
        names = self._files.list(self._path)
        return [TopicPartition.of_directory(name) for name in names if TopicPartition.is_directory(name)]


class _Remembered:
    """The `Memory` of one log: its lines in the checkpoints."""

    def __init__(self, data: DataDirectory, partition: TopicPartition) -> None:
        self._data = data
        self._partition = partition

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(RECOVERY_POINTS, self._partition, offset, is_urgent=is_urgent)

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(LOG_STARTS, self._partition, offset, is_urgent=is_urgent)
