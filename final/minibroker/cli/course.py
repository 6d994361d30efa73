"""`minibroker course`: the learner's workspace. This module prints; `minibroker.course` does the work."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from minibroker.cli.tables import counted
from minibroker.course import checking, comparing, workspace
from minibroker.course.checking import DONE, NOT_YET, Outcome, Verdict
from minibroker.course.choosing import Choice, choose
from minibroker.course.errors import WrongUsage
from minibroker.course.exercises import Chapter, Exercise, Task, Track, load_chapter
from minibroker.course.explaining import explain
from minibroker.course.overview import Row, overview
from minibroker.course.repository import CHAPTER_NUMBERS, Repository, find_repository
from minibroker.course.stripping import function_row
from minibroker.course.teaching import lesson_to_read, next_hints

chapter_number = click.argument("number", metavar="N", type=click.IntRange(min(CHAPTER_NUMBERS), max(CHAPTER_NUMBERS)))
TASKS = {Track.FAST: "exercises", Track.BUILD: "build tasks"}


@click.group()
def course() -> None:
    """The learner's workspace: do a chapter's exercises, or build its modules."""


@course.command("list")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_chapters(form: str) -> None:
    """Show the chapters, their exercises and your progress."""
    rows = overview(find_repository(Path.cwd()))
    if form == "json":
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        _echo_chapters(rows)


@course.command()
@chapter_number
@click.option("--build", is_flag=True, help="The build track: whole modules to write, not single functions.")
@click.option("--again", is_flag=True, help="Set your present copy aside, and start anew.")
def start(number: int, build: bool, again: bool) -> None:
    """Copy chapter N into workspace/, with the exercises taken out."""
    repository = find_repository(Path.cwd())
    chapter = load_chapter(repository, number, Track.BUILD if build else Track.FAST)
    started = workspace.start(repository, chapter, again=again)
    _echo_earlier_copies(repository, chapter, started)
    for package in chapter.packages:
        click.echo(
            f"your copy of minibroker.{package}: {repository.show(repository.workspace / 'minibroker' / package)}"
        )
    _echo_tasks(repository, chapter)
    _echo_reference(choose(repository, [number]))
    click.echo(f"next: {'' if started.resumed_from else 'write one, then '}run `minibroker course check {number}`")


@course.command()
@chapter_number
@click.option("--exercise", "task_id", metavar="ID", help="Only this exercise or build task.")
@click.option("--unfinished", is_flag=True, help="Also use your copies of other chapters that are not done.")
def check(number: int, task_id: str | None, unfinished: bool) -> None:
    """Test your code of chapter N, exercise by exercise.

    Other chapters that are not done are replaced by the reference.
    """
    repository = find_repository(Path.cwd())
    chapter, copy = _started(repository, number)
    tasks = [_task(chapter, task_id)] if task_id else list(chapter.tasks)
    for complaint in workspace.complaints(repository):
        click.echo(f"warning: {complaint}", err=True)
    choice = choose(repository, [number], unfinished=unfinished)
    held = ", ".join(f"minibroker.{package}" for package in choice.mine)
    folder = repository.show(repository.workspace)
    click.echo(f"testing your {held} from {folder}/, with the reference for all other packages")
    _echo_reference(choice)
    verdicts = checking.check(repository, chapter, tasks, unfinished=unfinished)
    copy.checked.update({verdict.task.id: verdict.state for verdict in verdicts})
    if any(verdict.state != DONE for verdict in verdicts):
        copy.others_failing = None
    workspace.save_copy(repository, number, copy)
    _echo_verdicts(verdicts)
    all_done = all(verdict.state == DONE for verdict in verdicts)
    if not all_done or task_id:
        _echo_what_is_next(repository, chapter, verdicts, alone=bool(task_id))
    else:
        all_done = _echo_the_rest(repository, chapter, copy, unfinished=unfinished)
    click.get_current_context().exit(0 if all_done else 1)


@course.command()
@click.argument("task_id", metavar="ID")
def hint(task_id: str) -> None:
    """Show a hint for exercise or build task ID, such as 3.2.

    Each call shows one hint more.
    """
    repository = find_repository(Path.cwd())
    number = task_id.partition(".")[0]
    if number not in map(str, CHAPTER_NUMBERS):
        raise click.UsageError(f"{task_id} is not the id of a task, such as 3.2.", click.get_current_context())
    chapter, copy = _started(repository, int(number))
    task = _task(chapter, task_id)
    shown, count = next_hints(repository, chapter, copy, task)
    for place, text in enumerate(shown, start=1):
        click.echo(f"hint {place} of {count}: {text}")
    if len(shown) < count:
        click.echo(f"next: try it; `minibroker course hint {task_id}` shows one hint more")
        return
    if not count:
        click.echo(f"there is no hint for {task.label}")
    _echo_lesson(repository, chapter, task)
    click.echo(f"next: there are no more hints; `minibroker course diff {number} --exercise {task_id}` shows our code")


@course.command()
def status() -> None:
    """Show for which packages your code is used, for which the reference, and why."""
    repository = find_repository(Path.cwd())
    choice = choose(repository, [])
    if not choice.mine and not choice.unused:
        click.echo(f"nothing is in {repository.show(repository.workspace)}/ yet: run `minibroker course start 1`")
        return
    for package in choice.mine:
        shown = repository.show(repository.workspace / "minibroker" / package)
        click.echo(f"minibroker.{package}: yours ({shown})")
    for package, reason in choice.unused.items():
        click.echo(f"minibroker.{package}: the reference, {reason}")
    click.echo("the rest of minibroker: the reference")
    for complaint in workspace.complaints(repository):
        click.echo(f"warning: {complaint}", err=True)
    path = ":".join(shlex.quote(repository.show(folder)) for folder in (*choice.reference, repository.workspace))
    if choice.mine:
        click.echo(f"to run a program with your code: `PYTHONPATH={path} minibroker serve`")
    if choice.unused:
        everything = shlex.quote(repository.show(repository.workspace))
        click.echo(f"to run it with your unfinished code, too: `PYTHONPATH={everything} minibroker serve`")


@course.command()
@chapter_number
@click.option(
    "--exercise", "task_id", metavar="ID", help="Only this exercise's functions, or this build task's module."
)
def diff(number: int, task_id: str | None) -> None:
    """Show how the reference differs from your code of chapter N."""
    repository = find_repository(Path.cwd())
    chapter, _ = _started(repository, number)
    if task_id:
        task = _task(chapter, task_id)
        what, text = task.label, comparing.diff_task(repository, chapter, task)
    else:
        what, text = f"chapter {number}", comparing.diff_chapter(repository, chapter)
    click.echo(text, nl=False) if text else click.echo(f"your code of {what} is the same as the reference")


def _started(repository: Repository, number: int) -> tuple[Chapter, workspace.Copy]:
    """Return a chapter on the learner's track, and the learner's copy of it."""
    copy = workspace.find_copy(repository, number)
    chapter = load_chapter(repository, number, copy.track if copy else Track.FAST)
    return chapter, workspace.started_copy(repository, chapter)


def _task(chapter: Chapter, task_id: str) -> Task:
    try:
        return chapter.task(task_id)
    except WrongUsage as error:
        raise click.UsageError(f"{error}.", click.get_current_context()) from error


def _echo_chapters(rows: Sequence[Row]) -> None:
    width = max(len(row.title) for row in rows)
    click.echo(f"{'CHAPTER':<7}  {'TITLE':<{width}}  {'EXERCISES':<17}  {'BUILD':<15}  STATE")
    for row in rows:
        exercises, builds = _progress(row.exercises_done, row.exercises), _progress(row.builds_done, row.builds)
        click.echo(f"{row.chapter:<7}  {row.title:<{width}}  {exercises:<17}  {builds:<15}  {row.state}")
    done = sum(row.exercises_done or 0 for row in rows), sum(row.builds_done or 0 for row in rows)
    total = sum(row.exercises for row in rows), sum(row.builds for row in rows)
    click.echo(f"done: {done[0]} of {counted(total[0], 'exercise')}, {done[1]} of {counted(total[1], 'build task')}")


def _progress(done: int | None, count: int) -> str:
    if not count:
        return "-"
    return f"{done or 0}/{count} {'not started' if done is None else 'done' if done == count else 'started'}"


def _echo_earlier_copies(repository: Repository, chapter: Chapter, started: workspace.Started) -> None:
    if started.aside and started.aside_track not in (None, chapter.track):
        back = _start_command(chapter.number, started.aside_track)
        kept = f"your copy of the {started.aside_track} track is kept in {repository.show(started.aside)}"
        click.echo(f"{kept}; `{back}` brings it back")
    elif started.aside:
        back = f"cp -R {shlex.quote(repository.show(started.aside / 'minibroker'))} "
        back += f"{shlex.quote(repository.show(repository.workspace))}/"
        click.echo(f"your earlier copy is kept in {repository.show(started.aside)}; to continue with it: `{back}`")
    if started.resumed_from:
        click.echo(
            f"your earlier copy of the {chapter.track} track is back; "
            f"`{_start_command(chapter.number, chapter.track)} --again` starts anew"
        )


def _start_command(number: int, track: Track | None) -> str:
    return f"minibroker course start {number}{' --build' if track is Track.BUILD else ''}"


def _echo_tasks(repository: Repository, chapter: Chapter) -> None:
    for task, label in zip(chapter.tasks, _columns(chapter.tasks), strict=True):
        path = repository.workspace / task.file
        click.echo(f"  {label}  {repository.show(path)}: {_places(task, path)}")


def _columns(tasks: Sequence[Task]) -> list[str]:
    """The ids and titles of tasks, as two columns."""
    id_width, title_width = (max(map(len, column)) for column in zip(*((it.id, it.title) for it in tasks), strict=True))
    return [f"{task.id:<{id_width}}  {task.title:<{title_width}}" for task in tasks]


def _places(task: Task, path: Path) -> str:
    if not isinstance(task, Exercise):
        return "the whole module"
    source = path.read_text(encoding="utf-8")
    return "; ".join(f"{name}, line {function_row(source, name)}" for name in task.functions)


def _echo_reference(choice: Choice) -> None:
    """Say in one line for which packages of the learner the reference is used."""
    reasons = list(dict.fromkeys(choice.unused.values()))
    if len(reasons) > 1:
        chapters = ", ".join(map(str, choice.unfinished))
        reasons = [f"because chapters {chapters} are not done; `minibroker course status` says why"]
    for reason in reasons:
        packages = ", ".join(f"minibroker.{package}" for package in choice.unused)
        click.echo(f"{packages}: the reference, {reason}")


def _echo_verdicts(verdicts: Sequence[Verdict]) -> None:
    for verdict, label in zip(verdicts, _columns([verdict.task for verdict in verdicts]), strict=True):
        click.echo(f"  {label}  {verdict}")


def _echo_what_is_next(repository: Repository, chapter: Chapter, verdicts: Sequence[Verdict], *, alone: bool) -> None:
    open_ones = [verdict for verdict in verdicts if verdict.state != DONE]
    if open_ones:
        # A failing task comes first, because it was begun; a task that needs another one comes last.
        verdict = min(open_ones, key=lambda verdict: (verdict.state == NOT_YET, bool(verdict.needs)))
        if verdict.failure and not verdict.place:
            _echo_explained(repository, verdict.failure)
            _echo_lesson(repository, chapter, verdict.task)
        if alone:
            click.echo(f"hints: `minibroker course hint {verdict.task.id}`")
        click.echo(f"next: {_next_step(repository, chapter, verdict)}")
    else:
        click.echo(f"next: `minibroker course check {chapter.number}` tests all {TASKS[chapter.track]} of the chapter")


def _echo_explained(repository: Repository, outcome: Outcome) -> None:
    for line in explain(outcome, repository.show(repository.workspace)):
        click.echo(f"    {line}")


def _echo_lesson(repository: Repository, chapter: Chapter, task: Task) -> None:
    if place := lesson_to_read(repository, chapter, task):
        click.echo(f"read again: {place}")


def _next_step(repository: Repository, chapter: Chapter, verdict: Verdict) -> str:
    task = verdict.task
    if verdict.place:
        return f"correct {verdict.place}: `{verdict.source}`"
    if verdict.state != NOT_YET:
        return f"see the whole failure with `pytest --mine '{verdict.test}'`"
    again = f"minibroker course check {chapter.number} --exercise {task.id}"
    if verdict.needs:
        return f"write {verdict.needs}, then `{again}`"
    path = repository.show(repository.workspace / task.file)
    what = f"{' and '.join(task.functions)} in {path}" if isinstance(task, Exercise) else f"the module {path}"
    return f"write {what}, then `{again}`"


def _echo_the_rest(repository: Repository, chapter: Chapter, copy: workspace.Copy, *, unfinished: bool) -> bool:
    """Run the other tests of the chapter and print the result; return whether all passed."""
    tasks = f"{len(chapter.tasks)} {TASKS[chapter.track]}"
    click.echo(f"all {tasks} are done; running the other tests of the chapter, which may take minutes …")
    digest = workspace.files_digest(repository.workspace, copy.packages)
    outcomes = checking.check_the_rest(repository, chapter, unfinished=unfinished, on_progress=_echo_progress)
    failed = [outcome for outcome in outcomes if outcome.outcome == "failed"]
    copy.others_failing, copy.passed = len(failed), None if failed else digest
    workspace.save_copy(repository, chapter.number, copy)
    if failed:
        _echo_failures(repository, failed)
        return False
    passed = sum(outcome.outcome == "passed" for outcome in outcomes)
    click.echo(f"the other {passed} tests of the chapter pass with your code, too")
    click.echo(f"next: compare with the reference, `minibroker course diff {chapter.number}`")
    return True


def _echo_progress(ran: int, total: int) -> None:
    click.echo(f"  … {ran} of {total} tests have run" if total else "  … looking for the tests")


def _echo_failures(repository: Repository, failed: Sequence[Outcome]) -> None:
    for outcome in failed[:5]:
        click.echo(f"  failing  {outcome.test}: {outcome.line}")
    _echo_explained(repository, failed[0])
    count = counted(len(failed), "other test")
    click.echo(f"next: {count} failed; see the first with `pytest --mine '{failed[0].test}'`")
