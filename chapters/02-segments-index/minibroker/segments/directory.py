"""A data directory: the logs of many partitions, and the checkpoints that are kept between two starts.

    <data>/orders-0/…                          one directory for each partition
    <data>/orders-0.<32 digits>-delete/…       a deleted partition, removed at the next start at the latest
    <data>/recovery-point-offset-checkpoint    the recovery point of each log: the next start checks from there on
    <data>/log-start-offset-checkpoint         the log start offset of each log
    <data>/cleaner-offset-checkpoint           the first dirty offset of each log
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
NAME_BYTES_MAX = 255  # the longest name that common file systems allow
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
        """Read the checkpoints. Later chapters add theirs with `more_checkpoints`.

        A directory is renamed before it is deleted; `token` makes the new name unique.
        """
        self._files = files
        self._path = path
        self._background = background
        self._token = token
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._deleted: set[TopicPartition] = set()  # partitions that may still be in a checkpoint
        self._queued: set[str] = set()  # checkpoints that the background thread will write
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
        """Partitions whose directory has disappeared, each with its recovery point. Records before it were flushed."""
        for offsets in self._checkpoints.values():
            for partition in offsets.keys() - present:
                del offsets[partition]
                self._deleted.add(partition)
        self.is_clean = CLEAN_SHUTDOWN in names
        self._unopened = set(present) if self.is_clean else set()
        if self.is_clean:
            files.unlink(f"{path}/{CLEAN_SHUTDOWN}")
        # From now on, a start after a crash must not find the marker of a clean shutdown. Flush its removal, even if
        # there was no marker: an earlier start may have removed it and crashed before the removal was durable.
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
        """Open a partition's log. Unless the shutdown was clean, check the log from its recovery point on."""
        # Only the first opening of a log relies on the clean shutdown. A log that fails and is opened again is checked.
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
        """Remove a partition. Its directory is renamed first, so that a crash leaves either all of it or nothing."""
        failures = self.delete_logs([partition])
        if failures:
            # The error is not kept in a variable: its traceback refers to this call, so each would keep the other.
            raise failures.popitem()[1]

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OSError]:
        """Remove many partitions, with one flush for all renames. Return the error of each partition that failed."""
        failures: dict[TopicPartition, OSError] = {}
        doomed: list[str] = []
        leaving = list(partitions)
        self._forget(leaving)
        for partition in leaving:
            try:
                doomed.append(self._rename(partition, "delete"))
            except OSError as error:
                failures[partition] = error.with_traceback(None)
        if doomed:
            self._files.fsync_directory(self._path)
        # A file that cannot be removed now is removed at the next start. A reader's slice keeps its file open.
        for directory in doomed:
            self._background(lambda directory=directory: self._try_to_remove(directory))  # type: ignore[misc]
        return failures

    def set_aside(self, partition: TopicPartition) -> str:
        """Rename the directory of a partition that is not in the metadata; return the new name."""
        self._forget([partition])
        name = self._rename(partition, "stray")
        self._files.fsync_directory(self._path)
        return name

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions from all checkpoints, before their directories are renamed.

        After a crash, a partition with a recovery point and without a directory counts as `missing`. So the checkpoint
        is written without its recovery point first.
        """
        known = [it for it in partitions if it in self._checkpoints[RECOVERY_POINTS]]
        for partition in known:
            self._drop_offsets(partition)
        if known:
            self._try_to_write(RECOVERY_POINTS)

    def _drop_offsets(self, partition: TopicPartition) -> None:
        for offsets in self._checkpoints.values():
            offsets.pop(partition, None)
        self._deleted.add(partition)

    def _rename(self, partition: TopicPartition, reason: str) -> str:
        """Rename a partition's directory."""
        suffix = f"-{partition.partition}.{self._token()}-{reason}"
        target = f"{self._path}/{partition.topic[: NAME_BYTES_MAX - len(suffix)]}{suffix}"
        self._files.rename(self.directory_of(partition), target)
        log = self._logs.pop(partition, None)
        if log is not None:
            log.release_files()
        self._unopened.discard(partition)
        # A flush on the background thread may have noted an offset since `_forget`.
        self._drop_offsets(partition)
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
        """Set an offset in a checkpoint. If urgent, write the checkpoint now, else in the background or at close."""
        self._checkpoints[name][partition] = offset
        if is_urgent:
            self.write(name)
        elif not self._is_closing and name not in self._queued:
            self._queued.add(name)
            self._background(lambda: self._try_to_write(name))

    def _try_to_write(self, name: str) -> None:
        # Offsets that change from here on are queued for the next write. An error is ignored, so that retention works
        # on a full disk: an outdated checkpoint only means more work at the next start.
        self._queued.discard(name)
        with suppress(OSError):
            self.write(name)

    def write(self, name: str) -> None:
        """Write a checkpoint with the current offsets, and flush it."""
        with self._lock:
            data = checkpoint.encode(dict(self._checkpoints[name]))
            checkpoint.write(self._files, f"{self._path}/{name}", data)

    def first_dirty_offset(self, partition: TopicPartition) -> int:
        """The first dirty offset of a log: the log is compacted up to it."""
        base_offset = self._logs[partition].segments[0].base_offset
        return max(self._checkpoints[CLEANER_OFFSETS].get(partition, 0), base_offset)

    def set_first_dirty_offset(self, partition: TopicPartition, offset: int) -> None:
        """Set the offset up to which a log is compacted, and write the checkpoint."""
        self.remember(CLEANER_OFFSETS, partition, offset, is_urgent=True)

    def close(self) -> None:
        """Close all logs. Mark the shutdown as clean, unless a log is offline or still has to be checked."""
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
        """The partitions that have a directory in this data directory."""
        names = self._files.list(self._path)
        return [TopicPartition.of_directory(name) for name in names if TopicPartition.is_directory(name)]


class _Remembered:
    """The `Memory` of one log: it stores the log's offsets in the checkpoints."""

    def __init__(self, data: DataDirectory, partition: TopicPartition) -> None:
        self._data = data
        self._partition = partition

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(RECOVERY_POINTS, self._partition, offset, is_urgent=is_urgent)

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(LOG_STARTS, self._partition, offset, is_urgent=is_urgent)
