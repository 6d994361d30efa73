"""Compaction of a log against a dict: the newest record of each key stays, where it was, whatever happens."""

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords
from log_cases import each_case
from log_strategies import CODECS
from segments_model import batch_of, read_on

from minibroker.log.batch import BatchBuilder, BatchHeader, batches
from minibroker.log.compression import Bytes, Compression
from minibroker.log.control import ControlType, build_marker
from minibroker.log.disk import OSFiles
from minibroker.log.errors import CorruptBatch, InvalidRecord, LogError
from minibroker.log.interfaces import Files, FileSlice
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.log.record import Record
from minibroker.segments.compaction import Cleaned, clean, is_worth_it
from minibroker.segments.companions import Companion
from minibroker.segments.config import COMPACT, DELETE, LogConfig
from minibroker.segments.keymap import SLOT_BYTES
from minibroker.segments.segmented import SegmentedLog

DIRECTORY = "data/table-0"
RETENTION = 1_000
ONLY_COMPACT = frozenset({COMPACT})
SMALL = LogConfig(
    segment_bytes=400, index_interval_bytes=60, cleanup_policy=ONLY_COMPACT, delete_retention_ms=RETENTION
)
LATER = 10**9  # a time at which nothing is young

Pair = tuple[bytes | None, bytes | None]


def open_log(files: Files | None = None, config: LogConfig = SMALL, **options: object) -> SegmentedLog:
    return SegmentedLog.open(files or MemoryFiles(), DIRECTORY, config, **options)  # type: ignore[arg-type]


def append(log: SegmentedLog, *pairs: Pair, timestamp: int = 0, **options: object) -> int:
    """One batch; each record is a millisecond younger than the one before."""
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
    for n, (key, value) in enumerate(pairs):
        builder.append(timestamp=timestamp + n, key=key, value=value)
    return log.append(builder.build())


def append_each(log: SegmentedLog, text: str, timestamp: int = 0) -> None:
    """A batch for each word: `a=1` sets a key, `a` alone deletes it, `|` begins a new segment."""
    for word in text.split():
        key, is_set, value = word.partition("=")
        if word == "|":
            log.roll()
        else:
            append(log, (key.encode(), value.encode() if is_set else None), timestamp=timestamp)


def log_of(text: str, files: Files | None = None, config: LogConfig = SMALL) -> SegmentedLog:
    log = open_log(files, config)
    append_each(log, text)
    return log


def all_of(log: SegmentedLog) -> list[Record]:
    return read_on(log, log.log_start_offset)


def table(found: list[Record]) -> dict[bytes | None, bytes]:
    """What the records say, a deleted key left out."""
    newest = {record.key: record.value for record in found}
    return {key: value for key, value in newest.items() if value is not None}


def shown(log: SegmentedLog) -> str:
    return " ".join(
        (record.key or b"").decode() + ("" if record.value is None else "=" + record.value.decode())
        for record in all_of(log)
    )


def headers(log: SegmentedLog) -> Iterator[BatchHeader]:
    return (header for segment in log.segments for _position, header in segment.walk())


def cleaned(log: SegmentedLog, first_dirty_offset: int = 0, now_ms: int = LATER, **options: object) -> Cleaned:
    return clean(log, first_dirty_offset=first_dirty_offset, now_ms=now_ms, **options)  # type: ignore[arg-type]


# The newest record of each key stays


def test_the_newest_record_of_each_key_stays_where_it_was() -> None:
    log = log_of("a=1 b=1 a=2 c=1 b=2 | d=1")
    before = all_of(log)
    done = cleaned(log)
    assert shown(log) == "a=2 c=1 b=2 d=1"
    assert all_of(log) == [before[offset] for offset in (2, 3, 4, 5)]
    assert (done.first_dirty_offset, done.records_before, done.records_after) == (5, 5, 3)
    assert (done.bytes_before, done.bytes_after) == (5 * 70, 3 * 70)


def test_the_second_cleaning_begins_where_the_first_ended_and_cleans_the_clean_part_too() -> None:
    log = log_of("a=1 b=1 a=2 |")
    first = cleaned(log)
    append_each(log, "b=2 c=1 | a=3")
    second = cleaned(log, first.first_dirty_offset)
    assert shown(log) == "a=2 b=2 c=1 a=3"
    assert (second.first_dirty_offset, second.records_before, second.records_after) == (5, 4, 3)


