"""The format of a chapter's `exercises.toml`, and the check of it.

    [[exercise]]                             # the fast track: functions to write
    id = "1.1"                               # chapter, point, number
    title = "Decode a varint"
    file = "minibroker/log/varint.py"        # from the chapter's folder
    functions = ["decode_varint"]            # qualified names: also "LogFile.recover"
    tests = ["tests/test_log_varint.py::test_decoding_undoes_encoding"]
    lesson = "lessons/01-records.md"         # may be left out, like the hints
    hints = ["Which bit says that another byte follows?", "The lowest seven bits come first."]

    [[build]]                                # the build track: a whole module to write
    id = "1.B1"                              # chapter, point, B, number
    title = "A log in one file"
    file = "minibroker/log/logfile.py"
    tests = ["tests/test_log_logfile.py::test_a_log_may_begin_at_any_offset"]
    lesson = "lessons/04-append-and-flush.md"
    hints = ["Begin with append and read."]

A test is a pytest node id from the chapter's folder; the name of a parametrised test stands for all its cases. Every
test of a task must fail when the task's functions, or its module, are taken out; `tests/test_exercises_proof.py` checks
this.

`minibroker course hint` shows one hint more at each call. So the first hint asks a question or gives an idea, and the
last one names what to use. If an exercise has no hints, the comments inside its functions serve.
"""

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from minibroker.course.errors import CourseError, InvalidExercises, WrongUsage
from minibroker.course.repository import Repository
from minibroker.course.stripping import comments, function_row, reduce, strip

FILE_NAME = "exercises.toml"


class Track(StrEnum):
    """The two ways through a chapter: single functions, or whole modules."""

    FAST = "fast"
    BUILD = "build"


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Code for the learner to write, and the tests that judge it."""

    KIND: ClassVar[str]
    TRACK: ClassVar[Track]
    ID: ClassVar[str]
    LISTS: ClassVar[tuple[str, ...]] = ("tests",)

    id: str
    title: str
    file: str
    tests: tuple[str, ...]
    lesson: str = ""
    hints: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The task's name in the error of a missing body: `exercise 1.1`."""
        return f"{self.KIND} {self.id}"

    @property
    def package(self) -> str:
        """The package that holds the file: `log` for `minibroker/log/varint.py`."""
        return self.file.split("/")[1]

    def outline(self, source: str) -> tuple[str, ...]:
        """Return the hints, or if there are none, the comments that outline the code."""
        return self.hints or tuple(self._comments(source))

    def _comments(self, source: str) -> Iterator[str]:  # noqa: ARG002
        # Only functions have an outline. A module to build keeps no comments.
        yield from ()

    @abstractmethod
    def strip(self, source: str) -> str:
        """Return the file's source without the code that the learner writes."""


@dataclass(frozen=True, kw_only=True)
class Exercise(Task):
    """A task of the fast track: the bodies of some functions."""

    KIND = "exercise"
    TRACK = Track.FAST
    LISTS = ("functions", "tests")
    ID = r"{chapter}\.[1-9]\d*"

    functions: tuple[str, ...]

    def strip(self, source: str) -> str:
        """Take the bodies of the functions out."""
        for function in self.functions:
            source = strip(source, function, self.label)
        return source

    def _comments(self, source: str) -> Iterator[str]:
        for function in self.functions:
            yield from comments(source, function)


@dataclass(frozen=True, kw_only=True)
class Build(Task):
    """A task of the build track: a whole module, of which only the public signatures stay."""

    KIND = "build"
    TRACK = Track.BUILD
    ID = r"{chapter}\.B[1-9]\d*"

    def strip(self, source: str) -> str:
        """Reduce the module to its public signatures and docstrings."""
        return reduce(source, self.label)


_KINDS: tuple[type[Task], ...] = (Exercise, Build)
_TEXTS = ("id", "title", "file")
_OPTIONAL = ("lesson",)
_OPTIONAL_LISTS = ("hints",)


@dataclass(frozen=True)
class Chapter:
    """A chapter that has code, and the tasks of one of its tracks, in order."""

    number: int
    folder: Path
    title: str
    track: Track
    tasks: tuple[Task, ...]

    @property
    def packages(self) -> list[str]:
        """The packages that contain tasks; a learner gets copies of these."""
        return sorted({task.package for task in self.tasks})

    def task(self, task_id: str) -> Task:
        """Return the task with that id."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        known = ", ".join(task.id for task in self.tasks)
        raise WrongUsage(f"the {self.track} track of chapter {self.number} has no task {task_id}: it has {known}")


def chapter_title(folder: Path) -> str:
    """Return the chapter's title: the first heading of its README, without its number, capitalized."""
    lesson = folder / "README.md"
    text = lesson.read_text(encoding="utf-8") if lesson.is_file() else ""
    heading = re.search(r"^# (?:Chapter \d+[:.] *)?(\S.*)$", text, re.MULTILINE)
    return heading[1][0].upper() + heading[1][1:].strip() if heading else folder.name


def is_written(folder: Path | None) -> bool:
    """Tell whether the chapter has code; the folder of a future chapter has only a page."""
    return folder is not None and (folder / "minibroker").is_dir()


