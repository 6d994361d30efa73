"""The transactions in a log: last stable offset, aborted transactions, and the same state after every kind of stop."""

from collections.abc import Callable
from random import Random

import pytest
from cases import case
from hypothesis import given, settings
from hypothesis import strategies as st
from transactions_log import DIRECTORY, NAME, SMALL, LoggedTransactions, Model

from minibroker.log.batch import Batch, BatchBuilder, stamp
from minibroker.log.control import ControlType
from minibroker.partitions.partition import Aborted
from minibroker.segments.compaction import clean
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.transactions.aborted import ENTRY, AbortedTransaction, encode
from minibroker.transactions.markers import Marker, marker_batch

A, B, C = 1, 2, 3


# Markers --------------------------------------------------------------------------------------------------------------


def test_a_marker_has_kafkas_bytes() -> None:
    """Sarama refused a marker whose value had another layout (trap 13)."""
    for is_commit, kind in ((False, "0000"), (True, "0001")):
        with case(is_commit):
            batch = Batch(marker_batch(Marker(7, 3, is_commit, 258), timestamp_ms=5))
            batch.check_crc()
            (record,) = batch.records()
            assert (record.timestamp, record.key) == (5, bytes.fromhex("0000" + kind))
            assert record.value == bytes.fromhex("0000" + "00000102")
            header = batch.header
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
            assert header.is_control
            assert header.is_transactional
            assert header.record_count == 1


# The last stable offset -----------------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_the_first_offset_of_the_oldest_open_transaction() -> None:
    """It is exclusive: the record at this offset is not stable (trap 9)."""
    log = LoggedTransactions()
    log.send(A, is_transactional=False)
    log.replicate()
    assert log.stable() == 1
    log.send(B, 2)
    log.send(C)
    log.send(B)
    log.replicate()
    assert log.stable() == 1
    log.commit(B)
    log.replicate()
    assert log.stable() == 3
    log.abort(C)
    log.replicate()
    assert log.stable() == 7 == log.log.log_end_offset


def test_a_transaction_whose_marker_is_not_replicated_is_not_stable() -> None:
    """Another leader may not have the marker. The end of the log is never readable (trap 14)."""
    log = LoggedTransactions()
    log.send(A, 2)
    log.replicate()
    log.commit(A)
    for high_watermark, stable in ((1, 0), (2, 0), (3, 3)):
        with case(high_watermark):
            assert log.stable(high_watermark) == stable
    # A transaction that began later, and ended earlier, does not hide another one.
    log.send(A)
    log.send(B)
    log.commit(B)
    log.commit(A)
    for high_watermark, stable in ((4, 3), (6, 3), (7, 7)):
        with case(high_watermark):
            assert log.stable(high_watermark) == stable


def test_a_marker_moves_the_last_stable_offset_only_with_the_state_that_it_changes() -> None:
    """Trap 10: the offset and the list of aborted transactions change in the same step."""
    log = LoggedTransactions()
    log.send(A)
    log.abort(A)
    log.replicate()
    assert (log.stable(), log.aborted(0, 2)) == (2, [Aborted(A, 0)])


def test_the_last_stable_offset_is_not_before_the_start_of_the_log() -> None:
    log = LoggedTransactions()
    log.send(A)
    for _ in range(12):
        log.send(B, is_transactional=False)
    log.replicate()
    assert log.stable() == 0
    log.log.delete_before(9)
    assert log.stable() == 9
    log.restart()
    assert log.stable() == 9
    # Nothing of the transaction is left in the log, so a start without a snapshot does not find it.
    log.forget_files(".snapshot")
    assert log.stable() == 13


def test_an_empty_transaction_leaves_only_its_marker() -> None:
    log = LoggedTransactions()
    log.abort(A)
    log.send(A)
    log.commit(A)
    log.replicate()
    assert (log.stable(), log.aborted(0, 3), log.index_files()) == (3, [], [])


def test_a_follower_remembers_only_transactions_that_may_be_undecided() -> None:
    """Nobody asks a follower for its last stable offset, so it must forget by itself."""
    log = LoggedTransactions(config=LogConfig())
    for _ in range(500):
        log.send(A)
        log.commit(A)
        log.replicate()
    assert len(log.transactions._decided) <= 101


