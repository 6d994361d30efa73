"""Claims about snapshots: files that are complete or absent, and logs that start where they end."""

from itertools import product
from random import Random

import pytest
from cases import case
from controller_nodes import Trio
from raft_nodes import DIRECTORY, QuorumNode, voters
from replication_nodes import batch_of, contents

from minibroker.log.batch import batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.errors import LogError
from minibroker.log.memory import MemoryFiles
from minibroker.raft.messages import Fetch, FetchSnapshot, SnapshotId
from minibroker.raft.node import Raft
from minibroker.raft.snapshots import RECORDS_PER_BATCH, SnapshotFiles, decode, encode
from minibroker.simulation.disk import Disk
from minibroker.simulation.process import Died
from minibroker.wire.codes import ErrorCode

VALUES = [f"value {number}".encode() for number in range(RECORDS_PER_BATCH + 3)]
SNAPSHOT = SnapshotId(4711, 7)


def files_with(snapshot: SnapshotId = SNAPSHOT) -> tuple[MemoryFiles, SnapshotFiles]:
    files = MemoryFiles()
    files.mkdir(DIRECTORY)
    snapshots = SnapshotFiles(files, DIRECTORY)
    snapshots.write(snapshot, voters(1, 2, 3), VALUES, timestamp=5)
    return files, snapshots


def test_a_snapshot_is_a_short_log_in_kafkas_format() -> None:
    data = encode(voters(1, 2, 3), VALUES, timestamp=5)
    found = list(batches(data))
    records = [record for batch in found for record in batch.records()]
    assert [it.offset for it in records] == list(range(len(VALUES) + 3))
    first, second, last = records[0], records[1], records[-1]
    kinds = [ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VOTERS, ControlType.SNAPSHOT_FOOTER]
    assert [control_type(it) for it in (first, second, last)] == kinds
    assert first.value == b"\0\0" + (5).to_bytes(8, "big") + b"\0"  # version, timestamp, no tagged fields
    assert last.value == b"\0\0\0"
    assert decode(data) == (voters(1, 2, 3), VALUES)


def test_a_snapshot_survives_a_power_cut_and_older_ones_are_deleted() -> None:
    files, snapshots = files_with(SnapshotId(10, 1))
    snapshots.write(SNAPSHOT, voters(1), [b"x"], timestamp=0)
    assert files.list(DIRECTORY) == ["00000000000000004711-0000000007.checkpoint"]
    files.crash(Random(1))
    again = SnapshotFiles(files, DIRECTORY)
    assert (again.latest, again.voters, again.values()) == (SNAPSHOT, voters(1), [b"x"])


def test_a_truncated_snapshot_is_refused_and_an_unfinished_one_is_ignored() -> None:
    for size in (0, 1, 60, 200, -1, -70):
        with case(f"data[:{size}]"):
            files, _snapshots = files_with(SnapshotId(10, 1))
            data = encode(voters(1), VALUES, timestamp=0)
            with pytest.raises(LogError):
                decode(data[:size])
            path = f"{DIRECTORY}/00000000000000004711-0000000007.checkpoint"
            files.open(f"{path}.part").pwrite(data[:size], 0)
            assert SnapshotFiles(files, DIRECTORY).latest == SnapshotId(10, 1)
            files.open(path).pwrite(data[:size], 0)
            with pytest.raises(
                LogError, match=r"4711-0000000007\.checkpoint is damaged .*: restore it, or .* as a new voter"
            ):
                SnapshotFiles(files, DIRECTORY)


def test_a_flipped_bit_in_a_snapshot_is_noticed_or_harmless() -> None:
    """A damaged snapshot that was ignored once let a node lead without half of the committed records."""
    files, _snapshots = files_with()
    file = files.open(f"{DIRECTORY}/00000000000000004711-0000000007.checkpoint")
    data = file.pread(file.size(), 0)
    # All bytes of the first two batches and of the last one, and some of the bytes between them.
    places = [*range(300), *range(300, len(data) - 100, 211), *range(len(data) - 100, len(data))]
    refused = 0
    for place in places:
        file.pwrite(bytes([data[place] ^ 1 << place % 8]), place)
        try:
            found = SnapshotFiles(files, DIRECTORY)
            assert (found.latest, found.voters, found.values()) == (SNAPSHOT, voters(1, 2, 3), VALUES)
        except LogError:
            refused += 1
        file.pwrite(data[place : place + 1], place)
    # Only the base offset and the leader epoch of a batch are outside its checksum, and they are not used here.
    assert refused >= len(places) - 4 * (8 + 4)


SOURCE = 1


def carry(source: SnapshotFiles, target: SnapshotFiles, snapshot: SnapshotId, bytes_max: int) -> None:
    while True:
        position = target.received(snapshot, SOURCE)
        found = source.piece(snapshot, position, bytes_max)
        assert found is not None
        if target.receive(snapshot, SOURCE, position, found[1], size=found[0]):
            return


