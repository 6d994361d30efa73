"""Raft works on any log that satisfies `QuorumLog`: here a list of batches in memory."""

from raft_nodes import DIRECTORY, directory_id, voters
from replication_nodes import batch_of, contents

from minibroker.log.batch import batches, read_header, stamp
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.raft.election import Ballot
from minibroker.raft.log import QuorumLog
from minibroker.raft.messages import Fetched, SnapshotId
from minibroker.raft.node import Raft
from minibroker.raft.voters import VoterKey
from minibroker.replication.epochs import EpochCache


class ListLog:
    """Batches in a list. There is no disk, so everything counts as flushed."""

    failure: str | None = None

    def __init__(self, epochs: EpochCache) -> None:
        self._epochs = epochs
        self._batches: list[bytes] = []
        self.log_start_offset = 0
        self.log_end_offset = 0

    @property
    def flushed_offset(self) -> int:
        return self.log_end_offset

    @property
    def size(self) -> int:
        return sum(map(len, self._batches))

    def append(self, batch: bytearray | memoryview, *, leader_epoch: int, log_append_time_ms: int | None = None) -> int:
        assert log_append_time_ms is None
        base_offset = self.log_end_offset
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        self.append_as_follower(memoryview(batch))
        return base_offset

    def append_as_follower(self, records: memoryview) -> None:
        for batch in batches(bytes(records)):
            self._epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
            self._batches.append(bytes(batch.view))
            self.log_end_offset = batch.header.next_offset

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        assert bytes_max > self.size
        end = self.log_end_offset if upto_offset is None else upto_offset
        headers = [(it, read_header(it)) for it in self._batches]
        data = b"".join(it for it, header in headers if header.next_offset > offset and header.base_offset < end)
        file = MemoryFiles().open("read")
        file.pwrite(data, 0)
        return FileSlice(file, 0, len(data))

    def truncate(self, offset: int) -> None:
        self._batches = [it for it in self._batches if read_header(it).next_offset <= offset]
        self.log_end_offset = read_header(self._batches[-1]).next_offset if self._batches else self.log_start_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._batches = []
        self.log_start_offset = self.log_end_offset = offset

    def delete_before(self, offset: int) -> None:
        self._batches = [it for it in self._batches if read_header(it).next_offset > offset]
        self.log_start_offset = offset

    def roll(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def node(node_id: int, *voter_ids: int) -> Raft:
    files = MemoryFiles()
    epochs = EpochCache(files, DIRECTORY)
    log: QuorumLog = ListLog(epochs)
    ballot = Ballot(files, DIRECTORY)
    key = VoterKey(node_id, directory_id(node_id))
    return Raft(key, log, epochs, ballot, voters(*voter_ids), chance=lambda _below: 0, now_ms=0)


def follow(follower: Raft, leader: Raft, now_ms: int) -> Fetched:
    request = follower.position()
    assert request is not None
    fetched = leader.on_fetch(request, now_ms)
    follower.on_fetched(request, fetched, now_ms)
    return fetched


def test_raft_appends_to_copies_and_truncates_a_log_in_memory() -> None:
    leader, observer = node(1, 1), node(2, 1)
    leader.tick(0)
    leader.append(batch_of(b"a"))
    for now_ms in (1, 2, 3):
        follow(observer, leader, now_ms)
    assert contents(observer) == contents(leader) == [(0, 1, b"*"), (1, 1, b"*"), (2, 1, b"a")]
    assert observer.high_watermark == leader.high_watermark == 3
    # The log deletes the records that are in a snapshot.
    leader.forget_before(SnapshotId(2, 1))
    assert contents(leader) == [(2, 1, b"a")]
    assert leader.voters == voters(1)
    # A replica whose log diverges truncates it to what the leader has.
    other = node(3, 1)
    other.log.append(batch_of(b"x", b"y", b"z"), leader_epoch=1)
    other.log.append(batch_of(b"too much"), leader_epoch=1)
    for now_ms in (4, 5):
        follow(other, leader, now_ms)
    assert other.log.log_end_offset == leader.log.log_end_offset