def test_a_log_without_transactions_has_no_state_and_no_files() -> None:
    log = LoggedTransactions()
    for _ in range(20):
        log.send(A, is_transactional=False)
    log.restart()
    transactions = log.transactions
    assert not transactions._open
    assert not transactions._decided
    assert not transactions._index
    assert len(transactions.guards) == 0
    assert log.index_files() == []


# The index of aborted transactions ------------------------------------------------------------------------------------


def test_an_entry_of_the_index_has_kafkas_34_bytes() -> None:
    assert encode(AbortedTransaction(7, 1, 2, 3)).hex(" ", 2) == (
        "0000 0000 0000 0000 0007 0000 0000 0000 0001 0000 0000 0000 0002 0000 0000 0000 0003"
    )
    assert ENTRY.size == 34


def test_the_index_is_made_with_the_first_aborted_transaction_in_the_markers_segment() -> None:
    log = LoggedTransactions()
    log.send(A)
    log.commit(A)
    log.send(A)
    log.log.roll()
    assert log.index_files() == []
    log.abort(A)
    assert log.index_files() == [3]
    log.check()


def test_a_fetch_from_inside_an_aborted_transaction_lists_it() -> None:
    """Trap 22. A transaction that ended before, or began after, the returned bytes is not listed."""
    log = LoggedTransactions()
    for _ in range(3):
        log.send(A, 3)
        log.abort(A)
    for offset, upto_offset, firsts in (
        (0, 4, [0]),
        (2, 3, [0]),
        (3, 4, [0]),
        (4, 8, [4]),
        (2, 9, [0, 4, 8]),
        (4, 4, []),
    ):
        with case(offset, upto_offset):
            assert log.aborted(offset, upto_offset) == [Aborted(A, first) for first in firsts]


def test_the_search_goes_on_through_segments_until_an_entry_is_stable_beyond_the_range() -> None:
    """A short transaction that is decided early must not end the search for a long one that is decided late."""
    log = LoggedTransactions()
    log.send(A)
    log.send(B)
    log.abort(B)
    log.log.roll()
    for _ in range(3):
        log.send(C)
        log.abort(C)
        log.log.roll()
    log.abort(A)
    log.replicate()
    assert set(log.aborted(0, 2)) == {Aborted(A, 0), Aborted(B, 1)}
    log.check()


def test_the_end_of_a_read_is_computed_only_if_a_transaction_was_aborted_there() -> None:
    """So a read_committed fetch costs no more than another one."""
    log = LoggedTransactions()
    log.send(A)
    log.abort(A)
    log.send(A)
    log.commit(A)

    def never() -> int:
        raise AssertionError("no transaction was aborted from here on")

    assert list(log.transactions.aborted(2, never)) == []


def test_deleted_segments_take_their_index_with_them() -> None:
    log = LoggedTransactions()
    for _ in range(3):
        log.send(A)
        log.abort(A)
        log.log.roll()
    assert log.index_files() == [0, 2, 4]
    log.replicate()
    log.log.delete_before(4)
    assert log.index_files() == [4]
    assert list(log.transactions.all_aborted()) == [(A, 4, 5)]
    assert log.aborted(4, 6) == [Aborted(A, 4)]
    log.truncate(4)
    assert log.index_files() == []
    assert log.aborted(4, 6) == []


def test_a_truncated_marker_opens_its_transaction_again() -> None:
    """KIP-101 with an open transaction: the new leader has the records, but not the marker."""
    log = LoggedTransactions()
    log.send(A)
    log.replicate()
    marker = log.abort(A)
    log.truncate(marker)
    log.check(is_last=False)
    assert log.stable() == 0
    assert log.aborted(0, 1) == []
    log.commit(A)
    log.replicate()
    assert (log.stable(), log.aborted(0, 2)) == (2, [])
    log.check()


def test_a_truncated_transaction_holds_nothing_back() -> None:
    log = LoggedTransactions()
    log.send(A)
    log.commit(A)
    log.truncate(0)
    log.send(B, is_transactional=False)
    log.send(B, is_transactional=False)
    assert log.stable(1) == 1


