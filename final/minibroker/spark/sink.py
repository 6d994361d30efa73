"""The driver's half of the sink: checks the columns as Spark's Kafka sink does, and hands each task to `writing`.

Both writers are at least once: a task that is tried again writes its rows again, and so does a batch of a stream that
was not committed in the checkpoint when the driver died. There is nothing to undo in a log, so `abort` undoes nothing.
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
"""The columns that a sink reads, the types that each may have, and how these are told. Other columns are ignored."""


class SchemaRefused(ConnectorError):
    """Columns that cannot be written to a topic."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has written, for the driver."""

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
    for name, (types, told) in COLUMNS.items():
        if name not in names or (name == "topic" and topic is not None):
            continue  # the option goes before the column, whatever that is
        if names.count(name) > 1:
            raise SchemaRefused(f"column '{name}' stands {names.count(name)} times: which one is meant?")
        found = schema[name].dataType
        if not isinstance(found, types) or (name == "headers" and not _are_headers(found)):
            raise SchemaRefused(f"column '{name}' is {found.simpleString()}, must be {told}: cast it")


def _are_headers(found: DataType) -> bool:
    element = found.elementType if isinstance(found, ArrayType) else None
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(element["value"].dataType, BinaryType)


class _Writer:
    """What both writers are made of: it is pickled for the tasks, so it holds settings and no connection."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, topic=options.topic)
        self._topic = options.topic
        self._delivery = writing.delivery_of(options)

    def _write(self, rows: "Iterator[pa.RecordBatch]") -> Written:
        return Written(*writing.write(rows, self._delivery, topic=self._topic))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("minibroker")`: append only, for a log has no other mode."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """In a task: write its rows, and return when they are acknowledged."""
        return self._write(iterator)

    def abort(self, messages: list[Any]) -> None:
        """What other tasks wrote stays: at least once."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("minibroker")`: the rows of each micro-batch, at least once.

    Exactly-once will begin here: in a task the query and the batch are known,

        TaskContext.get().getLocalProperty("sql.streaming.queryId"), ...("streaming.sql.batchId"),

    from which follow the transactional id, `<prefix>-<queryId>-<sparkPartition>`, for `writing.Delivery`, and the
    offset `batchId + 1` that the transaction commits for its partition, by which a second attempt sees that it has
    nothing to do.
    """

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """In a task: write its rows, and return when they are acknowledged."""
        return self._write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Every task has its acknowledgements, so there is nothing left to do."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """What other tasks wrote stays: at least once."""
