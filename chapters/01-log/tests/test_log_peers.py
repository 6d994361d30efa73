"""Our bytes against two codecs that we did not write: kafka-python's and kio's, in both directions."""

import io
from datetime import UTC, datetime

import kafka.codec
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kio.records import schema as kio
from kio.records.readers import read_batch as kio_read_batch
from kio.records.writers import write_new_batch as kio_write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64
from log_cases import each_case
from log_strategies import CODECS, build, records

from minibroker.log.batch import RECORDS_AT, Batch, batches, read_header, stamp, stamp_log_append_time
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker, control_type, coordinator_epoch
from minibroker.log.record import Record

PEER_DECODE = {
    Compression.NONE: bytes,
    Compression.GZIP: kafka.codec.gzip_decode,
    Compression.SNAPPY: kafka.codec.snappy_decode,
    Compression.LZ4: kafka.codec.lz4_decode,
    Compression.ZSTD: kafka.codec.zstd_decode,
}


def normal(found: list[Record]) -> list[Record]:
    return [record._replace(headers=list(record.headers)) for record in found]


def theirs(batch: DefaultRecordBatch) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]


# kafka-python


@given(records(), st.sampled_from(CODECS), st.integers(0, 2**62))
def test_kafka_python_reads_what_we_write(generated: list[Record], codec: Compression, base_offset: int) -> None:
    batch = build(generated, compression=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    stamp(batch, base_offset=base_offset, leader_epoch=9)
    peer = DefaultRecordBatch(bytes(batch))
    assert peer.validate_crc()
    assert (peer.base_offset, peer.leader_epoch, peer.compression_type) == (base_offset, 9, codec)
    assert (peer.producer_id, peer.producer_epoch, peer.base_sequence) == (7, 1, 3)
    assert theirs(peer) == [record._replace(offset=base_offset + record.offset) for record in generated]


@given(records(), st.sampled_from(CODECS))
def test_we_read_what_kafka_python_writes(generated: list[Record], codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, True, 7, 1, 3, 10**9)
    for record in generated:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = Batch(bytes(builder.build()))
    batch.check_crc()
    # It leaves a batch uncompressed that compression would not make smaller.
    assert batch.header.compression in (codec, Compression.NONE)
    assert batch.header.is_transactional
    assert normal(list(batch.records())) == generated


@given(records())
def test_uncompressed_records_are_the_same_bytes_as_kafka_pythons(generated: list[Record]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**9)
    for record in generated:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    ours = build(generated)
    stamp(ours, base_offset=0, leader_epoch=0)
    assert bytes(ours) == bytes(builder.build())


@given(st.lists(records(), min_size=1, max_size=4), st.sampled_from(CODECS))
def test_kafka_python_walks_over_our_batches(sets: list[list[Record]], codec: Compression) -> None:
    walked = MemoryRecords(b"".join(build(generated, compression=codec) for generated in sets))
    for generated in sets:
        assert theirs(walked.next_batch()) == generated
    assert not walked.has_next()


@given(records(), st.integers(0, 10**13))
def test_kafka_python_sees_our_log_append_time(generated: list[Record], now_ms: int) -> None:
    batch = build(generated)
    stamp_log_append_time(batch, timestamp=now_ms)
    peer = DefaultRecordBatch(bytes(batch))
    assert peer.validate_crc()
    assert {record.timestamp for record in peer} == {now_ms}
    assert {record.timestamp_type for record in DefaultRecordBatch(bytes(batch))} == {1}


@each_case("marker", [ControlType.ABORT, ControlType.COMMIT])
def test_kafka_python_sees_our_markers(marker: ControlType) -> None:
    batch = build_marker(marker, producer_id=5, producer_epoch=2, coordinator_epoch=8, timestamp=1000)
    peer = DefaultRecordBatch(bytes(batch))
    assert peer.is_control_batch
    assert peer.is_transactional
    (record,) = peer
    assert (record.abort, record.commit) == (marker is ControlType.ABORT, marker is ControlType.COMMIT)
    (ours,) = Batch(batch).records()
    assert (control_type(ours), coordinator_epoch(ours)) == (marker, 8)


def test_the_control_types_are_kafkas() -> None:
    # ControlRecordType in Kafka's source.
    assert {control.name: control.value for control in ControlType} == {
        "ABORT": 0,
        "COMMIT": 1,
        "LEADER_CHANGE": 2,
        "SNAPSHOT_HEADER": 3,
        "SNAPSHOT_FOOTER": 4,
        "KRAFT_VERSION": 5,
        "KRAFT_VOTERS": 6,
    }
    assert control_type(Record(0, 0, b"\x00\x00\xff\xff", None)) == -1


# kio, which knows no compression: compressed records are first unpacked by kafka-python's codecs


def in_whole_seconds(generated: list[Record]) -> list[Record]:
    return [record._replace(timestamp=record.timestamp // 1000 * 1000) for record in generated]


def uncompressed_by_a_peer(batch: bytearray) -> bytes:
    """The same batch without compression, made without our codecs: kio then checks records, counts and lengths."""
    header = read_header(batch)
    plain = PEER_DECODE[Compression(header.compression)](bytes(batch[RECORDS_AT:]))
    rebuilt = build(list(Batch(batch).records()))
    assert bytes(rebuilt[RECORDS_AT:]) == bytes(plain)
    return bytes(rebuilt)


@given(records(), st.sampled_from(CODECS))
def test_kio_reads_what_we_write(generated: list[Record], codec: Compression) -> None:
    generated = in_whole_seconds(generated)
    peer, size = kio_read_batch(uncompressed_by_a_peer(build(generated, compression=codec)), 0)
    assert peer.batch_length + 12 == size
    assert [
        Record(
            record.offset,
            int(record.timestamp.timestamp() * 1000),
            record.key,
            record.value,
            [((h.key or b"").decode(), h.value) for h in record.headers],
        )
        for record in peer.records
    ] == generated


def kio_record(record: Record) -> kio.Record:
    moment = datetime.fromtimestamp(record.timestamp // 1000, UTC)
    headers = tuple(kio.RecordHeader(key=key.encode(), value=value) for key, value in record.headers)
    return kio.Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(moment),
        offset=i64(record.offset),
        key=record.key,
        value=record.value,
        headers=headers,
    )


@given(records())
def test_we_read_what_kio_writes_to_the_byte(generated: list[Record]) -> None:
    generated = in_whole_seconds(generated)
    written = io.BytesIO()
    new = kio.NewRecordBatch(
        producer_id=i64(-1),
        producer_epoch=i16(-1),
        partition_leader_epoch=i32(-1),
        base_sequence=i32(-1),
        records=tuple(kio_record(record) for record in generated),
        attributes=i16(0),
    )
    kio_write_new_batch(written, new)
    (batch,) = batches(written.getvalue())
    batch.check_crc()
    assert normal(list(batch.records())) == generated
    assert written.getvalue() == bytes(build(generated))
