"""The driver's half of the sink: checks the columns as Spark's Kafka sink does, and gives each task to `writing`.

Both writers deliver at least once. A repeated task writes its rows again. If the driver dies before the checkpoint has
committed a stream's batch, the batch is written again. Records cannot be removed from a log, so `abort` does nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from minibroker.spark import writing
from minibroker.spark.errors import ConnectorError
from minibroker.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = (StringType, BinaryType)
COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (TEXT, "string or binary"),
    "key": (TEXT, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
}
"""The columns that a sink reads, the types that each may have, and the types' names. Other columns are ignored."""


class SchemaRefused(ConnectorError):
    """Columns that cannot be written to a topic."""


@dataclass
class Written(WriterCommitMessage):
    """The numbers that one task reports to the driver."""

    row_count: int
    byte_count: int


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse rows that cannot be written, before any task starts."""
    names = schema.fieldNames()
    if topic is None and "topic" not in names:
        raise SchemaRefused(
            "topic option required when no 'topic' column is present: set the option topic, or add the column"
        )
    if "value" not in names:
        raise SchemaRefused(f"required column 'value' not found: the columns are {', '.join(names) or 'none'}")
    for name, (types, wanted) in COLUMNS.items():
        if name not in names or (name == "topic" and topic is not None):
            continue  # the option overrides the column
        if names.count(name) > 1:
            raise SchemaRefused(f"column '{name}' appears {names.count(name)} times: keep one of them")
        found = schema[name].dataType
        if not isinstance(found, types) or (name == "headers" and not _are_headers(found)):
            raise SchemaRefused(f"column '{name}' is {found.simpleString()}, must be {wanted}: cast it")


def _are_headers(found: DataType) -> bool:
    element = found.elementType if isinstance(found, ArrayType) else None
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(element["value"].dataType, BinaryType)


class _Writer:
    """The shared part of both writers. It is pickled for the tasks, so it holds settings and no connection."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, topic=options.topic)
        self._topic = options.topic
        self._delivery = writing.delivery_of(options)

    def _write(self, rows: "Iterator[pa.RecordBatch]") -> Written:
        return Written(*writing.write(rows, self._delivery, topic=self._topic))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("minibroker")`: append is the only mode of a log."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write the rows of a task, in the worker; return when they are acknowledged."""
        return self._write(iterator)

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: rows that other tasks wrote stay in the log."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("minibroker")`: writes the rows of each micro-batch, at least once.

    Exactly-once delivery will be added here. A task knows the ids of its query and of its batch:

        TaskContext.get().getLocalProperty("sql.streaming.queryId"), ...("streaming.sql.batchId")

    They give the transactional id for `writing.Delivery`, `<prefix>-<queryId>-<sparkPartition>`, and the offset that
    the transaction commits for its partition, `batchId + 1`. A second attempt reads that offset and sees that the batch
    is already written.
    """

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write the rows of a task, in the worker; return when they are acknowledged."""
        return self._write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Do nothing: every task has waited for its acknowledgements."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Do nothing: rows that other tasks wrote stay in the log."""