def test_a_snapshot_arrives_in_pieces() -> None:
    _files, source = files_with()
    other = MemoryFiles()
    other.mkdir(DIRECTORY)
    target = SnapshotFiles(other, DIRECTORY)
    carry(source, target, SNAPSHOT, 997)
    assert (target.latest, target.voters, target.values()) == (SNAPSHOT, voters(1, 2, 3), VALUES)
    assert source.piece(SnapshotId(1, 1), 0, 10) is None


def test_pieces_of_another_snapshot_do_not_count() -> None:
    """A leader may write a newer snapshot while an older one is fetched: then the fetch starts again."""
    _files, source = files_with(SnapshotId(10, 1))
    other = MemoryFiles()
    other.mkdir(DIRECTORY)
    target = SnapshotFiles(other, DIRECTORY)
    size, data = source.piece(SnapshotId(10, 1), 0, 500) or (0, b"")
    assert not target.receive(SnapshotId(10, 1), SOURCE, 0, data, size=size)
    assert target.received(SnapshotId(10, 1), SOURCE) == 500
    # The file of another node has the same records, but not the same bytes.
    assert target.received(SnapshotId(10, 1), SOURCE + 1) == 0
    source.write(SNAPSHOT, voters(1), VALUES, timestamp=0)
    assert target.received(SNAPSHOT, SOURCE) == 0
    carry(source, target, SNAPSHOT, 400)
    assert (target.latest, target.values()) == (SNAPSHOT, VALUES)


def test_a_repeated_piece_counts_once_and_a_damaged_snapshot_is_fetched_again() -> None:
    _files, source = files_with()
    other = MemoryFiles()
    other.mkdir(DIRECTORY)
    target = SnapshotFiles(other, DIRECTORY)
    size, data = source.piece(SNAPSHOT, 0, 500) or (0, b"")
    target.receive(SNAPSHOT, SOURCE, 0, data, size=size)
    assert not target.receive(SNAPSHOT, SOURCE, 0, data, size=size)
    assert target.received(SNAPSHOT, SOURCE) == 500
    assert not target.receive(SNAPSHOT, SOURCE, 500, bytes(size - 500), size=size)
    assert (target.latest, target.received(SNAPSHOT, SOURCE)) == (None, 0)
    carry(source, target, SNAPSHOT, 10_000)
    assert target.latest == SNAPSHOT


# The log --------------------------------------------------------------------------------------------------------------


def leader_with(*values: bytes, snapshot_after: int) -> tuple[QuorumNode, SnapshotFiles, Raft]:
    """An only voter, with a snapshot after `snapshot_after` values."""
    node = QuorumNode(1, voters(1), chance=lambda _below: 0)
    raft = node.open(0)
    snapshots = SnapshotFiles(node.files, DIRECTORY)
    raft.snapshots = snapshots
    raft.tick(0)
    for number, value in enumerate(values, start=1):
        raft.append(batch_of(value))
        if number == snapshot_after:
            snapshot = SnapshotId(raft.high_watermark, raft.epoch)
            snapshots.write(snapshot, raft.voters, [b"x"], timestamp=0)
            raft.forget_before(snapshot)
    return node, snapshots, raft


def test_only_committed_records_go_into_a_snapshot() -> None:
    _node, _snapshots, raft = leader_with(b"a", snapshot_after=1)
    with pytest.raises(AssertionError, match="only committed records"):
        raft.forget_before(SnapshotId(raft.high_watermark + 1, 1))


def test_a_follower_that_needs_deleted_records_is_told_of_the_snapshot() -> None:
    _node, snapshots, raft = leader_with(b"a", b"b", snapshot_after=1)
    start = raft.log.log_start_offset
    key = voters(2).key_of(2)
    assert raft.on_fetch(Fetch(raft.epoch, key, start - 1, raft.epoch), 0).snapshot == snapshots.latest
    assert raft.on_fetch(Fetch(raft.epoch, key, 0, -1), 0).snapshot == snapshots.latest
    found = raft.on_fetch(Fetch(raft.epoch, key, start, raft.epoch), 0)
    assert found.snapshot is None
    assert len(found.records) > 0


def test_a_follower_that_ends_at_the_log_start_in_another_epoch_diverges() -> None:
    """The log no longer has the epoch of the record before its start. The snapshot has."""
    _node, snapshots, raft = leader_with(b"a", snapshot_after=1)
    raft.resign(0)
    raft.tick(10_000)  # it leads again, in another epoch, which begins where the log starts
    assert raft.is_leader
    start, key = raft.log.log_start_offset, voters(2).key_of(2)
    assert snapshots.latest == SnapshotId(start, 1)
    assert raft.on_fetch(Fetch(raft.epoch, key, start, 1), 0).snapshot is None
    assert raft.on_fetch(Fetch(raft.epoch, key, start, 0), 0).snapshot == snapshots.latest
    # A follower whose last epoch is before the snapshot's diverges, however long its log is.
    assert raft.on_fetch(Fetch(raft.epoch, key, start + 1, 0), 0).snapshot == snapshots.latest