def test_without_a_dirty_part_only_expired_tombstones_are_removed() -> None:
    log = log_of("a=1 b=1 a | c=1")
    first = cleaned(log)
    assert shown(log) == "b=1 a c=1"
    again = cleaned(log, first.first_dirty_offset)
    assert (shown(log), again.first_dirty_offset) == ("b=1 a c=1", 3)
    cleaned(log, 3, LATER + RETENTION)
    assert shown(log) == "b=1 c=1"


def test_records_without_a_key_stay() -> None:
    log = open_log()
    append(log, (None, b"1"), (b"a", b"1"), (None, b"2"), (b"a", b"2"))
    log.roll()
    cleaned(log)
    assert [(record.key, record.value) for record in all_of(log)] == [(None, b"1"), (None, b"2"), (b"a", b"2")]


def test_an_empty_log_and_a_log_of_one_segment_are_left_alone() -> None:
    for text in ("", "a=1 a=2"):
        log = log_of(text)
        assert cleaned(log) == Cleaned(first_dirty_offset=0)
        assert shown(log) == text


HISTORY = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(b"abcdefg"), st.none() | st.binary(max_size=30)), min_size=1, max_size=6),
        st.sampled_from(CODECS),
        st.sampled_from(["", "", "roll", "clean", "reopen", "crash"]),
        st.integers(0, RETENTION),
    ),
    max_size=25,
)


@given(HISTORY, st.sampled_from([2, 5, 1000]), st.integers(100, 900))
def test_a_compacted_log_tells_what_a_dict_tells(
    history: list[tuple[list[tuple[int, bytes | None]], Compression, str, int]], slots: int, segment_bytes: int
) -> None:
    files, config = MemoryFiles(), LogConfig(**{**SMALL.__dict__, "segment_bytes": segment_bytes})
    log, given_records, first_dirty_offset, now_ms = open_log(files, config), dict[int, Record](), 0, 0
    for pairs, codec, action, wait_ms in history:
        now_ms += wait_ms
        named = [(b"key-%d" % key, value) for key, value in pairs]
        base_offset = append(log, *named, timestamp=now_ms, compression=codec)
        for n, (key, value) in enumerate(named):
            given_records[base_offset + n] = Record(base_offset + n, now_ms + n, key, value)
        if action == "roll":
            log.roll()
        elif action == "clean":
            done = cleaned(log, first_dirty_offset, now_ms, map_bytes_max=slots * SLOT_BYTES)
            assert done.first_dirty_offset >= first_dirty_offset
            first_dirty_offset = done.first_dirty_offset
            if slots == 1000:
                assert first_dirty_offset == log.segments[-1].base_offset
                keys = [record.key for record in all_of(log) if record.offset < first_dirty_offset]
                assert len(keys) == len(set(keys)), "a key stands once in the clean part"
        elif action == "reopen":
            log.close()
            log = open_log(files, config, is_clean=True)
        elif action == "crash":
            log.flush()
            files.crash(Random(now_ms))
            log = open_log(files, config, recovery_point=log.log_end_offset)
        check(log, given_records)


def check(log: SegmentedLog, given_records: dict[int, Record]) -> None:
    """Check a log against all records that were ever appended."""
    found = all_of(log)
    assert table(found) == table(list(given_records.values()))
    assert found == [given_records[record.offset] for record in found]
    assert log.log_end_offset == len(given_records)
    # Offsets and times are found in spite of the gaps.
    for offset in range(0, log.log_end_offset + 1, 3):
        assert read_on(log, offset) == [record for record in found if record.offset >= offset]
    for timestamp in {record.timestamp + 1 for record in found}:
        expected = next((record for record in found if record.timestamp >= timestamp), None)
        assert log.find_time(timestamp) == expected


