"""`minibroker produce`: its options. `producing` does the work."""

import click

from minibroker.cli.options import bootstrap_option, topic_argument

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@topic_argument
@click.option("--key-separator", metavar="S", help="The part of a line before S is the key.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Write to this partition.  [default: by the key's hash; without a key, another partition for each batch]",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it is acknowledged: none, the leader, or all in sync.",
)
@click.option(
    "--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Compression of batches."
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Write all lines in one transaction, which commits at the end of stdin.",
)
@bootstrap_option
def produce(
    topic: str,
    key_separator: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    transactional_id: str | None,
    bootstrap: str,
) -> None:
    """Write each line of stdin to TOPIC as a record.

    A topic that does not exist is created, if the broker allows it (auto.create.topics.enable).

    With --transactional-id, readers of committed records see all lines or none. Ctrl-C or a failure aborts the
    transaction. If it is still open after 60 s, the brokers abort it. A second producer with the same ID fences the
    first.
    """
    from minibroker.cli import producing  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    if key_separator == "":
        raise click.UsageError("--key-separator is empty; leave it out to write records without keys.")
    if transactional_id is not None and (acks != "all" or not transactional_id):
        raise click.UsageError("--transactional-id needs an ID and --acks all.")
    producing.produce(
        bootstrap,
        topic,
        key_separator=None if key_separator is None else key_separator.encode(),
        partition=partition,
        acks=acks,
        compression=compression,
        transactional_id=transactional_id,
    )
