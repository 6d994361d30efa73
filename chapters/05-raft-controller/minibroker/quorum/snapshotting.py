"""Snapshots of the metadata: when to write one, how to read one, and the download of the leader's snapshot.

`Snapshotting` runs no task and sends no requests. It tells the driver which piece to fetch next, and takes the response
from the driver. It gives the handler of FetchSnapshot the piece to send. `SnapshotFiles`, in `raft.snapshots`, has the
files.
"""

import logging
from dataclasses import replace

from minibroker.controller.deciding import Controller
from minibroker.controller.snapshot import records_of
from minibroker.log.clock import wall_clock_ms
from minibroker.metadata.image import Builder, Image
from minibroker.metadata.records import decode_record, encode_record
from minibroker.raft.messages import FetchSnapshot, SnapshotFetched, SnapshotId
from minibroker.raft.node import Raft
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

SNAPSHOT_PIECE_BYTES = 1024**2


class Snapshotting:
    """Keeps the metadata log short: a snapshot replaces its records when the log is larger than `log_bytes_max`."""

    def __init__(
        self, raft: Raft, controller: Controller, files: SnapshotFiles, *, cluster_id: str, log_bytes_max: int
    ) -> None:
        self._raft = raft
        self._controller = controller
        self._files = files
        self._cluster_id = cluster_id
        self._log_bytes_max = log_bytes_max

    def image(self) -> Image:
        """The image of the newest snapshot; an empty image if there is no snapshot."""
        empty, latest = Image(cluster_id=self._cluster_id), self._files.latest
        if latest is None:
            return empty
        # The last record of the snapshot gets the offset before the snapshot's end offset. The image gets the same
        # offset.
        builder = Builder(empty)
        values = self._files.values()
        for offset, value in enumerate(values, latest.end_offset - len(values)):
            builder.fold(decode_record(value), offset)
        return replace(builder.build(), offset=latest.end_offset - 1)

    def write_if_due(self) -> None:
        """If the log is too large, write a snapshot, and delete the records before its end offset from the log."""
        raft, image = self._raft, self._controller.image
        end_offset = image.offset + 1
        latest = self._files.latest
        if raft.log.size < self._log_bytes_max or end_offset > raft.high_watermark:
            return
        if latest is not None and end_offset <= latest.end_offset:
            return
        snapshot = SnapshotId(end_offset, raft.epochs.epoch_of(image.offset))
        values = [encode_record(record) for record in records_of(image)]
        self._files.write(snapshot, raft.history.at(end_offset), values, timestamp=wall_clock_ms())
        raft.forget_before(snapshot)

    # The leader's snapshot --------------------------------------------------------------------------------------------

    def position(self) -> FetchSnapshot | None:
        """The next piece of a snapshot to fetch, or None if no snapshot is needed."""
        raft = self._raft
        return raft.snapshot_position(self._files.received(raft.snapshot_wanted, raft.target()))

    def take(self, wanted: FetchSnapshot, source: int, found: SnapshotFetched, now_ms: int) -> bool:
        """Store the piece in a response. Return False if there is none. The last piece puts the snapshot into use."""
        if found.code is ErrorCode.SNAPSHOT_NOT_FOUND:
            # The leader no longer has this snapshot, so its pieces are useless. After any other error they are kept,
            # because the same leader may answer again later.
            self._files.give_up()
        if not self._raft.on_snapshot_fetched(found, now_ms):
            return False
        if self._files.receive(wanted.snapshot, source, found.position, found.data, size=found.size):
            assert self._files.voters is not None
            self._raft.on_snapshot(wanted.snapshot, self._files.voters)
            self._controller.reset(self.image())
            log.info(
                "the metadata log continues from the leader's snapshot of all records before offset %d",
                wanted.snapshot.end_offset,
            )
        return True

    def piece(self, wanted: FetchSnapshot, now_ms: int, *, bytes_max: int) -> SnapshotFetched:
        """The response to a replica that fetches a piece of a snapshot."""
        code, raft = self._raft.on_fetch_snapshot(wanted, now_ms), self._raft
        found = self._files.piece(wanted.snapshot, wanted.position, min(bytes_max, SNAPSHOT_PIECE_BYTES))
        if code is ErrorCode.NONE and found is None:
            code = ErrorCode.SNAPSHOT_NOT_FOUND
        size, data = found if code is ErrorCode.NONE and found is not None else (0, b"")
        return SnapshotFetched(code, raft.epoch, raft.leader_id, size, wanted.position, data)
