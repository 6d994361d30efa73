"""The proof of the course's exercises: take one out, and every test that it lists fails because of it (E4).

Also that a learner's package takes the place of the reference, in a program that is run (E3).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.course.exercises import Chapter, Exercise, is_written, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House, find_house
from minibroker.course.proving import complaints_about_exercise, complaints_about_order, complaints_about_reference
from minibroker.course.workspace import copy_rooms

HOUSE = find_house(Path(__file__))
WRITTEN = [number for number in CHAPTER_NUMBERS if is_written(HOUSE.folder(number))]
# Loading checks the files: ids unique and of their chapter, at least one test each, functions and files that exist.
CHAPTERS = [load_chapter(HOUSE, number) for number in WRITTEN]
EXERCISES = [(chapter, exercise) for chapter in CHAPTERS for exercise in chapter.exercises]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(HOUSE.root, tmp_path / "workspace")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda it: it.folder.name)
def test_the_reference_passes_every_listed_test(house: House, chapter: Chapter) -> None:
    assert complaints_about_reference(house, chapter) == []


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES, ids=[exercise.id for _, exercise in EXERCISES])
def test_with_an_exercise_stripped_alone_each_of_its_tests_fails_because_of_it(
    house: House, chapter: Chapter, exercise: Exercise, tmp_path: Path
) -> None:
    assert complaints_about_exercise(house, chapter, exercise, tmp_path) == []


@pytest.mark.parametrize(
    ("chapter", "exercise"),
    [(chapter, exercise) for chapter, exercise in EXERCISES if exercise != chapter.exercises[-1]],
    ids=[exercise.id for chapter, exercise in EXERCISES if exercise != chapter.exercises[-1]],
)
def test_exercises_can_be_done_in_order(house: House, chapter: Chapter, exercise: Exercise, tmp_path: Path) -> None:
    assert complaints_about_order(house, chapter, exercise, tmp_path) == []


def test_a_learners_package_replaces_the_reference_in_a_program_that_is_run(tmp_path: Path) -> None:
    copy_rooms(load_chapter(HOUSE, 1), tmp_path, [])
    program = tmp_path / "minibroker" / "log" / "__main__.py"
    program.write_text('print("the learner\'s log")\n' + program.read_text())
    mine = _run_log(PYTHONPATH=str(tmp_path))
    theirs = _run_log(PYTHONPATH="")
    assert mine == "the learner's log\n" + theirs
    assert "usage" in theirs.lower()


def _run_log(**environ: str) -> str:
    command = [sys.executable, "-m", "minibroker.log", "--help"]
    env = os.environ | {"PYTHONSAFEPATH": "1", **environ}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
