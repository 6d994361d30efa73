"""Encoding and decoding of records in pure Python, beside kafka-python's record builder and reader."""

from collections.abc import Callable

from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from minibroker.bench import Bar, Benchmark, Case, Context, scaled
from minibroker.log.batch import Batch, BatchBuilder

VALUE = b"x" * 100
TIMESTAMP = 1_700_000_000_000


def benchmark(_context: Context) -> Benchmark:
    # As many records as fit into one request of 1 MB, the most a broker takes by default.
    count = scaled(full=9_000, quick=1_000)
    batch = bytes(encode_ours(count))

    def case(name: str, run: Callable[[], object], series: str, limit: str = "") -> Case:
        work = count * len(VALUE)
        return Case(name, run, bytes_count=work, operations_count=count, series=series, limit=limit)

    return Benchmark(
        "Encode and decode records of 100 bytes, pure Python",
        [
            case("decode, kafka-python", lambda: decode_theirs(batch), "kafka-python"),
            case("decode, minibroker", lambda: decode_ours(batch), "minibroker", "decode, kafka-python"),
            case("encode, kafka-python", lambda: encode_theirs(count), "kafka-python"),
            case("encode, minibroker", lambda: encode_ours(count), "minibroker", "encode, kafka-python"),
        ],
        bars=[
            Bar("decode, minibroker", "ops_per_s", at_least=500_000),
            Bar("decode, minibroker", "ratio", at_least=1),
            Bar("encode, minibroker", "ratio", at_least=1),
        ],
        metric="ops_per_s",
        note="An operation is one record. Every record is looked at: a broker never does this, a consumer must.",
    )


def encode_ours(count: int) -> bytearray:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(timestamp=TIMESTAMP + index // 10, key=None, value=VALUE)
    return builder.build()


def encode_theirs(count: int) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 2**30)
    for index in range(count):
        builder.append(index, TIMESTAMP + index // 10, None, VALUE, [])
    batch: bytearray = builder.build()
    return batch


def decode_ours(batch: bytes) -> int:
    found = Batch(batch)
    found.check_crc()
    return sum(len(record.value or b"") for record in found.records())


def decode_theirs(batch: bytes) -> int:
    found = DefaultRecordBatch(batch)
    assert found.validate_crc()
    return sum(len(record.value) for record in found)
