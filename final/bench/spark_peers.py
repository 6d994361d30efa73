"""Other ways to read and write a topic through Spark's interface for data sources in Python, for comparison.

They plan as our source does and differ in the work of a task. The first returns rows as tuples, with chapter 01's plain
codec. The second makes Arrow columns from the message objects of confluent-kafka, that is librdkafka. The third is our
own reader, which also reports its peak memory. Spark's workers import this module.
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
PEAKS = "peaks"  # the option for the folder of the memory figures


# Tuples ---------------------------------------------------------------------------------------------------------------


class Tuples(MinibrokerSource):
    """The format `tuples`, with a Python object for each field of each row."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Make the reader of a batch."""
        return TupleReader(ReadOptions.parse(self.options, BATCH))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        """Make the writer of a batch."""
        return TupleWriter(WriteOptions.parse(self.options))


class TupleReader(BatchReader):
    """Plans and fetches as our reader does, and decodes record by record."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the records of a split, in a task."""
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
    """Builds batches row by row with chapter 01's builder, and delivers them as our writer does."""

    def __init__(self, options: WriteOptions) -> None:
        assert options.topic is not None
        self._topic = options.topic
        self._delivery = writing.delivery_of(options)

    def write(self, iterator: Iterator[Row]) -> Written:
        """Write the rows of a task to partition 0, in the worker; return when they are acknowledged."""
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
    """The format `confluent`, which makes columns from the records of a client in C."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "confluent"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Make the reader of a batch."""
        return ConfluentReader(ReadOptions.parse(self.options, BATCH))


class ConfluentReader(BatchReader):
    """Plans as our reader does, with a new consumer for each task."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the records of a split, in a task."""
        assert isinstance(partition, Split)
        consumer = Consumer(
            {
                "bootstrap.servers": self._options.client.bootstrap_servers,
                "group.id": f"unused-{uuid.uuid4()}",
                "enable.auto.commit": False,
                # With enough records in its queue the client pauses for a second by default, which is too long.
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
    """Make columns from messages, with few steps for each message."""
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
    """The format `watched`: our source, whose tasks also write the peak memory of their process into a file."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name.lower() != PEAKS})
        self._folder = options[PEAKS]

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "watched"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Make the reader of a batch."""
        return WatchedReader(ReadOptions.parse(self.options, BATCH), self._folder)


class WatchedReader(BatchReader):
    """Our reader, with the peak memory."""

    def __init__(self, options: ReadOptions, folder: str) -> None:
        super().__init__(options)
        self._folder = folder

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the records of a split, in a task, then record the peak."""
        reset_peak()
        yield from super().read(partition)
        Path(self._folder, uuid.uuid4().hex).write_text(str(peak_memory_mb()))


def reset_peak() -> None:
    """Reset the peak to the current memory, because the process has run other tasks before. Only Linux can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
