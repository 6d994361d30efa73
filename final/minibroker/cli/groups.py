"""`minibroker groups`: its options. `grouping` does the work."""

import click

from minibroker.cli.options import (
    GLOSSARY_EPILOG,
    bootstrap_option,
    complete_groups,
    complete_topics,
    group_argument,
    timestamp,
)
from minibroker.cli.quantities import duration
from minibroker.cli.tables import format_option


@click.group(epilog=GLOSSARY_EPILOG)
def groups() -> None:
    """List and describe consumer groups, move their offsets, and delete them."""


@groups.command("list")
@format_option
@bootstrap_option
def list_groups(format_: str, bootstrap: str) -> None:
    """List all groups: kind, state, number of members."""
    from minibroker.cli import grouping  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    grouping.list_groups(bootstrap, format_)


@groups.command()
@click.argument("group", required=False, shell_complete=complete_groups)
@format_option
@bootstrap_option
def describe(group: str | None, format_: str, bootstrap: str) -> None:
    """Show the members of GROUP, and how far it has read.

    Without GROUP, all groups are shown. LAG is the number of records that the group has not committed. SECONDS is the
    age of the first of them.
    """
    from minibroker.cli import grouping  # noqa: PLC0415

    if group is None:
        grouping.describe_all(bootstrap, format_)
    else:
        grouping.describe(bootstrap, group, format_)


@groups.command("reset-offsets")
@group_argument
@click.option(
    "--topic",
    "topics",
    metavar="T[:P,P...]",
    multiple=True,
    required=True,
    shell_complete=complete_topics,
    help="A topic, or only some of its partitions; may be given several times.",
)
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="To the next new record.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--to-datetime", "time_ms", type=timestamp, metavar="T", help="To this time: milliseconds or a date.")
@click.option(
    "--by-duration", "seconds", type=duration, metavar="D", help="To the time this long ago, such as 90m or 7d."
)
@click.option(
    "--shift-by", type=int, metavar="N", help="By N records from the committed offset; a negative N moves back."
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only show what would change.")
@format_option
@bootstrap_option
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    time_ms: int | None,
    seconds: float | None,
    shift_by: int | None,
    is_dry_run: bool,
    format_: str,
    bootstrap: str,
) -> None:
    """Move the committed offsets of GROUP.

    The group must have no members, because they would overwrite the new offsets with their own. An offset that is
    not in the log becomes the nearest offset that is. A group that does not exist is created.
    """
    choices = [to_earliest or None, to_latest or None, to_offset, time_ms, seconds, shift_by]
    if sum(choice is not None for choice in choices) != 1:
        raise click.UsageError(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by."
        )
    wanted = dict(map(_topic_and_partitions, topics))
    from minibroker.cli import grouping  # noqa: PLC0415

    destination = grouping.Destination(
        is_earliest=to_earliest,
        is_latest=to_latest,
        offset=to_offset,
        time_ms=time_ms,
        age_seconds=seconds,
        shift=shift_by,
    )
    grouping.reset(bootstrap, group, wanted, destination, is_dry_run=is_dry_run, format_=format_)


def _topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """Read `orders` or `orders:0,2`."""
    name, colon, numbers = text.partition(":")
    words = numbers.split(",") if colon else []
    if not name or not all(word.isdecimal() for word in words):
        raise click.BadParameter(
            f"{text!r} is not a topic, or a topic with partitions such as orders:0,2.", param_hint="'--topic'"
        )
    return name, [int(word) for word in words] if colon else None


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@bootstrap_option
def delete(names: tuple[str, ...], bootstrap: str) -> None:
    """Delete groups without members, and their committed offsets."""
    from minibroker.cli import grouping  # noqa: PLC0415

    grouping.delete(bootstrap, names)
