"""Groups the orders of each customer into sessions, with state that Spark keeps; each session is written once.

A session is a customer's orders with no more than `gap` between two of them. It is open until the watermark has passed
its last order by the gap; then a timer closes it, and it goes to a topic under the customer's name:

    {"customer": "customer-7", "start": "…", "end": "…", "orders": 3, "amount": 120.5}

Spark keeps open sessions and timers in the checkpoint. So after a kill the next run goes on with them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from minibroker.pipelines.orders import parsed
from minibroker.pipelines.running import (
    FORMAT,
    begin,
    follow,
    prepare_topics,
    read_options,
    stream,
    triggered,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "customer STRING, start TIMESTAMP, end TIMESTAMP, orders INT, amount DOUBLE"
STATE = "start_ms BIGINT, end_ms BIGINT, orders INT, amount DOUBLE"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that timers need."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """The settings of the pipeline."""

    bootstrap: str
    checkpoint: str
    topic: str = "orders"
    results: str = "sessions"
    gap_ms: int = 30_000
    watermark: str = "30 seconds"
    once: bool = False
    interval: str = "1 second"
    max_per_trigger: int | None = None
    skips_lost: bool = False


class Session(NamedTuple):
    """An open session; the fields are those of STATE."""

    start_ms: int
    end_ms: int
    orders: int
    amount: float

    def joined(self, other: "Session") -> "Session":
        """Both sessions as one."""
        start_ms, end_ms = min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms)
        return Session(start_ms, end_ms, self.orders + other.orders, self.amount + other.amount)


def merged(sessions: Iterable[Session], gap_ms: int) -> list[Session]:
    """Join sessions with no more than a gap between them; the result is in the order of time."""
    found: list[Session] = []
    for it in sorted(sessions):
        if found and it.start_ms - found[-1].end_ms <= gap_ms:
            found[-1] = found[-1].joined(it)
        else:
            found.append(it)
    return found


class Sessionizer(StatefulProcessor):
    """The open sessions of one customer, and the timers that close them."""

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: Any) -> None:
        """Take the state that Spark keeps."""
        self._handle = handle
        self._open = handle.getListState("open", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Add orders to the customer's sessions, and set a timer for each session."""
        had = [Session(*it) for it in self._open.get()]
        new = [Session(_ms(it.time), _ms(it.time), 1, float(it.amount)) for it in rows]
        now_open = merged([*had, *new], self._gap_ms)
        for it in self._handle.listTimers():
            self._handle.deleteTimer(it)
        for it in now_open:
            self._handle.registerTimer(self._closing_ms(it))
        self._open.put([tuple(it) for it in now_open])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Close the sessions that the watermark has passed."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        all_open = [Session(*it) for it in self._open.get()]
        left = [it for it in all_open if self._closing_ms(it) > watermark_ms]
        if left:
            self._open.put([tuple(it) for it in left])
        else:
            self._open.clear()
        for it in all_open:
            if it not in left:
                times = {"start": _time(it.start_ms), "end": _time(it.end_ms)}
                yield Row(customer=key[0], **times, orders=it.orders, amount=round(it.amount, 2))

    def _closing_ms(self, session: Session) -> int:
        return session.end_ms + self._gap_ms

    def close(self) -> None:
        """Do nothing: Spark closes the state itself."""


def _ms(time: datetime) -> int:
    return round(time.astimezone(UTC).timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def sessions(records: "DataFrame", *, gap_ms: int, watermark: str) -> "DataFrame":
    """Return the closed sessions, as key and value of a record."""
    good = parsed(records).where(f.col("problem").isNull()).select("order.customer", "order.time", "order.amount")
    grouped = good.where("customer IS NOT NULL").withWatermark("time", watermark).groupBy("customer")
    closed = grouped.transformWithState(Sessionizer(gap_ms), OUTPUT, "Append", "EventTime")
    return closed.select(f.col("customer").alias("key"), f.to_json(f.struct("*")).alias("value"))


def start(spark: "SparkSession", settings: Sessions) -> "StreamingQuery":
    """Start the query."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    options = read_options(settings.max_per_trigger, skips_lost=settings.skips_lost)
    records = stream(spark, settings.bootstrap, settings.topic, options)
    rows = sessions(records, gap_ms=settings.gap_ms, watermark=settings.watermark)
    writer = rows.writeStream.format(FORMAT).options(**write_options(settings.bootstrap, settings.results))
    named = writer.option("checkpointLocation", settings.checkpoint)
    return begin(triggered(named, once=settings.once, interval=settings.interval).start)


def run(spark: "SparkSession", settings: Sessions) -> None:
    """Run until stopped, or with `once` up to the topic's current end."""
    prepare_topics(settings.bootstrap, read=[settings.topic], written={settings.results: -1})
    follow({"sessions": start(spark, settings)})
