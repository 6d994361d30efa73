"""The difference between the learner's code and the reference: what would turn the one into the other."""

import difflib
from pathlib import Path

from minibroker.course.errors import CourseError, FunctionNotFound
from minibroker.course.exercises import Chapter, Exercise, Task
from minibroker.course.house import House
from minibroker.course.stripping import function_source
from minibroker.course.workspace import reference_files


def diff_chapter(house: House, chapter: Chapter) -> str:
    """Return a unified diff, learner → reference, of the chapter's packages; empty if they agree."""
    names = {name for name, _ in reference_files(chapter)} | _learners_files(house, chapter)
    return "".join(_diff_file(house, chapter, name) for name in sorted(names))


def diff_task(house: House, chapter: Chapter, task: Task) -> str:
    """Return a unified diff, learner → reference, of one task: its functions, or its whole module."""
    if not isinstance(task, Exercise):
        return _diff_file(house, chapter, task.file)
    mine, theirs = house.workspace / task.file, chapter.folder / task.file
    pairs = [(f"::{name}", _function(house, mine, name), _function(house, theirs, name)) for name in task.functions]
    return "".join(
        _unified(before, after, f"{house.show(mine)}{name}", f"{house.show(theirs)}{name}")
        for name, before, after in pairs
    )


def _learners_files(house: House, chapter: Chapter) -> set[str]:
    packages = [house.workspace / "minibroker" / package for package in chapter.packages]
    paths = [path for package in packages for path in package.rglob("*.py")]
    return {path.relative_to(house.workspace).as_posix() for path in paths}


def _diff_file(house: House, chapter: Chapter, name: str) -> str:
    mine, theirs = house.workspace / name, chapter.folder / name
    return _unified(_text(mine), _text(theirs), _label(house, mine), _label(house, theirs))


def _label(house: House, path: Path) -> str:
    return house.show(path) if path.exists() else "/dev/null"


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def _function(house: House, path: Path, name: str) -> str:
    try:
        return function_source(_text(path), name)
    except FunctionNotFound as error:
        raise CourseError(f"{house.show(path)}: {error}: run diff without --exercise to see the whole file") from error
    except SyntaxError as error:
        raise CourseError(f"{house.show(path)}, line {error.lineno}: {error.msg}: make it valid first") from error


def _unified(before: str, after: str, before_label: str, after_label: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), before_label, after_label
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
