"""`minibroker topics`: its options. `administering` and `reassigning` do the work."""

import click

from minibroker.cli.options import GLOSSARY_EPILOG, bootstrap_option, complete_topics, settings_of
from minibroker.cli.tables import format_option

config_option = click.option(
    "--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; may be given several times."
)
name_argument = click.argument("name", shell_complete=complete_topics)


@click.group(epilog=GLOSSARY_EPILOG)
def topics() -> None:
    """Create, list, describe, alter and delete topics; move their partitions and elect their leaders."""


@topics.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Number of partitions.  [default: the broker's num.partitions]"
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Replicas of each partition.  [default: the broker's default.replication.factor]",
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic exists.")
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    pairs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
) -> None:
    """Create the topic NAME."""
    from minibroker.cli import administering  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    configs = settings_of(pairs, "--config")
    administering.create(
        bootstrap,
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs,
        may_exist=if_not_exists,
    )


@topics.command("list")
@format_option
@bootstrap_option
def list_topics(format_: str, bootstrap: str) -> None:
    """List all topics."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.list_topics(bootstrap, format_)


@topics.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@format_option
@bootstrap_option
def describe(names: tuple[str, ...], format_: str, bootstrap: str) -> None:
    """Show partitions, replicas, offsets, sizes and settings.

    Without a NAME, show all topics.
    """
    from minibroker.cli import administering  # noqa: PLC0415

    administering.describe(bootstrap, names, format_)


@topics.command()
@name_argument
@click.option("--partitions", type=click.IntRange(min=1), help="New number of partitions; it can only grow.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="New number of replicas of each partition; it can only grow.",
)
@config_option
@click.option("--delete-config", "removed", metavar="NAME", multiple=True, help="Reset this setting to its default.")
@bootstrap_option
def alter(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    pairs: tuple[str, ...],
    removed: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Add partitions or replicas to the topic NAME, or change its settings.

    After partitions are added, new records of a key may go to another partition than its older records, so their
    order is lost. A topic never shrinks. New replicas copy the partitions while the old ones serve them. Internal
    topics such as __consumer_offsets can get more replicas after a cluster has grown.
    """
    from minibroker.cli import administering  # noqa: PLC0415

    configs = settings_of(pairs, "--config")
    if partitions is None and replication_factor is None and not configs and not removed:
        raise click.UsageError("give a change: --partitions, --replication-factor, --config or --delete-config.")
    administering.alter(bootstrap, name, partitions=partitions, configs=configs, removed=removed)
    if replication_factor is not None:
        from minibroker.cli import reassigning  # noqa: PLC0415

        reassigning.raise_factor(bootstrap, name, replication_factor)


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete topics and all their records."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.delete(bootstrap, names, may_be_absent=if_exists)


def node_ids(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int] | None:
    """Read a list of node ids, such as 1,2,3."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{value!r} is not a list of node ids, such as 1,2,3.")
    return [int(word) for word in words]


@topics.command()
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="The partition to move.")
@click.option(
    "--replicas", metavar="N,N,...", callback=node_ids, help="The partition's new nodes, the preferred leader first."
)
@click.option("--from", "drained", metavar="NODE", type=click.IntRange(min=0), help="Move every replica off this node.")
@click.option("--spread", "is_spread", is_flag=True, help="Even out replicas and leaders over all live brokers.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --from or --spread, only show what would move.")
@click.option("--cancel", "is_cancelled", is_flag=True, help="Cancel moves that are under way.")
@format_option
@bootstrap_option
def reassign(
    name: str | None,
    partition: int | None,
    replicas: list[int] | None,
    drained: int | None,
    is_spread: bool,
    is_dry_run: bool,
    is_cancelled: bool,
    format_: str,
    bootstrap: str,
) -> None:
    """Move partitions to other nodes, or list such moves.

    --replicas moves one partition of TOPIC. --from and --spread choose the partitions to move, from TOPIC or from all
    topics. Without any of these options, the moves that are under way are listed.

    The new replicas copy the partition while the old ones serve it. The old ones are removed when the new ones are in
    sync.
    """
    is_planned = drained is not None or is_spread
    if (replicas is not None) + (drained is not None) + is_spread + is_cancelled > 1:
        raise click.UsageError("give only one of --replicas, --from, --spread and --cancel.")
    if is_dry_run and not is_planned:
        raise click.UsageError("--dry-run needs --from or --spread.")
    if (replicas is not None or is_cancelled) and name is None:
        raise click.UsageError("give the TOPIC.")
    if replicas is not None and partition is None:
        raise click.UsageError("give the --partition to move.")
    if partition is not None and is_planned:
        raise click.UsageError("--from and --spread choose the partitions: leave --partition out.")
    if partition is not None and replicas is None and not is_cancelled:
        raise click.UsageError("give the partition's new nodes with --replicas, or cancel its move with --cancel.")
    from minibroker.cli import reassigning  # noqa: PLC0415

    if replicas is not None and name is not None and partition is not None:
        reassigning.move(bootstrap, name, partition=partition, replicas=replicas)
    elif drained is not None:
        reassigning.drain(bootstrap, drained, topic=name, is_dry_run=is_dry_run, format_=format_)
    elif is_spread:
        reassigning.spread(bootstrap, topic=name, is_dry_run=is_dry_run, format_=format_)
    elif is_cancelled and name is not None:
        reassigning.cancel(bootstrap, name, partition=partition)
    else:
        reassigning.list_moves(bootstrap, name, format_)


@topics.command("elect-leaders")
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
@click.option(
    "--unclean",
    "is_unclean",
    is_flag=True,
    help="If no replica in sync is left, elect the live one with the longest log; the records that it lacks are lost.",
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --unclean, only show what would be lost.")
@click.option("--yes", "is_confirmed", is_flag=True, help="With --unclean, do not ask for confirmation.")
@bootstrap_option
def elect_leaders(
    name: str | None, partition: int | None, is_unclean: bool, is_dry_run: bool, is_confirmed: bool, bootstrap: str
) -> None:
    """Elect the preferred leader of each partition.

    The preferred leader is the first replica. Without a TOPIC, elect leaders in all topics.
    """
    if is_unclean and name is None:
        raise click.UsageError("--unclean loses records, so name the TOPIC.")
    if partition is not None and name is None:
        raise click.UsageError("give the TOPIC.")
    if (is_dry_run or is_confirmed) and not is_unclean:
        raise click.UsageError("--dry-run and --yes need --unclean: other elections lose nothing.")
    from minibroker.cli import reassigning  # noqa: PLC0415

    if is_unclean and name is not None:
        reassigning.elect_uncleanly(
            bootstrap, name, partition=partition, is_confirmed=is_confirmed, is_dry_run=is_dry_run
        )
    else:
        reassigning.elect(bootstrap, name, partition=partition)