def test_a_crash_between_snapshot_and_log_does_no_harm() -> None:
    """A follower crashes while a snapshot replaces its log: after a restart it has the old log, or the snapshot."""
    for changes, is_diverging in product(range(40), (False, True)):
        with case(f"the disk died after {changes} changes, diverging: {is_diverging}"):
            disk = Disk(Random(changes))
            node = QuorumNode(2, voters(1, 2, 3), chance=lambda _below: 0, files=disk)  # type: ignore[arg-type]
            raft = node.open(0)
            for value in (b"a", b"b", b"c")[: 3 if is_diverging else 1]:
                raft.log.append(batch_of(value), leader_epoch=1)
            raft.log.flush()
            end_offset, snapshot = raft.log.log_end_offset, SnapshotId(3 if is_diverging else 9, 4)
            disk.die_after(changes)
            snapshots = SnapshotFiles(disk, DIRECTORY)
            raft.snapshots, raft.snapshot_wanted = snapshots, snapshot
            data = encode(voters(1, 2, 3), [b"x"], timestamp=0)
            try:
                assert snapshots.receive(snapshot, SOURCE, 0, data, size=len(data))
                raft.on_snapshot(snapshot, voters(1, 2, 3))
                disk.die_after(None)
            except Died:
                pass
            disk.kill()
            found = SnapshotFiles(disk, DIRECTORY)
            again = node.open(0, snapshots=found)
            if found.latest is None:
                assert (again.log.log_end_offset, again.last_epoch) == (end_offset, 1)
            else:
                assert (again.log.log_start_offset, again.log.log_end_offset) == (
                    snapshot.end_offset,
                    snapshot.end_offset,
                )
                assert (again.last_epoch, again.high_watermark) == (snapshot.epoch, snapshot.end_offset)


def test_a_log_that_contains_the_snapshot_keeps_the_records_after_it() -> None:
    """The process died after the snapshot was written, and before records were deleted from the log."""
    node = QuorumNode(1, voters(1), chance=lambda _below: 0)
    raft = node.open(0)
    raft.tick(0)
    for value in (b"a", b"b"):
        raft.append(batch_of(value))
    snapshots = SnapshotFiles(node.files, DIRECTORY)
    snapshots.write(SnapshotId(3, 1), raft.voters, [b"x"], timestamp=0)
    again = node.open(0, snapshots=SnapshotFiles(node.files, DIRECTORY))
    assert (again.log.log_start_offset, again.log.log_end_offset) == (3, 4)
    assert [value for offset, _epoch, value in contents(again) if offset >= 3] == [b"b"]


def test_a_log_whose_deleted_records_are_in_no_snapshot_is_refused() -> None:
    """As in Kafka. Otherwise a node would go on without some of the committed records."""
    node, snapshots, raft = leader_with(b"a", b"b", snapshot_after=1)
    start, latest = raft.log.log_start_offset, snapshots.latest
    assert latest is not None
    assert node.open(0, snapshots=SnapshotFiles(node.files, DIRECTORY)).log.log_start_offset == start
    node.files.unlink(f"{DIRECTORY}/{latest.end_offset:020d}-{latest.epoch:010d}.checkpoint")
    with pytest.raises(LogError, match=rf"starts at offset {start}, and the newest snapshot ends at 0: .* are gone"):
        node.open(0, snapshots=SnapshotFiles(node.files, DIRECTORY))


# Liveness -------------------------------------------------------------------------------------------------------------


def test_a_voter_that_gets_no_records_still_counts_as_heard() -> None:
    """Fetching a snapshot takes time. If the leader resigned meanwhile, the follower would never catch up."""
    for asks in ("for a piece", "for what is in the snapshot", "with another log", None):
        with case(f"it asks {asks}"):
            trio = Trio()
            trio.elect(1)
            trio.pump()
            raft = trio.nodes[1].raft
            raft.snapshots = snapshots = SnapshotFiles(trio.nodes[1].files, DIRECTORY)
            latest, key = SnapshotId(raft.high_watermark, raft.epoch), raft.voters.key_of(2)
            snapshots.write(latest, raft.voters, [b"x"], timestamp=0)
            raft.forget_before(latest)
            for now_ms in range(trio.now_ms + 400, trio.now_ms + 4 * raft.settings.check_quorum_ms, 400):
                if asks == "for a piece":
                    assert raft.on_fetch_snapshot(FetchSnapshot(raft.epoch, key, latest, 0), now_ms) is ErrorCode.NONE
                elif asks == "for what is in the snapshot":
                    assert raft.on_fetch(Fetch(raft.epoch, key, 0, -1), now_ms).snapshot == latest
                elif asks is not None:
                    assert raft.on_fetch(Fetch(raft.epoch, key, latest.end_offset + 9, raft.epoch), now_ms).diverging
                raft.tick(now_ms)
            assert raft.is_leader == (asks is not None)
            # The voter is alive, but its progress is not known.
            assert raft.high_watermark == latest.end_offset
            stale = FetchSnapshot(raft.epoch - 1, key, latest, 0)
            assert raft.on_fetch_snapshot(stale, 0) is ErrorCode.FENCED_LEADER_EPOCH