def load_chapter(repository: Repository, number: int, track: Track = Track.FAST) -> Chapter:
    """Read and check one chapter's list of tasks; return the chapter with the tasks of one track."""
    folder = repository.folder(number)
    if folder is None or not is_written(folder):
        raise CourseError(f"chapter {number} is not written yet: `minibroker course list` shows the chapters")
    path = folder / FILE_NAME
    if not path.is_file():
        raise CourseError(
            f"chapter {number} has no exercises yet: `minibroker course list` shows the chapters that have some"
        )
    tasks = tuple(task for task in _checked_tasks(path, repository.show(path), number) if track == task.TRACK)
    if not tasks:
        raise CourseError(
            f"chapter {number} has no {track} track yet: `minibroker course list` shows the chapters that have one"
        )
    return Chapter(number, folder, chapter_title(folder), track, tasks)


def count_tasks(repository: Repository, number: int) -> dict[Track, int]:
    """Return the number of tasks on each track of a chapter that has an `exercises.toml`."""
    folder = repository.folder(number)
    assert folder is not None
    tasks = _checked_tasks(folder / FILE_NAME, repository.show(folder / FILE_NAME), number)
    return {track: sum(track == task.TRACK for task in tasks) for track in Track}


def _checked_tasks(path: Path, shown: str, number: int) -> list[Task]:
    tasks: list[Task] = []
    claimed: set[tuple[str, str]] = set()
    for kind, index, table in _tables(path, shown):
        name = f"{kind.KIND} {table.get('id', f'number {index} in the file')}"
        for wrong in _mistakes(kind, table, path.parent, number):
            raise InvalidExercises(f"{shown}: {name}: {wrong}")
        lists = [key for key in (*kind.LISTS, *_OPTIONAL_LISTS) if key in table]
        task = kind(**{**table, **{key: tuple(table[key]) for key in lists}})
        if task.id in [earlier.id for earlier in tasks]:
            raise InvalidExercises(f"{shown}: {name}: this id is taken by an earlier {kind.KIND}")
        _claim(claimed, task, shown)
        tasks.append(task)
    return tasks


def _tables(path: Path, shown: str) -> Iterator[tuple[type[Task], int, dict[str, Any]]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidExercises(f"{shown}: not valid TOML: {error}") from error
    unknown = sorted(document.keys() - {kind.KIND for kind in _KINDS})
    if unknown:
        raise InvalidExercises(f"{shown}: unknown key {unknown[0]}: only [[exercise]] and [[build]] tables belong here")
    if not document.get("exercise"):
        raise InvalidExercises(f"{shown}: no [[exercise]] table")
    for kind in _KINDS:
        tables = document.get(kind.KIND, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise InvalidExercises(f"{shown}: {kind.KIND} must be a list of tables: [[{kind.KIND}]]")
        yield from ((kind, index, table) for index, table in enumerate(tables, start=1))


def _mistakes(kind: type[Task], table: dict[str, Any], folder: Path, number: int) -> Iterator[str]:
    """Yield the mistakes in one task. Only the first one is reported, because it may cause the others."""
    yield from _shape_mistakes(kind, table)
    if not re.fullmatch(kind.ID.format(chapter=number), table["id"]):
        letter = "B" if kind is Build else ""
        yield f"the id must be {number}.{letter}1, {number}.{letter}2 …: the chapter's number, a point, a number"
    yield from _file_mistakes(table, folder)
    yield from _test_mistakes(table, folder)


def _shape_mistakes(kind: type[Task], table: dict[str, Any]) -> Iterator[str]:
    for key in sorted(set(table) - {*_TEXTS, *kind.LISTS, *_OPTIONAL, *_OPTIONAL_LISTS}):
        yield f"unknown key {key}"
    for key in (*_TEXTS, *kind.LISTS):
        if key not in table:
            yield f"{key} is missing"
    for key in (*_TEXTS, *_OPTIONAL):
        if not _is_line(table.get(key, "-")):
            yield f"{key} must be a text that is not empty"
    for key in (*kind.LISTS, *_OPTIONAL_LISTS):
        values = table.get(key, ["-"])
        if not isinstance(values, list) or not values or not all(map(_is_line, values)):
            yield f"{key} must be a list of at least one text"


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _file_mistakes(table: dict[str, Any], folder: Path) -> Iterator[str]:
    file = table["file"]
    if not re.fullmatch(r"minibroker(/\w+)+\.py", file) or file.count("/") < 2:
        yield f"file {file} must be minibroker/<package>/<module>.py"
    path = folder / file
    if not path.is_file():
        yield f"file {file} does not exist in {folder.name}"
    if not (folder / table.get("lesson", "")).exists():
        yield f"lesson {table['lesson']} does not exist in {folder.name}"
    source = path.read_text(encoding="utf-8")
    for function in table.get("functions", []):
        try:
            function_row(source, function)
        except CourseError as error:
            yield f"{file}: {error}"


def _test_mistakes(table: dict[str, Any], folder: Path) -> Iterator[str]:
    for test in table["tests"]:
        file, _, name = test.partition("::")
        if not name:
            yield f"test {test} must name one test: tests/test_….py::test_…"
        if not (folder / file).is_file():
            yield f"test {test}: there is no file {file} in {folder.name}"
    if len(set(table["tests"])) != len(table["tests"]):
        yield "a test is listed twice"


def _claim(claimed: set[tuple[str, str]], task: Task, shown: str) -> None:
    # Taking out a function also takes out the functions inside it. So the functions of two exercises must not be the
    # same or inside one another. A task of the build track takes a whole module, which is claimed under an empty name.
    for name in task.functions if isinstance(task, Exercise) else [""]:
        for file, other in claimed:
            first, second = sorted([name, other], key=len)
            if file == task.file and (name == other or (first and f"{second}.".startswith(f"{first}."))):
                raise InvalidExercises(
                    f"{shown}: {task.label}: {name or file} overlaps with {other or file} of an earlier task"
                )
        claimed.add((task.file, name))
