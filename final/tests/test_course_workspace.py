"""A learner's session from the first command to the last, in a toy clone with one small chapter."""

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from cases import case
from proving import complaints_about_order, complaints_about_reference, complaints_about_task

from minibroker.cli import course as cli_course
from minibroker.cli.main import main
from minibroker.course import checking
from minibroker.course.choosing import Choice
from minibroker.course.exercises import Track, load_chapter
from minibroker.course.explaining import explain_bytes
from minibroker.course.repository import Repository, find_repository
from minibroker.log.batch import BatchBuilder

CONFTEST = Path(__file__).parents[2] / "conftest.py"
# Variables of the process that runs this suite, which a learner does not have.
OUTER = ("MINIBROKER_WORKSPACE", "PYTHONSAFEPATH", "PYTHONPATH", "PYTEST_ADDOPTS")

PROJECT = """
[project]
name = "minibroker"
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
consider_namespace_packages = true
"""

EXERCISES = """
[[exercise]]
id = "1.1"
title = "Add two numbers"
file = "minibroker/toy/sums.py"
functions = ["add"]
tests = ["tests/test_toy_sums.py::test_add"]
lesson = "lessons/01-sums.md"
hints = ["What is two and three?", "There is an operator for that."]

[[exercise]]
id = "1.2"
title = "Add many"
file = "minibroker/toy/totals.py"
functions = ["total"]
tests = ["tests/test_toy_totals.py::test_total", "tests/test_toy_totals.py::test_no_numbers"]
"""

SUMS = '''"""Sums."""


def add(a: int, b: int) -> int:
    """Return the sum."""
    # Use the operator.
    return a + b
'''

TOTALS = '''"""Totals."""

from minibroker.toy.sums import add


def total(numbers: list[int]) -> int:
    """Return the sum of all."""
    result = 0
    for number in numbers:
        result = add(result, number)
    return result
'''

TEST_SUMS = """
import pytest

from minibroker.toy.sums import add

@pytest.mark.parametrize("b", [1, 2])
def test_add(b):
    assert add(1, b) == 1 + b

def test_add_stays_in_bounds():
    assert add(1000, 0) == 1000
"""

TEST_TOTALS = """
from minibroker.toy.totals import total

def test_total():
    assert total([1, 2, 3]) == 6

def test_no_numbers():
    assert total([]) == 0
"""


LOGGED = """
    import logging
    try:
        add(1, None)
    except TypeError:
        logging.exception("closed")
    assert False
"""


