"""The data source `minibroker`: the driver plans and resolves offsets; tasks read the planned ranges.

The batch of a stream depends only on its start and its end, which Spark logs before it runs the batch. So a batch that
is repeated in another process after a crash has the same records; `minibroker.spark.offsets` explains how.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from minibroker.log.clock import precise_ms
from minibroker.spark.connecting import demand_broker
from minibroker.spark.errors import InvalidOption, shown_plainly
from minibroker.spark.filters import Pushed
from minibroker.spark.offsets import (
    IDS,
    Cluster,
    Document,
    Offsets,
    Range,
    from_document,
    limited,
    progress,
    ranges_between,
    split,
    to_document,
)
from minibroker.spark.options import BATCH, STREAM, ReadOptions, WriteOptions
from minibroker.spark.reading import Split, read_split

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class MinibrokerSource(DataSource):
    """The format `minibroker`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "minibroker"

    @shown_plainly
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka connector. Spark calls this first, for a batch and for a stream."""
        # It is not known yet whether this is a batch or a stream. Options that both refuse are refused here, at load().
        options = {name: value for name, value in self.options.items() if not name.lower().startswith("ending")}
        mode = BATCH if len(options) < len(self.options) else STREAM
        has_headers = ReadOptions.parse(self.options, mode).includes_headers
        return StructType([*COLUMNS.fields, HEADERS]) if has_headers else COLUMNS

    @shown_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        options = ReadOptions.parse(self.options, BATCH)
        self._check_schema(schema)
        return FilteringReader(options) if _is_pushing() else BatchReader(options)

    @shown_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream."""
        options = ReadOptions.parse(self.options, STREAM)
        self._check_schema(schema)
        return StreamReader(options)

    @shown_plainly
    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Make the writer of a batch."""
        from minibroker.spark.sink import BatchWriter  # noqa: PLC0415 - a query that reads does not need it

        if overwrite:
            raise InvalidOption(
                "mode: a topic cannot be overwritten, because records are only appended; use mode('append')"
            )
        options = WriteOptions.parse(self.options)
        writer = BatchWriter(options, schema)
        demand_broker(options.client)
        return writer

    @shown_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Make the writer of a stream."""
        from minibroker.spark.sink import StreamWriter  # noqa: PLC0415

        if overwrite:
            raise InvalidOption(
                "outputMode: complete would write the whole result with each batch; use append or update"
            )
        return StreamWriter(WriteOptions.parse(self.options), schema)

    def _check_schema(self, schema: StructType) -> None:
        expected = self.schema().simpleString()
        if schema.simpleString() != expected:
            raise InvalidOption(f"schema: it cannot be chosen; the columns are {expected}")


def _is_pushing() -> bool:
    """Tell whether Spark is about to push filters.

    If a reader has `pushFilters` while `spark.sql.python.filterPushdown.enabled` is not set, Spark fails. This code
    cannot read the setting. But Spark pushes filters in a separate process, which is recognised by its main module.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN in sys.modules or getattr(main, "name", "") == _PUSHDOWN


class BatchReader(DataSourceReader):
    """Reads the records that the topics have when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    @shown_plainly
    def partitions(self) -> list[InputPartition]:
        """Return the splits; later records do not change their offsets."""
        cluster = Cluster(self._options)
        try:
            ranges = self._ranges(cluster)
        finally:
            cluster.close()
        return _splits(self._options, ranges, {})

    def _ranges(self, cluster: Cluster) -> list[Range]:
        partitions = cluster.demand()
        starts, ends = cluster.span(partitions)
        wanted = [it for it in partitions if self._pushed.wants(it)]
        since = self._pushed.timestamp_ms_min
        newer = {} if since is None else cluster.at_times(dict.fromkeys(wanted, since))
        ranges = []
        for it in wanted:
            until = min(ends[it], self._pushed.offset_end)
            # A negative offset means that no record is that new, so there is nothing to read.
            first = newer.get(it, 0) if newer.get(it, 0) >= 0 else until
            ranges.append(Range(*it, max(starts[it], self._pushed.offset_min, first), until))
        return ranges

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read the records of a split, in a task."""
        return _read(self._options, partition)


class FilteringReader(BatchReader):
    """A `BatchReader` for Spark with `spark.sql.python.filterPushdown.enabled=true`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the filters that reduce the reads; return the filters that Spark still has to apply."""
        return self._pushed.push(filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream. Spark keeps it in a process of its own while the query runs."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._initial: Document | None = None
        self._has_begun = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._triggered_ms: float | None = None

    @shown_plainly
    def initialOffset(self) -> Document:  # noqa: N802
        """Return the start of a query without a checkpoint; Spark asks twice and expects the same answer."""
        if self._initial is None:
            self._initial = to_document(self._cluster.starts(self._cluster.demand()))
        return self._initial

    @shown_plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the present ends of the logs; later records are left to another run."""
        self._target = self._cluster.survey()[1]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit from the options; Spark passes it to `latestOffset`, unless a trigger reads everything."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @shown_plainly
    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """Return the end of the batch that begins at `start`; it equals the start if there is nothing to read."""
        begun, ids = from_document(start), start.get(IDS, {})
        # Spark asks for the next batch when the one before is done.
        self._cluster.commit(begun)
        found, self._latest = self._cluster.survey(begun, ids)
        now = progress(self._cluster, begun, found, self._reachable(begun, self._latest), ids)
        ends = self._admitted(now.starts, now.ends, limit)
        self._has_begun |= start != self._initial
        if not self._has_begun:
            # The end of the first batch also holds the starts of the query. If Spark repeats that batch after a crash,
            # the batch begins at the same offsets.
            return to_document(ends, now.starts, found.ids)
        return start if ends == begun and not now.pinned else to_document(ends, now.pinned, found.ids)

    def _reachable(self, begun: Offsets, latest: Offsets) -> Offsets:
        """Limit the ends to the target of a run with availableNow, but never to less than the stream's position."""
        if self._target is None:
            return latest
        targets = {it: max(self._target.get(it, 0), begun.get(it, 0)) for it in (*self._target, *begun)}
        return {it: min(end, targets[it]) for it, end in latest.items() if it in targets}

    def _admitted(self, starts: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return ends
        available = sum(ends.values()) - sum(starts.values())
        if self._must_wait(available):
            return starts
        self._triggered_ms = precise_ms()
        return limited(starts, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def _must_wait(self, available: int) -> bool:
        """Tell whether a batch must wait for more records, at most for maxTriggerDelay; the first never waits."""
        least = self._options.offsets_per_trigger_min
        if least is None or available >= least or self._target is not None or self._triggered_ms is None:
            return False
        return precise_ms() - self._triggered_ms < self._options.trigger_delay_ms_max

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        """Return the logs' ends at the last trigger; the difference from the end of the batch is the lag."""
        return None if self._latest is None else to_document(self._latest)

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """Return the splits of a batch."""
        return _splits(self._options, ranges_between(start, end), end.get(IDS, {}))

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read the records of a split, in a task."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy, which does not need the driver's connections.
        return {"_options": self._options}


def _splits(options: ReadOptions, ranges: Iterable[Range], ids: Mapping[str, str]) -> list[InputPartition]:
    pieces = split(ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max)
    return [Split(*it, ids.get(it.topic, "")) for it in pieces]


def _read(options: ReadOptions, partition: InputPartition) -> "Iterator[RecordBatch]":
    # If there are no splits, Spark passes a partition of its own, which has no records.
    batches = read_split(options, partition) if isinstance(partition, Split) else iter(())
    following = shown_plainly(lambda: next(batches, None))
    while (batch := following()) is not None:
        yield batch
