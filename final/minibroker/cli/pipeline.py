"""`minibroker pipeline`: lists the data pipelines and runs one. The pipelines are in `minibroker.pipelines`."""

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minibroker.cli.connecting import connected
from minibroker.cli.options import bootstrap_option, settings_of
from minibroker.cli.tables import echo_json, format_option, table_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINES = {
    "generate": ("client, no Spark", "orders with skewed keys, some late, some broken → topic orders"),
    "orders": (
        "stream",
        "topic orders → revenue per region and minute → topic revenue; invalid orders → topic orders-dead",
    ),
    "sessions": ("stream", "topic orders → the orders of each customer in sessions → topic sessions"),
    "archive": ("stream", "topic orders → Parquet by date, small files compacted"),
    "replay": ("batch", "an archive → topic"),
    "audit": ("batch", "acknowledgements, compared with the log → records lost, twice, out of order, at other offsets"),
}
"""Name → how the pipeline runs, and what it does."""


@click.group()
def pipeline() -> None:
    """Run data pipelines on Spark, and generate the orders that feed them."""


@pipeline.command("list")
@format_option
def list_pipelines(format_: str) -> None:
    """List the pipelines."""
    if format_ == "json":
        echo_json([{"name": name, "runs": runs, "does": does} for name, (runs, does) in PIPELINES.items()])
    else:
        click.echo(table_text(["pipeline", "runs", "does"], [[name, *told] for name, told in PIPELINES.items()]))


@pipeline.group()
def run() -> None:
    """Run a pipeline; `minibroker pipeline run NAME --help` shows its options."""


# Options that pipelines share ---------------------------------------------------------------------------------------

Command = Callable[..., None]


MASTER = re.compile(r"yarn|(spark|k8s)://.+|local(-cluster)?(\[(\*|\d+)(, *\d+)*\])?")


def _master(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Check the master here, because Spark would start a JVM first and then fail with a Java stack trace."""
    if not MASTER.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not local[N], local[*], spark://HOST:PORT, k8s://URL or yarn.")
    return value


DURATION = re.compile(r"(\d+ *(milli|micro)?(second|minute|hour|day|week)s? *)+")


def _duration(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Check the duration here, because Spark would refuse it only half a minute later."""
    if not DURATION.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a duration such as '500 milliseconds', '10 seconds' or '2 hours'.")
    return value


_UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}


def milliseconds(duration: str) -> int:
    """Return the length of a duration such as `1 minute 30 seconds`."""
    found = re.findall(r"(\d+) *([a-z]+?)s?\b", duration)
    return sum(int(number) * _UNITS_MS.get(unit, unit == "millisecond") for number, unit in found)


def spark_options(command: Command) -> Command:
    """The options of every pipeline that runs on Spark: the broker and Spark itself."""
    options = [
        click.option("--master", default="local[*]", show_default=True, callback=_master, help="The Spark master."),
        click.option(
            "--conf", "confs", multiple=True, metavar="K=V", help="A setting of Spark; may be given several times."
        ),
    ]
    for option in [bootstrap_option, *options]:
        command = option(command)
    return command


def stream_options(interval: str) -> Callable[[Command], Command]:
    """The options of a stream: when it runs, and how much it reads at a time."""

    def decorate(command: Command) -> Command:
        options = [
            click.option("--once", is_flag=True, help="Stop at the current end of the topic."),
            click.option(
                "--interval", default=interval, show_default=True, callback=_duration, help="Time between two batches."
            ),
            click.option(
                "--max-per-trigger", type=click.IntRange(min=1), metavar="N", help="Maximum records per batch."
            ),
            click.option(
                "--skip-lost", "skips_lost", is_flag=True, help="Skip records that were deleted before they were read."
            ),
        ]
        for option in options:
            command = option(command)
        return command

    return decorate


directory_argument = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
topic_option = click.option("--topic", default="orders", show_default=True, help="The topic to read.")


