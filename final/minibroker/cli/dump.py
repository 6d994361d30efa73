"""`minibroker dump`: a file of the broker made readable. It only calls the room that owns the file's format."""

import json
from collections.abc import Iterator

import click

from minibroker.log.disk import OSFiles
from minibroker.log.dump import Summary, damaged_lines, lines, objects
from minibroker.log.interfaces import File


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--verify", is_flag=True, help="Check everything, show only what is damaged; exit 1 if anything is.")
@click.option("--batches", is_flag=True, help="Leave out the records.")
@click.option("--bytes", "annotated", is_flag=True, help="Show every byte with its meaning.")
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table", help="Default: table.")
@click.pass_context
def dump(context: click.Context, file: str, verify: bool, batches: bool, annotated: bool, output: str) -> None:
    """Show what is in a log FILE: batches, records, bytes.

    Each batch is checked on the way: its checksum, its records, and that offsets and epochs do not fall.
    """
    if output == "json" and annotated:
        raise click.UsageError("--bytes is for people: use it without --format json.")
    opened = OSFiles().open(file, create=False, writable=False)
    summary = Summary()
    if output == "json":
        shown = _json(opened, summary, records=not batches, verify=verify)
    elif verify:
        shown = damaged_lines(opened, summary)
    else:
        shown = lines(opened, summary, records=not batches, annotated=annotated)
    for line in shown:
        click.echo(line)
    if verify and summary.is_damaged:
        context.exit(1)


def _json(file: File, summary: Summary, *, records: bool, verify: bool) -> Iterator[str]:
    """One object a line; with `verify` only the damaged ones."""
    for found in objects(file, summary, records=records):
        if not verify or found["damage"] is not None:
            yield json.dumps(found)
