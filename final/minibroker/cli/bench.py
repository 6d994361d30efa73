"""`minibroker bench`: its options. `benching` measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from minibroker.cli.lab import directory_option
from minibroker.cli.options import BOOTSTRAP_VARIABLE, optional_servers
from minibroker.cli.tables import format_option

F = TypeVar("F", bound=Callable[..., Any])

FAULTS = ("killed", "paused", "stopped")


@click.group()
def bench() -> None:
    """Measure a cluster and print percentiles."""


@bench.command(short_help="Measure how long writes pause when a leader fails.")
@click.option("--rounds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Rounds of each fault.")
@click.option(
    "--fault",
    "faults",
    type=click.Choice(FAULTS),
    multiple=True,
    help="The leader gets SIGKILL, SIGSTOP or SIGTERM; may be given several times.  [default: all]",
)
@click.option("--controller", "on_controller", is_flag=True, help="The leader that fails is also the controller.")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting for every node; may be given several times."
)
@directory_option("Directory for the nodes' data, which is removed at the end.")
@format_option
def failover(
    rounds: int,
    faults: tuple[str, ...],
    on_controller: bool,
    pairs: tuple[str, ...],
    directory: Path | None,
    format_: str,
) -> None:
    """Measure how long writes pause when the leader of a partition fails.

    Starts its own cluster of three nodes on this machine. In every round one node is killed, paused or stopped, and
    then started again or resumed. The pause is the longest time between two acknowledgements with acks=all. It is
    measured by a producer that retries at once, so it shows how long the cluster needs to recover. If
    confluent-kafka is installed, librdkafka measures the pause as well.
    """
    _benching().failover(
        rounds=rounds,
        kinds=faults or FAULTS,
        on_controller=on_controller,
        pairs=pairs,
        directory=directory,
        format_=format_,
    )


def _load_options(command: F) -> F:
    """The options of produce and consume."""
    for option in reversed(
        (
            click.option("--partitions", type=click.IntRange(1, 100), default=1, show_default=True,
                         help="Partitions of the topic, each with a connection of its own."),
            click.option("--record-size", type=click.IntRange(1, 900_000), default=1000, show_default=True,
                         metavar="BYTES", help="Size of a record's value."),
            click.option("--batch-size", type=click.IntRange(1, 900_000), default=65_536, show_default=True,
                         metavar="BYTES", help="Size of a batch; each request has one batch."),
            click.option("--in-flight", type=click.IntRange(1, 1000), default=5, show_default=True,
                         help="Requests under way on each connection."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def _target_options(command: F) -> F:
    """The options of every command that needs a cluster of any kind."""
    for option in reversed(
        (
            click.option("--bootstrap-server", "bootstrap", metavar="HOST:PORT", envvar=BOOTSTRAP_VARIABLE,
                         callback=optional_servers, show_envvar=True,
                         help="Any node of a running cluster.  [default: start a cluster for this run]"),
            click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True,
                         help="Nodes of the cluster that is started."),
            click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True,
                         help="A setting for every started node; may be given several times."),
            click.option("--acks", type=click.Choice(["1", "all"]), default="all", show_default=True,
                         help="Replicas needed for an acknowledgement: the leader, or all in sync."),
            click.option("--seconds", type=click.FloatRange(0.01, 3600), default=5, show_default=True,
                         help="How long the benchmark writes."),
            directory_option("Directory for the data of the started nodes, which is removed at the end."),
            format_option,
        )
    ):  # fmt: skip
        command = option(command)
    return command


@bench.command(short_help="Write as fast as possible, or at a rate.")
@_load_options
@click.option("--rate", "rate_mb", type=click.FloatRange(0), default=0, metavar="MB/S",
              help="Write at this rate.  [default: as fast as possible]")  # fmt: skip
@_target_options
def produce(**options: Any) -> None:
    """Write batches, and time each request until it is acknowledged.

    The batches are built in advance, so that the cluster is measured and not the client. For comparison, the same
    bytes are received, checked and appended without a broker, which is the limit of this machine.
    """
    _benching().produce(**options)


@bench.command(short_help="Read as fast as possible.")
@_load_options
@_target_options
def consume(**options: Any) -> None:
    """Write batches, then read all of them from the start, and time each poll.

    Only the headers of batches are read, so that the cluster is measured and not the client. For comparison, the same
    bytes are read from a file and sent without a broker, which is the limit of this machine.
    """
    _benching().consume(**options)


@bench.command(short_help="Time each record from producer to consumer.")
@click.option("--record-size", type=click.IntRange(8, 900_000), default=100, show_default=True, metavar="BYTES",
              help="Size of a record's value.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0.1, 100_000), default=200, show_default=True, help="Records a second.")
@_target_options
def latency(**options: Any) -> None:
    """Send records one by one at a fixed rate, and time each until it is acknowledged and until a consumer has it."""
    _benching().latency(**options)


def _benching() -> Any:
    # The broker is slow to import, and --help does not need it.
    from minibroker.cli import benching  # noqa: PLC0415

    return benching