def test_a_damaged_index_is_built_again() -> None:
    def flip(data: bytearray) -> None:
        data[1] = 9

    def shorten(data: bytearray) -> None:
        del data[-5:]

    for damage in (flip, shorten):
        with case(damage.__name__):
            log = LoggedTransactions()
            for _ in range(3):
                log.send(A)
                log.send(B)
                log.abort(A)
                log.abort(B)
                log.log.roll()
            log.replicate()
            log.data.close()
            path = f"{DIRECTORY}/{4:020}.txnindex"
            damage(log.files._names[path].cached)
            log.open()
            log.check()


# The same state after a stop ------------------------------------------------------------------------------------------


def filled() -> LoggedTransactions:
    """Decided, aborted and open transactions, and a marker that is not replicated."""
    log = LoggedTransactions()
    for _ in range(3):
        log.send(A, 2)
        log.send(B)
        log.abort(A, coordinator_epoch=4)
        log.commit(B, is_bumping=True)
        log.log.roll()
    log.send(C)
    log.send(A)
    log.send(B)
    log.replicate()
    log.commit(A)
    log.log.roll()
    log.abort(B)
    return log


def flush_and_cut_power(log: LoggedTransactions) -> None:
    log.log.flush()
    log.cut_power()


def test_the_state_after_a_stop_is_the_state_before() -> None:
    """From a snapshot, from the log alone, and after a power cut. Trap 11: the last stable offset was 0 afterwards."""
    stops: dict[str, Callable[[LoggedTransactions], object]] = {
        "restart": LoggedTransactions.restart,
        "kill": LoggedTransactions.kill,
        "power": flush_and_cut_power,
        "log alone": lambda log: log.forget_files(".snapshot", ".txnindex"),
        "without snapshots": lambda log: log.forget_files(".snapshot"),
    }
    for name, stop in stops.items():
        with case(name):
            log = filled()
            before = (log.known(), log.stable(), list(log.transactions.all_aborted()))
            stop(log)
            assert (log.known(), log.stable(), list(log.transactions.all_aborted())) == before
            assert log.stable() == 15
            log.check()


def test_a_transaction_that_was_open_when_the_snapshot_was_written_is_still_open() -> None:
    log = LoggedTransactions()
    log.send(A)
    log.commit(A)
    log.send(B)
    log.send(A)
    log.log.roll()
    log.send(B)
    log.log.roll()
    log.log.flush()
    log.replicate()
    for stop in (LoggedTransactions.restart, LoggedTransactions.kill):
        stop(log)
        assert log.producers.snapshot_offset > 0
        assert log.stable() == 2
    log.commit(B)
    log.replicate()
    assert log.stable() == 3
    log.check()


def test_a_snapshot_beyond_the_high_watermark_does_not_hide_a_marker() -> None:
    """The snapshot knows the transaction as decided, but its marker is not replicated."""
    log = LoggedTransactions()
    log.send(A)
    log.replicate()
    log.commit(A)
    log.restart()
    assert log.stable(1) == 0
    assert log.stable(2) == 2


def test_a_bumping_marker_leaves_no_sequence_and_no_offset() -> None:
    """A snapshot has -1 for both, as Kafka's."""
    log = LoggedTransactions()
    log.send(A, 3)
    log.commit(A, is_bumping=True, coordinator_epoch=6)
    for stop in (LoggedTransactions.restart, LoggedTransactions.kill):
        stop(log)
        assert log.known()[A] == (1, -1, -1, 6, -1)


def with_durable_snapshot() -> LoggedTransactions:
    """A log whose snapshot the kernel has written, so that a start need not read the whole log."""
    log = LoggedTransactions(config=LogConfig())
    log.send(A)
    log.abort(A)
    log.log.roll()
    log.log.flush()
    log.replicate()
    log.files.open(f"{DIRECTORY}/{2:020}.snapshot").fsync()
    log.files.fsync_directory(DIRECTORY)
    return log


def test_the_entries_before_the_recovery_point_survive_a_power_cut_and_the_others_are_made_again() -> None:
    log = with_durable_snapshot()
    log.send(A)
    log.abort(A)
    log.log.flush()
    log.send(A)
    log.abort(A)
    log.replicate()
    log.cut_power()
    assert log.producers.snapshot_offset == 2
    assert list(log.transactions.all_aborted()) == [(A, 0, 1), (A, 2, 3)]
    log.check()


