"""`minibroker bench`: what a cluster can do, in percentiles. `benching` measures; this module holds the options."""

from pathlib import Path

import click

from minibroker.cli.lab import directory_option
from minibroker.cli.pending import BENCH_PENDING, pending_bench
from minibroker.cli.tables import format_option

FAULTS = ("killed", "paused", "stopped")


@click.group()
def bench() -> None:
    """What a cluster can do, in percentiles."""


@bench.command(short_help="How long writes pause when a leader goes.")
@click.option("--rounds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Of each fault.")
@click.option(
    "--fault",
    "faults",
    type=click.Choice(FAULTS),
    multiple=True,
    help="kill -9, SIGSTOP or SIGTERM; may be given several times.  [default: all]",
)
@click.option("--controller", "decides", is_flag=True, help="Of the node that decides, and leads a partition, too.")
@click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting of every node; may be repeated.")
@directory_option("Put the nodes' data there; it is removed at the end.")
@format_option
def failover(
    rounds: int, faults: tuple[str, ...], decides: bool, pairs: tuple[str, ...], directory: Path | None, format_: str
) -> None:
    """Measure how long writes pause when the leader of a partition goes.

    Starts three nodes of its own on this machine. In every round one of them is killed, paused or stopped, and comes
    back. The pause is the longest time without an acknowledgement of acks=all: seen by an impatient prober, which shows
    what the cluster needs, and by librdkafka, where confluent-kafka is installed.
    """
    # The broker is slow to import, and --help needs none.
    from minibroker.cli import benching  # noqa: PLC0415

    benching.failover(
        rounds=rounds, kinds=faults or FAULTS, decides=decides, pairs=pairs, directory=directory, format_=format_
    )


for _name in BENCH_PENDING:
    bench.add_command(pending_bench(_name))
