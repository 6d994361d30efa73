"""Which records of a batch stay, tested on bytes, without a log."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from log_cases import each_case
from log_strategies import CODECS, build, records

from minibroker.log.batch import NO_TIMESTAMP, Batch, TimestampType, stamp, stamp_log_append_time
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker, control_type
from minibroker.log.errors import InvalidRecord
from minibroker.log.record import Record, decode_records, encode_record, scan_records
from minibroker.segments.keymap import KeyMap
from minibroker.segments.survivors import AbortedTransactions, Survivors

NOW = 1_700_000_000_000
RETENTION = 1_000
BASE = 50  # the base offset of the batches here


def survivors(
    newest: dict[bytes, int],
    *,
    now_ms: int = NOW,
    end_offset: int = 10**6,
    aborted: Sequence[tuple[int, int, int]] = (),
    keep_producers: frozenset[tuple[int, int]] = frozenset(),
) -> Survivors:
    keys = KeyMap(10_000)
    for key, offset in newest.items():
        keys.put(key, offset)
    return Survivors(
        keys,
        end_offset=end_offset,
        now_ms=now_ms,
        delete_retention_ms=RETENTION,
        aborted=AbortedTransactions(aborted),
        keep_producers=keep_producers,
    )


def batch_of(*pairs: tuple[bytes | None, bytes | None], timestamp: int = NOW - 9, **options: object) -> Batch:
    given_records = [Record(n, timestamp + n, key, value, [("h", b"x")]) for n, (key, value) in enumerate(pairs)]
    batch = build(given_records, **options)
    stamp(batch, base_offset=BASE, leader_epoch=3)
    return Batch(batch)


def marker(control: ControlType, *, offset: int, producer_id: int = 7) -> Batch:
    batch = build_marker(control, producer_id=producer_id, producer_epoch=1, coordinator_epoch=2, timestamp=NOW - 5)
    stamp(batch, base_offset=offset, leader_epoch=3)
    return Batch(batch)


def normal(batch: Batch | None) -> list[Record]:
    assert batch is not None
    batch.check_crc()
    return [record._replace(headers=list(record.headers)) for record in batch.records()]


def theirs(batch: Batch) -> list[Record]:
    peer = DefaultRecordBatch(bytes(batch.view))
    assert peer.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in peer]


# Scanning records (chapter 01)


@given(records(min_size=0))
def test_a_scan_finds_what_decoding_finds(generated: list[Record]) -> None:
    encoded = [
        encode_record(offset_delta=r.offset, timestamp_delta=r.timestamp, key=r.key, value=r.value, headers=r.headers)
        for r in generated
    ]
    data = b"".join(encoded)
    scanned = list(scan_records(data, count=len(generated)))
    assert [data[start:end] for start, end, *_ in scanned] == encoded
    assert [(d, t, key, has_value) for _, _, t, d, key, has_value in scanned] == [
        (r.offset, r.timestamp, r.key, r.value is not None) for r in generated
    ]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 63, 64, 8191, 70_000]))
def test_a_scan_reads_varints_of_every_length(timestamp_delta: int, offset_delta: int, key_bytes: int) -> None:
    data = encode_record(timestamp_delta=timestamp_delta, offset_delta=offset_delta, key=bytes(key_bytes), value=None)
    expected = (0, len(data), timestamp_delta, offset_delta, bytes(key_bytes), False)
    assert list(scan_records(data, count=1)) == [expected]


def test_a_scan_refuses_every_prefix_and_every_longer_text() -> None:
    record = encode_record(
        offset_delta=1, timestamp_delta=300, key=b"key" * 30, value=b"value" * 2000, headers=[("a", b"b")]
    )
    for length in [*range(200), *range(len(record) - 200, len(record))]:
        with pytest.raises(InvalidRecord):
            list(scan_records(record[:length], count=1))
    for data, count in ((record + b"\0", 1), (record, 0), (record, 2)):
        with pytest.raises(InvalidRecord):
            list(scan_records(data, count=count))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_a_scan_of_anything_is_refused_or_covers_it_all(data: bytes, count: int) -> None:
    try:
        scanned = list(scan_records(data, count=count))
    except InvalidRecord:
        return
    assert [start for start, *_ in scanned] + [len(data)] == [0] + [end for _, end, *_ in scanned]


@given(records(max_size=6), st.data())
def test_whatever_a_decoder_accepts_a_scan_accepts_too(generated: list[Record], data: st.DataObject) -> None:
    damaged = bytearray(Batch(build(generated)).view[61:])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = list(decode_records(bytes(damaged), count=len(generated), base_offset=0, base_timestamp=0))
    except InvalidRecord:
        return
    scanned = scan_records(bytes(damaged), count=len(generated))
    assert [(d, t, key, has) for _, _, t, d, key, has in scanned] == [
        (r.offset, r.timestamp, r.key, r.value is not None) for r in decoded
    ]


# Batches of records


@given(st.data(), st.sampled_from(CODECS))
def test_a_record_stays_unless_the_map_knows_a_newer_one(data: st.DataObject, codec: Compression) -> None:
    values = st.none() | st.binary(max_size=9)
    pairs = data.draw(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", None]), values), min_size=1))
    newest = data.draw(st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(BASE - 2, BASE + len(pairs))))
    batch = batch_of(*pairs, compression=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    expected = [r for r in normal(batch) if r.key is None or newest.get(r.key, -1) <= r.offset]
    kept = survivors(newest).of(batch)
    if not expected:
        assert kept is None
        return
    # The survivors are what they were, for us and for a peer; so is everything that producers and offsets need.
    assert normal(kept) == expected
    assert kept is not None
    assert theirs(kept) == expected
    ours, before = kept.header, batch.header
    assert ours.record_count == len(expected)
    assert (ours.base_offset, ours.last_offset, ours.leader_epoch) == (BASE, before.last_offset, 3)
    assert (ours.producer_id, ours.producer_epoch, ours.base_sequence, ours.compression) == (7, 1, 3, codec)
    assert ours.max_timestamp == max(record.timestamp for record in expected)


@each_case("codec", CODECS)
def test_a_batch_that_keeps_all_records_is_copied_unchanged(codec: Compression) -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"), compression=codec)
    assert survivors({b"a": BASE}).of(batch) is batch


def test_a_batch_after_the_maps_end_is_copied_without_decoding() -> None:
    batch = batch_of((b"a", None), (b"a", b"2"))
    assert survivors({b"a": BASE + 9}, end_offset=BASE).of(batch) is batch


def test_a_map_that_ends_inside_a_batch_decides_only_about_earlier_records() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"))
    kept = survivors({b"a": BASE + 9, b"b": BASE + 9}, end_offset=BASE + 2).of(batch)
    assert [record.value for record in normal(kept)] == [b"3", b"4"]


def test_the_bytes_of_a_surviving_record_do_not_change() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2" * 100), (b"a", b"3"))
    kept = survivors({b"a": BASE + 2}).of(batch)
    assert kept is not None
    assert bytes(kept.view[61:]) in bytes(batch.view[61:])


def test_log_append_time_stays() -> None:
    buffer = build([Record(n, 5, key, b"x") for n, key in enumerate([b"a", b"b"])])
    stamp(buffer, base_offset=BASE, leader_epoch=3)
    stamp_log_append_time(buffer, timestamp=NOW)
    kept = survivors({b"b": 999}).of(Batch(buffer))
    assert [(record.offset, record.timestamp) for record in normal(kept)] == [(BASE, NOW)]
    assert kept is not None
    assert kept.header.timestamp_type is TimestampType.LOG_APPEND_TIME


# Tombstones (KIP-534)


@each_case("codec", CODECS)
@each_case("with_log_append_time", [False, True])
def test_the_first_cleaning_of_a_tombstone_sets_its_delete_horizon(
    codec: Compression, with_log_append_time: bool
) -> None:
    batch = batch_of((b"a", b"1"), (b"b", None), (b"c", b"3"), compression=codec)
    if with_log_append_time:
        buffer = bytearray(batch.view)
        stamp_log_append_time(buffer, timestamp=NOW - 1)
        batch = Batch(buffer)
    kept = survivors({b"a": 999}).of(batch)
    assert kept is not None
    assert kept.header.has_delete_horizon
    assert kept.header.base_timestamp == NOW + RETENTION
    # The records' own timestamps are what they were, though they are counted from another base.
    assert normal(kept) == normal(batch)[1:]
    assert theirs(kept) == normal(batch)[1:]
    assert kept.header.max_timestamp == max(record.timestamp for record in normal(kept))


def test_a_tombstone_stays_until_its_delete_horizon() -> None:
    marked = survivors({}).of(batch_of((b"a", None), (b"b", b"2")))
    assert marked is not None
    assert survivors({}, now_ms=NOW + RETENTION - 1).of(marked) is marked
    kept = survivors({}, now_ms=NOW + RETENTION).of(marked)
    assert normal(kept) == normal(marked)[1:]
    assert kept is not None
    assert kept.header.has_delete_horizon  # the deltas still count from it


def test_a_tombstone_that_is_not_the_newest_is_removed_at_once() -> None:
    assert survivors({b"a": 999}).of(batch_of((b"a", None))) is None


def test_a_tombstone_after_the_maps_end_gets_no_horizon_yet() -> None:
    batch = batch_of((b"a", b"1"), (b"b", None))
    assert survivors({}, end_offset=BASE + 1).of(batch) is batch


def test_a_record_with_neither_key_nor_value_is_no_tombstone() -> None:
    batch = batch_of((None, None), (b"a", b"1"))
    assert survivors({}, now_ms=NOW + 10 * RETENTION).of(batch) is batch


# Batches that stay empty


@each_case("codec", CODECS)
def test_a_batch_that_must_stay_stays_empty_with_its_offsets(codec: Compression) -> None:
    batch = batch_of((b"a", b"1"), (b"a", b"2"), compression=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    kept = survivors({b"a": 999}).of(batch, must_stay=True)
    assert normal(kept) == []
    assert kept is not None
    assert theirs(kept) == []
    before, ours = batch.header, kept.header
    assert ours.size == 61
    assert (ours.base_offset, ours.last_offset) == (before.base_offset, before.last_offset)
    assert (ours.producer_id, ours.producer_epoch, ours.base_sequence) == (7, 1, 3)
    assert (ours.base_timestamp, ours.max_timestamp) == (NO_TIMESTAMP, before.max_timestamp)
    # Cleaning it again changes nothing, and removes it once it need not stay.
    again = survivors({}).of(kept, must_stay=True)
    assert again is not None
    assert again.view == kept.view
    assert survivors({}).of(kept) is None


def test_the_last_batch_of_an_active_producer_stays_empty() -> None:
    batch = batch_of((b"a", b"1"), (b"a", b"2"), producer_id=7, producer_epoch=1, base_sequence=3)
    newest = {b"a": 999}
    kept = survivors(newest, keep_producers=frozenset({(7, BASE + 1)})).of(batch)
    assert normal(kept) == []
    for others in ({(7, BASE)}, {(8, BASE + 1)}, set[tuple[int, int]]()):
        assert survivors(newest, keep_producers=frozenset(others)).of(batch) is None


# Transactions


def transactional(*pairs: tuple[bytes, bytes], producer_id: int = 7) -> Batch:
    return batch_of(*pairs, producer_id=producer_id, producer_epoch=1, base_sequence=0, is_transactional=True)


def test_records_of_an_aborted_transaction_are_removed() -> None:
    batch = transactional((b"a", b"1"))
    for aborted, stays in (
        ([(7, BASE, BASE + 1)], False),
        ([(7, BASE - 9, BASE + 1)], False),
        ([(7, 3, 9), (7, BASE - 9, BASE + 1), (7, BASE + 5, BASE + 9)], False),
        ([(8, BASE, BASE + 1)], True),
        ([(7, BASE + 1, BASE + 2)], True),
        ([(7, BASE - 9, BASE - 1)], True),
        ([], True),
    ):
        assert (survivors({}, aborted=aborted).of(batch) is batch) == stays, aborted


def test_records_outside_any_transaction_are_not_aborted() -> None:
    batch = batch_of((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0)
    assert survivors({}, aborted=[(7, 0, 999)]).of(batch) is batch


@each_case("control", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_stays_as_long_as_a_batch_of_its_transaction(control: ControlType) -> None:
    ending = marker(control, offset=BASE + 1)
    # A record of it is there, or only the empty batch of a producer that is still active.
    for must_stay, newest in ((False, dict[bytes, int]()), (True, {b"a": 999})):
        cleaning = survivors(newest, now_ms=NOW + 10 * RETENTION)
        assert cleaning.of(transactional((b"a", b"1")), must_stay=must_stay) is not None
        assert cleaning.of(ending) is ending


@each_case("control", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_alone_stays_until_its_delete_horizon(control: ControlType) -> None:
    cleaning = survivors({b"a": 999})
    assert cleaning.of(transactional((b"a", b"1"))) is None
    marked = cleaning.of(marker(control, offset=BASE + 1))
    assert marked is not None
    assert marked.header.base_timestamp == NOW + RETENTION
    assert [control_type(record) for record in marked.records()] == [control]
    assert normal(marked) == normal(marker(control, offset=BASE + 1))
    assert survivors({}, now_ms=NOW + RETENTION - 1).of(marked) is marked
    assert survivors({}, now_ms=NOW + RETENTION).of(marked) is None
    # If it is the producer's last batch, or the segment's, it stays empty even then.
    empty = survivors({}, now_ms=NOW + RETENTION, keep_producers=frozenset({(7, BASE + 1)})).of(marked)
    assert normal(empty) == []
    assert empty is not None
    assert empty.header.is_control
    assert survivors({}).of(empty) is None


def test_markers_end_the_transaction_of_their_own_producer_only() -> None:
    cleaning = survivors({}, now_ms=NOW)
    cleaning.of(transactional((b"a", b"1"), producer_id=7))
    others = cleaning.of(marker(ControlType.COMMIT, offset=BASE + 1, producer_id=8))
    own = marker(ControlType.COMMIT, offset=BASE + 2, producer_id=7)
    second = marker(ControlType.COMMIT, offset=BASE + 3, producer_id=7)
    assert others is not None
    assert others.header.has_delete_horizon
    assert cleaning.of(own) is own
    late = cleaning.of(second)
    assert late is not None
    assert late.header.has_delete_horizon


def test_other_control_records_stay_for_ever() -> None:
    batch = build([Record(0, NOW, b"\0\0\0\2", b"")], is_control=True)
    stamp(batch, base_offset=BASE, leader_epoch=3)
    leader_change = Batch(batch)
    assert survivors({b"\0\0\0\2": 999}, now_ms=NOW + 10 * RETENTION).of(leader_change) is leader_change


@given(records(max_size=8), st.sampled_from(CODECS), st.integers(0, 2**32))
def test_records_of_any_kind_survive_as_they_are(generated: list[Record], codec: Compression, seed: int) -> None:
    buffer = build(generated, compression=codec)
    stamp(buffer, base_offset=BASE, leader_epoch=3)
    batch, chance = Batch(buffer), Random(seed)
    newest = {r.key: BASE + chance.randrange(9) for r in generated if r.key is not None and chance.random() < 0.5}
    kept = survivors(newest).of(batch)
    assert (normal(kept) if kept else []) == [
        r for r in normal(batch) if r.key is None or newest.get(r.key, -1) <= r.offset
    ]
