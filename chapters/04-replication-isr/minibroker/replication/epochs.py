"""The leader epochs of a log, and the offset where each begins. A pure module.

Each new leader of a partition gets an epoch that is larger than all earlier ones. It stamps this epoch into every
batch. Two logs that have the same epoch at the same offset are the same up to there. The cache keeps one entry for each
epoch, the offset where it begins:

    epoch      3        5              6
    offset     0 ─────▶ 40 ──────────▶ 90 ─────▶ 120, the log's end
    entries    (3, 0)   (5, 40)        (6, 90)

So an epoch and its end offset are enough to find where two logs diverge (KIP-101, KIP-279).

The entries are in `leader-epoch-checkpoint`, in Kafka's format. The file is rewritten after the first record of an
epoch is appended, and flushed before the log's recovery point passes that record. So a new leader of a thousand
partitions does not wait for a thousand flushes. After a crash the file is trusted only up to the recovery point, and
later epochs are read from the batches.
"""

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, FileSlice
from minibroker.partitions.partition import EpochEnd as EpochEnd
from minibroker.segments import checkpoint
from minibroker.segments.companions import Companion

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
UNKNOWN = EpochEnd(NO_LEADER_EPOCH, NO_OFFSET)


class EpochEntry(NamedTuple):
    """An epoch, and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochCache(Companion):
    """The epochs of one log, in ascending order. As a `Companion`, the cache is notified of each change of the log."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
        self.entries: list[EpochEntry] = []
        self._log_start_offset = 0
        self._written_epoch = NO_LEADER_EPOCH
        """The last epoch in the file."""
        self._is_flushed = True
        """Whether the file has all entries, durably."""

    # Questions --------------------------------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last entry, or -1."""
        return self.entries[-1].epoch if self.entries else NO_LEADER_EPOCH

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset, or -1 if the offset is before all entries."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else NO_LEADER_EPOCH

    def end_of(self, epoch: int, *, log_end_offset: int) -> EpochEnd:
        """Where an epoch ends in this log; if the log does not have that epoch, where the epoch before it ends."""
        # The latest epoch ends at the end of the log. The end of a later epoch is unknown, and so is the end of "no
        # epoch" (-1).
        if epoch == self.latest_epoch and epoch != NO_LEADER_EPOCH:
            return EpochEnd(epoch, log_end_offset)
        if epoch == NO_LEADER_EPOCH or epoch > self.latest_epoch:
            return UNKNOWN
        # An epoch ends where the next one begins. For an epoch without a record in this log, answer with the largest
        # epoch below it. If no epoch is below it, answer with the offset where the first epoch begins.
        above = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        known = self.entries[above - 1].epoch if above > 0 else epoch
        return EpochEnd(known, self.entries[above].start_offset)

    # Changes ----------------------------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch begins. The file is not written before the epoch's first record, so becoming leader is cheap."""
        if epoch <= self.latest_epoch:
            return
        # Drop the entries of leaders that wrote no record.
        kept = [entry for entry in self.entries if entry.start_offset < start_offset]
        self.entries = [*kept, EpochEntry(epoch, start_offset)]

    def truncate_end(self, offset: int) -> None:
        """The log now ends at `offset`: drop the epochs that begin there or later."""
        self.entries = [entry for entry in self.entries if entry.start_offset < offset]
        if self.latest_epoch < self._written_epoch:
            self._try_to_write()

    def truncate_start(self, offset: int) -> None:
        """The log now starts at `offset`: drop the epochs before it, except the one that contains `offset`."""
        # The file is not rewritten for this: entries before the start do no harm, and the next write drops them.
        self._log_start_offset = offset
        below = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        if below > 0:
            first = EpochEntry(self.entries[below - 1].epoch, max(offset, self.entries[below - 1].start_offset))
            self.entries = [first, *self.entries[below:]]

    def _try_to_write(self) -> None:
        # A failure, such as a full disk, is ignored: the next batch or the next flush writes the file again.
        self._is_flushed = False
        with suppress(OSError):
            self._write(durably=False)

    def _write(self, *, durably: bool) -> None:
        checkpoint.write(self._files, self._path, encode(self.entries), durably=durably)
        self._written_epoch, self._is_flushed = self.latest_epoch, durably

    # Companion of the log ---------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader, batch: Bytes | FileSlice, position: int = 0) -> None:  # noqa: ARG002
        """A batch was appended; a follower learns of a new epoch from the header of the batch."""
        if not self.entries or header.leader_epoch > self.entries[-1].epoch:
            # A log may start within its first batch; then the epoch begins at the log's start.
            self.assign(header.leader_epoch, max(header.base_offset, self._log_start_offset))
        if header.leader_epoch > self._written_epoch:
            self._try_to_write()

    on_append = replay

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """Read the file as far as it can be trusted; return the first offset that must be replayed.

        `truncate_end` and `truncate_start` make the list fit the log.
        """
        entries = self._read()
        if entries is None:
            self.entries, self._written_epoch, self._is_flushed = [], NO_LEADER_EPOCH, False
            self._log_start_offset = log_start_offset
            return log_start_offset
        self.entries = entries
        self._written_epoch = self.latest_epoch
        self.truncate_end(log_end_offset)
        self.truncate_start(log_start_offset)
        if recovery_point < log_end_offset:
            # After the recovery point the file may lack an epoch of the log, or name an epoch whose records were lost.
            # So keep only the entries before the recovery point.
            self.entries = [entry for entry in self.entries if entry.start_offset < recovery_point]
            self._is_flushed = False
        return max(min(recovery_point, log_end_offset), log_start_offset)

    def on_flush(self, offset: int) -> None:  # noqa: ARG002
        """The recovery point is about to advance, so the file must be durable first."""
        if not self._is_flushed:
            self._write(durably=True)

    def on_truncate(self, offset: int) -> None:
        """The end of the log was truncated: drop the epochs that began there."""
        self.truncate_end(offset)

    def on_delete(self, offset: int) -> None:
        """The beginning of the log was deleted: drop the epochs that ended there."""
        self.truncate_start(offset)

    on_close = on_flush

    def _read(self) -> list[EpochEntry] | None:
        """The entries in the file; None if the file is missing or damaged, so that the log must be read."""
        try:
            return decode(checkpoint.content(self._files, self._path) or b"")
        except LogError:
            return None


# The file -------------------------------------------------------------------------------------------------------------


def encode(entries: list[EpochEntry]) -> bytes:
    """The text of the file: a version, a count, and a line for each epoch."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return "\n".join([str(checkpoint.VERSION), str(len(lines)), *lines, ""]).encode()


def decode(data: bytes) -> list[EpochEntry]:
    """Read the text of the file; refuse all that `encode` does not write, such as a last line without its line end."""
    try:
        if not data.endswith(b"\n"):
            raise ValueError("it does not end with a line end")
        version, count, *lines = data.decode().splitlines()
        entries = [EpochEntry(*map(int, line.split())) for line in lines]
        is_whole = int(version) == checkpoint.VERSION and int(count) == len(entries)
    except (ValueError, TypeError) as error:
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT} cannot be read: {error}") from None
    if not is_whole:
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT}: version {version}, {len(entries)} of {count} entries")
    if any(one.epoch >= two.epoch or one.start_offset >= two.start_offset for one, two in pairwise(entries)):
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT}: epochs and start offsets must increase from entry to entry")
    return entries
