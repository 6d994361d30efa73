"""Other ways to read and write a topic through Spark's interface for data sources in Python, for comparison.

They plan as our source does and differ in what a task does: rows as tuples, with chapter 01's plain codec; Arrow from
what confluent-kafka, that is librdkafka, hands out as objects; and our own reading, which says what memory it took.
Spark's workers import this module.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from minibroker.bench import peak_memory_mb
from minibroker.log.batch import BatchBuilder, TimestampType
from minibroker.spark import writing
from minibroker.spark.connecting import cached_client
from minibroker.spark.decoding import ROWS_MAX, SCHEMA
from minibroker.spark.options import BATCH, ReadOptions, WriteOptions
from minibroker.spark.reading import Split, fetch_range
from minibroker.spark.sink import Written
from minibroker.spark.source import BatchReader, MinibrokerSource

TIMEOUT_S = 60
PEAKS = "peaks"  # the option that names the folder for the figures


# Tuples ---------------------------------------------------------------------------------------------------------------


class Tuples(MinibrokerSource):
    """The format `tuples`: a Python object for each field of each row."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Read in a batch."""
        return TupleReader(ReadOptions.parse(self.options, BATCH))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        """Write in a batch."""
        return TupleWriter(WriteOptions.parse(self.options))


class TupleReader(BatchReader):
    """The same plan and the same fetches, then record by record."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the records of a split."""
        assert isinstance(partition, Split)
        for fetched in fetch_range(cached_client(self._options.client), self._options, partition):
            for batch in fetched.batches():
                kind = int(batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME)
                for record in batch.records():
                    if fetched.fetch_offset <= record.offset < partition.until:
                        stamp = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                        place = partition.topic, partition.partition, record.offset
                        yield record.key, record.value, *place, stamp, kind


class TupleWriter(DataSourceWriter):
    """Row by row into chapter 01's builder of batches, and the same deliveries."""

    def __init__(self, options: WriteOptions) -> None:
        assert options.topic is not None
        self._topic = options.topic
        self._delivery = writing.delivery_of(options)

    def write(self, iterator: Iterator[Row]) -> Written:
        """In a task: write its rows to partition 0, and return when they are acknowledged."""
        outbox = writing.Outbox(cached_client(self._delivery.client), self._delivery)
        builder = BatchBuilder()
        count = 0
        for row in iterator:
            value = row.value
            if builder.record_count and builder.size + len(value) > self._delivery.batch_bytes_max:
                outbox.put(self._topic, 0, builder.build())
                builder = BatchBuilder()
            builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=value)
            count += 1
        if builder.record_count:
            outbox.put(self._topic, 0, builder.build())
        outbox.flush()
        return Written(count, outbox.byte_count)


# confluent-kafka ------------------------------------------------------------------------------------------------------


class Confluent(MinibrokerSource):
    """The format `confluent`: a client in C, whose records become columns."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "confluent"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read in a batch."""
        return ConfluentReader(ReadOptions.parse(self.options, BATCH))


class ConfluentReader(BatchReader):
    """The same plan; a consumer of its own for each task."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the records of a split."""
        assert isinstance(partition, Split)
        consumer = Consumer(
            {
                "bootstrap.servers": self._options.client.bootstrap_servers,
                "group.id": f"unused-{uuid.uuid4()}",
                "enable.auto.commit": False,
                # The pause that it makes once it holds enough records is a second: too long.
                "fetch.queue.backoff.ms": 1,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(partition.topic, partition.partition, partition.start)])
        position = partition.start
        while position < partition.until:
            messages = consumer.consume(min(ROWS_MAX, partition.until - position), timeout=TIMEOUT_S)
            assert messages, f"{partition}: nothing came from offset {position} on within {TIMEOUT_S} s"
            position = int(messages[-1].offset() or 0) + 1
            yield arrow_of(partition, messages)
        consumer.close()


def arrow_of(split: Split, messages: list[Message]) -> pa.RecordBatch:
    """Columns of messages, in as few steps for each as there are."""
    stamps = [message.timestamp() for message in messages]
    count = len(messages)
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(split.topic, pa.string()), count),
        pa.repeat(pa.scalar(split.partition, pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([ms * 1000 for _kind, ms in stamps], pa.int64()).cast(SCHEMA.field("timestamp").type),
        pa.array([kind - 1 for kind, _ms in stamps], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


# Memory ---------------------------------------------------------------------------------------------------------------


class Watched(MinibrokerSource):
    """The format `watched`: ours, and each task leaves a file that says what memory its process held at most."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name.lower() != PEAKS})
        self._folder = options[PEAKS]

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "watched"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read in a batch."""
        return WatchedReader(ReadOptions.parse(self.options, BATCH), self._folder)


class WatchedReader(BatchReader):
    """Ours."""

    def __init__(self, options: ReadOptions, folder: str) -> None:
        super().__init__(options)
        self._folder = folder

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the records of a split, then the peak."""
        reset_peak()
        yield from super().read(partition)
        Path(self._folder, uuid.uuid4().hex).write_text(str(peak_memory_mb()))


def reset_peak() -> None:
    """Have the system count anew from what the process holds now: it had other tasks before. Linux can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
