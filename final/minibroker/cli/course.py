"""`minibroker course`: the learner's workspace. This module prints; `minibroker.course` does the work."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from minibroker.course import checking, comparing, whose, workspace
from minibroker.course.checking import DONE, NOT_YET, Outcome, Verdict
from minibroker.course.errors import WrongUsage
from minibroker.course.exercises import Chapter, Exercise, Task, Track, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House, find_house
from minibroker.course.overview import Row, overview
from minibroker.course.stripping import function_row

chapter_number = click.argument("number", metavar="N", type=click.IntRange(min(CHAPTER_NUMBERS), max(CHAPTER_NUMBERS)))
TASKS = {Track.FAST: "exercises", Track.BUILD: "build tasks"}


@click.group()
def course() -> None:
    """The learner's workspace: do a chapter's exercises, or build its modules."""


@course.command("list")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_chapters(form: str) -> None:
    """Show the chapters, their exercises and how far you are."""
    rows = overview(find_house(Path.cwd()))
    if form == "json":
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        _echo_chapters(rows)


@course.command()
@chapter_number
@click.option("--build", is_flag=True, help="The build track: whole modules to write, not single functions.")
@click.option("--again", is_flag=True, help="Keep the copy that is there aside, and start anew.")
def start(number: int, build: bool, again: bool) -> None:
    """Copy chapter N into workspace/, the exercises taken out."""
    house = find_house(Path.cwd())
    chapter = load_chapter(house, number, Track.BUILD if build else Track.FAST)
    _echo_earlier_copies(house, chapter, workspace.start(house, chapter, again=again))
    for package in chapter.packages:
        click.echo(f"your copy of minibroker.{package}: {house.show(house.workspace / 'minibroker' / package)}")
    _echo_tasks(house, chapter)
    click.echo(f"next: write one, then run `minibroker course check {number}`")


@course.command()
@chapter_number
@click.option("--exercise", "task_id", metavar="ID", help="Only this exercise or build task, with its hint.")
def check(number: int, task_id: str | None) -> None:
    """Test your code of chapter N, exercise by exercise."""
    house = find_house(Path.cwd())
    chapter, copy = _started(house, number)
    tasks = [_task(chapter, task_id)] if task_id else list(chapter.tasks)
    for complaint in workspace.complaints(house):
        click.echo(f"warning: {complaint}", err=True)
    _echo_whose(house)
    verdicts = checking.check(house, chapter, tasks)
    copy.checked.update({verdict.task.id: verdict.state for verdict in verdicts})
    if any(verdict.state != DONE for verdict in verdicts):
        copy.others_failing = None
    workspace.save_copy(house, number, copy)
    _echo_verdicts(verdicts)
    all_passed = _echo_what_is_next(house, chapter, copy, verdicts, alone=bool(task_id))
    click.get_current_context().exit(0 if all_passed else 1)


@course.command()
@chapter_number
@click.option(
    "--exercise", "task_id", metavar="ID", help="Only this exercise's functions, or this build task's module."
)
def diff(number: int, task_id: str | None) -> None:
    """Show what would turn your code of chapter N into the reference."""
    house = find_house(Path.cwd())
    chapter, _ = _started(house, number)
    if task_id:
        task = _task(chapter, task_id)
        what, text = task.label, comparing.diff_task(house, chapter, task)
    else:
        what, text = f"chapter {number}", comparing.diff_chapter(house, chapter)
    click.echo(text, nl=False) if text else click.echo(f"your code of {what} is the same as the reference")


def _started(house: House, number: int) -> tuple[Chapter, workspace.Copy]:
    """Return a chapter on the track that the learner has started."""
    copy = workspace.find_copy(house, number)
    chapter = load_chapter(house, number, copy.track if copy else Track.FAST)
    return chapter, workspace.started_copy(house, chapter)


def _task(chapter: Chapter, task_id: str) -> Task:
    try:
        return chapter.task(task_id)
    except WrongUsage as error:
        raise click.UsageError(f"{error}.", click.get_current_context()) from error


def _echo_chapters(rows: Sequence[Row]) -> None:
    width = max(len(row.title) for row in rows)
    click.echo(f"{'CHAPTER':<7}  {'TITLE':<{width}}  EXERCISES  BUILD  STATE")
    for row in rows:
        exercises, builds = row.exercises or "-", row.builds or "-"
        click.echo(f"{row.chapter:<7}  {row.title:<{width}}  {exercises:<9}  {builds:<5}  {row.state}")


def _echo_earlier_copies(house: House, chapter: Chapter, started: workspace.Started) -> None:
    if started.aside and started.aside_track not in (None, chapter.track):
        back = _start_command(chapter.number, started.aside_track)
        kept = f"your copy of the {started.aside_track} track is kept in {house.show(started.aside)}"
        click.echo(f"{kept}; `{back}` brings it back")
    elif started.aside:
        back = f"cp -R {shlex.quote(house.show(started.aside / 'minibroker'))} "
        back += f"{shlex.quote(house.show(house.workspace))}/"
        click.echo(f"your earlier copy is kept in {house.show(started.aside)}; to go on with it: `{back}`")
    if started.resumed_from:
        click.echo(
            f"your earlier copy of the {chapter.track} track is back; "
            f"`{_start_command(chapter.number, chapter.track)} --again` starts anew"
        )


def _start_command(number: int, track: Track | None) -> str:
    return f"minibroker course start {number}{' --build' if track is Track.BUILD else ''}"


def _echo_tasks(house: House, chapter: Chapter) -> None:
    width = max(len(task.title) for task in chapter.tasks)
    for task in chapter.tasks:
        path = house.workspace / task.file
        click.echo(f"  {task.id}  {task.title:<{width}}  {house.show(path)}: {_places(task, path)}")


def _places(task: Task, path: Path) -> str:
    if not isinstance(task, Exercise):
        return "the whole module"
    source = path.read_text(encoding="utf-8")
    return "; ".join(f"{name}, line {function_row(source, name)}" for name in task.functions)


def _echo_whose(house: House) -> None:
    held = ", ".join(f"minibroker.{package}" for package in whose.packages(house.workspace))
    click.echo(f"testing your {held} from {house.show(house.workspace)}/, the reference for the rest")


def _echo_verdicts(verdicts: Sequence[Verdict]) -> None:
    width = max(len(verdict.task.title) for verdict in verdicts)
    for verdict in verdicts:
        click.echo(f"  {verdict.task.id}  {verdict.task.title:<{width}}  {verdict}")


def _echo_what_is_next(
    house: House, chapter: Chapter, copy: workspace.Copy, verdicts: Sequence[Verdict], *, alone: bool
) -> bool:
    """Print the way on; return whether everything that ran passed."""
    open_ones = [verdict for verdict in verdicts if verdict.state != DONE]
    if open_ones:
        hint = open_ones[0].task.hint
        if alone and hint:
            click.echo(f"hint: {hint}")
        click.echo(f"next: {_next_step(house, chapter, open_ones)}")
        return False
    if alone:
        click.echo(f"next: `minibroker course check {chapter.number}` tests all {TASKS[chapter.track]} of the chapter")
        return True
    return _echo_the_rest(house, chapter, copy)


def _next_step(house: House, chapter: Chapter, open_ones: Sequence[Verdict]) -> str:
    # What fails was begun, so it comes before what was not; what needs another exercise comes last.
    order = sorted(open_ones, key=lambda verdict: (verdict.state == NOT_YET, "needs" in verdict.because))
    verdict = order[0]
    task = verdict.task
    if verdict.state != NOT_YET:
        return f"see the whole failure with `pytest --mine '{verdict.test}'`"
    path = house.show(house.workspace / task.file)
    again = f"minibroker course check {chapter.number} --exercise {task.id}"
    what = f"{' and '.join(task.functions)} in {path}" if isinstance(task, Exercise) else f"the module {path}"
    return f"write {what}, then `{again}`"


def _echo_the_rest(house: House, chapter: Chapter, copy: workspace.Copy) -> bool:
    tasks = f"{len(chapter.tasks)} {TASKS[chapter.track]}"
    click.echo(f"all {tasks} are done; running the other tests of the chapter, which may take minutes …")
    outcomes = checking.check_the_rest(house, chapter, on_sign=_echo_sign)
    failed = [outcome for outcome in outcomes if outcome.outcome == "failed"]
    copy.others_failing = len(failed)
    workspace.save_copy(house, chapter.number, copy)
    if failed:
        _echo_failures(failed)
        return False
    passed = sum(outcome.outcome == "passed" for outcome in outcomes)
    click.echo(f"the rest of the chapter's tests pass with your code too: {passed}")
    click.echo(f"next: compare with the reference, `minibroker course diff {chapter.number}`")
    return True


def _echo_sign(ran: int, total: int) -> None:
    click.echo(f"  … {ran} of {total} tests have run" if total else "  … looking for the tests")


def _echo_failures(failed: Sequence[Outcome]) -> None:
    for outcome in failed[:5]:
        click.echo(f"  failing  {outcome.test}: {outcome.line}")
    click.echo(f"next: other tests fail: {len(failed)}; see the first with `pytest --mine '{failed[0].test}'`")