def test_the_entries_of_truncated_markers_do_not_come_back_after_a_power_cut() -> None:
    log = with_durable_snapshot()
    log.send(A)
    log.log.flush()
    marker = log.abort(A)
    log.log.flush()
    log.truncate(marker)
    log.commit(A)
    log.send(B, is_transactional=False)
    log.log.flush()
    log.replicate()
    log.cut_power()
    assert log.producers.snapshot_offset == 2
    log.check()


def test_entries_that_stay_after_a_truncation_are_flushed_like_all_others() -> None:
    log = with_durable_snapshot()
    log.send(A)
    log.abort(A)
    end = log.send(B)
    log.truncate(end)
    log.send(C, is_transactional=False)
    log.log.flush()
    log.replicate()
    log.cut_power()
    assert log.producers.snapshot_offset == 2
    log.check()


def test_a_marker_after_a_wide_gap_is_in_the_index_of_its_segment() -> None:
    """A follower gets a compacted log, whose gap is too wide for an index of the empty segment."""
    log = LoggedTransactions()
    far = 2**32
    batches = log_bytes(far)
    log.log.append_as_follower(memoryview(batches))
    assert log.index_files() == [far]
    log.kill()
    assert list(log.transactions.all_aborted()) == [(A, far, far + 1)]


def log_bytes(base_offset: int) -> bytearray:
    """An aborted transaction of A that begins at an offset."""
    builder = BatchBuilder(producer_id=A, producer_epoch=0, base_sequence=0, is_transactional=True)
    builder.append(timestamp=0, key=b"k", value=b"v")
    batches = [builder.build(), marker_batch(Marker(A, 0, False, 0), timestamp_ms=0)]
    for number, batch in enumerate(batches):
        stamp(batch, base_offset=base_offset + number, leader_epoch=0)
    return batches[0] + batches[1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.integers(4, 5), st.integers(1, 2)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("abort"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("replicate"), st.sampled_from([0.3, 0.7, 1.0]), st.none()),
        st.tuples(st.just("truncate"), st.floats(0, 1), st.none()),
        st.tuples(st.just("power"), st.integers(0, 1000), st.none()),
        st.tuples(st.sampled_from(["roll", "flush", "kill", "restart", "alone"]), st.none(), st.none()),
    ),
    min_size=5,
    max_size=25,
)


def perform(log: LoggedTransactions, what: str, first: int, second: int) -> None:
    """One step. The high watermark never goes back, except by a truncation, which is not below it here."""
    end = log.log.log_end_offset
    match what:
        case "send" | "plain":
            log.send(first, second, is_transactional=what == "send")
        case "commit" | "abort":
            outcome = ControlType.COMMIT if what == "commit" else ControlType.ABORT
            log.end(first, outcome, is_bumping=bool(second))
        case "replicate":
            log.replicate(log.high_watermark + int(first * (end - log.high_watermark)))
        case "truncate":
            log.truncate(log.high_watermark + int(first * (end - log.high_watermark)))
        case "power":
            log.cut_power(Random(first))
        case "roll":
            log.log.roll()
        case "flush":
            log.log.flush()
        case "kill":
            log.kill()
        case "restart":
            log.restart()
        case _:
            log.forget_files(".snapshot", ".txnindex")


@settings(max_examples=80)
@given(STEPS)
def test_after_any_steps_the_state_is_what_the_log_says(steps: list[tuple[str, int, int]]) -> None:
    log = LoggedTransactions()
    for step in steps:
        perform(log, *step)
        log.check(is_last=False)
    # A follower copies the log, and its own files say the same.
    follower = LoggedTransactions()
    copied = b"".join(segment.file.pread(segment.size, 0) for segment in log.log.segments)
    follower.log.append_as_follower(memoryview(bytearray(copied)))
    follower.written, follower.high_watermark = log.written, log.high_watermark
    follower.check(is_last=False)
    follower.kill()
    follower.check()
    log.forget_files(".snapshot", ".txnindex")
    log.check()


