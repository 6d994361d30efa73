"""`minibroker bench`: its options. `benching` measures."""

from pathlib import Path

import click

from minibroker.cli.lab import directory_option
from minibroker.cli.pending import BENCH_PENDING, pending_bench
from minibroker.cli.tables import format_option

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
    then started again or resumed. The pause is the longest time between two acknowledgements of acks=all. A producer
    that retries at once measures it, which shows how long the cluster needs to recover. If confluent-kafka is
    installed, librdkafka measures the pause as well.
    """
    # The broker is slow to import, and --help does not need it.
    from minibroker.cli import benching  # noqa: PLC0415

    benching.failover(
        rounds=rounds,
        kinds=faults or FAULTS,
        on_controller=on_controller,
        pairs=pairs,
        directory=directory,
        format_=format_,
    )


for _name in BENCH_PENDING:
    bench.add_command(pending_bench(_name))
