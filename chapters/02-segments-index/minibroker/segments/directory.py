"""A data directory: the logs of many partitions, and what is remembered of them between two starts.

    <data>/orders-0/…                          one directory for each partition
    <data>/recovery-point-offset-checkpoint    what was flushed: checked no more at the next start
    <data>/log-start-offset-checkpoint         where each log starts, where that is not at its first segment
    <data>/cleaner-offset-checkpoint           how far each log is compacted
    <data>/.kafka_cleanshutdown                there after a clean shutdown, and only then

Names and formats are Kafka's. Checkpoints are written by whoever flushes, also on a background thread, so one lock
guards them.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files
from minibroker.segments import checkpoint
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog, run_now

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_CLEAN_SHUTDOWN_TEXT = b'{"version":0,"brokerEpoch":-1}'


class DataDirectory:
    """Opens the logs of a data directory and keeps its checkpoints."""

    def __init__(self, files: Files, path: str, *, background: Callable[[Callable[[], None]], None] = run_now) -> None:
        self._files = files
        self._path = path
        self._background = background
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._is_closing = False
        files.mkdir(path)
        present = set(self.partitions())
        self._checkpoints = {
            name: {partition: offset for partition, offset in self._read(name).items() if partition in present}
            for name in (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS)
        }
        self.is_clean = CLEAN_SHUTDOWN in files.list(path)
        self._unopened = set(present) if self.is_clean else set()
        if self.is_clean:
            # From now on a crash is a crash.
            files.unlink(f"{path}/{CLEAN_SHUTDOWN}")
            files.fsync_directory(path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        return checkpoint.read(self._files, f"{self._path}/{name}")

    def open_log(
        self,
        partition: TopicPartition,
        config: LogConfig | None = None,
        *,
        companions: Sequence[Companion] = (),
    ) -> SegmentedLog:
        """Open a partition's log, checking what the checkpoints do not vouch for."""
        # A clean shutdown vouches for a log once: what was opened since may have failed.
        is_clean = partition in self._unopened
        self._unopened.discard(partition)
        log = SegmentedLog.open(
            self._files,
            f"{self._path}/{partition.directory}",
            config,
            recovery_point=self._checkpoints[RECOVERY_POINTS].get(partition, 0),
            is_clean=is_clean,
            log_start_offset=self._checkpoints[LOG_STARTS].get(partition, 0),
            companions=companions,
            background=self._background,
            memory=_Remembered(self, partition),
        )
        self._logs[partition] = log
        # Opening has flushed what it believed; the next write of the checkpoint tells.
        self._checkpoints[RECOVERY_POINTS][partition] = log.flushed_offset
        return log

    def delete_log(self, partition: TopicPartition) -> None:
        """Remove a partition: first from the checkpoints, so that one of the same name inherits nothing."""
        self._logs.pop(partition, None)
        for name, offsets in self._checkpoints.items():
            if offsets.pop(partition, None) is not None:
                self.write(name)
        directory = f"{self._path}/{partition.directory}"
        for name in self._files.list(directory):
            self._files.unlink(f"{directory}/{name}")

    def remember(self, name: str, partition: TopicPartition, offset: int, *, is_urgent: bool) -> None:
        """Set a number in a checkpoint. Those that are not urgent are written in the background, or at the end."""
        self._checkpoints[name][partition] = offset
        if is_urgent:
            self.write(name)
        elif not self._is_closing:
            self._background(lambda: self._try_to_write(name))

    def _try_to_write(self, name: str) -> None:
        # An older checkpoint only means more work at the next start. A full disk must not keep retention from its own.
        with suppress(OSError):
            self.write(name)

    def write(self, name: str) -> None:
        """Write a checkpoint with the numbers of this moment, durably."""
        with self._lock:
            data = checkpoint.encode(dict(self._checkpoints[name]))
            checkpoint.write(self._files, f"{self._path}/{name}", data)

    def first_dirty_offset(self, partition: TopicPartition) -> int:
        """How far a log is compacted."""
        base_offset = self._logs[partition].segments[0].base_offset
        return max(self._checkpoints[CLEANER_OFFSETS].get(partition, 0), base_offset)

    def set_first_dirty_offset(self, partition: TopicPartition, offset: int) -> None:
        """Remember how far a log is compacted."""
        self.remember(CLEANER_OFFSETS, partition, offset, is_urgent=True)

    def close(self) -> None:
        """Close all logs, and say that it was a clean shutdown, if no other log still needs to be checked."""
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
        if set(self.partitions()) <= set(self._logs) | self._unopened:
            checkpoint.write(self._files, f"{self._path}/{CLEAN_SHUTDOWN}", _CLEAN_SHUTDOWN_TEXT)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here."""
        names = self._files.list(self._path)
        return [TopicPartition.of_directory(name) for name in names if TopicPartition.is_directory(name)]


class _Remembered:
    """The memory of one log."""

    def __init__(self, data: DataDirectory, partition: TopicPartition) -> None:
        self._data = data
        self._partition = partition

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(RECOVERY_POINTS, self._partition, offset, is_urgent=is_urgent)

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        self._data.remember(LOG_STARTS, self._partition, offset, is_urgent=is_urgent)
