"""`minibroker produce`: lines from stdin become records. `producing` does the work; here are the options."""

import click

from minibroker.cli.options import bootstrap_option, topic_argument

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@topic_argument
@click.option("--key-separator", metavar="S", help="What stands before it in a line is the key.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Write to this one.  [default: by the key, else in batches]"
)
@click.option(
    "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True, help="Who must have it."
)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Of batches.")
@bootstrap_option
def produce(
    topic: str, key_separator: str | None, partition: int | None, acks: str, compression: str, bootstrap: str
) -> None:
    """Write lines from stdin to TOPIC, a record each.

    A topic that is not there is created, if the broker allows it (auto.create.topics.enable).
    """
    from minibroker.cli import producing  # noqa: PLC0415 (the client is slow to import, and --help needs none)

    if key_separator == "":
        raise click.UsageError("an empty --key-separator separates nothing; leave it out for records without keys.")
    producing.produce(
        bootstrap,
        topic,
        key_separator=None if key_separator is None else key_separator.encode(),
        partition=partition,
        acks=acks,
        compression=compression,
    )