@each_case("codec", CODECS)
def test_another_client_reads_a_compacted_log(codec: Compression) -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"), (b"c", None), timestamp=10, compression=codec)
    append(log, (b"d", b"1"), (b"a", b"2"), timestamp=20, compression=codec)
    append(log, (b"d", None), timestamp=30, compression=codec)
    log.roll()
    append(log, (b"a", b"3"), timestamp=40, compression=codec)
    log.roll()
    cleaned(log)
    theirs = MemoryRecords(log.read(0, bytes_max=10**6).read())
    found = []
    while (batch := theirs.next_batch()) is not None:
        assert batch.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value) for r in batch]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
        (1, 11, b"b", b"1"),
        (2, 12, b"c", None),
        (5, 30, b"d", None),
        (6, 40, b"a", b"3"),
    ]


def test_the_largest_timestamp_is_that_of_a_record_and_not_of_an_empty_batch() -> None:
    log = SegmentedLog.open(MemoryFiles(), "data/orders-0", LogConfig(cleanup_policy=frozenset({"compact"})))
    for timestamp, key in [(5, b"a"), (900, b"b"), (7, b"b"), (6, b"c")]:
        log.append(batch_of([Record(0, timestamp, key, b"v")]))
        if key == b"b":
            log.roll()
    log.roll()
    clean(log, first_dirty_offset=0, now_ms=1000)
    youngest = log.find_max_timestamp()
    assert youngest is not None
    assert (youngest.offset, youngest.timestamp) == (2, 7)


def test_batches_that_keep_all_their_records_are_copied_byte_by_byte() -> None:
    log = open_log(config=LogConfig(cleanup_policy=ONLY_COMPACT))
    for n in range(50):
        codec = CODECS[n % len(CODECS)]
        append(log, *((b"%d" % key, bytes(n)) for key in range(n, n + 5)), compression=codec, producer_id=n)
    append(log, *((b"%d" % key, b"newest") for key in range(25)))
    log.roll()
    before = {batch.header.base_offset: bytes(batch.view) for batch in batches(log.read(0, bytes_max=10**6).read())}
    cleaned(log)
    whole = 0
    for batch in batches(log.read(0, bytes_max=10**6).read()):
        if batch.header.record_count == batch.header.last_offset_delta + 1:
            assert bytes(batch.view) == before[batch.header.base_offset]
            whole += 1
    assert whole == 2  # the batch of the newest values, and the last of the fifty


# The map is bounded, and so is memory


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=12), st.integers(2, 12))
def test_a_map_that_is_too_small_cleans_in_rounds_that_all_make_progress(keys: list[list[int]], slots: int) -> None:
    log = open_log()
    for batch in keys:
        append(log, *((b"%d" % key, b"%d" % n) for n, key in enumerate(batch)))
    log.roll()
    expected = table(all_of(log))
    first_dirty_offset, rounds = 0, 0
    while first_dirty_offset < log.log_end_offset:
        done = cleaned(log, first_dirty_offset, map_bytes_max=slots * SLOT_BYTES)
        assert done.first_dirty_offset > first_dirty_offset
        first_dirty_offset, rounds = done.first_dirty_offset, rounds + 1
    found = all_of(log)
    assert table(found) == expected
    assert len(found) == len(expected)
    assert rounds <= log.log_end_offset


def test_a_full_map_ends_before_the_batch_that_did_not_fit() -> None:
    log = open_log()
    for n in range(3):
        append(log, (b"%d" % n, b"x"), (b"%d" % (n + 1), b"x"))
    log.roll()
    assert cleaned(log, map_bytes_max=4 * SLOT_BYTES).first_dirty_offset == 4  # three keys fit: 0, 1, 2


def test_a_cleaning_holds_no_more_than_a_chunk_or_a_batch() -> None:
    class Watched(MemoryFile):
        def pread(self, count: int, position: int) -> bytes:
            largest.append(count)
            return super().pread(count, position)

    class WatchedFiles(MemoryFiles):
        def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
            file = super().open(path)
            return Watched(self, file._open_node())

    largest: list[int] = []
    log = open_log(WatchedFiles(), LogConfig(cleanup_policy=ONLY_COMPACT))
    for n in range(8):
        append(log, (b"%d" % (n % 3), bytes(1_500_000)))
    append(log, *((b"%d" % n, bytes(1000)) for n in range(100)))
    log.roll()
    largest.clear()
    cleaned(log)
    assert max(largest) < 1_600_000
    assert len(all_of(log)) == 100


# What may not be cleaned yet


