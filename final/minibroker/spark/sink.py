"""The driver's half of the sink: checks the columns as Spark's Kafka sink does, and gives each task to `writing`.

At least once: a repeated task writes its rows again, and so does a batch that Spark repeats because the driver died
before the checkpoint had committed it. Records cannot be removed from a log, so `abort` does nothing.

Exactly once: each task writes in a transaction, which also holds the number of its batch; see `exactly_once`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from minibroker.spark import exactly_once, writing
from minibroker.spark.errors import ConnectorError, InvalidOption, shown_plainly
from minibroker.spark.options import WriteOptions
from minibroker.spark.progress import Ticket
from minibroker.spark.whole_input import whole

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
    ticket: Ticket | None = None
    is_known_run: bool = False


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
        self._prefix = options.transactional_id_prefix if options.is_exactly_once else None

    @shown_plainly
    def _write(self, rows: "Iterator[pa.RecordBatch]") -> Written:
        if self._prefix is None:
            return Written(*writing.write(rows, self._delivery, topic=self._topic))
        ticket = _ticket(self._prefix)
        done, written = exactly_once.write_once(whole(rows), self._delivery, topic=self._topic, ticket=ticket)
        return Written(*written, ticket, done.is_known_run)

    @shown_plainly
    def _check(self, messages: list[Any]) -> None:
        """In the first batch of a run, look for rows that an earlier run committed from other Spark partitions."""
        tickets = [it.ticket for it in messages if it is not None and it.ticket is not None]
        if tickets and not any(it.is_known_run for it in messages if it is not None):
            exactly_once.demand_no_others(self._delivery.client, tickets)


def _ticket(prefix: str) -> Ticket:
    """Return the ticket of this task. Spark passes the ids to tasks of a streaming query, also within foreachBatch."""
    context = TaskContext.get()
    query_id = context and context.getLocalProperty("sql.streaming.queryId")
    batch_id = context and context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query_id or not batch_id:
        raise InvalidOption(
            "delivery: exactly-once needs a streaming query, whose checkpoint numbers the batches: use writeStream, a"
            " write within foreachBatch, or at-least-once"
        )
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return Ticket(prefix, query_id, run_id, int(batch_id), context.partitionId())


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("minibroker")`: append is the only mode of a log."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write the rows of a task, in the worker; return when they are acknowledged, or committed."""
        return self._write(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Check the tasks together; each of them has committed its own rows."""
        self._check(messages)

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: rows that other tasks wrote stay in the log."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("minibroker")`: writes the rows of each micro-batch."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write the rows of a task, in the worker; return when they are acknowledged, or committed."""
        return self._write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's name)
        """Check the tasks together; each of them has committed its own rows."""
        self._check(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Do nothing: rows that other tasks wrote stay in the log."""
