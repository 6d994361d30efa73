"""The commands of `minibroker bench` that this version does not have yet, and the chapter that adds each.

When run, they print one line that names the chapter.
"""

from typing import NamedTuple

import click

PRESENT = "chapters 01 to 07"
"""The chapters of this version; the layout tests check it against the folders."""


class Arrival(NamedTuple):
    """The chapter that adds a command, as a label in `--help` and as the phrase that the command prints."""

    label: str
    phrase: str


PERFORMANCE = Arrival("later", "with the rest of chapter 07")


class Pending(NamedTuple):
    """A command that does not exist yet: the chapter that adds it, and a summary of its work."""

    arrives: Arrival
    summary: str


BENCH_PENDING = {
    "produce": Pending(PERFORMANCE, "Write as fast as possible, or at a rate."),
    "consume": Pending(PERFORMANCE, "Read as fast as possible."),
    "latency": Pending(PERFORMANCE, "Time each record from producer to consumer."),
}
"""The commands that `minibroker bench` does not have yet."""


def pending_bench(name: str) -> click.Command:
    """A placeholder: it accepts any arguments, and fails with a message that names the chapter."""
    arrives, summary = BENCH_PENDING[name]

    def answer() -> None:
        raise click.ClickException(f"{name} arrives {arrives.phrase}; this version has {PRESENT}")

    # `--help` is an ordinary argument here: it fails, too, because the command has no options yet.
    return click.Command(
        name,
        callback=answer,
        short_help=f"{summary} ({arrives.label})",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