def test_nothing_in_a_segment_that_reaches_the_bound_is_cleaned() -> None:
    for upto_offset, expected in ((0, "a=1 a=2 a=3 a=4 a=5"), (3, "a=1 a=2 a=3 a=4 a=5"), (4, "a=4 a=5")):
        log = log_of("a=1 a=2 | a=3 a=4 | a=5")
        done = cleaned(log, upto_offset=upto_offset)
        if upto_offset == 3:
            assert (shown(log), done.first_dirty_offset) == ("a=2 a=3 a=4 a=5", 2)
        else:
            assert (shown(log), done.first_dirty_offset) == (expected, upto_offset)


def test_nothing_younger_than_the_lag_is_cleaned() -> None:
    config = LogConfig(**{**SMALL.__dict__, "min_compaction_lag_ms": 100})
    log = open_log(config=config)
    append_each(log, "a=1 a=2 |", timestamp=1000)
    append_each(log, "a=3 a=4 |", timestamp=1050)
    append_each(log, "a=5 |", timestamp=1010)
    steps = [(1099, "a=1 a=2 a=3 a=4 a=5"), (1100, "a=2 a=3 a=4 a=5"), (1149, "a=2 a=3 a=4 a=5"), (1150, "a=5")]
    first_dirty_offset = 0
    for now_ms, expected in steps:
        first_dirty_offset = cleaned(log, first_dirty_offset, now_ms).first_dirty_offset
        assert shown(log) == expected
    assert first_dirty_offset == 5


def test_a_segment_that_is_not_flushed_yet_waits() -> None:
    work: list[Callable[[], None]] = []
    log = open_log(background=work.append)
    append_each(log, "a=1 a=2 | a=3")
    assert cleaned(log).first_dirty_offset == 0
    work.pop()()
    assert cleaned(log).first_dirty_offset == 2
    assert shown(log) == "a=2 a=3"


@each_case("first_dirty_offset", [-5, 1, 99])
def test_a_checkpoint_outside_the_log_makes_all_of_it_dirty(first_dirty_offset: int) -> None:
    log = log_of("a=0 x=0 | a=1 a=2 b=1 | c=1")
    log.delete_before(2)
    cleaned(log, first_dirty_offset)
    assert shown(log) == "a=2 b=1 c=1"


def test_it_is_worth_it_when_enough_of_the_log_is_dirty() -> None:
    config = LogConfig(**{**SMALL.__dict__, "min_cleanable_dirty_ratio": 0.5})
    log = log_of("a=1 | b=1 | c=1 | d=1 | e=1", config=config)
    for first_dirty_offset, expected in ((0, True), (1, True), (2, True), (3, False), (4, False), (5, False)):
        assert is_worth_it(log, first_dirty_offset=first_dirty_offset, now_ms=LATER) == expected
    assert not is_worth_it(log, first_dirty_offset=2, now_ms=LATER, upto_offset=3)
    assert not is_worth_it(log_of("a=1 a=2"), first_dirty_offset=0, now_ms=LATER)
    only_delete = LogConfig(**{**config.__dict__, "cleanup_policy": frozenset({DELETE})})
    assert not is_worth_it(log_of("a=1 | a=2", config=only_delete), first_dirty_offset=0, now_ms=LATER)


def test_it_is_worth_it_when_something_has_waited_too_long() -> None:
    config = LogConfig(**{**SMALL.__dict__, "min_cleanable_dirty_ratio": 0.9, "max_compaction_lag_ms": 100})
    log = open_log(config=config)
    append_each(log, "a=1 b=1 c=1 | d=1 | e=1", timestamp=1000)
    assert not is_worth_it(log, first_dirty_offset=3, now_ms=1100)
    assert is_worth_it(log, first_dirty_offset=3, now_ms=1101)
    assert not is_worth_it(log, first_dirty_offset=4, now_ms=LATER)  # nothing is dirty but the active segment


# Segments


def test_small_neighbours_become_one_segment() -> None:
    log = log_of("a=1 | b=1 | c=1 | d=1 | e=1 | f=1 | g=1")
    size = next(headers(log)).size
    assert SMALL.segment_bytes // size == 5
    done = cleaned(log)
    assert (done.segments_before, done.segments_after) == (6, 2)
    assert [segment.base_offset for segment in log.segments] == [0, 5, 6]
    assert shown(log) == "a=1 b=1 c=1 d=1 e=1 f=1 g=1"


