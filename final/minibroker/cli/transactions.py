"""`minibroker transactions`: its options. `transacting` does the work."""

import click

from minibroker.cli.options import GLOSSARY_EPILOG, bootstrap_option, complete_topics, complete_transactions
from minibroker.cli.quantities import duration
from minibroker.cli.tables import format_option

older_option = click.option(
    "--older-than",
    "seconds",
    type=duration,
    metavar="D",
    default="15m",
    show_default=True,
    help="With --hanging, how long a partition must have had no record of the transaction.",
)
topic_option = click.option(
    "--topic", metavar="T", shell_complete=complete_topics, help="With --hanging, only this topic.  [default: all]"
)


@click.group(epilog=GLOSSARY_EPILOG)
def transactions() -> None:
    """List and describe transactions, and abort them.

    A transaction hangs in a partition if the leader counts it as open, but no coordinator knows it as ongoing there.
    Nothing ends it by itself, and readers of committed records wait at its first offset.
    """


@transactions.command("list")
@click.option("--hanging", "is_hanging", is_flag=True, help="Show the hanging transactions of partitions instead.")
@older_option
@topic_option
@format_option
@bootstrap_option
def list_transactions(is_hanging: bool, seconds: float, topic: str | None, format_: str, bootstrap: str) -> None:
    """List transactional ids and their states."""
    from minibroker.cli import transacting  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    if is_hanging:
        transacting.list_hanging(bootstrap, topic, seconds, format_)
    elif topic is not None:
        raise click.UsageError("--topic needs --hanging.")
    else:
        transacting.list_transactions(bootstrap, format_)


@transactions.command()
@click.argument("transactional_id", metavar="ID", shell_complete=complete_transactions)
@format_option
@bootstrap_option
def describe(transactional_id: str, format_: str, bootstrap: str) -> None:
    """Show the transaction of ID, a transactional id.

    While a transaction ends, only the partitions that have no marker yet are shown.
    """
    from minibroker.cli import transacting  # noqa: PLC0415

    transacting.describe(bootstrap, transactional_id, format_)


@transactions.command()
@click.argument("transactional_id", metavar="[ID]", required=False, shell_complete=complete_transactions)
@click.option("--hanging", "is_hanging", is_flag=True, help="Abort the hanging transactions of partitions.")
@older_option
@topic_option
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only show what would be aborted.")
@format_option
@bootstrap_option
def abort(
    transactional_id: str | None,
    is_hanging: bool,
    seconds: float,
    topic: str | None,
    is_dry_run: bool,
    format_: str,
    bootstrap: str,
) -> None:
    """Abort an open or hanging transaction.

    The producer of ID is fenced: it fails with its next request. A hanging transaction has no producer any more.
    """
    if (transactional_id is None) != is_hanging:
        raise click.UsageError("give either ID or --hanging.")
    if topic is not None and not is_hanging:
        raise click.UsageError("--topic needs --hanging.")
    from minibroker.cli import transacting  # noqa: PLC0415

    if transactional_id is None:
        transacting.abort_hanging(bootstrap, topic, seconds, is_dry_run=is_dry_run, format_=format_)
    else:
        transacting.abort(bootstrap, transactional_id, is_dry_run=is_dry_run, format_=format_)
