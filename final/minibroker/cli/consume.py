"""`minibroker consume`: its options. `consuming` does the work."""

from collections.abc import Mapping

import click

from minibroker.cli.formats import InvalidFormat, compile_format
from minibroker.cli.options import bootstrap_option, complete_groups, complete_topics, regex, timestamp


@click.command()
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record.  [default: the next new record]")
@click.option("--offset", type=int, metavar="N", help="Start at this offset of each partition; -N is N before the end.")
@click.option("--timestamp", "time_ms", type=timestamp, metavar="T", help="Start at this time: milliseconds or a date.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the current end of each partition.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="With read_committed, records of open and aborted transactions are not shown.",
)
@click.option("-f", "format_", metavar="FORMAT", default=r"%v\n", show_default=True, help="Format of a record.")
@click.option(
    "--group",
    metavar="G",
    shell_complete=complete_groups,
    help="Read as a member of the group G from its committed offsets, and commit the offsets of the records shown.",
)
@click.option(
    "--include",
    "pattern",
    type=regex,
    metavar="REGEX",
    help="With --group, in place of TOPIC: all topics whose whole names match, also those that are created later.",
)
@click.option(
    "--group-protocol",
    "protocol",
    type=click.Choice(["classic", "consumer"]),
    help="With --group, the protocol of the group.  [default: consumer, whose rebalances do not stop the other "
    "members; classic if the brokers do not support consumer]",
)
@bootstrap_option
def consume(
    topic: str | None,
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    partition: int | None,
    max_messages: int | None,
    exit_at_end: bool,
    isolation: str,
    format_: str,
    group: str | None,
    pattern: str | None,
    protocol: str | None,
    bootstrap: str,
) -> None:
    r"""Read TOPIC and write its records to stdout.

    FORMAT: %t topic, %p partition, %o offset, %T timestamp, %k key, %v or %s value, %h headers, %K and %V or %S the
    lengths of key and value, \n \t \xHH as usual; or json for one object per line. Records of one partition come in
    order; records of different partitions may not.

    In a group, --from-beginning applies only to partitions without a committed offset, and --exit-at-end waits until
    the group has committed the current end of each partition.
    """
    if from_beginning + (offset is not None) + (time_ms is not None) > 1:
        raise click.UsageError("give only one of --from-beginning, --offset and --timestamp.")
    if (topic is None) == (pattern is None):
        raise click.UsageError("give TOPIC, or --group and --include.")
    if group is None:
        _refuse_given("needs --group.", {"--group-protocol": protocol, "--include": pattern})
    else:
        moves = "move the group with `minibroker groups reset-offsets`."
        why = f"is not for a group, which continues at its committed offsets: leave it out, or {moves}"
        _refuse_given(why, {"--offset": offset, "--timestamp": time_ms, "--partition": partition})
    try:
        write = compile_format(format_)
    except InvalidFormat as error:
        raise click.BadParameter(f"{error}.", param_hint="'-f'") from error
    from minibroker.cli import consuming  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    if group is not None:
        membership = consuming.Membership(group, topic, pattern, protocol, is_beginning=from_beginning)
        consuming.consume_in_group(
            bootstrap, membership, count_max=max_messages, exits_at_end=exit_at_end, isolation=isolation, write=write
        )
        return
    assert topic is not None
    start = consuming.Start(is_beginning=from_beginning, offset=offset, time_ms=time_ms)
    consuming.consume(
        bootstrap,
        topic,
        start,
        partition=partition,
        count_max=max_messages,
        exits_at_end=exit_at_end,
        isolation=isolation,
        write=write,
    )


def _refuse_given(why: str, options: Mapping[str, object]) -> None:
    """Refuse the first of these options that is given."""
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"{name} {why}")