def test_companions_hear_which_segments_were_replaced() -> None:
    class Listener(Companion):
        def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
            return log_end_offset

        def replay(self, header: BatchHeader, batch: FileSlice) -> None:
            pass

        def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
            pass

        def on_replace(self, base_offsets: Sequence[int]) -> None:
            heard.append(base_offsets)

    heard: list[Sequence[int]] = []
    log = open_log(companions=[Listener()])
    append_each(log, "a=1 b=1 | a=2 | c=1 | d=1 d=2 d=3 d=4 d=5 | e=1")
    cleaned(log)
    assert heard == [[0, 2, 3], [4]]


def test_neighbours_whose_indexes_do_not_fit_together_stay_apart() -> None:
    config = LogConfig(**{**SMALL.__dict__, "segment_bytes": 10**6, "segment_index_bytes": 60})
    log = open_log(config=config)
    for n in range(20):
        append(log, (b"%d" % n, b"x"), timestamp=n)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    cleaned(log)
    assert [segment.base_offset for segment in log.segments] == bases


def test_neighbours_too_far_apart_for_a_relative_offset_stay_apart() -> None:
    log = open_log()
    for base_offset in (0, 2**31 - 2, 2**31 + 5):
        builder = BatchBuilder(base_offset=base_offset, leader_epoch=0)
        builder.append(timestamp=0, key=b"%d" % base_offset, value=b"x")
        log.append_as_follower(memoryview(builder.build()))
        log.roll()
    cleaned(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 - 1, 2**31 + 6]
    assert [record.offset for record in all_of(log)] == [0, 2**31 - 2, 2**31 + 5]


def test_a_cleaned_segment_ends_where_its_originals_ended() -> None:
    log = log_of("a=1 b=1 | a=2 b=2 | a=3 b=3 | a=4 b=4")
    cleaned(log)
    assert shown(log) == "a=3 b=3 a=4 b=4"
    assert [(segment.base_offset, segment.end().log_end_offset) for segment in log.segments] == [(0, 4), (4, 6), (6, 8)]
    cleaned(log, 6)
    assert [(segment.base_offset, segment.end().log_end_offset) for segment in log.segments] == [(0, 6), (6, 8)]


def test_a_segment_without_surviving_records_leaves_an_empty_batch() -> None:
    config = LogConfig(**{**SMALL.__dict__, "segment_bytes": 150})
    log = log_of("a=1 b=1 | a=2 b=2 | c=1", config=config)
    cleaned(log)
    assert [(h.base_offset, h.last_offset, h.record_count) for h in headers(log)] == [
        (1, 1, 0),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 1),
    ]
    assert read_on(log, 0)[0].offset == 2


# Tombstones, transactions, producers


def test_tombstones_stay_until_their_delete_horizon() -> None:
    log = log_of("a=1 b=1 a c=1 | d=1")
    cleaned(log, now_ms=5_000)
    assert shown(log) == "b=1 a c=1 d=1"
    cleaned(log, 4, now_ms=5_000 + RETENTION - 1)
    assert shown(log) == "b=1 a c=1 d=1"
    assert log.find_time(0) == Record(1, 0, b"b", b"1")
    cleaned(log, 4, now_ms=5_000 + RETENTION)
    assert shown(log) == "b=1 c=1 d=1"


def test_a_tombstone_is_never_removed_before_the_records_it_deletes() -> None:
    # A map of one key cleans one record at a time, while the horizon of every tombstone passes at once.
    config = LogConfig(**{**SMALL.__dict__, "delete_retention_ms": 0, "segment_bytes": 150})
    log = log_of("a=1 b=1 | c=1 b | a c | d=1", config=config)
    first_dirty_offset = 0
    for _ in range(12):
        first_dirty_offset = cleaned(log, first_dirty_offset, map_bytes_max=2 * SLOT_BYTES).first_dirty_offset
        assert {b"a", b"b", b"c"} >= table(all_of(log)).keys() - {b"d"}
        seen: dict[bytes | None, bytes | None] = {}
        for record in all_of(log):
            seen[record.key] = record.value
        assert all(value is None for key, value in seen.items() if key != b"d")
    assert shown(log) == "d=1"


