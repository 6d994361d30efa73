"""What every pipeline needs around its query: a session, topics, progress on stderr, errors in one line."""

import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TextIO

from minibroker.client.errors import BrokerError
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.pipelines.errors import PipelineError, PipelineFailed
from minibroker.spark.java import demand_packages, session
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "minibroker"
POLL_S = 0.2
STARTS_MAX = 4
INITIALIZING = "Initializing sources"
TOO_SLOW = "Python worker failed to connect back"
REASON_CHARS_MAX = 400
MASTER_S_MAX = 5
BATCH_S_MAX = 10  # that Ctrl-C waits for a batch that is under way

QUIET = {
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # An error is one line, and not followed by where in the JVM it came up.
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Two hundred are Spark's default, and with the few keys of a pipeline each batch would be all overhead.
    "spark.sql.shuffle.partitions": "4",
}

# With MINIBROKER_QUICK=1, as the commands of the pages are tested: a JVM that lives for seconds gains nothing from its
# better compilers.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def start_session(name: str, master: str, conf: Mapping[str, str]) -> "SparkSession":
    """A session that is quiet and counts time in UTC, unless its settings say otherwise."""
    demand_packages()
    demand_master(master)
    print(f"{name}: starting Spark on {master}; that and the first batch take seconds", file=sys.stderr, flush=True)
    if master.startswith("local"):
        # Nobody else needs to find the driver, and Spark would warn about the address that it chose.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        quick = QUICK if os.environ.get("MINIBROKER_QUICK") else {}
        # A JVM that loses us while it starts would stay for ever.
        with noted_interrupts():
            spark = session(f"minibroker-{name}", master, **{**QUIET, **quick, **conf})
        hush_interrupts()
        return spark
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise PipelineFailed(f"{name}: Spark does not start on {master}: {reason(error)}") from error


def hush_interrupts() -> None:
    """Ctrl-C is how a pipeline is ended, and no reason to show where in py4j it came.

    Spark's own handler asks the JVM to cancel all jobs, in the midst of whatever was being asked of it, and fails at
    that. The jobs end anyway, with the session.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # It logs under its own name, and in some places under none.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C has come, to be asked between two questions to Spark; a second one does not wait for that."""
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def demand_master(master: str) -> None:
    """Fail now if none of the masters `spark://HOST:PORT,HOST:PORT` is there: Spark would try for a minute."""
    if not master.startswith("spark://"):
        return
    refused = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host or address, int(port)), MASTER_S_MAX).close()
        except (OSError, ValueError) as error:
            refused.append(f"{address} ({error})")
        else:
            return
    raise PipelineFailed(f"no Spark master answers at {', '.join(refused)}: is it running? --master names another")


def prepare_topics(bootstrap: str, *, read: Iterable[str] = (), written: Mapping[str, int] | None = None) -> None:
    """Demand the topics that are read; make those that are written: name → partitions, -1 for the broker's default."""
    with Client(bootstrap, client_id="minibroker-pipeline") as client:
        there = set(admin.list_topics(client))
        for name in read:
            if name not in there:
                raise _no_topic(name, there)
        for name, partitions in (written or {}).items():
            if name not in there:
                _make_topic(client, name, partitions)


def _make_topic(client: Client, name: str, partitions: int) -> None:
    try:
        admin.create_topics(client, [admin.NewTopic(name, partitions=partitions)])
    except BrokerError as error:
        # Somebody else was faster.
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _no_topic(name: str, others: Iterable[str]) -> PipelineError:
    near = get_close_matches(name, others, n=1)
    hint = f"did you mean {near[0]}?" if near else "`minibroker pipeline run generate` makes one with orders"
    return PipelineError(f"there is no topic {name!r}: {hint}")


def stream(spark: "SparkSession", bootstrap: str, topic: str, options: dict[str, str]) -> "DataFrame":
    """A topic as a stream, with these options of the connector."""
    reader = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def read_options(max_per_trigger: int | None, *, skips_lost: bool) -> dict[str, str]:
    """The flags of a pipeline as options of the connector: a topic is read from its beginning, with headers."""
    limit = {} if max_per_trigger is None else {"maxOffsetsPerTrigger": str(max_per_trigger)}
    loss = {"failOnDataLoss": "false"} if skips_lost else {}
    return {"startingOffsets": "earliest", "includeHeaders": "true", **limit, **loss}


def triggered(writer: "DataStreamWriter", *, once: bool, interval: str) -> "DataStreamWriter":
    """With what is there now, then the end; or for ever, a batch each interval."""
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)


