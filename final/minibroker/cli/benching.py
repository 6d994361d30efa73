"""Measures with `minibroker.bench` and prints the results, for `minibroker bench`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from minibroker.bench import driving
from minibroker.bench.context import Context, open_context, quick_note, scaled
from minibroker.bench.failover import (
    KILLED,
    PAUSED,
    SETTINGS,
    STOPPED,
    measure,
    of_the_controller,
    quick_settings,
    sender_at_hand,
    table,
)
from minibroker.bench.local import LocalCluster
from minibroker.bench.outages import Outages
from minibroker.bench.progress import ProgressLine
from minibroker.bench.report import Table, document_text, environment, machine_text
from minibroker.bench.units import number_text
from minibroker.broker.keys import declare_every_key
from minibroker.cli.options import settings_of
from minibroker.metadata.configs import NodeConfig

QUICK_S = 0.3
"""The longest time of writing in a quick run."""
FAULTS = {"killed": KILLED, "paused": PAUSED, "stopped": STOPPED}


def failover(
    *,
    rounds: int,
    kinds: Sequence[str],
    on_controller: bool,
    pairs: Sequence[str],
    directory: Path | None,
    format_: str,
) -> None:
    """Run the rounds of each fault, and print how long writes paused."""
    check_settings(pairs)
    faults = [of_the_controller(FAULTS[it]) if on_controller else FAULTS[it] for it in dict.fromkeys(kinds)]
    progress = ProgressLine("bench failover")
    try:
        with (
            open_context(directory=directory, progress=progress) as context,
            LocalCluster.within(context, *SETTINGS, *quick_settings(), *pairs) as cluster,
        ):
            found = measure(
                cluster,
                faults,
                rounds,
                say=lambda fault, number, _: progress(number, rounds, fault.name),
                make_sender=sender_at_hand(),
            )
    finally:
        progress.close()
    show(found, format_)


def check_settings(pairs: Sequence[str]) -> None:
    """Report a wrong setting before any process is started."""
    declare_every_key()
    NodeConfig(settings_of(pairs, "--set"))


def show(found: Sequence[Sequence[Outages]], format_: str) -> None:
    """Print the pauses as a table or as JSON."""
    note = quick_note()
    if format_ == "json":
        outages = [each.document() for fault in found for each in fault]
        click.echo(document_text({"note": note, "environment": environment(), "outages": outages}), nl=False)
    else:
        click.echo("\n\n".join(filter(None, (table(found).text(), machine_text(), note))))


# Produce, consume, latency --------------------------------------------------------------------------------------------


def produce(*, seconds: float, acks: str, rate_mb: float, **options: Any) -> None:
    """Write for some seconds, and print what was measured."""
    load, options = _load_of(acks=acks, rate_mb=rate_mb, **options)
    _drive(lambda context, target: driving.produce(context, target, load, _scaled(seconds)), **options)


def consume(*, seconds: float, acks: str, **options: Any) -> None:
    """Write for some seconds, read all of it, and print what was measured."""
    load, options = _load_of(acks=acks, rate_mb=0, **options)
    _drive(lambda context, target: driving.consume(context, target, load, _scaled(seconds)), **options)


def latency(*, record_size: int, acks: str, rate: float, seconds: float, **options: Any) -> None:
    """Send records at a rate, and print what was measured."""
    _drive(
        lambda _context, target: driving.latency(
            target, record_bytes=record_size, acks=acks, rate=rate, seconds=_scaled(seconds)
        ),
        **options,
    )


def _load_of(
    *, partitions: int, record_size: int, batch_size: int, in_flight: int, acks: str, rate_mb: float, **options: Any
) -> tuple[driving.Load, dict[str, Any]]:
    return driving.Load(partitions, record_size, batch_size, acks, in_flight, rate_mb), options


def _scaled(seconds: float) -> float:
    return scaled(full=seconds, quick=min(seconds, QUICK_S))


def _drive(
    work: Callable[[Context, driving.Target], driving.Run],
    *,
    bootstrap: str | None,
    nodes: str,
    pairs: Sequence[str],
    directory: Path | None,
    format_: str,
) -> None:
    """Do the work against a cluster, and print the figures."""
    check_settings(pairs)
    with (
        open_context(directory=directory) as context,
        driving.opened(context, bootstrap, int(nodes), pairs) as target,
    ):
        run = work(context, target)
    if format_ == "json":
        figures = [{"name": name, "unit": unit, "value": float(f"{value:.6g}")} for name, unit, value in run.rows()]
        click.echo(document_text({"note": quick_note(), "environment": environment(), "figures": figures}), nl=False)
    else:
        rows = [[name, number_text(value), unit] for name, unit, value in run.rows()]
        text = Table(["figure", "value", "unit"], rows).text()
        click.echo("\n\n".join(filter(None, (text, machine_text(), quick_note()))))
