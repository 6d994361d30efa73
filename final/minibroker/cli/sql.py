"""`minibroker sql`: its options. `querying` does the work."""

import click

from minibroker.cli.options import bootstrap_option


@click.command()
@click.argument("query")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@bootstrap_option
def sql(query: str, format_: str, bootstrap: str) -> None:
    """Query the topics and groups of a cluster as tables.

    QUERY is one select statement in SQLite's language. The tables are read from the brokers when the command runs, and
    nothing can be changed:

    \b
    Topic                id, name, partition_count, replication_factor,
                         retention_ms
    ConsumerGroup        id, group_id, protocol
    PartitionAssignment  group_id, topic, partition, consumer_id, offset

    The protocol of a group is its assignor. consumer_id is the member that has the partition, or null. offset is the
    committed offset, or null. Write "offset" in double quotes where SQLite takes it for its keyword. Records are not
    among the tables: docs/operations/sql.md queries them with Spark.
    """
    from minibroker.cli import querying  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    querying.run(bootstrap, query, format_)
