"""`minibroker topics`: create, list, describe, alter, delete, reassign, elect-leaders. `administering` and `moving` do
the work; here are the options.
"""

import click

from minibroker.cli.options import bootstrap_option, complete_topics, settings_of
from minibroker.cli.tables import format_option

config_option = click.option(
    "--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; may be given several times."
)
name_argument = click.argument("name", shell_complete=complete_topics)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics; move their partitions, elect their leaders."""


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: the broker's num.partitions]")
@click.option("--replication-factor", type=click.IntRange(min=1), help="How many copies.  [default: the broker's]")
@config_option
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no failure.")
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
    from minibroker.cli import administering  # noqa: PLC0415 (the client is slow to import, and --help needs none)

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
    """List the topics."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.list_topics(bootstrap, format_)


@topics.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@format_option
@bootstrap_option
def describe(names: tuple[str, ...], format_: str, bootstrap: str) -> None:
    """Show partitions, replicas, offsets, sizes and settings; of all topics if none is named."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.describe(bootstrap, names, format_)


@topics.command()
@name_argument
@click.option("--partitions", type=click.IntRange(min=1), help="Add partitions, until there are so many.")
@config_option
@click.option("--delete-config", "removed", metavar="NAME", multiple=True, help="Return to the default of a setting.")
@bootstrap_option
def alter(name: str, partitions: int | None, pairs: tuple[str, ...], removed: tuple[str, ...], bootstrap: str) -> None:
    """Add partitions to the topic NAME, or change its settings.

    More partitions move keys to other partitions, which breaks the order of their records. A topic never shrinks.
    """
    from minibroker.cli import administering  # noqa: PLC0415

    configs = settings_of(pairs, "--config")
    if partitions is None and not configs and not removed:
        raise click.UsageError("say what to alter: --partitions, --config or --delete-config.")
    administering.alter(bootstrap, name, partitions=partitions, configs=configs, removed=removed)


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no failure.")
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete topics with all their records."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.delete(bootstrap, names, may_be_absent=if_exists)


def node_ids(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int] | None:
    """Nodes by their numbers, such as 1,2,3."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{value!r} is not a list of nodes, such as 1,2,3.")
    return [int(word) for word in words]


@topics.command()
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="Which one to move.")
@click.option("--replicas", metavar="N,N,...", callback=node_ids, help="The nodes to have it; the first is to lead.")
@click.option("--from", "drained", metavar="NODE", type=click.IntRange(min=0), help="Move every replica off this node.")
@click.option("--spread", "is_spread", is_flag=True, help="Give each live broker its share, a new one above all.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --from or --spread: only show what would move.")
@click.option("--cancel", "is_cancelled", is_flag=True, help="Take moves back that are under way.")
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
    """Move partitions to other nodes: one of TOPIC with --replicas, or as many as it takes with --from and --spread,
    of all topics if none is named. Without options, list the moves that are under way.

    The new replicas copy the partition while the old ones serve it; the old ones go when the new ones are in sync.
    """
    is_planned = drained is not None or is_spread
    if (replicas is not None) + (drained is not None) + is_spread + is_cancelled > 1:
        raise click.UsageError("say one of --replicas, --from, --spread and --cancel.")
    if is_dry_run and not is_planned:
        raise click.UsageError("--dry-run goes with --from or --spread.")
    if (replicas is not None or is_cancelled) and name is None:
        raise click.UsageError("name the TOPIC.")
    if replicas is not None and partition is None:
        raise click.UsageError("name the --partition that is to be moved.")
    if partition is not None and is_planned:
        raise click.UsageError("--from and --spread choose the partitions themselves: leave --partition out.")
    if partition is not None and replicas is None and not is_cancelled:
        raise click.UsageError("say where to move it with --replicas, or take its move back with --cancel.")
    from minibroker.cli import moving  # noqa: PLC0415

    if replicas is not None and name is not None and partition is not None:
        moving.move(bootstrap, name, partition=partition, replicas=replicas)
    elif drained is not None:
        moving.drain(bootstrap, drained, topic=name, is_dry_run=is_dry_run, format_=format_)
    elif is_spread:
        moving.spread(bootstrap, topic=name, is_dry_run=is_dry_run, format_=format_)
    elif is_cancelled and name is not None:
        moving.cancel(bootstrap, name, partition=partition)
    else:
        moving.list_moves(bootstrap, name, format_)


@topics.command("elect-leaders")
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all]")
@click.option(
    "--unclean",
    "is_unclean",
    is_flag=True,
    help="Let others lead where nobody in sync is left: what they lack is lost.",
)
@bootstrap_option
def elect_leaders(name: str | None, partition: int | None, is_unclean: bool, bootstrap: str) -> None:
    """Let the preferred leaders lead, the first replica of each partition; of all topics if none is named."""
    if name is None and (partition is not None or is_unclean):
        raise click.UsageError("name the TOPIC." if not is_unclean else "--unclean needs a TOPIC: it loses records.")
    from minibroker.cli import moving  # noqa: PLC0415

    moving.elect(bootstrap, name, partition=partition, is_unclean=is_unclean)