def transaction(log: SegmentedLog, producer_id: int, end: ControlType, *pairs: Pair) -> tuple[int, int, int]:
    """A batch and its marker; the first offset and the marker's, as the index of aborted transactions keeps them."""
    options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    first_offset = append(log, *pairs, **options)
    marker = build_marker(end, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    return producer_id, first_offset, log.append(marker)


def data(log: SegmentedLog) -> str:
    """The records that a consumer would see."""
    fetched = [batch for s in log.segments for batch in batches(s.file.pread(s.size, 0)) if not batch.header.is_control]
    return " ".join(f"{(r.key or b'').decode()}={(r.value or b'').decode()}" for b in fetched for r in b.records())


def markers(log: SegmentedLog) -> list[int]:
    return [header.base_offset for header in headers(log) if header.is_control and header.record_count]


def test_aborted_records_are_removed_and_do_not_replace_older_ones() -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"))
    aborted = transaction(log, 7, ControlType.ABORT, (b"a", b"aborted"), (b"c", b"aborted"))
    transaction(log, 7, ControlType.COMMIT, (b"b", b"2"))
    log.roll()
    cleaned(log, aborted=[aborted])
    assert data(log) == "a=1 b=2"


def test_markers_stay_longer_than_the_batches_of_their_transactions() -> None:
    log = open_log()
    aborted = transaction(log, 7, ControlType.ABORT, (b"a", b"aborted"))
    transaction(log, 8, ControlType.COMMIT, (b"b", b"1"))
    transaction(log, 9, ControlType.COMMIT, (b"c", b"1"))
    append_each(log, "b=2 |")
    first_dirty_offset = cleaned(log, now_ms=1_000, aborted=[aborted]).first_dirty_offset
    assert (data(log), markers(log)) == ("c=1 b=2", [1, 3, 5])
    cleaned(log, first_dirty_offset, now_ms=1_000 + RETENTION - 1, aborted=[aborted])
    assert markers(log) == [1, 3, 5]
    cleaned(log, first_dirty_offset, now_ms=1_000 + RETENTION, aborted=[aborted])
    assert (data(log), markers(log)) == ("c=1 b=2", [5])
    # The marker of the transaction of which a record is left stays for ever.
    cleaned(log, first_dirty_offset, now_ms=10**12, aborted=[aborted])
    assert markers(log) == [5]


def test_the_last_batch_of_an_active_producer_stays_even_if_empty() -> None:
    log = open_log()
    for sequence in range(3):
        append(log, (b"a", b"%d" % sequence), producer_id=7, producer_epoch=2, base_sequence=sequence)
    append_each(log, "a=newest |")
    cleaned(log, keep_producers=frozenset({(7, 2)}))
    found = [(h.base_offset, h.producer_id, h.producer_epoch, h.base_sequence, h.record_count) for h in headers(log)]
    assert found == [(2, 7, 2, 2, 0), (3, -1, -1, -1, 1)]
    assert shown(log) == "a=newest"
    cleaned(log, 4)
    assert [header.base_offset for header in headers(log)] == [3]


# Appends, reads and retention in the meantime


def test_appends_and_reads_go_on_between_any_two_batches() -> None:
    log = log_of("a=1 b=1 | a=2 c=1 | b=2 |")
    expected = all_of(log)

    def interrupt(_bytes_read: int) -> None:
        offset = append(log, (b"z%d" % log.log_end_offset, b"x"), timestamp=log.log_end_offset)
        expected.append(Record(offset, offset, b"z%d" % offset, b"x"))
        assert table(all_of(log)) == table(expected)

    done = cleaned(log, pace=interrupt)
    assert done.first_dirty_offset == 5
    assert table(all_of(log)) == table(expected)
    assert len(all_of(log)) == log.log_end_offset - 2


def test_it_runs_on_a_thread_and_changes_the_log_only_on_its_owners_thread() -> None:
    log = log_of("a=1 b=1 | a=2 c=1 | b=2 |")
    orders: Queue[Callable[[], None] | None] = Queue()
    ran_on: list[int] = []

    def on_owner(work: Callable[[], None]) -> None:
        done = threading.Event()
        orders.put(lambda: (work(), ran_on.append(threading.get_ident()), done.set()))  # type: ignore[func-returns-value, arg-type]
        done.wait()

    def run() -> None:
        try:
            results.append(cleaned(log, on_owner=on_owner))
        finally:
            orders.put(None)

    results: list[Cleaned] = []
    thread = threading.Thread(target=run)
    thread.start()
    while (order := orders.get()) is not None:
        append_each(log, "d=1")
        order()
        append_each(log, "d=2")
    thread.join()
    assert results[0].first_dirty_offset == 5
    assert set(ran_on) == {threading.get_ident()}
    assert shown(log).startswith("a=2 c=1 b=2 d=1")


@each_case("at_call", [1, 2])
def test_a_cleaning_whose_segments_retention_deletes_ends_and_does_no_harm(at_call: int) -> None:
    config = LogConfig(**{**SMALL.__dict__, "segment_bytes": 150})
    log = log_of("a=1 b=1 | a=2 c=1 | b=2 e=1 | f=1", files := MemoryFiles(), config)
    calls: list[int] = []

    def on_owner(work: Callable[[], None]) -> None:
        if len(calls) == at_call:
            log.delete_before(4)
        calls.append(1)
        work()

    done = cleaned(log, on_owner=on_owner)
    assert done.first_dirty_offset == 0  # so that the next one maps everything again
    assert shown(log) == "b=2 e=1 f=1"
    assert not [name for name in files.list(DIRECTORY) if "." in name.removesuffix(".log").removesuffix("index")[21:]]
    assert cleaned(log).first_dirty_offset == 6


def test_the_pace_function_can_end_a_cleaning() -> None:
    log = log_of("a=1 b=1 | a=2 c=1 |", files := MemoryFiles())
    names = files.list(DIRECTORY)
    for count in range(8):
        budget = [count]

        def pace(_bytes_read: int, budget: list[int] = budget) -> None:
            if budget[0] == 0:
                raise InterruptedError
            budget[0] -= 1

        with pytest.raises(InterruptedError):
            cleaned(log, pace=pace)
        assert files.list(DIRECTORY) == names
        assert shown(log) == "a=1 b=1 a=2 c=1"


@each_case("on_disk", [False, True])
def test_a_reader_of_a_replaced_segment_goes_on_reading(on_disk: bool, tmp_path: Path) -> None:
    files: Files = OSFiles() if on_disk else MemoryFiles()
    log = SegmentedLog.open(files, str(tmp_path), SMALL)
    append_each(log, "a=1 b=1 a=2 | c=1")
    held = log.read(0, bytes_max=10**6)
    before = held.read()
    cleaned(log)
    assert held.read() == before
    assert shown(log) == "b=1 a=2 c=1"
    log.close()


# Damage, full disks, crashes


def test_a_flipped_bit_is_refused_with_its_place_and_nothing_is_replaced() -> None:
    files = MemoryFiles()
    log = log_of("a=1 b=1 | a=2 c=1 | d=1", files)
    first, second, _active = log.segments
    size = next(headers(log)).size
    names = files.list(DIRECTORY)
    for segment, position in ((first, 0), (second, size)):
        path = f"{DIRECTORY}/{segment.base_offset:020}.log"
        # Base offset and leader epoch are not under the checksum; everything else of the batch is.
        for byte in [*range(8, 12), *range(16, size)]:
            file = files.open(path)
            for bit in range(8):
                flip(file, position + byte, bit)
                with pytest.raises(LogError, match=f"{path}: batch at position {position}: "):
                    cleaned(log)
                flip(file, position + byte, bit)
    assert files.list(DIRECTORY) == names
    assert shown(log) == "a=1 b=1 a=2 c=1 d=1"
    cleaned(log)
    assert shown(log) == "b=1 a=2 c=1 d=1"


def flip(file: MemoryFile, position: int, bit: int) -> None:
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1 << bit]), position)


