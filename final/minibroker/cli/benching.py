"""Measures with `minibroker.bench` and prints the results, for `minibroker bench`."""

from collections.abc import Sequence
from pathlib import Path

import click

from minibroker.bench.context import open_context, quick_note
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
from minibroker.bench.report import document_text, environment, machine_text
from minibroker.broker.keys import declare_every_key
from minibroker.cli.options import settings_of
from minibroker.metadata.configs import NodeConfig

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
    # A wrong setting is reported before any process is started.
    declare_every_key()
    NodeConfig(settings_of(pairs, "--set"))
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


def show(found: Sequence[Sequence[Outages]], format_: str) -> None:
    """Print the pauses as a table or as JSON."""
    note = quick_note()
    if format_ == "json":
        outages = [each.document() for fault in found for each in fault]
        click.echo(document_text({"note": note, "environment": environment(), "outages": outages}), nl=False)
    else:
        click.echo("\n\n".join(filter(None, (table(found).text(), machine_text(), note))))
