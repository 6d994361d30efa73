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
from functools import partial

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
        files.mkdir(path)
        self._recovery_points = checkpoint.read(files, f"{path}/{RECOVERY_POINTS}")
        self._log_starts = checkpoint.read(files, f"{path}/{LOG_STARTS}")
        self._cleaner_offsets = checkpoint.read(files, f"{path}/{CLEANER_OFFSETS}")
        self.is_clean = CLEAN_SHUTDOWN in files.list(path)
        if self.is_clean:
            # From now on a crash is a crash.
            files.unlink(f"{path}/{CLEAN_SHUTDOWN}")
            files.fsync_directory(path)

    def open_log(
        self,
        partition: TopicPartition,
        config: LogConfig | None = None,
        *,
        companions: Sequence[Companion] = (),
    ) -> SegmentedLog:
        """Open a partition's log, checking what the checkpoints do not vouch for."""
        log = SegmentedLog.open(
            self._files,
            f"{self._path}/{partition.directory}",
            config,
            recovery_point=self._recovery_points.get(partition, 0),
            is_clean=self.is_clean,
            log_start_offset=self._log_starts.get(partition, 0),
            companions=companions,
            background=self._background,
            on_recovery_point=partial(self._set_recovery_point, partition),
        )
        self._logs[partition] = log
        return log

    def _set_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        with self._lock:
            self._recovery_points[partition] = offset
            self._write(RECOVERY_POINTS, self._recovery_points)

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        checkpoint.write(self._files, f"{self._path}/{name}", checkpoint.encode(offsets))

    def checkpoint_log_starts(self) -> None:
        """Remember where the logs start: after records were deleted, and now and then."""
        with self._lock:
            self._log_starts |= {partition: log.log_start_offset for partition, log in self._logs.items()}
            self._write(LOG_STARTS, self._log_starts)

    def first_dirty_offset(self, partition: TopicPartition) -> int:
        """How far a log is compacted."""
        return max(self._cleaner_offsets.get(partition, 0), self._logs[partition].segments[0].base_offset)

    def set_first_dirty_offset(self, partition: TopicPartition, offset: int) -> None:
        """Remember how far a log is compacted."""
        with self._lock:
            self._cleaner_offsets[partition] = offset
            self._write(CLEANER_OFFSETS, self._cleaner_offsets)

    def close(self) -> None:
        """Close all logs, and say that it was a clean shutdown, if no other log still needs to be checked."""
        self.checkpoint_log_starts()
        for log in self._logs.values():
            log.close()
        if self.is_clean or set(self.partitions()) <= set(self._logs):
            checkpoint.write(self._files, f"{self._path}/{CLEAN_SHUTDOWN}", _CLEAN_SHUTDOWN_TEXT)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here."""
        names = self._files.list(self._path)
        return [TopicPartition.of_directory(name) for name in names if TopicPartition.is_directory(name)]
