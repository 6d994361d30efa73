"""Snapshots of the log: the state after all records before an offset, in a file of its own. A pure module.

    00000000000000004711-0000000007.checkpoint      everything before offset 4711; the last record is of epoch 7

The file is a short log, in Kafka's format: a control batch with a header and the voters, batches of records, and a
control batch with a footer. A file without its footer is not a snapshot. A snapshot is written under another name,
flushed, and renamed, so a file with this name is complete. Only after that may the log delete the records that the
snapshot has. A file with this name that cannot be read is therefore damaged, and the node refuses to start.

If a follower needs records that the leader's log no longer has, it fetches the file in pieces. Then it fetches the
records after the snapshot from the log.
"""

import struct
from collections.abc import Iterable, Sequence

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, write_all
from minibroker.raft.control import add_voters, control_key
from minibroker.raft.log import QuorumLog
from minibroker.raft.messages import Fetch, SnapshotId
from minibroker.raft.voters import VoterSet, decode_voters
from minibroker.replication.epochs import EpochCache
from minibroker.segments import checkpoint

SUFFIX = ".checkpoint"
PART = ".part"
HOW_TO_RECOVER = "restore it, or start the node with an empty data directory, as a new voter"
RECORDS_PER_BATCH = 500
_HEADER = struct.Struct(">hqb")  # version, timestamp of the last record, tagged fields
_FOOTER = struct.Struct(">hb")  # version, tagged fields


class NoSnapshots:
    """Stands for `SnapshotFiles` on a node that has no snapshots."""

    latest: SnapshotId | None = None
    voters: VoterSet | None = None


def start_at_snapshot(log: QuorumLog, epochs: EpochCache, latest: SnapshotId | None) -> None:
    """Delete the records before the newest snapshot's end from the log, if a crash has prevented this deletion."""
    end_offset = 0 if latest is None else latest.end_offset
    if log.log_start_offset > end_offset:
        raise LogError(
            f"the metadata log starts at offset {log.log_start_offset}, and the newest snapshot ends at"
            f" {end_offset}: the records between them are gone. If a snapshot is missing, {HOW_TO_RECOVER}"
        )
    if latest is None or log.log_start_offset == end_offset:
        return
    # A snapshot has only committed records. A log that contains the snapshot's last record continues it. Any other log
    # diverges or is too short, so the snapshot replaces it.
    is_continued = log.log_end_offset >= latest.end_offset
    if is_continued and epochs.epoch_of(latest.end_offset - 1) == latest.epoch:
        log.delete_before(latest.end_offset)
    else:
        log.truncate_fully_and_start_at(latest.end_offset)


def needs_snapshot(request: Fetch, log: QuorumLog, latest: SnapshotId | None) -> bool:
    """Whether a follower must fetch the newest snapshot before it can continue with the log."""
    if latest is None or request.offset < log.log_start_offset:
        return request.offset < log.log_start_offset
    # The log no longer has the epoch of the record before its start, but the snapshot has it. A follower's log diverges
    # if it ends at that record with another epoch, or if its last epoch is earlier than the snapshot's.
    at_start = request.offset == log.log_start_offset
    return request.last_epoch < latest.epoch or (at_start and request.last_epoch != latest.epoch)


