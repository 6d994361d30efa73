"""The difference between the learner's code and the reference, as a unified diff."""

import difflib
from pathlib import Path

from minibroker.course.errors import CourseError, FunctionNotFound
from minibroker.course.exercises import Chapter, Exercise, Task
from minibroker.course.repository import Repository
from minibroker.course.stripping import function_source
from minibroker.course.workspace import reference_files


def diff_chapter(repository: Repository, chapter: Chapter) -> str:
    """Return a unified diff, learner → reference, of the chapter's packages; empty if they agree."""
    names = {name for name, _ in reference_files(chapter)} | _learners_files(repository, chapter)
    return "".join(_diff_file(repository, chapter, name) for name in sorted(names))


def diff_task(repository: Repository, chapter: Chapter, task: Task) -> str:
    """Return a unified diff, learner → reference, of one task: its functions, or its whole module."""
    if not isinstance(task, Exercise):
        return _diff_file(repository, chapter, task.file)
    mine, theirs = repository.workspace / task.file, chapter.folder / task.file
    pairs = [
        (f"::{name}", _function(repository, mine, name), _function(repository, theirs, name)) for name in task.functions
    ]
    return "".join(
        _unified(before, after, f"{repository.show(mine)}{name}", f"{repository.show(theirs)}{name}")
        for name, before, after in pairs
    )


def _learners_files(repository: Repository, chapter: Chapter) -> set[str]:
    packages = [repository.workspace / "minibroker" / package for package in chapter.packages]
    paths = [path for package in packages for path in package.rglob("*.py")]
    return {path.relative_to(repository.workspace).as_posix() for path in paths}


def _diff_file(repository: Repository, chapter: Chapter, name: str) -> str:
    mine, theirs = repository.workspace / name, chapter.folder / name
    return _unified(_text(mine), _text(theirs), _label(repository, mine), _label(repository, theirs))


def _label(repository: Repository, path: Path) -> str:
    return repository.show(path) if path.exists() else "/dev/null"


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def _function(repository: Repository, path: Path, name: str) -> str:
    try:
        return function_source(_text(path), name)
    except FunctionNotFound as error:
        raise CourseError(
            f"{repository.show(path)}: {error}; run diff without --exercise to see the whole file"
        ) from error
    except SyntaxError as error:
        raise CourseError(f"{repository.show(path)}, line {error.lineno}: {error.msg}; make it valid first") from error


def _unified(before: str, after: str, before_label: str, after_label: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), before_label, after_label
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
