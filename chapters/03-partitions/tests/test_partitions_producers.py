"""Idempotent producers: which batches are accepted, known or refused, and what a restart restores."""

import struct
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.log.batch import BatchBuilder, BatchHeader, read_header, stamp
from minibroker.log.control import ControlType, build_marker
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.partitions.errors import Refused
from minibroker.partitions.producers import (
    SEQUENCE_MAX,
    DamagedSnapshot,
    Duplicate,
    ProducerState,
    ProducerStates,
    decode_snapshot,
    encode_snapshot,
)
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

DIRECTORY = "data/orders-0"
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
PRODUCER = 4711


def batch(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PRODUCER, now_ms: int = 1000, txn: bool = False
) -> bytearray:
    builder = BatchBuilder(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=txn)
    for n in range(count):
        builder.append(timestamp=now_ms, key=b"k%d" % (n % 3), value=b"v")
    return builder.build()


def marker(epoch: int) -> bytearray:
    return build_marker(
        ControlType.COMMIT, producer_id=PRODUCER, producer_epoch=epoch, coordinator_epoch=1, timestamp=1000
    )


def header_of(one: bytearray, base_offset: int = 0) -> BatchHeader:
    stamp(one, base_offset=base_offset, leader_epoch=0)
    return read_header(one)


class Partition:
    """A log with its producers, as a broker uses them."""

    def __init__(self, files: MemoryFiles | None = None, config: LogConfig = SMALL, **opening: int | bool) -> None:
        self.files = files or MemoryFiles()
        self.producers = ProducerStates(self.files, DIRECTORY)
        self.replayed = 0
        replay = self.producers.replay

        def counted(header: BatchHeader, batch: FileSlice) -> None:
            self.replayed += 1
            replay(header, batch)

        self.producers.replay = counted  # type: ignore[assignment,method-assign]
        self.log = SegmentedLog.open(self.files, DIRECTORY, config, companions=[self.producers], **opening)  # type: ignore[arg-type]

    def send(self, one: bytearray) -> int | Duplicate | ErrorCode:
        """The offset of a batch, or why it was not appended."""
        try:
            duplicate = self.producers.check(read_header(one))
        except Refused as refused:
            return refused.code
        return self.log.append(one) if duplicate is None else duplicate

    def snapshots(self) -> list[int]:
        return [int(name[:20]) for name in self.files.list(DIRECTORY) if name.endswith(".snapshot")]

    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.log.segments]

    def known(self) -> dict[int, tuple[int, int, int, int]]:
        """What a snapshot would hold of each producer."""
        states = self.producers.producers
        return {it: (s.epoch, s.last_sequence, s.last_offset, s.timestamp) for it, s in states.items()}


# The rules ------------------------------------------------------------------------------------------------------------


def test_a_batch_without_a_producer_passes_and_leaves_nothing() -> None:
    partition = Partition()
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=b"v")
    assert partition.send(builder.build()) == 0
    assert partition.known() == {}
    # The id 0 is a producer's.
    assert [partition.send(batch(0, producer=0)), partition.send(batch(0, producer=0))] == [1, Duplicate(1, 1, 1000)]


def test_sequences_follow_each_other_by_the_number_of_records() -> None:
    partition = Partition()
    assert [partition.send(batch(0, 3)), partition.send(batch(3, 2)), partition.send(batch(5))] == [0, 3, 5]


