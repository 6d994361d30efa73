"""The parts that all pipelines share: the session, topics, progress on stderr, errors in one line."""

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
BATCH_S_MAX = 10  # how long Ctrl-C waits for the current batch

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # With this setting an error is one line, without the stack trace of the JVM.
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Spark's default is 200 partitions. For the few keys of a pipeline, most of them would be empty and cost only time.
    "spark.sql.shuffle.partitions": "4",
}

# Further settings if MINIBROKER_QUICK=1, as in the tests of the documented commands. A JVM that lives for seconds gains
# nothing from its optimising compiler, and need not verify Spark's classes.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def start_session(name: str, master: str, conf: Mapping[str, str]) -> "SparkSession":
    """Start a session without log output and with times in UTC. The settings in `conf` take precedence."""
    demand_packages()
    demand_master(master)
    print(
        f"{name}: starting Spark on {master}; the start and the first batch take some seconds",
        file=sys.stderr,
        flush=True,
    )
    if master.startswith("local"):
        # No other machine connects to the driver. Without this setting Spark warns about the address that it chose.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        quick = QUICK if os.environ.get("MINIBROKER_QUICK") else {}
        # Ctrl-C must not end this process now: a JVM whose parent dies while it starts would run for ever.
        with noted_interrupts():
            spark = session(f"minibroker-{name}", master, **{**QUIET, **quick, **conf})
        end_quietly_on_interrupt()
        return spark
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise PipelineFailed(f"{name}: Spark does not start on {master} ({reason(error)})") from error


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C, the usual end of a pipeline, raise KeyboardInterrupt without log output of py4j.

    Spark's own handler asks the JVM to cancel all jobs, which fails if Ctrl-C comes during another call to the JVM. The
    jobs end with the session anyway.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # py4j logs under its own name, and in some places with the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. Call it between two calls to Spark.

    The first Ctrl-C raises KeyboardInterrupt only at the end of the `with`, a second one at once.
    """
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
    """Fail now if none of the masters `spark://HOST:PORT,HOST:PORT` answers; Spark would try for a minute."""
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
    raise PipelineFailed(
        f"no Spark master answers at {', '.join(refused)}: start one there, or name another with --master"
    )


def prepare_topics(bootstrap: str, *, read: Iterable[str] = (), written: Mapping[str, int] | None = None) -> None:
    """Check that the topics `read` exist; create missing topics in `written`, which maps names to partition counts.

    A count of -1 means the broker's default.
    """
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
        # Another client may have created it in the meantime.
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _no_topic(name: str, others: Iterable[str]) -> PipelineError:
    near = get_close_matches(name, others, n=1)
    hint = f"did you mean {near[0]}?" if near else "`minibroker pipeline run generate` makes one with orders"
    return PipelineError(f"there is no topic {name!r}: {hint}")


def stream(spark: "SparkSession", bootstrap: str, topic: str, options: dict[str, str]) -> "DataFrame":
    """Read a topic as a stream. `options` are options of the Spark connector."""
    reader = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def read_options(max_per_trigger: int | None, *, skips_lost: bool) -> dict[str, str]:
    """Return the flags of a pipeline as options of the connector; a topic is read from its beginning, with headers."""
    limit = {} if max_per_trigger is None else {"maxOffsetsPerTrigger": str(max_per_trigger)}
    loss = {"failOnDataLoss": "false"} if skips_lost else {}
    return {"startingOffsets": "earliest", "includeHeaders": "true", **limit, **loss}


def write_options(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the options of a sink that writes to a topic exactly once."""
    return {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}


def triggered(writer: "DataStreamWriter", *, once: bool, interval: str) -> "DataStreamWriter":
    """Set the trigger: with `once` read up to the topic's current end, otherwise run a batch each interval for ever."""
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)


def begin(start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
    """Start a query, and wait until its planner process runs.

    Spark gives that process ten seconds to start, which can be too short on a busy machine. In that case the query has
    done nothing yet, and is started again. Waiting also keeps several queries from starting at the same time.
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
    """Show progress until all queries have ended; if one fails, or the user presses Ctrl-C, stop all of them."""
    shown = dict.fromkeys(queries, -1)
    is_active = True
    with noted_interrupts() as is_interrupted:
        try:
            while is_active and not is_interrupted():
                # Each query is checked, because any of them may have failed.
                states = [_wait(name, query) for name, query in queries.items()]
                is_active = any(states)
                _show(queries, shown, out or sys.stderr)
        finally:
            for query in queries.values():
                _stop(query)


def _stop(query: "StreamingQuery") -> None:
    """Stop a query, between two batches if possible, because the next run repeats a batch that was interrupted."""
    deadline_s = time.monotonic() + BATCH_S_MAX
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        time.sleep(POLL_S / 10)
    if query.isActive:
        query.stop()


def _wait(name: str, query: "StreamingQuery") -> bool:
    """Wait a short time, and return whether the query still runs."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 (slow to import)

    try:
        # Spark accepts fractions of a second, though its annotation says otherwise.
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
    """One line about one micro-batch: records read, records per second, and the lag behind the topic's end."""
    source = progress["sources"][0]
    rate = progress["processedRowsPerSecond"] or 0
    line = f"{name}: batch {progress['batchId']}: {progress['numInputRows']} records, {rate:,.0f}/s"
    lag = lag_between(source["endOffset"], source["latestOffset"])
    return line if lag is None else f"{line}, {lag} behind"


def lag_between(end: object, latest: object) -> int | None:
    """Return the number of records between two offsets of a progress report; None if an offset is missing."""
    places = [_offsets(it) for it in (end, latest)]
    if places[0] is None or places[1] is None:
        return None
    return sum(max(0, offset - places[0].get(place, 0)) for place, offset in places[1].items())


def _offsets(reported: object) -> dict[tuple[str, str], int] | None:
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return None
    if not isinstance(reported, Mapping):
        return None
    try:
        # Names that begin with $ are not topics. The source keeps its own data under them.
        topics = {name: each for name, each in reported.items() if not name.startswith("$")}
        return {(topic, number): int(at) for topic, each in topics.items() for number, at in each.items()}
    except (AttributeError, TypeError, ValueError):
        return None


# Errors -------------------------------------------------------------------------------------------------------------

_RAISED = re.compile(r"^(?:[\w]+\.)*(?P<kind>[A-Z]\w*): (?P<what>.+)$", re.MULTILINE)
_OURS = re.compile(r"^minibroker\.[\w.]+: (?P<what>.+)$", re.MULTILINE)


# The first line of a py4j error; the cause comes after it.
_CALLED = "An error occurred while calling"
# The connector's messages name its options, which the user of a pipeline sets with flags.
_FLAGS = {"set failOnDataLoss=false": "run it with --skip-lost"}


def reason(error: BaseException) -> str:
    """Return the useful line of a Spark error: the error that our code raised in a worker, else the first line."""
    text = str(error)
    found = _OURS.findall(text)
    if not found and "Traceback (most recent call last)" in text:
        found = [f"{kind}: {what}" for kind, what in _RAISED.findall(text.partition("Traceback")[2])][-1:]
    lines = [it for it in text.splitlines() if it.strip() and not it.startswith(_CALLED)]
    line = found[-1] if found else next((it.lstrip(": ") for it in lines), type(error).__name__)
    for option, flag in _FLAGS.items():
        line = line.replace(option, flag)
    return line.strip()[:REASON_CHARS_MAX]