class SnapshotFiles:
    """The snapshots in a directory; only the newest is kept."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.latest: SnapshotId | None = None
        self.voters: VoterSet | None = None
        self._receiving: tuple[SnapshotId, int] | None = None
        self._received = 0
        self._open()

    def _open(self) -> None:
        """Find the newest snapshot. It was complete and flushed, so a file that cannot be read is damaged.

        To start without the snapshot would lose committed records. The other voters continue without this node.
        """
        self.latest = max(self._names(), default=None)
        if self.latest is None:
            return
        # A crash may have prevented the flush of the rename. Flush now, because the log is deleted up to this snapshot.
        self._files.fsync_directory(self._directory)
        try:
            self.voters, _values = decode(checkpoint.content(self._files, self._path(self.latest)) or b"")
        except LogError as error:
            raise LogError(f"{self._path(self.latest)} is damaged ({error}): {HOW_TO_RECOVER}") from error

    def _names(self) -> list[SnapshotId]:
        found = []
        for name in self._files.list(self._directory):
            end_offset, dash, epoch = name.removesuffix(SUFFIX).partition("-")
            if name.endswith(SUFFIX) and dash and end_offset.isdigit() and epoch.isdigit():
                found.append(SnapshotId(int(end_offset), int(epoch)))
        return found

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}{SUFFIX}"

    def values(self) -> Sequence[bytes]:
        """The records of the newest snapshot."""
        assert self.latest is not None
        return decode(checkpoint.content(self._files, self._path(self.latest)) or b"")[1]

    def write(self, snapshot: SnapshotId, voters: VoterSet, values: Iterable[bytes], *, timestamp: int) -> None:
        """Write a snapshot durably, and delete older ones."""
        self._put(snapshot, encode(voters, values, timestamp=timestamp), 0)
        self._complete(snapshot, voters)

    def _put(self, snapshot: SnapshotId, data: bytes, position: int) -> None:
        file = self._files.open(self._path(snapshot) + PART)
        try:
            file.truncate(position)
            write_all(file, data, position)
            file.fsync()
        finally:
            file.close()

    def _complete(self, snapshot: SnapshotId, voters: VoterSet) -> None:
        self._files.rename(self._path(snapshot) + PART, self._path(snapshot))
        self._files.fsync_directory(self._directory)
        self.latest, self.voters = snapshot, voters
        for older in self._names():
            if older < snapshot:
                self._files.unlink(self._path(older))

    # Pieces -----------------------------------------------------------------------------------------------------------

    def piece(self, snapshot: SnapshotId, position: int, bytes_max: int) -> tuple[int, bytes] | None:
        """The size of a snapshot, and a piece of it; None if the snapshot is deleted."""
        try:
            file = self._files.open(self._path(snapshot), create=False, writable=False)
        except FileNotFoundError:
            return None
        try:
            return file.size(), file.pread(bytes_max, position)
        finally:
            file.close()

    def received(self, snapshot: SnapshotId | None, source: int) -> int:
        """How many bytes of a snapshot have been received from a node.

        The pieces of another snapshot do not count, nor do the pieces of another node: its file has the same records,
        but not the same bytes.
        """
        return self._received if (snapshot, source) == self._receiving else 0

    def give_up(self) -> None:
        """Drop the pieces received so far."""
        self._receiving, self._received = None, 0

    def receive(self, snapshot: SnapshotId, source: int, position: int, data: bytes, *, size: int) -> bool:
        """Write a piece from a node; return whether the snapshot is complete."""
        if position != self.received(snapshot, source):
            return False
        self._receiving = (snapshot, source)
        self._received = position
        self._put(snapshot, data, position)
        self._received += len(data)
        if self._received < size:
            return False
        self.give_up()
        try:
            voters, _values = decode(checkpoint.content(self._files, self._path(snapshot) + PART) or b"")
        except LogError:
            # The file is damaged: fetch it again from the beginning.
            return False
        self._complete(snapshot, voters)
        return True


# The file -------------------------------------------------------------------------------------------------------------


def encode(voters: VoterSet, values: Iterable[bytes], *, timestamp: int) -> bytes:
    """The bytes of a snapshot."""
    found = bytearray()
    offset = 0
    begin = BatchBuilder(base_offset=0, leader_epoch=0, is_control=True)
    begin.append(timestamp=timestamp, key=control_key(ControlType.SNAPSHOT_HEADER), value=_HEADER.pack(0, timestamp, 0))
    add_voters(begin, voters, timestamp=timestamp)
    offset += begin.record_count
    found += begin.build()
    kept = list(values)
    for start in range(0, len(kept), RECORDS_PER_BATCH):
        batch = BatchBuilder(base_offset=offset, leader_epoch=0)
        for value in kept[start : start + RECORDS_PER_BATCH]:
            batch.append(timestamp=timestamp, key=None, value=value)
        offset += batch.record_count
        found += batch.build()
    end = BatchBuilder(base_offset=offset, leader_epoch=0, is_control=True)
    end.append(timestamp=timestamp, key=control_key(ControlType.SNAPSHOT_FOOTER), value=_FOOTER.pack(0, 0))
    return bytes(found + end.build())


def decode(data: bytes) -> tuple[VoterSet, list[bytes]]:
    """The voters and the records in a snapshot; raises a `LogError` if it is incomplete."""
    voters: VoterSet | None = None
    values: list[bytes] = []
    is_whole = False
    for batch in batches(data):
        batch.check_crc()
        for record in batch.records():
            if not batch.header.is_control:
                values.append(record.value or b"")
                continue
            kind = control_type(record)
            is_whole = kind == ControlType.SNAPSHOT_FOOTER
            if kind == ControlType.KRAFT_VOTERS:
                voters = decode_voters(record.value or b"")
    if voters is None or not is_whole:
        raise LogError(f"{len(data)} bytes are not a complete snapshot")
    return voters, values
