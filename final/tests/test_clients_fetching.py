"""Claims about fetching: positions move with the headers, errors are retried, and applications see only records."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerError
from minibroker.clients.errors import CorruptRecords, LogTruncated, OffsetOutOfRange
from minibroker.clients.fetched import FetchedBatches
from minibroker.clients.fetching import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    FetchConfig,
    Fetcher,
    FetchOrder,
    OffsetReset,
)
from minibroker.clients.routing import Node, PartitionRoute, Routes, TopicRoute
from minibroker.log.batch import BatchBuilder, stamp
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import decode_whole
from minibroker.wire.tables.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from minibroker.wire.uuids import NO_UUID

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = bytes(15) + b"\1"


def routes(leaders: Sequence[int] = (1, 1), topic_id: bytes = TOPIC_ID) -> Routes:
    known = Routes([Address("boot", 1)])
    known.nodes = {it: Node(it, f"h{it}", 9092) for it in (1, 2)}
    partitions = {number: PartitionRoute(leader, 5) for number, leader in enumerate(leaders)}
    known.topics["t"] = TopicRoute("t", topic_id, False, partitions)
    known._learnt_ms["t"] = 0
    return known


def batch(base_offset: int, count: int = 3, *, epoch: int = 5, codec: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder(compression=codec, base_offset=base_offset, leader_epoch=epoch)
    for number in range(count):
        builder.append(timestamp=1000, key=None, value=b"%d" % (base_offset + number))
    return bytes(builder.build())


def data(records: bytes = b"", *, partition: int = 0, code: int = 0, **more: Any) -> PartitionData:
    said: dict[str, Any] = {"aborted_transactions": None} | more
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=100,
        last_stable_offset=100,
        log_start_offset=0,
        records=memoryview(records),
        **said,
    )


def response(*partitions: PartitionData, version: int = 16, **more: object) -> FetchResponse:
    topic = FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=list(partitions))
    message = FetchResponse(throttle_time_ms=0, responses=[topic], **more)  # type: ignore[arg-type]
    # Encoded and decoded, so that names and ids are as a broker sends them.
    return decode_whole(FetchResponse, memoryview(message.encode(version)), 0, version)


def fetcher(offset: int | None = 0, **config: object) -> Fetcher:
    made = Fetcher(FetchConfig(**config))  # type: ignore[arg-type]
    made.assign([T0], {} if offset is None else {T0: offset})
    return made


def order(made: Fetcher, known: Routes, *, version: int = 16, now_ms: float = 0) -> FetchOrder:
    (plan,) = made.plan(now_ms, known).fetches.items()
    return made.order(*plan, known, version=version)


def test_a_position_moves_past_the_last_whole_batch() -> None:
    made, known = fetcher(), routes()
    cut = batch(6)[:-1]
    (fetched,) = made.on_response(order(made, known), response(data(batch(0) + batch(3) + cut)), known, now_ms=0)
    assert made.position(T0) == 6
    assert (fetched.fetch_offset, fetched.next_offset, fetched.high_watermark) == (0, 6, 100)
    assert len(fetched.records) == len(batch(0) + batch(3))
    assert [record.value for record in fetched] == [b"%d" % number for number in range(6)]


@given(start=st.integers(0, 11), codec=st.sampled_from(list(Compression)))
def test_records_before_the_position_are_not_shown(start: int, codec: Compression) -> None:
    made, known = fetcher(start), routes()
    first = start // 3 * 3
    records = b"".join(batch(base, codec=codec) for base in range(first, 12, 3))
    (fetched,) = made.on_response(order(made, known), response(data(records)), known, now_ms=0)
    assert [record.offset for record in fetched] == list(range(start, 12))


def test_gaps_that_compaction_left_are_skipped() -> None:
    made, known = fetcher(5), routes()
    (fetched,) = made.on_response(order(made, known), response(data(batch(8))), known, now_ms=0)
    assert [record.offset for record in fetched] == [8, 9, 10]
    assert made.position(T0) == 11


def test_a_fetch_names_topics_by_name_before_version_13_and_by_id_from_then_on() -> None:
    for version in (12, 13, 16):
        is_named = version < 13
        made, known = fetcher(), routes()
        asked = order(made, known, version=version)
        encoded = asked.request.encode(asked.version_max)
        assert (b"\x02t" in encoded, TOPIC_ID in encoded) == (is_named, not is_named), version
        (fetched,) = made.on_response(asked, response(data(batch(0)), version=version), known, now_ms=0)
        assert (fetched.topic, fetched.partition) == ("t", 0), version


def test_a_topic_without_an_id_keeps_the_request_below_13() -> None:
    made, known = fetcher(), routes(topic_id=NO_UUID)
    assert order(made, known).version_max == 12


def test_an_old_version_carries_no_fetched_epoch() -> None:
    made, known = fetcher(), routes()
    made.on_response(order(made, known), response(data(batch(0))), known, now_ms=0)
    new = order(made, known, version=12)
    assert new.request.topics[0].partitions[0].last_fetched_epoch == 5
    made.on_lost(new, now_ms=0)
    old = order(made, known, version=4, now_ms=1000)
    assert old.request.encode(4)


def test_partitions_are_fetched_from_their_leaders() -> None:
    made, known = fetcher(), routes((1, 2))
    made.assign([T0, T1], {T0: 0, T1: 0})
    assert made.plan(0, known).fetches == {1: [T0], 2: [T1]}
    assert made.plan(0, known, busy={2}).fetches == {1: [T0]}
    order_1 = made.order(1, [T0], known, version=16)
    assert made.plan(0, known).fetches == {2: [T1]}, "a partition in flight is not fetched twice"
    made.on_response(order_1, response(data()), known, now_ms=0)
    assert made.plan(0, known).fetches == {1: [T0], 2: [T1]}
    made.pause([T1])
    assert made.plan(0, known).fetches == {1: [T0]}


def test_a_partition_that_was_served_goes_to_the_end() -> None:
    made, known = fetcher(), routes()
    made.assign([T0, T1], {T0: 0, T1: 0})
    asked = order(made, known)
    made.on_response(asked, response(data(batch(0)), data(partition=1)), known, now_ms=0)
    assert made.plan(0, known).fetches == {1: [T1, T0]}


def test_an_offset_out_of_range_is_reset_as_the_caller_chose() -> None:
    for reset, lookup in ((OffsetReset.EARLIEST, EARLIEST), (OffsetReset.LATEST, LATEST)):
        made, known = fetcher(7, offset_reset=reset), routes()
        made.on_response(order(made, known), response(data(code=ErrorCode.OFFSET_OUT_OF_RANGE)), known, now_ms=0)
        assert made.plan(0, known).lookups == {T0: lookup}, reset
        made.on_offset(T0, 42)
        assert made.position(T0) == 42, reset
        assert made.take_error() is None, reset


def test_an_offset_out_of_range_is_an_error_if_the_caller_chose_that() -> None:
    made, known = fetcher(700, offset_reset=OffsetReset.ERROR), routes()
    made.on_response(order(made, known), response(data(code=ErrorCode.OFFSET_OUT_OF_RANGE)), known, now_ms=0)
    with pytest.raises(OffsetOutOfRange, match="offset 700 is not in t-0, which has offsets 0 to 99"):
        raise made.take_error() or AssertionError
    with pytest.raises(OffsetOutOfRange, match="no offset is given"):
        fetcher(None, offset_reset=OffsetReset.ERROR)


def test_a_hint_leads_to_the_new_leader() -> None:
    made, known = fetcher(), routes()
    moved = response(
        data(code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=6)),
        node_endpoints=[NodeEndpoint(node_id=3, host="h3", port=9093, rack=None)],
    )
    assert made.on_response(order(made, known), moved, known, now_ms=0) == []
    assert made.plan(0, known).fetches == {3: [T0]}


def test_a_retriable_error_is_retried_and_another_is_reported() -> None:
    made, known = fetcher(), routes()
    made.on_response(order(made, known), response(data(code=ErrorCode.UNKNOWN_LEADER_EPOCH)), known, now_ms=0)
    assert made.plan(0, known).fetches == {}
    assert made.take_error() is None
    known = routes()
    assert made.wakeup_ms(0) == 100
    made.on_response(
        order(made, known, now_ms=100), response(data(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)), known, now_ms=100
    )
    assert isinstance(made.take_error(), BrokerError)


def test_the_answer_to_a_fetch_from_before_a_seek_is_dropped() -> None:
    made, known = fetcher(), routes()
    asked = order(made, known)
    made.seek(T0, 50)
    assert made.plan(0, known).fetches == {}, "the old fetch is still in flight"
    assert made.on_response(asked, response(data(batch(0))), known, now_ms=0) == []
    assert made.position(T0) == 50
    assert made.plan(0, known).fetches == {1: [T0]}


def test_records_that_arrive_for_a_paused_partition_are_fetched_again_later() -> None:
    made, known = fetcher(), routes()
    asked = order(made, known)
    made.pause([T0])
    assert made.on_response(asked, response(data(batch(0))), known, now_ms=0) == []
    assert made.plan(0, known).fetches == {}
    made.pause([T0], is_paused=False)
    assert order(made, known).offsets == {T0: 0}


def test_a_lost_fetch_is_sent_again_from_the_same_offset() -> None:
    made, known = fetcher(9), routes()
    made.on_lost(order(made, known), now_ms=0)
    assert made.plan(50, known).fetches == {}
    assert order(made, known, now_ms=200).offsets == {T0: 9}


def test_a_truncated_log_is_noticed() -> None:
    diverging = data(diverging_epoch=EpochEndOffset(epoch=4, end_offset=30))
    for reset, is_error in ((OffsetReset.LATEST, False), (OffsetReset.ERROR, True)):
        made, known = fetcher(50, offset_reset=reset), routes()
        assert made.on_response(order(made, known), response(diverging), known, now_ms=0) == []
        assert made.position(T0) == 30
        assert isinstance(made.take_error(), LogTruncated) == is_error


def test_a_topic_that_was_created_again_is_read_as_the_caller_chose() -> None:
    for reset in OffsetReset:
        made, known = fetcher(0, offset_reset=reset), routes()
        made.on_response(order(made, known), response(data(batch(0))), known, now_ms=0)
        plan = made.plan(0, routes(topic_id=bytes(15) + b"\2"))
        assert plan.lookups == ({} if reset is OffsetReset.ERROR else {T0: reset.timestamp})
        assert isinstance(made.take_error(), LogTruncated) == (reset is OffsetReset.ERROR)


def test_a_damaged_batch_is_an_error_and_the_position_stays() -> None:
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    made, known = fetcher(), routes()
    assert made.on_response(order(made, known), response(data(bytes(damaged))), known, now_ms=0) == []
    assert made.position(T0) == 0
    with pytest.raises(CorruptRecords, match="t-0: the batch at offset 0 has a wrong checksum"):
        raise made.take_error() or AssertionError
    unchecked = fetcher(check_crcs=False)
    assert unchecked.on_response(order(unchecked, known), response(data(bytes(damaged))), known, now_ms=0)


@given(st.binary(max_size=300))
def test_garbage_for_records_raises_nothing(garbage: bytes) -> None:
    made, known = fetcher(), routes()
    for fetched in made.on_response(order(made, known), response(data(garbage)), known, now_ms=0):
        assert fetched.next_offset > 0


# Transactions -------------------------------------------------------------------------------------------------------


def transactional(base_offset: int, producer_id: int, count: int = 2) -> bytes:
    builder = BatchBuilder(
        base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    for number in range(count):
        builder.append(timestamp=0, key=None, value=b"%d" % (base_offset + number))
    return bytes(builder.build())


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    built = build_marker(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    stamp(built, base_offset=base_offset, leader_epoch=0)
    return bytes(built)


LOG = (
    transactional(0, producer_id=1)  # aborted
    + transactional(2, producer_id=2)  # committed
    + batch(4, 2)
    + marker(6, 1, ControlType.ABORT)
    + transactional(7, producer_id=1)  # the same producer, committed this time
    + marker(9, 2, ControlType.COMMIT)
    + marker(10, 1, ControlType.COMMIT)
    + transactional(11, producer_id=2)  # aborted
    + marker(13, 2, ControlType.ABORT)
)
ABORTED = [AbortedTransaction(producer_id=2, first_offset=11), AbortedTransaction(producer_id=1, first_offset=0)]


def shown(isolation_level: int, offset: int = 0) -> list[int]:
    made, known = fetcher(offset, isolation_level=isolation_level), routes()
    answer = response(data(LOG, aborted_transactions=ABORTED))
    (fetched,) = made.on_response(order(made, known), answer, known, now_ms=0)
    assert made.position(T0) == 14
    return [record.offset for record in fetched]


def test_read_committed_hides_aborted_records_and_markers_are_always_hidden() -> None:
    assert shown(READ_COMMITTED) == [2, 3, 4, 5, 7, 8]
    assert shown(0) == [0, 1, 2, 3, 4, 5, 7, 8, 11, 12]


def test_reading_begins_in_the_middle_of_an_aborted_transaction() -> None:
    assert shown(READ_COMMITTED, 1) == [2, 3, 4, 5, 7, 8]


def test_batches_can_be_read_without_being_decoded() -> None:
    fetched = FetchedBatches("t", 0, records=memoryview(LOG), fetch_offset=0, next_offset=14, high_watermark=14)
    assert [raw.header.base_offset for raw in fetched.batches()] == [0, 2, 4, 7, 11]
    assert "offsets 0 to 13" in repr(fetched)
