"""Encoding and decoding of records in pure Python, beside kafka-python's record builder and reader."""

from collections.abc import Callable

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from minibroker.bench import Bar, Benchmark, Case, Context, scaled
from minibroker.log.batch import BatchBuilder, batches

VALUE = b"x" * 100
TIMESTAMP = 1_700_000_000_000


BATCH_RECORDS = 150  # about 16 KB, a producer's default batch


def benchmark(_context: Context) -> Benchmark:
    batch_count = scaled(full=60, quick=5)  # about 1 MB, as a consumer fetches at a time
    count = batch_count * BATCH_RECORDS
    fetched = bytes(encode_ours(batch_count))

    def case(name: str, run: Callable[[], object], series: str, limit: str = "") -> Case:
        work = count * len(VALUE)
        return Case(name, run, bytes_count=work, operations_count=count, series=series, limit=limit)

    return Benchmark(
        "Encode and decode records of 100 bytes, pure Python",
        [
            case("decode, kafka-python", lambda: decode_theirs(fetched), "kafka-python"),
            case("decode, minibroker", lambda: decode_ours(fetched), "minibroker", "decode, kafka-python"),
            case("encode, kafka-python", lambda: encode_theirs(batch_count), "kafka-python"),
            case("encode, minibroker", lambda: encode_ours(batch_count), "minibroker", "encode, kafka-python"),
        ],
        bars=[
            Bar("decode, minibroker", "ops_per_s", at_least=500_000),
            Bar("decode, minibroker", "ratio", at_least=1),
            Bar("encode, minibroker", "ratio", at_least=1),
        ],
        metric="ops_per_s",
        note="An operation is one record. Every record is looked at: a broker never does this, a consumer must.",
    )


def encode_ours(batch_count: int) -> bytearray:
    encoded = bytearray()
    for _ in range(batch_count):
        builder = BatchBuilder()
        for index in range(BATCH_RECORDS):
            builder.append(timestamp=TIMESTAMP + index // 10, key=None, value=VALUE)
        encoded += builder.build()
    return encoded


def encode_theirs(batch_count: int) -> bytearray:
    encoded = bytearray()
    for _ in range(batch_count):
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 2**30)
        for index in range(BATCH_RECORDS):
            builder.append(index, TIMESTAMP + index // 10, None, VALUE, [])
        encoded += builder.build()
    return encoded


def decode_ours(fetched: bytes) -> int:
    size = 0
    for batch in batches(fetched):
        batch.check_crc()
        for record in batch.records():
            size += len(record.value or b"")
    return size


def decode_theirs(fetched: bytes) -> int:
    size = 0
    walked = MemoryRecords(fetched)
    while batch := walked.next_batch():
        assert batch.validate_crc()
        for record in batch:
            size += len(record.value)
    return size
