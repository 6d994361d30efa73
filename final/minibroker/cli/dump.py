"""`minibroker dump`: prints a file of the broker. The package that owns the file's format does the work."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from minibroker.segments.dump import Dump


@click.command()
@click.argument("file", type=click.Path(exists=True))
@click.option("--verify", is_flag=True, help="Show only damaged parts; exit with 1 if there are any.")
@click.option("--batches", is_flag=True, help="Show batches without their records.")
@click.option("--bytes", "annotated", is_flag=True, help="Show every byte with its meaning.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.pass_context
def dump(context: click.Context, file: str, verify: bool, batches: bool, annotated: bool, output: str) -> None:
    """Show what is in FILE: a log, an index, a snapshot of producers or a checkpoint.

    The whole file is checked: checksums, records, the order of offsets and epochs, and each index entry against the
    log beside it. With --verify, FILE may be the directory of a partition.
    """
    if output == "json" and annotated:
        raise click.UsageError("--bytes has no JSON form: leave out --format json.")
    if Path(file).is_dir() and not verify:
        raise click.UsageError("a directory can only be verified: add --verify, or name a file in it.")
    # These packages are slow to import, and --help needs none of them.
    from minibroker.coordinators.dump import DirectoryDump, dump_of, topic_of  # noqa: PLC0415
    from minibroker.log import program  # noqa: PLC0415
    from minibroker.log.disk import OSFiles  # noqa: PLC0415

    if not Path(file).is_dir():
        program.demand_file(file)
    if Path(file).is_dir():
        shown: Dump = DirectoryDump(OSFiles(), file)
    else:
        shown = dump_of(OSFiles(), file, topic=topic_of(str(Path(file).resolve())))
    if output == "json":
        lines = _json(shown, records=not batches, verify=verify)
    elif verify:
        lines = shown.damaged_lines()
    else:
        lines = shown.lines(records=not batches, annotated=annotated)
    for line in lines:
        click.echo(line)
    if verify and shown.is_damaged:
        context.exit(1)


def _json(shown: "Dump", *, records: bool, verify: bool) -> Iterator[str]:
    """One object per line; with `verify`, only the objects that are damaged."""
    for found in shown.objects(records=records):
        if not verify or found["damage"] is not None:
            yield json.dumps(found)