def test_each_of_the_last_five_batches_is_known_by_its_offset() -> None:
    partition = Partition()
    for n in range(6):
        assert partition.send(batch(2 * n, 2, now_ms=1000 + n)) == 2 * n
    for n in range(1, 6):
        assert partition.send(batch(2 * n, 2)) == Duplicate(2 * n, 2 * n + 1, 1000 + n)
    assert partition.send(batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.log.log_end_offset == 12


def test_a_batch_of_the_same_sequence_but_another_size_is_no_duplicate() -> None:
    partition = Partition()
    partition.send(batch(0, 3))
    assert partition.send(batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The same last sequence with fewer records: the producer has built other batches from them.
    assert partition.send(batch(1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(2, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused() -> None:
    partition = Partition()
    partition.send(batch(0, 3))
    assert partition.send(batch(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(3)) == 3


def test_an_unknown_producer_may_begin_with_any_sequence_in_a_log_that_has_had_records() -> None:
    """Its own batches may have been deleted, or it may have expired (KIP-360)."""
    partition = Partition()
    partition.send(batch(0, producer=2))
    assert partition.send(batch(77, epoch=5)) == 1
    assert partition.send(batch(79, epoch=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # After a clean close no batch is read again, but the log has had records.
    partition.log.close()
    partition = Partition(partition.files, is_clean=True)
    assert (partition.replayed, partition.send(batch(4, producer=5))) == (0, 2)
    # Records that have been deleted count as well, also after a restart.
    partition.log.truncate_fully_and_start_at(2)
    assert partition.send(batch(5, producer=3)) == 2
    partition.log.delete_before(3)
    again = Partition(partition.files, log_start_offset=3)
    assert again.log.log_start_offset == again.log.log_end_offset == 3
    assert again.send(batch(8, producer=4)) == 3


def test_a_producers_later_batch_is_refused_in_a_log_that_never_had_a_record() -> None:
    """KAFKA-15591: the first batch was refused retriably, and the next one has overtaken it."""
    partition = Partition()
    assert partition.send(batch(3, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # An empty log that was closed and opened again has not had records either.
    partition.log.close()
    partition = Partition(partition.files, is_clean=True)
    assert partition.send(batch(3, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [partition.send(batch(0, 3)), partition.send(batch(3, 2))] == [0, 3]
    # A log that was truncated to its beginning has no record of the batches that its producer sent before.
    partition.log.truncate(0)
    assert partition.send(batch(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.log.log_end_offset == 0


def test_a_new_epoch_begins_with_zero_and_ends_the_old_one() -> None:
    partition = Partition()
    partition.send(batch(0))
    assert partition.send(batch(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(0, epoch=1)) == 1
    assert partition.send(batch(1, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.send(batch(0, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.send(batch(0, epoch=1)) == Duplicate(1, 1, 1000)


def test_after_the_largest_sequence_comes_zero() -> None:
    partition = Partition()
    partition.log.append(batch(SEQUENCE_MAX - 1, 4))
    assert partition.producers.producers[PRODUCER].last_sequence == 1
    assert partition.producers.producers[PRODUCER].batches[0].base_sequence == SEQUENCE_MAX - 1
    assert partition.send(batch(SEQUENCE_MAX - 1, 4)) == Duplicate(0, 3, 1000)
    assert partition.send(batch(2)) == 4
    partition = Partition()
    partition.log.append(batch(SEQUENCE_MAX))
    assert partition.send(batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(0)) == 1


def test_a_producer_with_a_negative_sequence_or_epoch_is_refused() -> None:
    partition = Partition()
    assert partition.send(batch(-1)) is ErrorCode.INVALID_RECORD
    assert partition.send(batch(0, epoch=-1)) is ErrorCode.INVALID_RECORD


def test_what_was_checked_but_not_written_leaves_no_trace() -> None:
    partition = Partition()
    partition.producers.check(header_of(batch(0)))
    assert partition.known() == {}
    assert partition.send(batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(0)) == 0


def test_a_marker_ends_the_transaction_and_brings_its_epoch() -> None:
    partition = Partition()
    partition.send(batch(0, 2, txn=True, now_ms=900))
    state = partition.producers.producers[PRODUCER]
    assert state.current_txn_first_offset == 0
    partition.send(batch(2, txn=True, now_ms=900))
    assert state.current_txn_first_offset == 0
    assert partition.send(marker(epoch=0)) == 3
    assert (state.current_txn_first_offset, state.last_sequence, state.timestamp) == (-1, 2, 1000)
    assert partition.producers.last_markers() == set()
    partition.send(marker(epoch=1))
    assert (state.epoch, state.last_sequence) == (1, -1)
    assert partition.producers.last_markers() == {(PRODUCER, 1)}
    assert partition.send(marker(epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.send(batch(3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(batch(0, epoch=1)) == 5
    # A marker has no sequence, so a producer may also begin with one.
    assert Partition().send(marker(epoch=0)) == 0


def test_a_silent_producer_is_forgotten_unless_it_is_in_a_transaction() -> None:
    partition = Partition()
    partition.producers.expiration_ms = 500
    partition.send(batch(0, now_ms=1000))
    partition.send(batch(0, now_ms=1200, producer=2))
    partition.send(batch(0, now_ms=1000, producer=3, txn=True))
    assert partition.producers.expire(1499) == 0
    assert partition.producers.expire(1500) == 1
    assert sorted(partition.known()) == [2, 3]
    assert partition.send(batch(9)) == 3
    assert partition.producers.last_offsets() == {(PRODUCER, 3), (2, 1), (3, 2)}


# Snapshots ------------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_kafkas_byte_for_byte() -> None:
    """ProducerSnapshot.json: version, crc, an array of producers; all numbers are big-endian, none is a varint."""
    state = ProducerState()
    state.update(header_of(batch(7, 3, epoch=2, now_ms=0x0102030405), base_offset=100))
    body = b"".join(
        (
            struct.pack(">i", 1),
            struct.pack(">q", PRODUCER),
            struct.pack(">h", 2),
            struct.pack(">i", 9),  # last sequence
            struct.pack(">q", 102),  # last offset
            struct.pack(">i", 2),  # offset delta
            struct.pack(">q", 0x0102030405),
            struct.pack(">i", -1),  # coordinator epoch
            struct.pack(">q", -1),  # no transaction
        )
    )
    assert encode_snapshot({PRODUCER: state}).hex() == (struct.pack(">hI", 1, crc32c(body)) + body).hex()


def test_a_snapshot_has_all_of_a_producer_but_its_earlier_batches() -> None:
    state = ProducerState(coordinator_epoch=7)
    for sequence in range(2):
        state.update(header_of(batch(sequence, epoch=2, txn=True), base_offset=sequence))
    again = decode_snapshot(encode_snapshot({PRODUCER: state}))[PRODUCER]
    assert again.batches == state.batches[-1:]
    found = (again.epoch, again.timestamp, again.coordinator_epoch, again.current_txn_first_offset)
    assert found == (2, 1000, 7, 0)


def test_a_snapshot_without_producers_is_ten_bytes() -> None:
    assert encode_snapshot({}) == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
    assert decode_snapshot(encode_snapshot({})) == {}


def test_every_cut_and_every_flipped_bit_of_a_snapshot_is_noticed() -> None:
    state = ProducerState()
    state.update(header_of(batch(7, 3)))
    whole = encode_snapshot({PRODUCER: state, 5: state})
    assert list(decode_snapshot(whole)) == [PRODUCER, 5]
    for size in range(len(whole)):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(whole[:size])
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(bytes(flipped))
    count = struct.pack(">i", 2)
    with pytest.raises(DamagedSnapshot, match="header has 2 producers"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(count)) + count)


# Restarts -------------------------------------------------------------------------------------------------------------


def filled(count: int = 20, config: LogConfig = SMALL) -> Partition:
    partition = Partition(config=config)
    for n in range(count):
        partition.send(batch(n, producer=PRODUCER))
        partition.send(batch(n, producer=2, now_ms=n))
    return partition


def test_there_is_a_snapshot_for_each_segment_but_the_first() -> None:
    partition = filled()
    assert len(partition.bases()) > 3
    assert partition.snapshots() == partition.bases()[1:]


def test_after_a_clean_close_nothing_is_read_again() -> None:
    partition = filled()
    partition.log.close()
    again = Partition(partition.files, is_clean=True)
    assert again.replayed == 0
    assert again.known() == partition.known()
    assert again.snapshots() == [*partition.bases()[1:], 40]
    assert again.send(batch(19)) == Duplicate(38, 38, 1000)
    assert again.send(batch(20)) == 40


def test_after_a_crash_only_the_last_segment_is_read_again() -> None:
    partition = filled()
    again = Partition(partition.files)
    assert again.replayed == 40 - partition.bases()[-1] > 0
    assert again.known() == partition.known()


def test_the_snapshot_of_a_clean_close_goes_with_the_next_roll() -> None:
    partition = filled(19)
    partition.log.close()
    again = Partition(partition.files, is_clean=True)
    assert again.snapshots() == [*again.bases()[1:], 38]
    again.send(batch(19))
    again.log.roll()
    assert again.snapshots() == again.bases()[1:]


def test_without_any_snapshot_the_whole_log_is_read() -> None:
    partition = filled()
    partition.log.close()
    for offset in partition.snapshots():
        partition.files.unlink(f"{DIRECTORY}/{offset:020}.snapshot")
    again = Partition(partition.files, is_clean=True)
    assert again.replayed == 40
    assert again.known() == partition.known()


def test_a_damaged_snapshot_is_passed_over_for_an_older_one() -> None:
    partition = filled()
    newest, older = partition.snapshots()[-1], partition.snapshots()[-2]
    partition.files.open(f"{DIRECTORY}/{newest:020}.snapshot").pwrite(b"\xff", 12)
    again = Partition(partition.files)
    assert again.replayed == 40 - older
    assert again.known() == partition.known()
    assert newest not in again.snapshots()


def test_a_snapshot_beyond_the_end_of_the_log_is_removed_for_good() -> None:
    """The log has lost the records before it. Other records will take their offsets."""
    partition = filled()
    partition.files.open(f"{DIRECTORY}/{100:020}.snapshot").pwrite(encode_snapshot({}), 0)
    partition.files.fsync_directory(DIRECTORY)
    again = Partition(partition.files)
    assert again.known() == partition.known()
    partition.files.crash()
    assert 100 not in again.snapshots()


def test_a_snapshot_above_the_limit_of_its_owner_is_not_loaded() -> None:
    partition = filled()
    older = partition.snapshots()[-2]
    producers = ProducerStates(partition.files, DIRECTORY)
    producers.snapshot_max = lambda recovery_point: recovery_point
    assert producers.restore(log_start_offset=0, log_end_offset=40, recovery_point=older + 1) == older
    assert producers.snapshot_offset == older
    assert max(state.last_offset for state in producers.producers.values()) == older - 1


def test_a_file_whose_name_is_no_offset_is_no_snapshot() -> None:
    partition = filled()
    for name in ("39.snapshot", f"{'x' * 20}.snapshot"):
        partition.files.open(f"{DIRECTORY}/{name}")
    assert Partition(partition.files).known() == partition.known()


def test_a_full_disk_costs_a_snapshot_and_not_the_log() -> None:
    partition = filled()
    before = partition.snapshots()
    refused = partition.files.open

    def open_but_no_snapshot(path: str, *, create: bool = True, writable: bool = True) -> object:
        if path.endswith(".snapshot") and create:
            raise OSError(28, "no space left on device")
        return refused(path, create=create, writable=writable)

    partition.files.open = open_but_no_snapshot  # type: ignore[method-assign, assignment]
    partition.log.roll()
    assert partition.send(batch(20)) == 40
    assert partition.snapshots() == before


def test_truncating_takes_the_snapshots_and_the_sequences_along() -> None:
    partition = filled()
    target = partition.bases()[2] + 1
    partition.log.truncate(target)
    assert partition.snapshots() == [it for it in partition.bases()[1:] if it <= target]
    expected = Partition()
    for n in range(target):
        expected.send(batch(n // 2, producer=PRODUCER if n % 2 == 0 else 2, now_ms=1000 if n % 2 == 0 else n // 2))
    assert partition.known() == expected.known()
    partition.files.crash()
    assert Partition(partition.files).snapshots() == partition.snapshots()


def test_a_log_that_is_begun_anew_knows_no_producer() -> None:
    partition = filled()
    partition.log.truncate_fully_and_start_at(partition.bases()[2])
    assert partition.known() == {}
    assert partition.snapshots() == []
    assert partition.send(batch(33)) == partition.bases()[0]


def test_retention_takes_the_snapshots_of_what_it_deletes_and_no_producer() -> None:
    partition = filled()
    known, start = partition.known(), partition.bases()[2]
    partition.log.delete_before(start)
    assert partition.known() == known
    assert partition.snapshots() == partition.bases()
    partition.log.delete_before(start + 1)
    assert partition.snapshots() == partition.bases()[1:]
    # A start of the log that was noted before a crash has the same effect at the next start.
    again = filled()
    expected = [it for it in again.snapshots() if it >= start]
    assert Partition(again.files, log_start_offset=start).snapshots() == expected


def test_a_snapshot_before_the_logs_start_is_not_used() -> None:
    """It would know of a producer, but not of its batches that were deleted: its next one would be a gap."""
    partition = Partition(config=LogConfig())
    partition.send(batch(0))
    partition.log.roll()
    for n in range(1, 5):
        partition.send(batch(n))
    partition.send(batch(0, producer=2))
    partition.log.delete_before(5)
    again = Partition(partition.files, LogConfig(), log_start_offset=5)
    assert list(again.known()) == [2]
    assert again.send(batch(5)) == 6


def test_compaction_keeps_what_tells_the_last_sequence() -> None:
    from minibroker.segments.compaction import clean

    config = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
    partition = filled(20, config)
    partition.log.roll()
    partition.log.flush()
    for _ in range(2):  # the second time small neighbours become one
        clean(partition.log, first_dirty_offset=0, now_ms=10**9, keep_producers=partition.producers.last_offsets())
    assert len(partition.bases()) < 5
    partition.send(batch(20))
    partition.log.roll()
    assert set(partition.snapshots()) <= set(partition.bases())
    for offset in partition.snapshots():
        partition.files.unlink(f"{DIRECTORY}/{offset:020}.snapshot")
    again = Partition(partition.files, config)
    assert again.known() == partition.known()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 4)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
        st.tuples(st.just("kill"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 2**32), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 100), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(OPERATIONS)
def test_the_state_is_what_the_log_tells_through_everything(operations: list[tuple[str, int, int]]) -> None:
    """However the log came to be what it is: the last sequence of a producer with a batch in it is the right one."""
    partition = Partition()
    next_sequence: dict[int, int] = {}
    for what, number, count in operations:
        log = partition.log
        if what == "send":
            partition.send(batch(next_sequence.get(number, 0), count, producer=number))
        elif what == "roll":
            log.roll()
        elif what == "truncate":
            log.truncate(max(log.log_start_offset, log.log_end_offset - number % 7))
        elif what == "delete":
            log.delete_before(min(log.log_end_offset, log.log_start_offset + number % 7))
        else:
            start = log.log_start_offset
            if what == "close":
                log.close()
            elif what == "crash":
                partition.files.crash(Random(number))
            partition = Partition(partition.files, is_clean=what == "close", log_start_offset=start)
            log = partition.log
        in_log: dict[int, int] = {}
        for header, _batch in log._batches_from(log.log_start_offset):
            in_log[header.producer_id] = header.base_sequence + header.last_offset_delta
        known = {it: state.last_sequence for it, state in partition.producers.producers.items()}
        assert in_log == {it: known[it] for it in in_log}
        next_sequence = {it: last + 1 for it, last in known.items()}
