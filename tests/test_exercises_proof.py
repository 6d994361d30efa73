"""The proof of the course's tasks: with a task's code taken out, every test that the task lists fails because of it.

Exercises (the fast track) and modules to build (the build track) are proved in the same way, one test item for each
chapter and track. That the reference passes every listed test is shown by the suite itself, which runs them all.
A last test shows that a learner's package takes the place of the reference in a program that is run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from proving import complaints_about_order, complaints_about_task

from minibroker.course.exercises import Chapter, Track, count_tasks, is_written, load_chapter
from minibroker.course.repository import CHAPTER_NUMBERS, Repository, find_repository
from minibroker.course.workspace import copy_packages

REPOSITORY = find_repository(Path(__file__))
WRITTEN = [number for number in CHAPTER_NUMBERS if is_written(REPOSITORY.folder(number))]
# Loading checks the files: ids unique and of their chapter, at least one test each, functions and files that exist.
CHAPTERS = [
    load_chapter(REPOSITORY, number, track)
    for number in WRITTEN
    for track in Track
    if count_tasks(REPOSITORY, number)[track]
]
every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda it: f"{it.folder.name}-{it.track}")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(REPOSITORY.root, tmp_path / "workspace")


@every_chapter
def test_with_a_task_stripped_alone_each_of_its_tests_fails_because_of_it(
    repository: Repository, chapter: Chapter, tmp_path: Path
) -> None:
    found = {task.id: complaints_about_task(repository, chapter, task, tmp_path / task.id) for task in chapter.tasks}
    assert {task: complaints for task, complaints in found.items() if complaints} == {}


@every_chapter
def test_tasks_can_be_done_in_order(repository: Repository, chapter: Chapter, tmp_path: Path) -> None:
    """After the last task nothing is stripped, and that is the reference."""
    found = {
        task.id: complaints_about_order(repository, chapter, task, tmp_path / task.id) for task in chapter.tasks[:-1]
    }
    assert {task: complaints for task, complaints in found.items() if complaints} == {}


def test_every_task_has_its_lesson_and_hints_in_steps() -> None:
    tasks = [task for chapter in CHAPTERS for task in chapter.tasks]
    assert [task.id for task in tasks if not task.lesson or len(task.hints) < 3] == []


def test_a_module_to_build_is_of_a_size_that_one_person_writes() -> None:
    tasks = [(chapter, task) for chapter in CHAPTERS if chapter.track is Track.BUILD for task in chapter.tasks]
    texts = {task.id: (chapter.folder / task.file).read_text() for chapter, task in tasks}
    lines = {task: sum(bool(line.strip()) for line in text.splitlines()) for task, text in texts.items()}
    assert {task: count for task, count in lines.items() if not 80 <= count <= 250} == {}


def test_a_learners_package_replaces_the_reference_in_a_program_that_is_run(tmp_path: Path) -> None:
    copy_packages(load_chapter(REPOSITORY, 1), tmp_path, [])
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
