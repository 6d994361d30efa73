"""Claims about `exercises.toml`: the tasks of a valid file, and the message for each mistake."""

import re
from pathlib import Path

import pytest
from cases import case

from minibroker.course.errors import CourseError, InvalidExercises, WrongUsage
from minibroker.course.exercises import Exercise, Track, count_tasks, load_chapter
from minibroker.course.repository import Repository

RIGHT = """
[[exercise]]
id = "2.1"
title = "Add"
hints = ["Plus."]
tests = ["tests/test_toy.py::test_add"]
file = "minibroker/toy/sums.py"
functions = ["add"]

[[exercise]]
id = "2.2"
title = "Count"
file = "minibroker/toy/sums.py"
functions = ["Counter.up", "Counter.down"]
tests = ["tests/test_toy.py::test_up", "tests/test_toy.py::test_down"]
"""

SUMS = """
def add(a, b):
    return a + b

class Counter:
    def up(self):
        return 1

    def down(self):
        return -1

def twice(): ...
def twice(): ...
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "chapters" / "02-toy"
    (folder / "minibroker" / "toy").mkdir(parents=True)
    (folder / "minibroker" / "toy" / "sums.py").write_text(SUMS)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_toy.py").write_text("")
    (folder / "README.md").write_text("# Chapter 02: Toys and sums\n\nText.\n")
    return Repository(tmp_path, tmp_path / "workspace")


def write(repository: Repository, text: str) -> None:
    (repository.root / "chapters" / "02-toy" / "exercises.toml").write_text(text)


def test_a_right_file_gives_the_exercises_in_order(repository: Repository) -> None:
    write(repository, RIGHT)
    chapter = load_chapter(repository, 2)
    assert [task.id for task in chapter.tasks] == ["2.1", "2.2"]
    second = chapter.task("2.2")
    assert isinstance(second, Exercise)
    assert second.functions == ("Counter.up", "Counter.down")
    assert (chapter.title, chapter.packages, chapter.task("2.1").hints) == ("Toys and sums", ["toy"], ("Plus.",))


def test_a_chapter_without_a_lesson_has_its_folders_name(repository: Repository) -> None:
    write(repository, RIGHT)
    (repository.root / "chapters" / "02-toy" / "README.md").unlink()
    assert load_chapter(repository, 2).title == "02-toy"


BUILD = """
[[build]]
id = "2.B1"
title = "Sums"
file = "minibroker/toy/sums.py"
tests = ["tests/test_toy.py::test_add"]
"""


def test_each_track_has_its_own_tasks(repository: Repository) -> None:
    write(repository, RIGHT + BUILD)
    assert [task.id for task in load_chapter(repository, 2, Track.BUILD).tasks] == ["2.B1"]
    assert [task.id for task in load_chapter(repository, 2).tasks] == ["2.1", "2.2"]
    assert count_tasks(repository, 2) == {Track.FAST: 2, Track.BUILD: 1}
    with pytest.raises(WrongUsage, match=r"the build track of chapter 2 has no task 2\.1: it has 2\.B1"):
        load_chapter(repository, 2, Track.BUILD).task("2.1")


def test_a_chapter_without_a_build_track_says_so(repository: Repository) -> None:
    write(repository, RIGHT)
    with pytest.raises(CourseError, match="chapter 2 has no build track yet: `minibroker course list` shows"):
        load_chapter(repository, 2, Track.BUILD)


def test_a_mistake_in_a_build_task_is_named(repository: Repository) -> None:
    for old, new, complaint in [
        ('id = "2.B1"', 'id = "2.3"', "build 2.3: the id must be 2.B1, 2.B2 …"),
        ('title = "Sums"', "", "build 2.B1: title is missing"),
        ('title = "Sums"', 'title = "Sums"\nfunctions = ["add"]', "build 2.B1: unknown key functions"),
        ("toy/sums.py", "toy/none.py", "build 2.B1: file minibroker/toy/none.py does not exist in 02-toy"),
        ("test_toy.py::test_add", "test_toy.py", "build 2.B1: test tests/test_toy.py must name one test"),
        ("[[build]]", "[build]", "build must be a list of tables: [[build]]"),
        (BUILD, BUILD + BUILD, "build 2.B1: this id is taken by an earlier build"),
        (BUILD, BUILD + BUILD.replace("B1", "B2"), "build 2.B2: minibroker/toy/sums.py overlaps with"),
    ]:
        with case(complaint):
            assert old in BUILD
            write(repository, RIGHT + BUILD.replace(old, new))
            for track in Track:
                with pytest.raises(InvalidExercises, match=re.escape(complaint)):
                    load_chapter(repository, 2, track)


def test_a_mistake_is_named_with_its_file_and_exercise(repository: Repository) -> None:
    for old, new, complaint in [
        ('id = "2.1"', 'id = "1.1"', "exercise 1.1: the id must be 2.1, 2.2 …"),
        ('id = "2.1"', 'id = "2.01"', "exercise 2.01: the id must be 2.1, 2.2 …"),
        ('id = "2.2"', 'id = "2.1"', "exercise 2.1: this id is taken by an earlier exercise"),
        ('id = "2.2"', "", "exercise number 2 in the file: id is missing"),
        ('title = "Add"', "", "exercise 2.1: title is missing"),
        ('title = "Add"', "title = 3", "exercise 2.1: title must be a text that is not empty"),
        ('hints = ["Plus."]', 'hints = [" "]', "exercise 2.1: hints must be a list of at least one text"),
        ('hints = ["Plus."]', 'lesson = "lessons/9.md"', "exercise 2.1: lesson lessons/9.md does not exist in 02-toy"),
        ('hints = ["Plus."]', 'hint = "Plus."', "exercise 2.1: unknown key hint"),
        ('functions = ["add"]', "functions = []", "exercise 2.1: functions must be a list of at least one text"),
        ('functions = ["add"]', 'functions = "add"', "exercise 2.1: functions must be a list of at least one text"),
        ('["add"]', '["sub"]', "exercise 2.1: minibroker/toy/sums.py: there is no function sub"),
        ('["add"]', '["twice"]', "exercise 2.1: minibroker/toy/sums.py: twice is defined 2 times"),
        ('"Counter.down"', '"add"', "exercise 2.2: add overlaps with add of an earlier task"),
        ("toy/sums.py", "toy/none.py", "exercise 2.1: file minibroker/toy/none.py does not exist in 02-toy"),
        ("minibroker/toy/sums.py", "../x.py", "exercise 2.1: file ../x.py must be minibroker/<package>/<module>.py"),
        ("minibroker/toy/sums.py", "minibroker/x.py", "exercise 2.1: file minibroker/x.py must be"),
        ('["tests/test_toy.py::test_add"]', "[]", "exercise 2.1: tests must be a list of at least one text"),
        ("test_toy.py::test_add", "test_toy.py", "exercise 2.1: test tests/test_toy.py must name one test"),
        ("test_toy.py::test_add", "test_no.py::test_a", "there is no file tests/test_no.py in 02-toy"),
        ("::test_up", "::test_down", "exercise 2.2: a test is listed twice"),
        ("[[exercise]]", "[[exercises]]", "unknown key exercises: only [[exercise]] and [[build]] tables belong here"),
        ('title = "Add"', "title = ", "not valid TOML"),
    ]:
        with case(complaint):
            assert old in RIGHT
            write(repository, RIGHT.replace(old, new, 1))
            with pytest.raises(InvalidExercises, match=re.escape(complaint)) as caught:
                load_chapter(repository, 2)
            assert str(caught.value).startswith("chapters/02-toy/exercises.toml: ")
            assert "\n" not in str(caught.value)


def test_an_empty_list_is_a_mistake(repository: Repository) -> None:
    write(repository, "")
    with pytest.raises(InvalidExercises, match=r"no \[\[exercise\]\] table"):
        load_chapter(repository, 2)


def test_a_function_inside_another_exercises_function_is_a_mistake(repository: Repository) -> None:
    folder = repository.root / "chapters" / "02-toy"
    (folder / "minibroker" / "toy" / "sums.py").write_text("def add():\n    def up(): ...\n")
    write(repository, RIGHT.replace('["Counter.up", "Counter.down"]', '["add.up"]'))
    with pytest.raises(InvalidExercises, match=r"exercise 2\.2: add\.up overlaps with add of an earlier task"):
        load_chapter(repository, 2)


def test_an_unknown_exercise_is_wrong_usage_and_the_known_ones_are_named(repository: Repository) -> None:
    write(repository, RIGHT)
    with pytest.raises(WrongUsage, match=r"the fast track of chapter 2 has no task 2\.9: it has 2\.1, 2\.2"):
        load_chapter(repository, 2).task("2.9")


def test_a_missing_chapter_and_one_without_exercises_have_different_messages(repository: Repository) -> None:
    with pytest.raises(CourseError, match="chapter 2 has no exercises yet"):
        load_chapter(repository, 2)
    with pytest.raises(CourseError, match="chapter 3 is not written yet"):
        load_chapter(repository, 3)
    (repository.root / "chapters" / "03-later").mkdir()
    with pytest.raises(CourseError, match="chapter 3 is not written yet"):
        load_chapter(repository, 3)
