"""Which leader's records begin where: the history of a partition, short enough to compare. A pure module.

Each time a partition gets a leader, that leader has a new epoch, larger than all before. It stamps its epoch into every
batch, so a log tells its own history, and two logs that have the same epoch at the same offset are the same up to
there. The cache keeps one entry for each epoch, the offset where it begins:

    epoch      3        5              6
    offset     0 ─────▶ 40 ──────────▶ 90 ─────▶ 120, the log's end
    entries    (3, 0)   (5, 40)        (6, 90)

So a question about a whole log, *where does yours leave mine?*, is answered with two numbers (KIP-101, KIP-279).

The entries are in `leader-epoch-checkpoint`, in Kafka's format. It is rewritten when the first record of an epoch is
there, and flushed before the log's recovery point passes that record: a new leader of a thousand partitions does not
wait for a thousand flushes. What the file says of anything behind the recovery point is not believed after a crash: the
batches themselves tell.
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
    """The epochs of one log; a companion of it. Entries rise in both numbers."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
        self.entries: list[EpochEntry] = []
        self._log_start_offset = 0
        self._written_epoch = NO_LEADER_EPOCH
        """The last epoch in the file."""
        self._is_flushed = True
        """Whether a power cut would leave the file as it is, and as it should be."""

    # Questions --------------------------------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The epoch of the last entry, or -1."""
        return self.entries[-1].epoch if self.entries else NO_LEADER_EPOCH

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset, or -1 if that is before all entries."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else NO_LEADER_EPOCH

    def end_of(self, epoch: int, *, log_end_offset: int) -> EpochEnd:
        """Where an epoch ends in this log; for one that is not in it, where the one before it ends."""
        # The latest epoch goes on to the end of the log. Of a later one, or of none, nothing is known.
        if epoch == self.latest_epoch and epoch != NO_LEADER_EPOCH:
            return EpochEnd(epoch, log_end_offset)
        if epoch == NO_LEADER_EPOCH or epoch > self.latest_epoch:
            return UNKNOWN
        # An epoch ends where the next one begins. An epoch that this log has no record of is answered with the largest
        # one below it; if there is none below, with where the first one begins.
        above = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        known = self.entries[above - 1].epoch if above > 0 else epoch
        return EpochEnd(known, self.entries[above].start_offset)

    # Changes ----------------------------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch begins. It is written down with its first record: to begin to lead costs no write."""
        if epoch <= self.latest_epoch:
            return
        # Entries that no record ever followed make way: a leader that wrote nothing was no part of history.
        kept = [entry for entry in self.entries if entry.start_offset < start_offset]
        self.entries = [*kept, EpochEntry(epoch, start_offset)]

    def truncate_end(self, offset: int) -> None:
        """The log ends with `offset`: epochs that begin there or later have no record in it."""
        self.entries = [entry for entry in self.entries if entry.start_offset < offset]
        if self.latest_epoch < self._written_epoch:
            self._try_to_write()

    def truncate_start(self, offset: int) -> None:
        """The log starts with `offset`: of the epochs before, the last one goes on from there."""
        # The file may say more than the log holds: it is not worth a write, and the next one tells.
        self._log_start_offset = offset
        below = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        if below > 0:
            first = EpochEntry(self.entries[below - 1].epoch, max(offset, self.entries[below - 1].start_offset))
            self.entries = [first, *self.entries[below:]]

    def _try_to_write(self) -> None:
        # A disk that refuses, because it is full, is asked again with the next batch, and before the file is needed.
        self._is_flushed = False
        with suppress(OSError):
            self._write(durably=False)

    def _write(self, *, durably: bool) -> None:
        checkpoint.write(self._files, self._path, encode(self.entries), durably=durably)
        self._written_epoch, self._is_flushed = self.latest_epoch, durably

    # What the log tells -----------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader, batch: Bytes | FileSlice, position: int = 0) -> None:  # noqa: ARG002
        """A batch is in the log; a follower learns of a new epoch by it."""
        if not self.entries or header.leader_epoch > self.entries[-1].epoch:
            # A log may start within its first batch.
            self.assign(header.leader_epoch, max(header.base_offset, self._log_start_offset))
        if header.leader_epoch > self._written_epoch:
            self._try_to_write()

    on_append = replay

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """Take up the file as far as it is certain; return the first offset that it may be wrong about."""
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
            # It may be older than the log, or younger: an epoch that the log lost again, and another took its place.
            self.entries = [entry for entry in self.entries if entry.start_offset < recovery_point]
            self._is_flushed = False
        return max(min(recovery_point, log_end_offset), log_start_offset)

    def on_flush(self, offset: int) -> None:  # noqa: ARG002
        """The recovery point is about to pass: from now on the file is believed."""
        if not self._is_flushed:
            self._write(durably=True)

    def on_truncate(self, offset: int) -> None:
        """The log ends earlier; with offset 0 nothing is left of it."""
        self.truncate_end(offset)

    def on_delete(self, offset: int) -> None:
        """The log starts later."""
        self.truncate_start(offset)

    on_close = on_flush

    def _read(self) -> list[EpochEntry] | None:
        """The entries in the file; None if there is no file, or not a whole one: then the log is read instead."""
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
    """Read it back, refusing anything that is not exactly one, and in order."""
    try:
        if not data.endswith(b"\n"):
            raise ValueError("it is torn")
        version, count, *lines = data.decode().splitlines()
        entries = [EpochEntry(*map(int, line.split())) for line in lines]
        is_whole = int(version) == checkpoint.VERSION and int(count) == len(entries)
    except (ValueError, TypeError) as error:
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT} cannot be read: {error}") from None
    if not is_whole:
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT}: version {version}, {count} of {len(entries)} entries announced")
    if any(one.epoch >= two.epoch or one.start_offset >= two.start_offset for one, two in pairwise(entries)):
        raise LogError(f"{LEADER_EPOCH_CHECKPOINT}: the entries do not rise")
    return entries