def test_an_index_that_a_start_makes_again_survives_a_power_cut() -> None:
    """No record is known to be replicated, so the first start reads the whole log; the second may load a snapshot."""
    for seed in range(10):
        with case(seed):
            log = LoggedTransactions()
            for _ in range(7):
                log.send(A)
            marker_offset = log.abort(A)
            assert [it.base_offset for it in log.log.segments] == [0, marker_offset]
            log.restart()
            log.replicate(marker_offset)
            log.cut_power(Random(seed))
            log.check()


# Compaction -----------------------------------------------------------------------------------------------------------

RETENTION_MS = 100
COMPACTED = LogConfig(
    segment_bytes=600, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), delete_retention_ms=RETENTION_MS
)


def cleaned(log: LoggedTransactions, now_ms: int = 1000) -> None:
    clean(
        log.log,
        first_dirty_offset=0,
        now_ms=now_ms,
        upto_offset=log.stable(),
        aborted=log.transactions.all_aborted(),
        keep_producers=log.producers.last_offsets(),
        keep_markers=log.producers.last_markers(),
    )


def offsets_of(log: SegmentedLog) -> list[tuple[int, int]]:
    """The base offset and the number of records of each batch."""
    return [(header.base_offset, header.record_count) for segment in log.segments for _at, header in segment.walk()]


def test_compaction_removes_aborted_records_at_once_and_their_marker_after_the_retention() -> None:
    """KIP-534. The entry of the index goes with the records: a listed transaction whose marker is gone would hide all
    later records of its producer."""
    log = LoggedTransactions(config=COMPACTED)
    log.send(A)
    log.abort(A)
    log.send(A)
    log.commit(A)
    log.send(B, is_transactional=False)
    log.log.roll()
    log.log.flush()
    log.replicate()
    assert log.aborted(0, 2) == [Aborted(A, 0)]
    cleaned(log)
    assert offsets_of(log.log) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert log.aborted(0, 4) == []
    assert log.index_files() == []
    cleaned(log, 1000 + RETENTION_MS)
    assert offsets_of(log.log) == [(2, 1), (3, 1), (4, 1)]
    log.forget_files(".snapshot")
    assert (log.stable(), log.aborted(0, 4)) == (5, [])


def test_compaction_stops_at_the_last_stable_offset() -> None:
    log = LoggedTransactions(config=COMPACTED)
    log.send(A)
    log.log.roll()
    log.send(A)
    log.send(B)
    log.send(B)
    log.abort(A)
    log.log.roll()
    log.log.flush()
    log.replicate()
    cleaned(log)
    # The transaction of B is open, so its segment is not touched. The records of A before it are.
    assert offsets_of(log.log) == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert log.aborted(0, 2) == [Aborted(A, 0)]


def test_a_marker_stays_if_it_is_the_last_that_is_known_of_an_active_producer() -> None:
    """With transaction version 2 the marker has a new epoch. Without it, a zombie of the old epoch could write."""
    log = LoggedTransactions(config=COMPACTED)
    for _ in range(3):
        log.send(A)
        log.abort(A, is_bumping=True)
    log.send(B, is_transactional=False)
    log.log.roll()
    log.log.flush()
    log.replicate()
    for number in range(3):
        cleaned(log, 1000 + number * RETENTION_MS)
    assert offsets_of(log.log) == [(5, 1), (6, 1)]
    before = log.known()
    log.forget_files(".snapshot", ".txnindex")
    assert log.known() == before
    assert log.known()[A].epoch == 3


def test_the_model_of_these_tests_knows_kafkas_definition() -> None:
    """A model that is wrong in the same way would prove nothing, so here are its numbers by hand."""
    log = filled()
    model = Model(log.written)
    assert model.entries()[0] == AbortedTransaction(A, 0, 3, 2)
    assert model.last_stable_offset(18) == 15
    assert model.aborted(1, 3) == {Aborted(A, 0)}
    assert (NAME.directory, SMALL.segment_bytes) == ("orders-0", 600)


def test_an_index_that_cannot_be_written_takes_the_log_offline() -> None:
    """A log that has missed an aborted transaction would show its records."""
    log = LoggedTransactions(config=LogConfig())
    log.send(A)
    log.files.room_bytes = 100
    with pytest.raises(Exception, match="state that is derived from the log"):
        log.abort(A)
    assert log.log.failure is not None
