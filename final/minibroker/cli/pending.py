"""The commands that this version does not have yet, and the chapter that brings each.

They are listed by ``--help`` under a heading of their own, and answer in one line instead of "no such command".
"""

from typing import NamedTuple

import click

PRESENT = "chapters 01 to 05"
"""What this version has; the layout tests hold it against the folders."""


class Arrival(NamedTuple):
    """When a command comes: as `--help` lists it, and as the command itself says it."""

    label: str
    phrase: str


GROUPS = Arrival("chapter 06", "with chapter 06 (groups-offsets)")
PERFORMANCE = Arrival("chapter 07", "with chapter 07 (zero-copy-perf)")


class Pending(NamedTuple):
    """A command to come: when, and what it will do."""

    arrives: Arrival
    summary: str


PENDING = {
    "groups": Pending(GROUPS, "List, describe, reset and delete consumer groups."),
    "transactions": Pending(GROUPS, "List and abort transactions."),
    "sql": Pending(GROUPS, "Query metadata as tables."),
}

BENCH_PENDING = {
    "produce": Pending(PERFORMANCE, "Write as fast as it goes, or at a rate."),
    "consume": Pending(PERFORMANCE, "Read as fast as it goes."),
    "latency": Pending(PERFORMANCE, "From the producer to the consumer, record by record."),
}
"""What `minibroker bench` does not have yet."""


def pending_command(name: str) -> click.Command:
    """A command that takes any arguments and says when the real one arrives."""
    return _saying(name, PENDING[name].summary, f"arrives {PENDING[name].arrives.phrase}")


def pending_bench(name: str) -> click.Command:
    """The same for a command of `minibroker bench`, which is there otherwise."""
    arrives = BENCH_PENDING[name].arrives
    return _saying(name, f"{BENCH_PENDING[name].summary} ({arrives.label})", f"{name} arrives {arrives.phrase}")


def _saying(name: str, summary: str, arrives: str) -> click.Command:
    def answer() -> None:
        raise click.ClickException(f"{arrives}; this version has {PRESENT}")

    # `--help` is an argument like any other here: there is nothing to explain yet.
    return click.Command(
        name,
        callback=answer,
        short_help=summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
