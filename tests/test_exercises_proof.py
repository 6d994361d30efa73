"""The proof of the course's tasks: take one out, and every test that it lists fails because of it (E4).

Exercises (the fast track) and modules to build (the build track) are proved in the same way. Also that a learner's
package takes the place of the reference, in a program that is run (E3).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from proving import complaints_about_order, complaints_about_reference, complaints_about_task

from minibroker.course.exercises import Chapter, Task, Track, count_tasks, is_written, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House, find_house
from minibroker.course.workspace import copy_packages

HOUSE = find_house(Path(__file__))
WRITTEN = [number for number in CHAPTER_NUMBERS if is_written(HOUSE.folder(number))]
# Loading checks the files: ids unique and of their chapter, at least one test each, functions and files that exist.
CHAPTERS = [
    load_chapter(HOUSE, number, track) for number in WRITTEN for track in Track if count_tasks(HOUSE, number)[track]
]
TASKS = [(chapter, task) for chapter in CHAPTERS for task in chapter.tasks]
NOT_LAST = [(chapter, task) for chapter, task in TASKS if task != chapter.tasks[-1]]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(HOUSE.root, tmp_path / "workspace")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda it: f"{it.folder.name}-{it.track}")
def test_the_reference_passes_every_listed_test(house: House, chapter: Chapter) -> None:
    assert complaints_about_reference(house, chapter) == []


@pytest.mark.parametrize(("chapter", "task"), TASKS, ids=[task.id for _, task in TASKS])
def test_with_a_task_stripped_alone_each_of_its_tests_fails_because_of_it(
    house: House, chapter: Chapter, task: Task, tmp_path: Path
) -> None:
    assert complaints_about_task(house, chapter, task, tmp_path) == []


@pytest.mark.parametrize(("chapter", "task"), NOT_LAST, ids=[task.id for _, task in NOT_LAST])
def test_tasks_can_be_done_in_order(house: House, chapter: Chapter, task: Task, tmp_path: Path) -> None:
    assert complaints_about_order(house, chapter, task, tmp_path) == []


@pytest.mark.parametrize(
    ("chapter", "task"),
    [(chapter, task) for chapter, task in TASKS if chapter.track is Track.BUILD],
    ids=[task.id for chapter, task in TASKS if chapter.track is Track.BUILD],
)
def test_a_module_to_build_is_of_a_size_that_one_person_writes(chapter: Chapter, task: Task) -> None:
    lines = (chapter.folder / task.file).read_text().splitlines()
    assert 80 <= sum(bool(line.strip()) for line in lines) <= 250


def test_a_learners_package_replaces_the_reference_in_a_program_that_is_run(tmp_path: Path) -> None:
    copy_packages(load_chapter(HOUSE, 1), tmp_path, [])
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
