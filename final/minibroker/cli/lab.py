"""`minibroker lab`: lists the labs of the course, runs one, writes its figure.

`minibroker.bench.lab` runs the labs; this module reads the options and prints. Labs are scripts in a clone of the
repository. Figures go to files, tables to stdout, progress and errors to stderr.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minibroker.cli.tables import format_option

if TYPE_CHECKING:
    from minibroker.bench.lab import Findings, Lab

F = TypeVar("F", bound=Callable[..., Any])


def directory_option(help_: str) -> Callable[[F], F]:
    """The option --dir, the directory for temporary files."""
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    return click.option("--dir", "directory", type=folder, help=help_)


class UnknownLab(click.ClickException):
    """There is no lab of this name. The exit code is the one for wrong usage."""

    exit_code = 2


@click.group()
def lab() -> None:
    """Run experiments on your own machine; each draws one figure."""


@lab.command("list")
@format_option
def list_labs(format_: str) -> None:
    """List the labs: name, chapter, what each shows."""
    from minibroker.bench.report import Table  # noqa: PLC0415

    labs = list(labs_at_hand().values())
    if format_ == "json":
        rows = [{"name": each.name, "chapter": each.chapter, "shows": each.shows} for each in labs]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        cells = [[each.name, each.chapter, each.shows] for each in labs]
        click.echo(Table(["lab", "chapter", "shows"], cells).text())


@lab.command("run")
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Directory for NAME.svg and NAME.json.",
)
@directory_option("Directory for temporary files, on the disk to be measured.")
@format_option
def run(name: str, out: Path, directory: Path | None, format_: str) -> None:
    """Run the lab NAME: print its table and what it means, and write its figure."""
    from minibroker.bench.lab import write_findings  # noqa: PLC0415

    labs = labs_at_hand()
    if name not in labs:
        raise UnknownLab(f"there is no lab {name!r}; the labs are: {', '.join(labs)}")
    try:
        findings = run_with_progress(labs[name], directory)
        paths = write_findings(out, labs[name], findings)
    except OSError as error:
        raise click.ClickException(f"the lab {name} failed: {error}") from error
    show(labs[name], findings, format_)
    click.echo(f"wrote {' and '.join(str(path) for path in paths)}", err=format_ == "json")


def labs_at_hand() -> dict[str, "Lab"]:
    """The labs of the clone that contains the current directory, or else of the clone that contains this program."""
    # The labs are slow to import, and --help does not need them.
    from minibroker.bench.lab import find_labs  # noqa: PLC0415
    from minibroker.course.errors import CourseError  # noqa: PLC0415
    from minibroker.course.repository import find_repository  # noqa: PLC0415

    try:
        clone = find_repository(Path.cwd()).root
    except CourseError as error:
        needs = "the labs need a clone of the repository: change into the clone, and run the command there"
        raise click.ClickException(needs) from error
    return find_labs(clone)


def run_with_progress(chosen: "Lab", directory: Path | None) -> "Findings":
    """Run a lab, with its progress in a line on stderr."""
    from minibroker.bench.lab import run_lab  # noqa: PLC0415
    from minibroker.bench.progress import ProgressLine  # noqa: PLC0415

    progress = ProgressLine(f"lab {chosen.name}")
    try:
        return run_lab(chosen, directory=directory, progress=progress)
    finally:
        progress.close()


def show(chosen: "Lab", findings: "Findings", format_: str) -> None:
    """Print the findings as text or as JSON."""
    from minibroker.bench.lab import findings_document, findings_text  # noqa: PLC0415
    from minibroker.bench.report import document_text  # noqa: PLC0415

    if format_ == "json":
        click.echo(document_text(findings_document(chosen, findings)), nl=False)
    else:
        click.echo(findings_text(chosen, findings))
