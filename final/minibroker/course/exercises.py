"""The format of a chapter's `exercises.toml`, and everything that can be wrong with one.

    [[exercise]]
    id = "1.1"                               # chapter, point, number
    title = "Decode a varint"
    file = "minibroker/log/varint.py"        # from the chapter's folder
    functions = ["decode_varint"]            # qualified names: also "LogFile.recover"
    tests = ["tests/test_log_varint.py::test_decoding_undoes_encoding"]
    hint = "The high bit says that another byte follows."     # may be left out

A test is a pytest node id from the chapter's folder; the name of a parametrised test stands for all its
cases. With its functions taken out, every test of the exercise must fail: `tests/test_exercises_proof.py`
demands it.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibroker.course.errors import CourseError, InvalidExercises, WrongUsage
from minibroker.course.house import House
from minibroker.course.stripping import function_row

FILE_NAME = "exercises.toml"
_TEXTS = ("id", "title", "file")
_LISTS = ("functions", "tests")
_OPTIONAL = ("hint",)


@dataclass(frozen=True)
class Exercise:
    """Functions for the learner to write, and the tests that tell whether they are right."""

    id: str
    title: str
    file: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    hint: str = ""

    @property
    def room(self) -> str:
        """The package that holds the functions: `log` for `minibroker/log/varint.py`."""
        return self.file.split("/")[1]


@dataclass(frozen=True)
class Chapter:
    """A chapter that has code, and its exercises in order."""

    number: int
    folder: Path
    title: str
    exercises: tuple[Exercise, ...]

    @property
    def rooms(self) -> list[str]:
        """The packages that hold exercises: those a learner gets a copy of."""
        return sorted({exercise.room for exercise in self.exercises})

    def exercise(self, exercise_id: str) -> Exercise:
        """Return the exercise with that id."""
        for exercise in self.exercises:
            if exercise.id == exercise_id:
                return exercise
        known = ", ".join(exercise.id for exercise in self.exercises)
        raise WrongUsage(f"chapter {self.number} has no exercise {exercise_id}: it has {known}")


def chapter_title(folder: Path) -> str:
    """Return the chapter's title: the first heading of its lesson, without the number, with a capital letter."""
    lesson = folder / "README.md"
    text = lesson.read_text(encoding="utf-8") if lesson.is_file() else ""
    heading = re.search(r"^# (?:Chapter \d+[:.] *)?(\S.*)$", text, re.MULTILINE)
    return heading[1][0].upper() + heading[1][1:].strip() if heading else folder.name


def is_written(folder: Path | None) -> bool:
    """Tell whether the chapter has code: the folder of a chapter to come holds only a page that says so."""
    return folder is not None and (folder / "minibroker").is_dir()


def load_chapter(house: House, number: int) -> Chapter:
    """Read and check one chapter's list of exercises."""
    folder = house.folder(number)
    if folder is None or not is_written(folder):
        raise CourseError(f"chapter {number} is not written yet: `minibroker course list` shows what is there")
    path = folder / FILE_NAME
    if not path.is_file():
        raise CourseError(f"chapter {number} has no exercises yet: `minibroker course list` shows which have")
    exercises = tuple(_exercises(path, house.show(path), number))
    return Chapter(number, folder, chapter_title(folder), exercises)


def _exercises(path: Path, shown: str, number: int) -> Iterator[Exercise]:
    seen: set[str] = set()
    functions: set[tuple[str, str]] = set()
    for index, table in enumerate(_tables(path, shown), start=1):
        name = table.get("id", f"number {index} in the file")
        for wrong in _mistakes(table, path.parent, number):
            raise InvalidExercises(f"{shown}: exercise {name}: {wrong}")
        exercise = Exercise(**{**table, **{key: tuple(table[key]) for key in _LISTS}})
        if exercise.id in seen:
            raise InvalidExercises(f"{shown}: exercise {name}: this id is taken by an earlier exercise")
        seen.add(exercise.id)
        for function in exercise.functions:
            _claim(functions, exercise, function, shown)
        yield exercise


def _tables(path: Path, shown: str) -> list[dict[str, Any]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidExercises(f"{shown}: not valid TOML: {error}") from error
    tables = document.pop("exercise", None)
    if document:
        raise InvalidExercises(f"{shown}: unknown key {min(document)}: only [[exercise]] tables belong here")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InvalidExercises(f"{shown}: no [[exercise]] table")
    return tables


def _mistakes(table: dict[str, Any], folder: Path, number: int) -> Iterator[str]:
    """Say what is wrong with one exercise. The first answer counts: later ones may follow from it."""
    yield from _shape_mistakes(table)
    if not re.fullmatch(rf"{number}\.[1-9]\d*", table["id"]):
        yield f"the id must be {number}.1, {number}.2 …: the chapter's number, a point, a number"
    yield from _file_mistakes(table, folder)
    yield from _test_mistakes(table, folder)


def _shape_mistakes(table: dict[str, Any]) -> Iterator[str]:
    for key in sorted(set(table) - {*_TEXTS, *_LISTS, *_OPTIONAL}):
        yield f"unknown key {key}"
    for key in (*_TEXTS, *_LISTS):
        if key not in table:
            yield f"{key} is missing"
    for key in (*_TEXTS, *_OPTIONAL):
        if not _is_line(table.get(key, "-")):
            yield f"{key} must be a text that is not empty"
    for key in _LISTS:
        values = table[key]
        if not isinstance(values, list) or not values or not all(map(_is_line, values)):
            yield f"{key} must be a list of at least one text"


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _file_mistakes(table: dict[str, Any], folder: Path) -> Iterator[str]:
    file = table["file"]
    if not re.fullmatch(r"minibroker(/\w+)+\.py", file) or file.count("/") < 2:
        yield f"file {file} must be minibroker/<room>/<module>.py"
    path = folder / file
    if not path.is_file():
        yield f"file {file} does not exist in {folder.name}"
    source = path.read_text(encoding="utf-8")
    for function in table["functions"]:
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


def _claim(functions: set[tuple[str, str]], exercise: Exercise, function: str, shown: str) -> None:
    # Taking out a function takes out what is defined inside it, so neither may belong to two exercises.
    for file, other in functions:
        first, second = sorted([function, other], key=len)
        if file == exercise.file and f"{second}.".startswith(f"{first}."):
            raise InvalidExercises(
                f"{shown}: exercise {exercise.id}: {function} overlaps with {other} of an earlier one"
            )
    functions.add((exercise.file, function))