def begin(start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
    """Start a query, and wait until the process that plans it is there.

    Spark gives that process ten seconds to start, and on a busy machine that can be too little. Nothing has been done
    then, so it is started again; and queries that are begun one after the other do not take each other's time.
    """
    for _ in range(STARTS_MAX - 1):
        query = start()
        while query.isActive and query.status["message"] == INITIALIZING:
            time.sleep(POLL_S / 4)
        if query.isActive or TOO_SLOW not in str(query.exception()):
            return query
    return start()


# Progress -----------------------------------------------------------------------------------------------------------


def follow(queries: Mapping[str, "StreamingQuery"], *, out: TextIO | None = None) -> None:
    """Show progress until all queries have ended; if one fails, or the reader presses Ctrl-C, all are stopped."""
    shown = dict.fromkeys(queries, -1)
    is_active = True
    with noted_interrupts() as is_interrupted:
        try:
            while is_active and not is_interrupted():
                # Each is looked at, for any of them may have failed.
                states = [_wait(name, query) for name, query in queries.items()]
                is_active = any(states)
                _show(queries, shown, out or sys.stderr)
        finally:
            for query in queries.values():
                _stop(query)


def _stop(query: "StreamingQuery") -> None:
    """Stop a query, if it can be between two batches: one that is cut off is run again by the next run."""
    deadline_s = time.monotonic() + BATCH_S_MAX
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        time.sleep(POLL_S / 10)
    if query.isActive:
        query.stop()


def _wait(name: str, query: "StreamingQuery") -> bool:
    """Whether it goes on after a short while."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 (only those who run one need it)

    try:
        # Spark takes parts of a second, too, though its annotation says otherwise.
        return not query.awaitTermination(POLL_S)  # type: ignore[arg-type]
    except StreamingQueryException as error:
        raise PipelineFailed(f"{name}: {reason(error)}") from error


def _show(queries: Mapping[str, "StreamingQuery"], shown: dict[str, int], out: TextIO) -> None:
    for name, query in queries.items():
        for progress in query.recentProgress:
            if progress["batchId"] > shown[name]:
                shown[name] = progress["batchId"]
                print(progress_line(name, progress), file=out, flush=True)


def progress_line(name: str, progress: Any) -> str:
    """One line about one micro-batch: rows in, rows a second, and how far the topic's end is away."""
    source = progress["sources"][0]
    rate = progress["processedRowsPerSecond"] or 0
    line = f"{name}: batch {progress['batchId']}: {progress['numInputRows']} records, {rate:,.0f}/s"
    behind = behind_of(source["endOffset"], source["latestOffset"])
    return line if behind is None else f"{line}, {behind} behind"


def behind_of(end: object, latest: object) -> int | None:
    """How many records are between two offsets as progress reports tell them, if they tell."""
    places = [_offsets(it) for it in (end, latest)]
    if places[0] is None or places[1] is None:
        return None
    return sum(max(0, offset - places[0].get(place, 0)) for place, offset in places[1].items())


def _offsets(told: object) -> dict[tuple[str, str], int] | None:
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    if not isinstance(told, Mapping):
        return None
    try:
        # Beside the topics stands what the source remembers for itself, under names with a $.
        topics = {name: each for name, each in told.items() if not name.startswith("$")}
        return {(topic, number): int(at) for topic, each in topics.items() for number, at in each.items()}
    except (AttributeError, TypeError, ValueError):
        return None


# Errors -------------------------------------------------------------------------------------------------------------

_RAISED = re.compile(r"^(?:[\w]+\.)*(?P<kind>[A-Z]\w*): (?P<what>.+)$", re.MULTILINE)
_OURS = re.compile(r"^minibroker\.[\w.]+: (?P<what>.+)$", re.MULTILINE)


# What py4j says first, before the line that says what happened.
_CALLED = "An error occurred while calling"
# The connector names its option, which whoever runs a pipeline sets by a flag.
_FLAGS = {"set failOnDataLoss=false": "run it with --skip-lost"}


def reason(error: BaseException) -> str:
    """The one line of a Spark error that a person can act on: what our code raised in a worker, else its first line."""
    text = str(error)
    found = _OURS.findall(text)
    if not found and "Traceback (most recent call last)" in text:
        found = [f"{kind}: {what}" for kind, what in _RAISED.findall(text.partition("Traceback")[2])][-1:]
    lines = [it for it in text.splitlines() if it.strip() and not it.startswith(_CALLED)]
    line = found[-1] if found else next((it.lstrip(": ") for it in lines), type(error).__name__)
    for option, flag in _FLAGS.items():
        line = line.replace(option, flag)
    return line.strip()[:REASON_CHARS_MAX]
