"""`pytest --mine` tests the workspace's code, however pytest is started, and the header says so.

A toy clone is built in a temporary folder: the root conftest of this repository, one package `toy` as the reference,
and another one in the workspace. Every test of the toy prints whose code it found, in its own process and in a child.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
FINAL = str(Path(__file__).parents[1])

PROJECT = """
[project]
name = "minibroker"
[tool.pytest.ini_options]
testpaths = ["chapters"]
addopts = ["--import-mode=importlib"]
consider_namespace_packages = true
"""

TEST = """
import subprocess, sys

import minibroker.other
import minibroker.toy


def test_whose_code_it_is():
    child = subprocess.run([sys.executable, "-m", "minibroker.toy"], capture_output=True, text=True, check=True)
    print(f"here: {minibroker.toy.OWNER}, child: {child.stdout.strip()}, other: {minibroker.other.OWNER}")


def test_twin():
    assert minibroker.toy.OWNER
"""


def package(folder: Path, owner: str) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f'OWNER = "{owner}"\n')
    (folder / "__main__.py").write_text(f"from minibroker.{folder.name} import OWNER\nprint(OWNER)\n")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    chapter = root / "chapters" / "01-toy"
    package(chapter / "minibroker" / "toy", "reference")
    package(chapter / "minibroker" / "other", "reference")
    package(root / "workspace" / "minibroker" / "toy", "learner")
    (chapter / "tests").mkdir()
    (chapter / "tests" / "test_toy_owner.py").write_text(TEST)
    (root / "pyproject.toml").write_text(PROJECT)
    shutil.copy(CONFTEST, root)
    return root


def run(clone: Path, *arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    outer = ("MINIBROKER_WORKSPACE", "PYTHONSAFEPATH", "PYTEST_ADDOPTS")
    env = {key: value for key, value in os.environ.items() if key not in outer}
    env |= {"PYTHONPATH": os.pathsep.join([str(clone / "chapters" / "01-toy"), FINAL]), **environ}
    command = [sys.executable, "-m", "pytest", "-rP", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=cwd or clone, env=env, capture_output=True, text=True, check=False)


def test_without_mine_the_reference_is_tested_and_the_header_mentions_mine(clone: Path) -> None:
    output = run(clone).stdout
    assert "minibroker: the reference (add --mine to test workspace/)" in output
    assert "here: reference, child: reference, other: reference" in output


def test_without_a_workspace_the_header_says_reference_and_no_more(clone: Path) -> None:
    shutil.rmtree(clone / "workspace")
    assert "\nminibroker: the reference\n" in run(clone).stdout


def test_mine_tests_the_workspace_here_and_in_child_processes(clone: Path) -> None:
    ended = run(clone, "--mine")
    assert "minibroker.toy: yours (workspace/minibroker/toy)" in ended.stdout
    assert "here: learner, child: learner, other: reference" in ended.stdout
    assert ended.returncode == 0


def test_mine_holds_inside_a_chapters_folder_which_python_puts_first(clone: Path) -> None:
    output = run(clone, "--mine", cwd=clone / "chapters" / "01-toy").stdout
    assert "minibroker.toy: yours (workspace/minibroker/toy)" in output
    assert "here: learner, child: learner, other: reference" in output


def test_mine_holds_in_the_workers_of_xdist(clone: Path) -> None:
    output = run(clone, "--mine", "-n", "2", cwd=clone / "chapters" / "01-toy").stdout
    assert "here: learner, child: learner, other: reference" in output
    assert "2 passed" in output


def test_mine_holds_for_a_chapters_conftest_that_imports_the_package(clone: Path) -> None:
    (clone / "chapters" / "01-toy" / "tests" / "conftest.py").write_text("import minibroker.toy\n")
    for arguments in (["--mine"], ["--mine", "-n", "1"]):
        ended = run(clone, *arguments, cwd=clone / "chapters" / "01-toy" / "tests")
        assert "here: learner, child: learner" in ended.stdout, ended.stdout + ended.stderr
    assert "here: learner" in run(clone, PYTEST_ADDOPTS="--mine").stdout


def test_mine_takes_the_workspace_that_the_environment_names(clone: Path, tmp_path: Path) -> None:
    package(tmp_path / "elsewhere" / "minibroker" / "toy", "another learner")
    output = run(clone, "--mine", MINIBROKER_WORKSPACE=str(tmp_path / "elsewhere")).stdout
    assert f"minibroker.toy: yours ({tmp_path}/elsewhere/minibroker/toy)" in output
    assert "here: another learner, child: another learner" in output


def test_a_workspace_first_on_the_path_is_reported_even_without_mine(clone: Path) -> None:
    roots = [clone / "workspace", clone / "chapters" / "01-toy"]
    output = run(clone, PYTHONPATH=os.pathsep.join(map(str, roots))).stdout
    assert "minibroker.toy: yours (workspace/minibroker/toy)" in output
    assert "here: learner" in output


def test_mine_without_a_workspace_says_what_to_do(clone: Path) -> None:
    shutil.rmtree(clone / "workspace")
    ended = run(clone, "--mine")
    assert "--mine: nothing is in workspace/ yet: run `minibroker course start 1`" in ended.stderr
    assert ended.returncode == 4


def test_mine_refuses_to_run_when_the_reference_was_imported_before(clone: Path) -> None:
    # A plugin named on the command line is imported before any conftest.
    ended = run(clone, "--mine", "-p", "minibroker.toy")
    assert "--mine: minibroker.toy was imported from elsewhere" in ended.stderr
    assert ended.returncode == 4


def test_mine_refuses_to_run_when_a_test_file_imports_the_reference(clone: Path) -> None:
    chapter = clone / "chapters" / "01-toy"
    sneaky = f"import sys\nsys.path.insert(0, {str(chapter)!r})\nimport minibroker.toy\ndef test_it(): ...\n"
    (chapter / "tests" / "test_a_sneaky.py").write_text(sneaky)
    ended = run(clone, "--mine")
    assert "--mine: minibroker.toy was imported from elsewhere" in ended.stdout + ended.stderr
    assert ended.returncode != 0
