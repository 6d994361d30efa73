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
from minibroker.course.exercises import Chapter, Exercise, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House, find_house
from minibroker.course.overview import Row, overview
from minibroker.course.stripping import function_row

chapter_number = click.argument("number", metavar="N", type=click.IntRange(min(CHAPTER_NUMBERS), max(CHAPTER_NUMBERS)))


@click.group()
def course() -> None:
    """The learner's workspace: do a chapter's exercises."""


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
@click.option("--again", is_flag=True, help="Keep the copy that is there aside, and start anew.")
def start(number: int, again: bool) -> None:
    """Copy chapter N into workspace/, the exercises taken out."""
    house = find_house(Path.cwd())
    chapter = load_chapter(house, number)
    aside = workspace.start(house, chapter, again=again)
    if aside:
        back = f"cp -R {shlex.quote(house.show(aside / 'minibroker'))} {shlex.quote(house.show(house.workspace))}/"
        click.echo(f"your earlier copy is kept in {house.show(aside)}; to go on with it: `{back}`")
    for room in chapter.rooms:
        click.echo(f"your copy of minibroker.{room}: {house.show(house.workspace / 'minibroker' / room)}")
    _echo_exercises(house, chapter)
    click.echo(f"next: write one, then run `minibroker course check {number}`")


@course.command()
@chapter_number
@click.option("--exercise", "exercise_id", metavar="ID", help="Only this exercise, with its hint.")
def check(number: int, exercise_id: str | None) -> None:
    """Test your code of chapter N, exercise by exercise."""
    house = find_house(Path.cwd())
    chapter = load_chapter(house, number)
    copy = workspace.started_copy(house, chapter)
    exercises = [_exercise(chapter, exercise_id)] if exercise_id else list(chapter.exercises)
    _warn_if_moved_on(chapter, copy)
    _echo_whose(house)
    verdicts = checking.check(house, chapter, exercises)
    copy.checked.update({verdict.exercise.id: verdict.state for verdict in verdicts})
    if any(verdict.state != DONE for verdict in verdicts):
        copy.others_failing = None
    workspace.save_copy(house, number, copy)
    _echo_verdicts(verdicts)
    all_passed = _echo_what_is_next(house, chapter, copy, verdicts, alone=bool(exercise_id))
    click.get_current_context().exit(0 if all_passed else 1)


@course.command()
@chapter_number
@click.option("--exercise", "exercise_id", metavar="ID", help="Only the functions of this exercise.")
def diff(number: int, exercise_id: str | None) -> None:
    """Show what would turn your code of chapter N into the reference."""
    house = find_house(Path.cwd())
    chapter = load_chapter(house, number)
    workspace.started_copy(house, chapter)
    if exercise_id:
        text = comparing.diff_exercise(house, chapter, _exercise(chapter, exercise_id))
    else:
        text = comparing.diff_chapter(house, chapter)
    what = f"exercise {exercise_id}" if exercise_id else f"chapter {number}"
    click.echo(text, nl=False) if text else click.echo(f"your code of {what} is the same as the reference")


def _exercise(chapter: Chapter, exercise_id: str) -> Exercise:
    try:
        return chapter.exercise(exercise_id)
    except WrongUsage as error:
        raise click.UsageError(f"{error}.", click.get_current_context()) from error


def _echo_chapters(rows: Sequence[Row]) -> None:
    width = max(len(row.title) for row in rows)
    click.echo(f"{'CHAPTER':<7}  {'TITLE':<{width}}  EXERCISES  STATE")
    for row in rows:
        count = row.exercises or "-"
        click.echo(f"{row.chapter:<7}  {row.title:<{width}}  {count:<9}  {row.state}")


def _echo_exercises(house: House, chapter: Chapter) -> None:
    width = max(len(exercise.title) for exercise in chapter.exercises)
    for exercise in chapter.exercises:
        path = house.workspace / exercise.file
        source = path.read_text(encoding="utf-8")
        places = [f"{name}, line {function_row(source, name)}" for name in exercise.functions]
        click.echo(f"  {exercise.id}  {exercise.title:<{width}}  {house.show(path)}: {'; '.join(places)}")


def _warn_if_moved_on(chapter: Chapter, copy: workspace.Copy) -> None:
    changed = workspace.moved_on(chapter, copy)
    if changed:
        n = chapter.number
        click.echo(
            f"warning: the reference moved on since your copy was made: {', '.join(changed)}; see it with "
            f"`minibroker course diff {n}`, begin from it with `minibroker course start {n} --again`",
            err=True,
        )


def _echo_whose(house: House) -> None:
    held = ", ".join(f"minibroker.{room}" for room in whose.rooms(house.workspace))
    click.echo(f"testing your {held} from {house.show(house.workspace)}/, the reference for the rest")


def _echo_verdicts(verdicts: Sequence[Verdict]) -> None:
    width = max(len(verdict.exercise.title) for verdict in verdicts)
    for verdict in verdicts:
        click.echo(f"  {verdict.exercise.id}  {verdict.exercise.title:<{width}}  {verdict}")


def _echo_what_is_next(
    house: House, chapter: Chapter, copy: workspace.Copy, verdicts: Sequence[Verdict], *, alone: bool
) -> bool:
    """Print the way on; return whether everything that ran passed."""
    open_ones = [verdict for verdict in verdicts if verdict.state != DONE]
    if open_ones:
        hint = open_ones[0].exercise.hint
        if alone and hint:
            click.echo(f"hint: {hint}")
        click.echo(f"next: {_next_step(house, chapter, open_ones)}")
        return False
    if alone:
        click.echo(f"next: `minibroker course check {chapter.number}` tests all exercises of the chapter")
        return True
    return _echo_the_rest(house, chapter, copy)


def _next_step(house: House, chapter: Chapter, open_ones: Sequence[Verdict]) -> str:
    # What fails was begun, so it comes before what was not; what needs another exercise comes last.
    order = sorted(open_ones, key=lambda verdict: (verdict.state == NOT_YET, "needs" in verdict.because))
    verdict = order[0]
    exercise = verdict.exercise
    if verdict.state != NOT_YET:
        return f"see the whole failure with `pytest --mine '{verdict.test}'`"
    path = house.show(house.workspace / exercise.file)
    again = f"minibroker course check {chapter.number} --exercise {exercise.id}"
    return f"write {' and '.join(exercise.functions)} in {path}, then `{again}`"


def _echo_the_rest(house: House, chapter: Chapter, copy: workspace.Copy) -> bool:
    count = len(chapter.exercises)
    click.echo(f"all {count} exercises are done; running the other tests of the chapter, which may take minutes …")
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