def with_session(
    name: str,
    bootstrap: str,
    master: str,
    confs: Sequence[str],
    body: "Callable[[SparkSession], Any]",
    read: Sequence[str] = (),
) -> Any:
    """Call `body` with a Spark session, and stop the session. A failure of Spark is reported in one line."""
    from minibroker.pipelines import running  # noqa: PLC0415 (slow to import, and --help does not need it)
    from minibroker.pipelines.errors import PipelineError  # noqa: PLC0415

    settings: Mapping[str, str] = settings_of(confs, "--conf")
    # Check the broker and the topics first, because a Spark session takes seconds to start.
    with connected(bootstrap):
        running.prepare_topics(bootstrap, read=read)
    spark = running.start_session(name, master, settings)
    try:
        return body(spark)
    except (PipelineError, KeyboardInterrupt):
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise click.ClickException(f"{name}: {running.reason(error)}") from error
    finally:
        # If Ctrl-C has interrupted a call of py4j, `stop` fails. The JVM then ends together with this process.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spark.stop()


# The pipelines ------------------------------------------------------------------------------------------------------


@run.command()
@click.option("--topic", default="orders", show_default=True, help="The topic to write; created if it does not exist.")
@click.option("--count", type=click.IntRange(min=1), default=10_000, show_default=True, help="How many orders.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0, help="Orders per second.  [default: as fast as possible]"
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Partitions, if the topic is created.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same customers.")
@click.option(
    "--skew",
    type=click.FloatRange(min=0),
    default=1.1,
    show_default=True,
    help="Exponent of the keys' Zipf distribution.",
)
@click.option("--bad", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of broken orders.")
@click.option("--late", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Share of late orders.")
@bootstrap_option
def generate(
    topic: str,
    count: int,
    rate: float,
    partitions: int,
    seed: int,
    skew: float,
    bad: float,
    late: float,
    bootstrap: str,
) -> None:
    """Write orders to a topic: skewed keys, some late, some broken."""
    from minibroker.pipelines import generating  # noqa: PLC0415 (slow to import, and --help does not need it)
    from minibroker.pipelines.generator import Shape  # noqa: PLC0415

    shape = Shape(seed=seed, skew=skew, bad_fraction=bad, late_fraction=late, per_second=rate or 1000.0)
    with connected(bootstrap):
        tally = generating.generate(bootstrap, topic, shape, count=count, partitions=partitions, rate=rate)
    broken = tally.made - tally.kinds["good"]
    click.echo(f"{tally.made} orders are in topic {topic}, {broken} of them broken")


@run.command()
@topic_option
@click.option("--results", default="revenue", show_default=True, help="The topic for the sums.")
@click.option(
    "--dead-letters", default="orders-dead", show_default=True, help="The topic for values that are not orders."
)
@click.option("--window", default="1 minute", show_default=True, callback=_duration, help="Length of a window.")
@click.option(
    "--watermark", default="2 minutes", show_default=True, callback=_duration, help="How late an order may arrive."
)
@click.option(
    "--checkpoint",
    default="checkpoints/orders",
    show_default=True,
    metavar="DIR",
    help="Directory for progress and state.",
)
@stream_options("1 second")
@spark_options
def orders(bootstrap: str, master: str, confs: Sequence[str], **settings: Any) -> None:
    """Sum orders by region and window, until Ctrl-C."""

    def body(spark: "SparkSession") -> None:
        from minibroker.pipelines import orders as chosen  # noqa: PLC0415 (needs Spark)

        chosen.run(spark, chosen.Orders(bootstrap, **settings))

    with_session("orders", bootstrap, master, confs, body, read=[settings["topic"]])


@run.command()
@directory_argument
@topic_option
@click.option("--checkpoint", metavar="DIR", help="Directory for progress.  [default: DIRECTORY/_checkpoint]")
@click.option(
    "--compact-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Compact after this many batches.",
)
@click.option("--verify", is_flag=True, help="At the end, compare the archive with the topic; needs --once.")
@stream_options("10 seconds")
@spark_options
def archive(bootstrap: str, master: str, confs: Sequence[str], directory: Path, verify: bool, **settings: Any) -> None:
    """Archive a topic as Parquet files by date in DIRECTORY, until Ctrl-C."""
    if verify and not settings["once"]:
        raise click.UsageError("--verify compares the archive at the end of a run, so it needs --once.")

    def body(spark: "SparkSession") -> Any:
        from minibroker.pipelines import archive as chosen  # noqa: PLC0415 (needs Spark)

        given = chosen.Archive(bootstrap, directory.absolute(), **settings)
        chosen.run(spark, given)
        return chosen.verify(spark, given) if verify else None

    found = with_session("archive", bootstrap, master, confs, body, read=[settings["topic"]])
    if found is not None:
        click.echo(found.text())
        sys.exit(not found.is_well)


@run.command()
@topic_option
@click.option("--results", default="sessions", show_default=True, help="The topic for the sessions.")
@click.option(
    "--gap", default="30 seconds", show_default=True, callback=_duration, help="The pause that ends a session."
)
@click.option(
    "--watermark", default="30 seconds", show_default=True, callback=_duration, help="How late an order may arrive."
)
@click.option(
    "--checkpoint",
    default="checkpoints/sessions",
    show_default=True,
    metavar="DIR",
    help="Directory for progress and state.",
)
@stream_options("1 second")
@spark_options
def sessions(bootstrap: str, master: str, confs: Sequence[str], gap: str, **settings: Any) -> None:
    """Group the orders of each customer into sessions, until Ctrl-C."""

    def body(spark: "SparkSession") -> None:
        from minibroker.pipelines import sessions as chosen  # noqa: PLC0415 (needs Spark)

        chosen.run(spark, chosen.Sessions(bootstrap, gap_ms=milliseconds(gap), **settings))

    with_session("sessions", bootstrap, master, confs, body, read=[settings["topic"]])


@run.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page, .html or .md."
)
@spark_options
def audit(bootstrap: str, master: str, confs: Sequence[str], history: Path, report: Path | None) -> None:
    """Compare HISTORY, the acknowledgements of producers, with the log.

    The exit code is 1 if the log contradicts an acknowledgement.
    """
    from minibroker.pipelines import histories  # noqa: PLC0415 (slow to import, and --help does not need it)

    if report is not None and report.suffix not in (".html", ".md"):
        raise click.BadParameter(f"{report} must end with .html or .md.", param_hint="'--report'")
    topic = histories.first_topic(history)

    def body(spark: "SparkSession") -> Any:
        from minibroker.pipelines import audit as chosen  # noqa: PLC0415 (needs Spark)

        return chosen.run(spark, chosen.Audit(bootstrap, history.absolute()))

    found = with_session("audit", bootstrap, master, confs, body, read=[topic])
    click.echo(table_text(*histories.rows_of(found)))
    for line in histories.examples(found):
        click.echo(line)
    click.echo(f"longest time without an acknowledgement: {found.longest_pause_ms:,} ms")
    if report is not None:
        histories.write_report(found, report, history=history.name)
    sys.exit(not found.total.is_well)


@run.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--topic", required=True, help="The topic to write; created if it does not exist.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="The first date.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="The last date.")
@click.option("--keep-partitions", is_flag=True, help="Write each record to its original partition.")
@spark_options
def replay(
    bootstrap: str, master: str, confs: Sequence[str], directory: Path, topic: str, since: Any, until: Any,
    keep_partitions: bool,
) -> None:  # fmt: skip
    """Write the archive in DIRECTORY into a topic."""

    def body(spark: "SparkSession") -> int:
        from minibroker.pipelines import archive as chosen  # noqa: PLC0415 (needs Spark)

        dates = {name: it and f"{it:%Y-%m-%d}" for name, it in (("since", since), ("until", until))}
        return chosen.replay(
            spark, bootstrap, directory.absolute(), topic=topic, keep_partitions=keep_partitions, **dates
        )

    count = with_session("replay", bootstrap, master, confs, body)
    click.echo(f"{count} records are in topic {topic}")