@each_case(("base_offset", "what"), [(7, "last offset 7, but the next segment"), (0, "expected 1")])
def test_a_batch_out_of_its_place_is_refused(base_offset: int, what: str) -> None:
    files = MemoryFiles()
    log = log_of("a=1 b=1 | a=2", files)
    files.open(f"{DIRECTORY}/{0:020}.log").pwrite(base_offset.to_bytes(8, "big"), next(headers(log)).size)
    with pytest.raises(CorruptBatch, match=what):
        cleaned(log)


def test_a_leader_epoch_that_falls_is_refused_with_its_place() -> None:
    log = log_of("a=1 b=1 | c=1", files := MemoryFiles())
    flip(files.open(f"{DIRECTORY}/{0:020}.log"), 15, 2)
    with pytest.raises(LogError, match="batch at position 70: leader epoch 0 is older than the one before it, 4"):
        cleaned(log)
    assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]


def test_records_that_contradict_themselves_are_refused_with_their_place() -> None:
    log = open_log()
    builder = BatchBuilder()
    builder.append(timestamp=0, key=b"a", value=b"1")
    builder._records[0] += 2  # a length that lies, under a right checksum
    log.append(builder.build())
    log.roll()
    with pytest.raises(InvalidRecord, match=rf"{DIRECTORY}/0{{20}}\.log: batch at position 0: "):
        cleaned(log)


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    text = " ".join(f"{key}={n}" for n in range(9) for key in "abcdefgh") + " | z=1"
    refused = 0
    for room_bytes in range(0, 4000, 37):
        log = log_of(text, files := MemoryFiles(), LogConfig(**{**SMALL.__dict__, "segment_bytes": 1000}))
        before, names = table(all_of(log)), files.list(DIRECTORY)
        files.room_bytes = room_bytes
        try:
            cleaned(log)
        except (LogError, OSError) as error:
            assert "No space" in str(error) or "no space" in str(error) or error.__cause__ is not None
            refused += 1
        files.room_bytes = None
        assert not [name for name in files.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
        assert set(files.list(DIRECTORY)) <= set(names)
        assert table(all_of(log)) == before
        cleaned(log)
        assert len(all_of(log)) == len(before)
        assert table(all_of(log)) == before
    assert refused > 10


class Stopped(Exception):
    """The machine stopped at this operation."""


class StoppingFile(MemoryFile):
    def pwrite(self, data: Bytes, position: int) -> int:
        self._files.step()  # type: ignore[attr-defined]
        return super().pwrite(data, position)

    def fsync(self) -> None:
        self._files.step()  # type: ignore[attr-defined]
        super().fsync()


class StoppingFiles(MemoryFiles):
    """A disk on a machine that stops after a number of operations that change something."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Stopped
            self.left -= 1

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        if path not in self._names:
            self.step()
        return StoppingFile(self, super().open(path)._open_node())

    def rename(self, source: str, target: str) -> None:
        self.step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.step()
        super().unlink(path)

    def fsync_directory(self, directory: str) -> None:
        self.step()
        super().fsync_directory(directory)


@each_case("power_is_cut", [False, True])
def test_a_crash_at_any_point_loses_no_newest_value(power_is_cut: bool) -> None:
    text = "a=1 b=1 c=1 | a=2 d=1 | b=2 e=1 | a=3 | f=1 g=1"
    config = LogConfig(**{**SMALL.__dict__, "segment_bytes": 300})
    operations, is_over = 0, False
    while not is_over:
        log = log_of(text, files := StoppingFiles(), config)
        log.flush()
        expected = {record.offset: record for record in all_of(log)}
        recovery_point = log.flushed_offset
        files.left = operations
        try:
            cleaned(log)
            is_over = True
        except Stopped:
            operations += 1
        files.left = None
        if power_is_cut:
            files.crash(Random(operations))
        again = open_log(files, config, recovery_point=recovery_point)
        assert again.log_end_offset == len(expected)
        assert not [name for name in files.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
        check(again, expected)
        # And the cleaning can be done once more, now to its end.
        cleaned(again)
        assert shown(again) == "c=1 d=1 b=2 e=1 a=3 f=1 g=1"
    assert operations > 30


def test_a_failed_flush_leaves_the_log_as_it_was() -> None:
    log = log_of("a=1 a=2 | b=1", files := MemoryFiles())
    names = files.list(DIRECTORY)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(LogError, match="flush failed"):
        cleaned(log)
    files.fsync_error = None
    assert files.list(DIRECTORY) == names
    assert shown(log) == "a=1 a=2 b=1"
