"""Record sets into Arrow and back, on one core: the Spark connector's codec compared with chapter 01's plain one."""

import random
from collections.abc import Callable

import pyarrow as pa

from minibroker.bench import Bar, Benchmark, Case, Context, scaled
from minibroker.log.batch import BatchBuilder, batches
from minibroker.spark.decoding import decode
from minibroker.spark.encoding import encode, murmur2

TIMESTAMP = 1_700_000_000_000
BATCH_BYTES = 1_000_000  # the size that the connector's sink sends, and about one fetch


def benchmark(_context: Context) -> Benchmark:
    count = scaled(full=20_000, quick=2_000)
    small, large = column(count, 100), column(count // 5, 1000)
    equal = pa.array([b"x" * 100] * count, pa.binary())
    keys = pa.array([b"key-%d" % (number % 1000) for number in range(count)], pa.binary())

    def case(name: str, rows: pa.Array, run: Callable[[], object], series: str, limit: str = "") -> Case:
        size = sum(len(value) for value in rows.to_pylist())
        return Case(name, run, bytes_count=size, operations_count=len(rows), series=series, limit=limit)

    def decoding(name: str, rows: pa.Array, batch_bytes: int = BATCH_BYTES) -> list[Case]:
        record_set = b"".join(encode(None, rows, timestamp_ms=TIMESTAMP, batch_bytes_max=batch_bytes))
        plain = f"decode, {name}, plain"
        return [
            case(plain, rows, lambda: decode_plainly(record_set), "plain"),
            case(f"decode, {name}, vectorised", rows, lambda: decode_vectorised(record_set), "vectorised", plain),
        ]

    def encoding(name: str, rows: pa.Array) -> list[Case]:
        plain = f"encode, {name}, plain"
        return [
            case(plain, rows, lambda: encode_plainly(rows), "plain"),
            case(f"encode, {name}, vectorised", rows, lambda: encode_vectorised(rows), "vectorised", plain),
        ]

    return Benchmark(
        "Record sets into Arrow and back, one core",
        [
            *decoding("100 B", small),
            *decoding("100 B in batches of 16 KB", small, 16 * 1024),
            *decoding("100 B, all equal", equal),
            *decoding("1 KB", large),
            *encoding("100 B", small),
            *encoding("1 KB", large),
            case("murmur2 of keys, vectorised", keys, lambda: murmur2(keys), "vectorised"),
        ],
        bars=[
            # Compared with the plain codec in the same rounds, because rows per second depend on the machine, too.
            Bar("decode, 100 B, vectorised", "cpu_ratio", at_most=0.5),
            Bar("decode, 1 KB, vectorised", "cpu_ratio", at_most=0.8),
            Bar("encode, 100 B, vectorised", "cpu_ratio", at_most=0.25),
        ],
        metric="ops_per_s",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one record. Sizes vary by half around the one named, except where all are equal.",
    )


def column(count: int, size: int) -> pa.Array:
    chance = random.Random(size)
    return pa.array([chance.randbytes(chance.randint(size // 2, size * 3 // 2)) for _ in range(count)], pa.binary())


def decode_vectorised(record_set: bytes) -> int:
    return sum(rows.num_rows for rows in decode("orders", 0, record_set))


def decode_plainly(record_set: bytes) -> int:
    count = 0
    for batch in batches(record_set):
        batch.check_crc()
        count += sum(1 for _record in batch.records())
    return count


def encode_vectorised(rows: pa.Array) -> int:
    return sum(len(batch) for batch in encode(None, rows, timestamp_ms=TIMESTAMP, batch_bytes_max=BATCH_BYTES))


def encode_plainly(rows: pa.Array) -> int:
    # Convert the column to Python objects, as row-based sinks get them, then encode record by record.
    builder = BatchBuilder()
    size = 0
    for value in rows.to_pylist():
        builder.append(timestamp=TIMESTAMP, key=None, value=value)
        if builder.size > BATCH_BYTES:
            size += len(builder.build())
            builder = BatchBuilder()
    return size + len(builder.build())