@dataclass
class Learner:
    """Types commands in a clone."""

    root: Path
    chapter: Path
    workspace: Path
    clock_s: int = 1_700_000_000

    def types(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process; in one of its own, which takes longer, if variables of Python are set."""
        if any(name.startswith("PYTHON") for name in environ):
            return self.starts(*words, cwd=cwd, **environ)
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in OUTER:
                patch.delenv(name, raising=False)
            for name, value in ({"COLUMNS": "80"} | environ).items():
                patch.setenv(name, value)
            patch.chdir(cwd or self.root)
            patch.setattr(sys, "argv", ["minibroker", "course", *words])
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main()
        return subprocess.CompletedProcess(words, int(str(ended.value.code)), out.getvalue(), err.getvalue())

    def starts(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a program."""
        env = {key: value for key, value in os.environ.items() if key not in OUTER}
        command = [sys.executable, "-m", "minibroker.cli", "course", *words]
        return subprocess.run(
            command, cwd=cwd or self.root, env=env | environ, capture_output=True, text=True, check=False
        )

    def sees(self, *words: str, code: int = 0, cwd: Path | None = None, **environ: str) -> str:
        ended = self.types(*words, cwd=cwd, **environ)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        assert not (code and not ended.stdout and ended.stderr.count("\n") != 1), "an error is one line"
        return ended.stdout + ended.stderr

    def run_pytest(self, *words: str) -> str:
        env = {
            key: value for key, value in os.environ.items() if not key.startswith(("MINIBROKER_", "PYTHON", "PYTEST"))
        }
        roots = (*sorted(self.chapter.parent.iterdir()), Path(__file__).parents[1])
        env["PYTHONPATH"] = os.pathsep.join(map(str, roots))
        command = [sys.executable, "-m", "pytest", *words]
        ended = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        return ended.stdout + ended.stderr

    def writes(self, name: str, text: str) -> None:
        path = self.workspace / "minibroker" / "toy" / name
        path.write_text(text)
        # Python detects stale bytecode by the second of the change, or the size; this test writes faster than that.
        self.clock_s += 10
        os.utime(path, (self.clock_s, self.clock_s))


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    root = tmp_path / "clone"
    chapter = root / "chapters" / "01-toy"
    (chapter / "minibroker" / "toy" / "__pycache__").mkdir(parents=True)
    (chapter / "minibroker" / "toy" / "__pycache__" / "junk.pyc").write_text("")
    (chapter / "tests").mkdir()
    (chapter / "lessons").mkdir()
    (root / "chapters" / "02-later").mkdir()
    files = {
        "minibroker/toy/__init__.py": "",
        "minibroker/toy/sums.py": SUMS,
        "minibroker/toy/totals.py": TOTALS,
        "tests/test_toy_sums.py": TEST_SUMS,
        "tests/test_toy_totals.py": TEST_TOTALS,
        "exercises.toml": EXERCISES,
        "README.md": "# Chapter 01: toys\n",
        "lessons/01-sums.md": "# Sums\n\n## The mechanism\n\nA sum is what two numbers make.\n",
    }
    for name, text in files.items():
        (chapter / name).write_text(text)
    (root / "pyproject.toml").write_text(PROJECT)
    shutil.copy(CONFTEST, root)
    return Learner(root, chapter, root / "workspace")


def files_in(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_a_session_goes_from_red_to_green(learner: Learner) -> None:
    learner.sees("start", "1")
    first = learner.sees("check", "1", code=1)
    assert "testing your minibroker.toy from workspace/, with the reference for all other packages" in first
    assert "1.1  Add two numbers  not yet: NotImplementedError: exercise 1.1: add\n" in first
    assert "1.2  Add many         not yet: NotImplementedError: exercise 1.2: total\n" in first
    step = "write add in workspace/minibroker/toy/sums.py, then `minibroker course check 1 --exercise 1.1`"
    assert first.splitlines()[-1] == f"next: {step}"

    learner.writes("totals.py", TOTALS)
    assert "1.2  Add many         not yet: needs exercise 1.1 first: add\n" in learner.sees("check", "1", code=1)
    alone = learner.sees("check", "1", "--exercise", "1.2", code=1)
    step = "write add (exercise 1.1), then `minibroker course check 1 --exercise 1.2`"
    assert alone.splitlines()[-1] == f"next: {step}"

    learner.writes("sums.py", SUMS.replace("a + b", "a - b"))
    wrong = learner.sees("check", "1", code=1)
    assert "1.1  Add two numbers  failing: add (1): assert 0 == (1 + 1)\n" in wrong
    test = "chapters/01-toy/tests/test_toy_sums.py::test_add[1]"
    assert wrong.splitlines()[-1] == f"next: see the whole failure with `pytest --mine '{test}'`"

    learner.writes("sums.py", SUMS.replace("a + b", "b + a"))
    last = learner.sees("check", "1")
    assert "1.1  Add two numbers  done\n" in last
    assert "1.2  Add many         done\n" in last
    assert "the other 1 tests of the chapter pass with your code, too\n" in last
    assert last.splitlines()[-1] == "next: compare with the reference, `minibroker course diff 1`"


def test_start_strips_all_exercises_and_copies_the_rest_as_it_is(learner: Learner) -> None:
    output = learner.sees("start", "1")
    copy = files_in(learner.workspace / "minibroker")
    assert sorted(copy) == ["toy/__init__.py", "toy/sums.py", "toy/totals.py"]
    assert copy["toy/sums.py"] == SUMS.replace("return a + b", 'raise NotImplementedError("exercise 1.1: add")')
    assert copy["toy/totals.py"].startswith(TOTALS.partition("    result = 0")[0])
    assert "1.1  Add two numbers  workspace/minibroker/toy/sums.py: add, line 4\n" in output
    assert not (learner.workspace / "minibroker" / "__init__.py").exists()
    assert sorted(path.name for path in learner.workspace.iterdir()) == [".course.json", "minibroker"]


def test_a_second_start_refuses_and_touches_nothing(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", "# hours of work\n")
    before = files_in(learner.workspace)
    output = learner.sees("start", "1", code=1)
    assert "workspace/minibroker/toy is already there" in output
    assert "`minibroker course start 1 --again` sets it aside and starts again" in output
    assert files_in(learner.workspace) == before


def test_start_refuses_a_package_that_the_learner_made_by_hand(learner: Learner) -> None:
    (learner.workspace / "minibroker" / "toy").mkdir(parents=True)
    learner.writes("sums.py", "# my own\n")
    learner.sees("start", "1", code=1)
    assert files_in(learner.workspace) == {"minibroker/toy/sums.py": "# my own\n"}


def test_start_again_keeps_every_earlier_copy_under_a_number(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", "# first try\n")
    assert "kept in workspace/.old/01-toy.1" in learner.sees("start", "1", "--again")
    learner.writes("sums.py", "# second try\n")
    assert "kept in workspace/.old/01-toy.2" in learner.sees("start", "1", "--again")
    old = learner.workspace / ".old"
    assert (old / "01-toy.1" / "minibroker" / "toy" / "sums.py").read_text() == "# first try\n"
    assert (old / "01-toy.2" / "minibroker" / "toy" / "sums.py").read_text() == "# second try\n"
    assert "exercise 1.1: add" in (learner.workspace / "minibroker" / "toy" / "sums.py").read_text()


def test_start_again_says_how_to_continue_with_the_earlier_copy(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", "# first try\n")
    first = learner.sees("start", "1", "--again").splitlines()[0]
    _words, command, _end = first.split("`")
    subprocess.run(command, shell=True, cwd=learner.root, check=True)
    assert (learner.workspace / "minibroker" / "toy" / "sums.py").read_text() == "# first try\n"
    learner.sees("check", "1", code=1)


def test_the_environment_sets_the_workspace(learner: Learner, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    learner.sees("start", "1", MINIBROKER_WORKSPACE=str(elsewhere))
    assert (elsewhere / "minibroker" / "toy" / "sums.py").exists()
    assert not learner.workspace.exists()
    output = learner.sees("check", "1", "--exercise", "1.1", code=1, MINIBROKER_WORKSPACE=str(elsewhere))
    assert f"testing your minibroker.toy from {elsewhere}/" in output


def test_commands_work_from_any_folder_of_the_clone(learner: Learner) -> None:
    learner.sees("start", "1", cwd=learner.chapter)
    assert "exercise 1.1: add" in learner.sees("check", "1", code=1, cwd=learner.chapter / "tests")


def test_checking_one_exercise_runs_that_one_and_names_its_hints_until_it_is_done(learner: Learner) -> None:
    learner.sees("start", "1")
    output = learner.sees("check", "1", "--exercise", "1.1", code=1)
    assert "hints: `minibroker course hint 1.1`\n" in output
    assert "1.2" not in output
    learner.writes("sums.py", SUMS)
    output = learner.sees("check", "1", "--exercise", "1.1")
    assert "hint" not in output
    assert output.splitlines()[-1] == "next: `minibroker course check 1` tests all exercises of the chapter"


def test_each_call_shows_one_hint_more_and_never_the_solution(learner: Learner) -> None:
    assert learner.sees("hint", "1.1", code=1).endswith("chapter 1 is not started: run `minibroker course start 1`\n")
    learner.sees("start", "1")
    first = learner.sees("hint", "1.1").splitlines()
    assert first[0] == "hint 1 of 2: What is two and three?"
    assert first[1:] == ["next: try it; `minibroker course hint 1.1` shows one hint more"]
    second = learner.sees("hint", "1.1").splitlines()
    assert second == [
        "hint 1 of 2: What is two and three?",
        "hint 2 of 2: There is an operator for that.",
        "read again: chapters/01-toy/lessons/01-sums.md, The mechanism (line 3)",
        "next: there are no more hints; `minibroker course diff 1 --exercise 1.1` shows our code",
    ]
    assert learner.sees("hint", "1.1").splitlines() == second
    assert "no hint for exercise 1.2" in learner.sees("hint", "1.2")
    assert "the fast track of chapter 1 has no task 1.B1" in learner.sees("hint", "1.B1", code=2)
    assert "sums is not the id of a task" in learner.sees("hint", "sums", code=2)


def test_without_hints_the_comments_of_the_function_are_the_hints(learner: Learner) -> None:
    text = EXERCISES.replace('hints = ["What is two and three?", "There is an operator for that."]', "")
    (learner.chapter / "exercises.toml").write_text(text)
    learner.sees("start", "1")
    assert learner.sees("hint", "1.1").splitlines()[0] == "hint 1 of 1: Use the operator."


def test_a_failure_is_explained_with_its_first_difference_and_the_section_to_read_again(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS)
    learner.writes("totals.py", TOTALS)
    expected, wrong = bytes(range(20)), bytes(range(10)) + b"\xff" + bytes(range(11, 20))
    test = "from minibroker.toy.sums import add\ndef test_add():\n    "
    played = "node 1 leads\\nnode 2 fetches\\nnode 3 fetches\\n"
    cases = {
        f"assert {wrong!r} == {expected!r}": [
            "expected 20 bytes, got 20; the first difference is at position 10:",
            "     0  00 01 02 03 04 05 06 07",
            "     8  08 09 0a 0b 0c 0d 0e 0f",
            " yours  08 09 ff 0b 0c 0d 0e 0f",
            "              ^^",
            "    16  10 11 12 13",
        ],
        f'assert "{played.replace("node 2", "node 4")}" == "{played}"': [
            "the difference begins near line 1; - is expected, + is yours:",
            " node 1 leads",
            "-node 2 fetches",
            "+node 4 fetches",
            " node 3 fetches",
        ],
        'assert add(1, 1) == 3, "seed 17: lost\\nagain: python -m minibroker.simulation toys --replay 17"': [
            "play it again: PYTHONPATH=workspace python -m minibroker.simulation toys --replay 17",
        ],
        'assert add(1, 1) == 3, "Failing test case: test_add(\\n    a=[1,\\n     2],\\n    b=(3,),\\n)"': [
            "the example: a=[1, 2], b=(3,)",
        ],
        LOGGED: [
            "this error was logged: TypeError: unsupported operand type(s) for +: 'int' and 'NoneType' "
            f"(workspace/minibroker/toy/sums.py, line {SUMS[: SUMS.index('a + b')].count(chr(10)) + 1})",
        ],
    }
    for line, explained in cases.items():
        with case(line):
            (learner.chapter / "tests" / "test_toy_sums.py").write_text(f"{test}{line}\n")
            output = learner.sees("check", "1", code=1).splitlines()
            assert output[3:-2] == [f"    {it}" for it in explained]
            assert output[-2] == "read again: chapters/01-toy/lessons/01-sums.md, The mechanism (line 3)"


def test_the_bytes_of_a_batch_are_explained_field_by_field() -> None:
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=b"k", value=b"tea")
    expected = bytes(builder.build())
    at = expected.index(b"tea")
    lines = list(explain_bytes(expected[:at] + b"ten" + expected[at + 3 :], expected))
    assert (
        lines[0]
        == f"expected {len(expected)} bytes, got {len(expected)}; the first difference is at position {at + 2}:"
    )
    assert lines[-4].split()[:4] == [str(at), "74", "65", "61"]
    assert lines[-4].split()[4] == "value"
    assert lines[-3] == " yours  74 65 6e"
    assert lines[-2] == "              ^^"
    assert "header count" in lines[-1]


MINE = "workspace/minibroker/toy/totals.py"


def test_code_that_cannot_be_imported_is_shown_with_its_line_and_fails_what_imports_it(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS)
    cases = [
        ("\ndef total(:\n", 2, "SyntaxError", "invalid syntax"),
        ("if 1:\ndef f(): ...\n", 2, "IndentationError", "expected an indented block after 'if' statement on line 1"),
        ("import toys\n", 1, "ModuleNotFoundError", "No module named 'toys'"),
        ("total = count\n", 1, "NameError", "name 'count' is not defined"),
    ]
    for source, row, error, message in cases:
        learner.writes("totals.py", source)
        output = learner.sees("check", "1", code=1)
        assert output.splitlines() == [
            "testing your minibroker.toy from workspace/, with the reference for all other packages",
            "  1.1  Add two numbers  done",
            f"  1.2  Add many         failing: {error} in {MINE}, line {row}: {message}",
            f"next: correct {MINE}, line {row}: `{source.splitlines()[row - 1]}`",
        ], error


def test_a_missing_name_is_shown_with_the_file_that_should_have_it(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("totals.py", "")
    output = learner.sees("check", "1", "--exercise", "1.2", code=1)
    failure = "ImportError in chapters/01-toy/tests/test_toy_totals.py, line 2: cannot import name 'total' from "
    assert f"failing: {failure}'minibroker.toy.totals' ({MINE})\n" in output
    assert "next: see the whole failure with `pytest --mine 'chapters/01-toy/tests/test_toy_totals.py'`" in output


def test_when_another_test_of_the_chapter_fails_the_chapter_is_not_green(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS.replace("a + b", "a + b if a < 1000 else 0"))
    learner.writes("totals.py", TOTALS)
    output = learner.sees("check", "1", code=1)
    assert "all 2 exercises are done" in output
    assert "failing  chapters/01-toy/tests/test_toy_sums.py::test_add_stays_in_bounds: assert 0 == 1000" in output
    assert output.splitlines()[-1].startswith("next: 1 other test failed; see the first with `pytest --mine ")


def test_list_says_when_the_exercises_are_done_and_the_chapter_is_not(learner: Learner) -> None:
    def state() -> str:
        return str(json.loads(learner.sees("list", "--format", "json"))[0]["state"])

    learner.sees("start", "1")
    learner.writes("sums.py", SUMS.replace("a + b", "a + b if a < 1000 else 0"))
    learner.writes("totals.py", TOTALS)
    learner.sees("check", "1", "--exercise", "1.1")
    learner.sees("check", "1", "--exercise", "1.2")
    assert state() == "2 of 2 done, but other tests of the chapter have not run; run `minibroker course check 1`"
    learner.sees("check", "1", code=1)
    assert state() == "2 of 2 done, but other tests of the chapter fail (1); run `minibroker course check 1`"
    learner.writes("sums.py", SUMS)
    learner.sees("check", "1")
    assert state() == "2 of 2 done"


def test_a_message_that_does_not_match_is_shown_beside_what_was_expected(learner: Learner) -> None:
    test = "import pytest\nfrom minibroker.toy.sums import add\ndef test_add():\n"
    test += "    with pytest.raises(ValueError, match='too large: 5'):\n        add(2, 3)\n"
    (learner.chapter / "tests" / "test_toy_sums.py").write_text(test)
    learner.sees("start", "1")
    learner.writes("sums.py", "def add(a, b):\n    raise ValueError('that is\\nmuch')\n")
    output = learner.sees("check", "1", "--exercise", "1.1", code=1)
    (line,) = [line for line in output.splitlines() if "failing" in line]
    assert "Regex pattern did not match." in line
    assert "'too large: 5'" in line
    assert "'that is\\nmuch'" in line


def test_the_row_of_a_failure_has_the_claim_and_the_message(learner: Learner) -> None:
    test = "from minibroker.toy.sums import add\ndef test_add():\n    assert add(2, 3) == 5, 'two and three are five'\n"
    (learner.chapter / "tests" / "test_toy_sums.py").write_text(test)
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS.replace("a + b", "a - b"))
    output = learner.sees("check", "1", "--exercise", "1.1", code=1)
    assert "1.1  Add two numbers  failing: add: two and three are five\n" in output


def test_a_check_stops_at_the_first_test_that_does_not_end(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    # Hypothesis catches the errors of a test and tries its example again, so an error alone would not end the loop.
    test = "from hypothesis import given, strategies\nfrom minibroker.toy.sums import add\n"
    test += "@given(strategies.integers())\ndef test_add(a):\n    assert add(a, 1) == a + 1\n"
    (learner.chapter / "tests" / "test_toy_sums.py").write_text(test)
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS.replace("return a + b", "while True: pass"))
    learner.writes("totals.py", TOTALS)
    monkeypatch.setattr(checking, "TEST_SECONDS_MAX", 1)
    place = "workspace/minibroker/toy/sums.py, line 7: `while True: pass`"
    rows = learner.sees("check", "1", code=1).splitlines()
    assert rows[1] == f"  1.1  Add two numbers  failing: add: it had not ended after 1 s; it was in {place}"
    assert rows[2] == "  1.2  Add many         not yet: the check stopped at a test that did not end"


def test_the_row_of_a_failure_counts_the_tests_that_fail(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS)
    learner.writes("totals.py", TOTALS.replace("result = 0", "result = 1"))
    assert "1.2  Add many         failing (2 of 2 tests): total: assert 7 == 6" in learner.sees("check", "1", code=1)


def test_a_long_run_reports_its_progress(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    learner.sees("start", "1")
    repository = Repository(learner.root, learner.workspace)
    monkeypatch.setattr(checking, "PROGRESS_SECONDS", 0.02)
    signs: list[tuple[int, int]] = []
    outcomes = checking.check_the_rest(
        repository, load_chapter(repository, 1), on_progress=lambda ran, total: signs.append((ran, total))
    )
    # The total is unknown before the tests are collected; the one test that is not listed runs.
    assert signs[0] == (0, 0)
    assert signs == sorted(signs)
    assert signs[-1] in [(0, 0), (0, 1), (1, 1)]
    assert len(outcomes) == 1


def test_a_listed_test_that_did_not_run_is_not_a_success(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS)
    (learner.chapter / "tests" / "test_toy_sums.py").write_text("def test_other(): ...\n")
    output = learner.sees("check", "1", "--exercise", "1.1", code=1)
    assert "failing: chapters/01-toy/tests/test_toy_sums.py::test_add did not run" in output
    skipped = "import pytest\n@pytest.mark.skip(reason='no disk')\ndef test_add(): ...\n"
    (learner.chapter / "tests" / "test_toy_sums.py").write_text(skipped)
    assert "test_add was skipped: Skipped: no disk" in learner.sees("check", "1", "--exercise", "1.1", code=1)


def test_check_warns_with_the_file_names_when_the_reference_has_changed(learner: Learner) -> None:
    learner.sees("start", "1")
    assert "warning" not in learner.sees("check", "1", code=1)
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS + "\nMORE = 1\n")
    (learner.chapter / "minibroker" / "toy" / "fresh.py").write_text("")
    ended = learner.types("check", "1")
    what = "new: minibroker/toy/fresh.py; changed: minibroker/toy/sums.py"
    assert f"warning: your copy of chapter 1 (minibroker.toy) no longer matches the repository: {what}" in ended.stderr
    assert "`minibroker course diff 1` shows it, `minibroker course start 1` sets your copy aside" in ended.stderr
    assert "no longer matches" in learner.sees("list")
    learner.sees("start", "1", "--again")
    assert "no longer matches" not in learner.sees("check", "1", code=1) + learner.sees("list")


def test_diff_turns_the_learners_code_into_the_reference(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("totals.py", TOTALS)
    learner.writes("mine.py", "X = 1\n")
    output = learner.sees("diff", "1")
    assert "--- workspace/minibroker/toy/sums.py\n+++ chapters/01-toy/minibroker/toy/sums.py\n" in output
    assert '-    raise NotImplementedError("exercise 1.1: add")\n+    return a + b\n' in output
    assert "--- workspace/minibroker/toy/mine.py\n+++ /dev/null\n" in output
    assert "totals.py" not in output


def test_diff_of_one_exercise_shows_its_function_only(learner: Learner) -> None:
    learner.sees("start", "1")
    output = learner.sees("diff", "1", "--exercise", "1.2")
    assert output.startswith("--- workspace/minibroker/toy/totals.py::total\n")
    assert "sums" not in output
    learner.writes("totals.py", "# everything new\n" + TOTALS)
    same = learner.sees("diff", "1", "--exercise", "1.2")
    assert same == "your code of exercise 1.2 is the same as the reference\n"


def test_an_empty_diff_says_so(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", SUMS)
    learner.writes("totals.py", TOTALS)
    assert learner.sees("diff", "1") == "your code of chapter 1 is the same as the reference\n"


def test_diff_of_a_function_that_cannot_be_found_says_why(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("sums.py", "def plus(): ...\n")
    output = learner.sees("diff", "1", "--exercise", "1.1", code=1)
    assert "workspace/minibroker/toy/sums.py: there is no function add" in output
    learner.writes("sums.py", "def add(:\n")
    output = learner.sees("diff", "1", "--exercise", "1.1", code=1)
    assert "workspace/minibroker/toy/sums.py, line 1: invalid syntax" in output


def test_list_shows_every_chapter_and_how_far_the_learner_is(learner: Learner) -> None:
    def states() -> list[str]:
        return [row["state"] for row in json.loads(learner.sees("list", "--format", "json"))]

    assert states() == ["not started", *["not written yet"] * 6]
    learner.sees("start", "1")
    assert states()[0] == "started, not checked yet"
    learner.writes("sums.py", SUMS)
    learner.sees("check", "1", code=1)
    assert states()[0] == "1 of 2 done"
    table = learner.sees("list").splitlines()
    assert table[0].split() == ["CHAPTER", "TITLE", "EXERCISES", "BUILD", "STATE"]
    assert table[1].split() == ["1", "Toys", "1/2", "started", "-", "1", "of", "2", "done"]
    assert table[-1] == "done: 1 of 2 exercises, 0 of 0 build tasks"
    assert len(table) == 1 + 7 + 1


def test_list_shows_the_chapters_as_json(learner: Learner) -> None:
    rows = json.loads(learner.sees("list", "--format", "json"))
    expected = {"chapter": 1, "title": "Toys", "written": True, "exercises": 2, "builds": 0, "state": "not started"}
    assert rows[0] == expected | {"exercises_done": None, "builds_done": None}
    assert rows[1]["written"] is False


def test_before_the_start_one_line_names_the_start_command(learner: Learner) -> None:
    for command in ["check", "diff"]:
        with case(command):
            output = learner.sees(command, "1", code=1)
            assert output.endswith("chapter 1 is not started: run `minibroker course start 1`\n")


def test_an_unwritten_chapter_is_an_error_and_an_unknown_number_is_wrong_usage(learner: Learner) -> None:
    assert "chapter 2 is not written yet" in learner.sees("start", "2", code=1)
    learner.sees("start", "8", code=2)
    learner.sees("start", code=2)
    learner.sees("start", "1")
    assert "the fast track of chapter 1 has no task 1.9: it has 1.1, 1.2" in learner.sees(
        "check", "1", "--exercise", "1.9", code=2
    )


def test_a_record_that_cannot_be_read_is_named(learner: Learner) -> None:
    learner.sees("start", "1")
    (learner.workspace / ".course.json").write_text("{")
    assert "workspace/.course.json cannot be read" in learner.sees("check", "1", code=1)


def test_without_pytest_one_line_says_how_to_install_it(learner: Learner, tmp_path: Path) -> None:
    learner.sees("start", "1")
    hide = tmp_path / "hide"
    hide.mkdir()
    # Python imports this module at its start; after that pytest cannot be found.
    finder = "import importlib.util as util\nfind = util.find_spec\n"
    finder += "util.find_spec = lambda name, *rest: None if name == 'pytest' else find(name, *rest)\n"
    (hide / "sitecustomize.py").write_text(finder)
    output = learner.sees("check", "1", code=1, PYTHONPATH=str(hide))
    assert "pytest is not installed: run `make setup-dev`" in output


def test_outside_a_clone_one_line_says_that_the_course_needs_one(learner: Learner, tmp_path: Path) -> None:
    # As installed from a wheel, the packages are in a folder outside any clone.
    installed = tmp_path / "site-packages"
    for package in ("cli", "course"):
        shutil.copytree(Path(__file__).parents[1] / "minibroker" / package, installed / "minibroker" / package)
    output = learner.sees("list", code=1, cwd=tmp_path, PYTHONPATH=str(installed))
    assert "the course needs a clone of the repository" in output
    assert "Toys" in learner.sees("list", PYTHONPATH=str(installed))


def proof(learner: Learner, tmp_path: Path, exercise_id: str) -> list[str]:
    repository = Repository(learner.root, learner.workspace)
    chapter = load_chapter(repository, 1)
    return complaints_about_task(repository, chapter, chapter.task(exercise_id), tmp_path / "scratch")


def test_the_proof_accepts_a_good_exercise(learner: Learner, tmp_path: Path) -> None:
    assert proof(learner, tmp_path, "1.1") == []
    assert not learner.workspace.exists()


def test_the_proof_finds_a_listed_test_that_does_not_need_the_exercise(learner: Learner, tmp_path: Path) -> None:
    (learner.chapter / "tests" / "test_toy_totals.py").write_text(TEST_TOTALS.replace("total([])", "0"))
    test = "chapters/01-toy/tests/test_toy_totals.py::test_no_numbers"
    assert proof(learner, tmp_path, "1.2") == [f"{test}: passed, not failed"]


def test_the_proof_finds_a_listed_test_that_fails_for_another_reason(learner: Learner, tmp_path: Path) -> None:
    (learner.chapter / "tests" / "test_toy_totals.py").write_text(TEST_TOTALS.replace("total([])", "1"))
    test = "chapters/01-toy/tests/test_toy_totals.py::test_no_numbers"
    assert proof(learner, tmp_path, "1.2") == [f"{test}: fails, but not because of exercise 1.2: assert 1 == 0"]


def test_the_proof_finds_a_listed_test_that_does_not_exist(learner: Learner, tmp_path: Path) -> None:
    (learner.chapter / "exercises.toml").write_text(EXERCISES.replace("::test_total", "::test_totals"))
    test = "chapters/01-toy/tests/test_toy_totals.py::test_totals"
    assert proof(learner, tmp_path, "1.2") == [f"{test}: there is no such test"]


def test_the_proof_finds_a_function_that_no_test_needs(learner: Learner, tmp_path: Path) -> None:
    spare = "\n\ndef spare() -> None:\n    return None\n"
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS + spare)
    (learner.chapter / "exercises.toml").write_text(EXERCISES.replace('["add"]', '["add", "spare"]'))
    assert proof(learner, tmp_path, "1.1") == ["1.1: with spare alone taken out, all tests pass"]


def test_the_proof_finds_a_listed_test_that_the_reference_fails(learner: Learner) -> None:
    repository = Repository(learner.root, learner.workspace)
    assert complaints_about_reference(repository, load_chapter(repository, 1)) == []
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS.replace("a + b", "a + b if b < 2 else 0"))
    complaint = "chapters/01-toy/tests/test_toy_sums.py::test_add[2]: failed, not passed: assert 0 == (1 + 2)"
    assert complaint in complaints_about_reference(repository, load_chapter(repository, 1))


def test_the_proof_finds_an_exercise_without_which_the_package_cannot_be_imported(
    learner: Learner, tmp_path: Path
) -> None:
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS + "\n\nTWO = add(1, 1)\n")
    complaint = "chapters/01-toy/tests/test_toy_sums.py: exercise 1.1 is called while it is imported"
    assert proof(learner, tmp_path, "1.1") == [complaint]


def test_the_proof_finds_an_exercise_that_needs_a_later_one(learner: Learner, tmp_path: Path) -> None:
    repository = Repository(learner.root, learner.workspace)
    chapter = load_chapter(repository, 1)
    assert complaints_about_order(repository, chapter, chapter.task("1.1"), tmp_path / "right") == []
    reversed_ids = EXERCISES.replace("1.1", "1.x").replace("1.2", "1.1").replace("1.x", "1.2")
    first, second = reversed_ids.split("\n\n")
    (learner.chapter / "exercises.toml").write_text(f"{second}\n\n{first}\n")
    chapter = load_chapter(repository, 1)
    complaint = "chapters/01-toy/tests/test_toy_totals.py::test_total: failed, not passed: "
    complaint += "NotImplementedError: exercise 1.2: add"
    assert complaints_about_order(repository, chapter, chapter.task("1.1"), tmp_path / "wrong") == [complaint]


# The build track

BUILD = """
[[build]]
id = "1.B1"
title = "Sums"
file = "minibroker/toy/sums.py"
tests = ["tests/test_toy_sums.py::test_add", "tests/test_toy_sums.py::test_add_stays_in_bounds"]
lesson = "lessons/01-sums.md"
hints = ["Begin with add."]
"""

SUMS_TO_BUILD = SUMS.replace("    # Use the operator.\n", "").replace("return a + b", "return _plus(a, b)")
SUMS_TO_BUILD += "\n\ndef _plus(a: int, b: int) -> int:\n    return a + b\n"


@pytest.fixture
def builder(learner: Learner) -> Learner:
    """A learner whose chapter has a build track, too."""
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS_TO_BUILD)
    (learner.chapter / "exercises.toml").write_text(EXERCISES + BUILD)
    with (learner.chapter / "lessons" / "01-sums.md").open("a") as lesson:
        lesson.write("\n**Build track, task 1.B1: the whole module.** Its functions are in a table.\n")
    return learner


def test_the_build_track_goes_from_red_to_green(builder: Learner) -> None:
    output = builder.sees("start", "1", "--build")
    assert "  1.B1  Sums  workspace/minibroker/toy/sums.py: the whole module\n" in output
    copy = files_in(builder.workspace / "minibroker")
    assert copy["toy/totals.py"] == TOTALS
    bare = SUMS.replace("    # Use the operator.\n", "")
    assert copy["toy/sums.py"] == bare.replace("return a + b", 'raise NotImplementedError("build 1.B1: add")')

    first = builder.sees("check", "1", code=1)
    assert "  1.B1  Sums  not yet: NotImplementedError: build 1.B1: add\n" in first
    step = "write the module workspace/minibroker/toy/sums.py, then `minibroker course check 1 --exercise 1.B1`"
    assert first.splitlines()[-1] == f"next: {step}"
    hint = builder.sees("hint", "1.B1")
    assert "hint 1 of 1: Begin with add." in hint
    assert "read again: chapters/01-toy/lessons/01-sums.md, task 1.B1 (line 7)\n" in hint
    assert "the build track of chapter 1 has no task 1.1" in builder.sees("check", "1", "--exercise", "1.1", code=2)
    assert "build track: 0 of 1 done" in builder.sees("list")

    builder.writes("sums.py", SUMS)
    last = builder.sees("check", "1")
    assert "all 1 build tasks are done" in last
    assert "the other 2 tests of the chapter pass with your code, too\n" in last
    assert json.loads(builder.sees("list", "--format", "json"))[0]["state"] == "build track: 1 of 1 done"
    diff = builder.sees("diff", "1", "--exercise", "1.B1")
    assert diff.startswith("--- workspace/minibroker/toy/sums.py\n+++ chapters/01-toy/minibroker/toy/sums.py\n")
    builder.writes("sums.py", SUMS_TO_BUILD)
    same = builder.sees("diff", "1", "--exercise", "1.B1")
    assert same == "your code of build 1.B1 is the same as the reference\n"


def test_changing_the_track_sets_the_copy_aside_and_changing_back_resumes_it(builder: Learner) -> None:
    mine = builder.workspace / "minibroker" / "toy" / "sums.py"
    builder.sees("start", "1")
    builder.writes("sums.py", SUMS)
    builder.sees("check", "1", "--exercise", "1.1")

    output = builder.sees("start", "1", "--build")
    kept = "your copy of the fast track is kept in workspace/.old/01-toy.1; `minibroker course start 1` brings it back"
    assert output.splitlines()[0] == kept
    assert (builder.workspace / ".old/01-toy.1/minibroker/toy/sums.py").read_text() == SUMS
    assert "build 1.B1" in mine.read_text()
    builder.writes("sums.py", "# half a module\n")

    back = builder.sees("start", "1").splitlines()
    assert back[0].startswith("your copy of the build track is kept in workspace/.old/01-toy.2; ")
    assert back[1] == "your earlier copy of the fast track is back; `minibroker course start 1 --again` starts anew"
    assert back[-1] == "next: run `minibroker course check 1`"
    assert mine.read_text() == SUMS
    assert not (builder.workspace / ".old/01-toy.1").exists()
    assert "1 of 2 done" in builder.sees("list")

    builder.sees("start", "1", "--build")
    assert mine.read_text() == "# half a module\n"
    again = builder.sees("start", "1", "--build", code=1)
    assert "`minibroker course start 1 --build --again` sets it aside and starts again" in again


def test_a_chapter_without_a_build_track_says_so_and_keeps_the_copy(learner: Learner) -> None:
    learner.sees("start", "1")
    before = files_in(learner.workspace)
    assert "chapter 1 has no build track yet" in learner.sees("start", "1", "--build", code=1)
    assert files_in(learner.workspace) == before


def test_the_proof_holds_for_a_module_to_build_and_finds_one_that_cannot_be_imported(
    builder: Learner, tmp_path: Path
) -> None:
    repository = Repository(builder.root, builder.workspace)
    chapter = load_chapter(repository, 1, Track.BUILD)
    assert complaints_about_task(repository, chapter, chapter.task("1.B1"), tmp_path / "right") == []
    (builder.chapter / "minibroker/toy/sums.py").write_text(SUMS_TO_BUILD + "\n\nTHREE = _plus(1, 2)\n")
    wrong = complaints_about_task(repository, chapter, chapter.task("1.B1"), tmp_path / "wrong")
    assert wrong[0].endswith("test_toy_sums.py: build 1.B1 is called while it is imported")


# Chapters that are not done

LATE = '''"""Doubles."""

from minibroker.toy.sums import add


def double(number: int) -> int:
    """Return twice the number."""
    return add(number, number)
'''

TEST_LATE = """
import subprocess, sys
from minibroker.late.doubles import double

def test_double():
    assert double(2) == 4

def test_double_in_a_child_process():
    program = "from minibroker.late.doubles import double; print(double(2))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.stdout == "4\\n", child.stderr
"""

EXERCISE_LATE = """
[[exercise]]
id = "2.1"
title = "Double"
file = "minibroker/late/doubles.py"
functions = ["double"]
tests = ["tests/test_late_doubles.py::test_double", "tests/test_late_doubles.py::test_double_in_a_child_process"]
"""
UNFINISHED = "minibroker.toy: the reference, because chapter 1 is not done (1 of 2 done)"


@pytest.fixture
def late_learner(builder: Learner) -> Learner:
    """A learner with chapter 1 half done, and chapter 2, which needs all of chapter 1, started and solved."""
    chapter = builder.root / "chapters" / "02-later"
    (chapter / "minibroker" / "late").mkdir(parents=True)
    (chapter / "tests").mkdir()
    files = {
        "minibroker/late/__init__.py": "",
        "minibroker/late/doubles.py": LATE,
        "tests/test_late_doubles.py": TEST_LATE,
        "exercises.toml": EXERCISE_LATE,
        "README.md": "# Chapter 02: doubles\n",
    }
    for name, text in files.items():
        (chapter / name).write_text(text)
    builder.sees("start", "1")
    builder.writes("totals.py", "def total(numbers: list[int]) -> int:\n    return sum(numbers)\n")
    builder.sees("check", "1", code=1)
    started = builder.sees("start", "2")
    assert f"{UNFINISHED}\n" in started
    builder.writes("../late/doubles.py", LATE)
    return builder


def test_the_reference_serves_for_a_chapter_that_is_not_done(late_learner: Learner) -> None:
    output = late_learner.sees("check", "2")
    assert output.splitlines()[:3] == [
        "testing your minibroker.late from workspace/, with the reference for all other packages",
        UNFINISHED,
        "  2.1  Double  done",
    ]
    # Chapter 1 itself is tested with the learner's unfinished code, and with chapter 2, which is done.
    own = late_learner.sees("check", "1", code=1)
    assert "testing your minibroker.late, minibroker.toy from workspace/" in own
    assert "1.1  Add two numbers  not yet" in own
    assert "1.2  Add many         done" in own


def test_the_learner_can_have_the_unfinished_code_used(late_learner: Learner) -> None:
    output = late_learner.sees("check", "2", "--unfinished", code=1)
    assert (
        "testing your minibroker.late, minibroker.toy from workspace/, with the reference for all other packages"
        in output
    )
    assert "2.1  Double  not yet: needs exercise 1.1 first: add" in output


def test_the_reference_serves_for_a_build_track_that_is_not_done(late_learner: Learner) -> None:
    late_learner.sees("start", "1", "--build")
    reason = "because chapter 1 is not done (started, not checked yet)"
    assert f"minibroker.toy: the reference, {reason}\n" in late_learner.sees("check", "2")
    late_learner.sees("check", "1", code=1)
    assert "the reference, because chapter 1 is not done (0 of 1 done)\n" in late_learner.sees("check", "2")


def test_a_chapter_that_is_done_is_used_until_its_code_changes(late_learner: Learner) -> None:
    late_learner.writes("sums.py", SUMS)
    late_learner.sees("check", "1")
    assert "testing your minibroker.late, minibroker.toy from" in late_learner.sees("check", "2")
    late_learner.writes("sums.py", SUMS + "\nadd = None\n")
    changed = "2 of 2 done, but your code has changed since; run `minibroker course check 1`"
    output = late_learner.sees("check", "2")
    assert f"minibroker.toy: the reference, because chapter 1 is not done ({changed})\n" in output
    assert changed in late_learner.sees("list")


def test_unfinished_chapters_take_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    unused = {
        "log": "because chapter 1 is not done (1 of 2 done)",
        "wire": "because chapter 3 is not done (0 of 5 done)",
    }
    cli_course._echo_reference(Choice(mine=(), unused=unused, unfinished=(1, 3), reference=()))
    reason = "because chapters 1, 3 are not done; `minibroker course status` says why"
    assert capsys.readouterr().out == f"minibroker.log, minibroker.wire: the reference, {reason}\n"


def test_the_titles_of_tasks_are_one_column() -> None:
    tasks = load_chapter(find_repository(CONFTEST), 4).tasks
    labels = dict(zip((task.id for task in tasks), cli_course._columns(tasks), strict=True))
    assert labels["4.9"].index("Check a proof") == labels["4.10"].index("Check what clients saw")
    assert len(set(map(len, labels.values()))) == 1


def test_status_says_where_the_reference_serves_and_why(late_learner: Learner) -> None:
    late_learner.sees("check", "2")
    assert late_learner.sees("status").splitlines() == [
        "minibroker.late: yours (workspace/minibroker/late)",
        UNFINISHED,
        "the rest of minibroker: the reference",
        "to run a program with your code: `PYTHONPATH=chapters/01-toy:workspace minibroker serve`",
        "to run it with your unfinished code, too: `PYTHONPATH=workspace minibroker serve`",
    ]
    shutil.rmtree(late_learner.workspace)
    assert late_learner.sees("status") == "nothing is in workspace/ yet: run `minibroker course start 1`\n"


def test_mine_uses_unfinished_code_in_the_tests_of_its_own_chapter_only(late_learner: Learner) -> None:
    later, first = "chapters/02-later", "chapters/01-toy/tests/test_toy_sums.py::test_add"
    yours = "minibroker.toy: yours (workspace/minibroker/toy)"
    for words in ([later], [later, "-n", "2"]):
        output = late_learner.run_pytest("--mine", *words)
        assert "2 passed" in output, (words, output)
        assert UNFINISHED in output, words
    for words in ([first], [first, "-n", "1"], [later, first], ["--unfinished", later], []):
        output = late_learner.run_pytest("--mine", *words)
        assert yours in output, words
        assert "NotImplementedError: exercise 1.1: add" in output, words


def test_mine_refuses_to_run_with_none_of_the_learners_code(late_learner: Learner) -> None:
    (late_learner.root / "tests").mkdir()
    (late_learner.root / "tests" / "test_all.py").write_text("def test_all(): ...\n")
    (late_learner.workspace / "minibroker" / "late").rename(late_learner.root / "late")
    refused = late_learner.run_pytest("--mine", "tests")
    assert "--mine: no test would use your code: minibroker.toy is the reference, because chapter 1 is" in refused
    assert "add --unfinished to use your copy as it is" in refused
    assert "minibroker.toy: yours" in late_learner.run_pytest("--mine", "--unfinished", "tests")


# A workspace from an older repository


def test_a_copy_of_a_moved_package_is_named_with_the_command_that_helps(learner: Learner) -> None:
    learner.sees("start", "1")
    learner.writes("totals.py", "# hours of work\n")
    # The repository moves totals to another package, whose name was not there before.
    package = learner.chapter / "minibroker" / "totals"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (learner.chapter / "minibroker" / "toy" / "totals.py").rename(package / "totals.py")
    (learner.chapter / "exercises.toml").write_text(EXERCISES.replace("toy/totals.py", "totals/totals.py"))
    test = learner.chapter / "tests" / "test_toy_totals.py"
    test.write_text(TEST_TOTALS.replace("toy.totals", "totals.totals"))

    missing = "workspace/minibroker/totals is missing from your copy of chapter 1: `minibroker course start 1` sets"
    assert missing in learner.sees("check", "1", code=1)
    assert missing in learner.sees("diff", "1", code=1)
    assert "no longer matches the repository" in learner.sees("list")
    mine = learner.run_pytest("--mine", "-k", "test_add")
    gone = "no longer in the repository: minibroker/toy/totals.py; new: minibroker/totals/__init__.py, "
    assert f"warning: your copy of chapter 1 (minibroker.toy) no longer matches the repository: {gone}" in mine

    assert "your earlier copy is kept in workspace/.old/01-toy.1" in learner.sees("start", "1")
    assert (learner.workspace / ".old/01-toy.1/minibroker/toy/totals.py").read_text() == "# hours of work\n"
    assert "no longer" not in learner.sees("check", "1", code=1) + learner.sees("list") + learner.run_pytest("--mine")


def test_a_copy_of_which_only_contents_changed_is_set_aside_only_with_again(learner: Learner) -> None:
    learner.sees("start", "1")
    (learner.chapter / "minibroker" / "toy" / "sums.py").write_text(SUMS + "\nMORE = 1\n")
    ended = learner.types("check", "1")
    assert (
        "changed: minibroker/toy/sums.py; `minibroker course diff 1` shows it, `minibroker course start 1 --again`"
        in (ended.stderr)
    )
    assert "is already there" in learner.sees("start", "1", code=1)


def test_check_warns_about_every_copy_in_the_workspace(learner: Learner) -> None:
    learner.sees("start", "1")
    record = json.loads((learner.workspace / ".course.json").read_text())
    record["chapters"]["2"] = {"files": {"minibroker/late/a.py": "0"}, "checked": {}}
    (learner.workspace / ".course.json").write_text(json.dumps(record))
    late = learner.workspace / "minibroker" / "lost"
    late.mkdir()
    (late / "__init__.py").write_text("")
    ended = learner.types("check", "1")
    assert "warning: your copy of chapter 2: chapter 2 is not written yet" in ended.stderr
    assert "warning: workspace/minibroker/lost is a package that the repository does not have" in ended.stderr


def test_a_long_list_of_changes_is_cut_short(learner: Learner) -> None:
    learner.sees("start", "1")
    for number in range(5):
        (learner.chapter / "minibroker" / "toy" / f"new{number}.py").write_text("")
    names = ", ".join(f"minibroker/toy/new{number}.py" for number in range(3))
    assert f"new: {names} and 2 more;" in learner.types("check", "1").stderr
