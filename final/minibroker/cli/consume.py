"""`minibroker consume`: its options. `consuming` does the work."""

from datetime import UTC, datetime

import click

from minibroker.cli.formats import InvalidFormat, compile_format
from minibroker.cli.options import bootstrap_option, topic_argument
from minibroker.cli.pending import GROUPS

TIMESTAMP_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


def timestamp(text: str) -> int:
    """Read milliseconds since 1970, or a date: `2026-01-31T12:00:00Z`."""
    if text.isdecimal() and int(text) <= TIMESTAMP_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a date: 2026-01-31T12:00:00Z."
        ) from None
    # A date without a time zone is in UTC, as are all times that minibroker prints.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


@click.command()
@topic_argument
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record.  [default: the next new record]")
@click.option("--offset", type=int, metavar="N", help="Start at this offset of each partition; -N is N before the end.")
@click.option("--timestamp", "time_ms", type=timestamp, metavar="T", help="Start at this time: milliseconds or a date.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the current end of each partition.")
@click.option("-f", "format_", metavar="FORMAT", default=r"%v\n", show_default=True, help="Format of a record.")
@click.option("--group", metavar="G", help=f"Read as a member of the group G. ({GROUPS.label})")
@bootstrap_option
def consume(
    topic: str,
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    partition: int | None,
    max_messages: int | None,
    exit_at_end: bool,
    format_: str,
    group: str | None,
    bootstrap: str,
) -> None:
    r"""Read TOPIC and write its records to stdout.

    FORMAT: %t topic, %p partition, %o offset, %T timestamp, %k key, %v or %s value, %h headers, %K and %V or %S the
    lengths of key and value, \n \t \xHH as usual; or json for one object per line. Records of one partition come in
    order; records of different partitions may not.
    """
    if from_beginning + (offset is not None) + (time_ms is not None) > 1:
        raise click.UsageError("give only one of --from-beginning, --offset and --timestamp.")
    if group is not None:
        raise click.ClickException(f"--group arrives {GROUPS.phrase}; without it, this command reads all partitions")
    try:
        write = compile_format(format_)
    except InvalidFormat as error:
        raise click.BadParameter(f"{error}.", param_hint="'-f'") from error
    from minibroker.cli import consuming  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    start = consuming.Start(is_beginning=from_beginning, offset=offset, time_ms=time_ms)
    consuming.consume(
        bootstrap, topic, start, partition=partition, count_max=max_messages, exits_at_end=exit_at_end, write=write
    )
