"""Claims about labs: how they are found, and `minibroker lab list|run`."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker.bench.lab import find_labs
from minibroker.cli.lab import lab
from minibroker.course import repository

ROOT = Path(__file__).resolve().parents[2]
LABS_FILE = """
    from minibroker.bench import BarChart, BarRow, Case, Findings, Lab, Table

    def run_toy(context):
        results = context.measure([Case("toy", lambda: None, operations_count=1)])
        return Findings(Table(["toy"], [["works"]]), ["It works."], BarChart("Toy", "ops", [BarRow("toy", 1)]), results)

    def run_full(context):
        raise OSError(28, "No space left on device")

    LABS = [Lab("toy", "99", "that a toy works", run_toy), Lab("full", "98", "a full disk", run_full)]
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is a clone of the repository with one chapter, which has two labs."""
    root = tmp_path / "clone"
    (root / "chapters/99-toy/labs").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "minibroker"\n')
    (root / "chapters/99-toy/labs/lab_toy.py").write_text(textwrap.dedent(LABS_FILE))
    monkeypatch.chdir(root)
    return root


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(lab, arguments)


# Discovery.


def test_the_labs_of_the_course_are_found_in_its_order() -> None:
    labs = find_labs(ROOT)
    assert {"disk", "index", "linger", "failover"} <= labs.keys()
    assert [each.chapter for each in labs.values()] == sorted(each.chapter for each in labs.values())


def test_only_files_named_lab_are_loaded(clone: Path) -> None:
    (clone / "chapters/99-toy/labs/broken.py").write_text("raise AssertionError('loaded')")
    assert list(find_labs(clone)) == ["full", "toy"]


def test_two_labs_of_one_name_are_refused(clone: Path) -> None:
    (clone / "chapters/99-twin/labs").mkdir(parents=True)
    shutil.copy(clone / "chapters/99-toy/labs/lab_toy.py", clone / "chapters/99-twin/labs/lab_twin.py")
    with pytest.raises(
        ValueError, match=r"two labs are called 'toy'; one of them is in chapters/99-twin/labs/lab_twin\.py"
    ):
        find_labs(clone)


def test_without_a_clone_the_command_says_so_in_one_line_and_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repository, "__file__", str(tmp_path / "site-packages/minibroker/course/repository.py"))
    for command in (["list"], ["run", "disk"]):
        ended = invoke(*command)
        assert ended.exit_code == 1
        assert ended.stderr.splitlines() == [
            "Error: the labs need a clone of the repository: change into the clone, and run the command there"
        ]


# The command.


def test_list_shows_the_name_chapter_and_purpose_of_labs() -> None:
    listed = invoke("list")
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[0].split() == ["lab", "chapter", "shows"]
    assert any(line.startswith("disk") and "01" in line for line in listed.stdout.splitlines())


def test_list_as_json_can_be_read_by_a_program() -> None:
    rows = json.loads(invoke("list", "--format", "json").stdout)
    assert {"name", "chapter", "shows"} == rows[0].keys()


def test_an_unknown_lab_is_one_line_naming_the_known_ones_and_ends_with_two() -> None:
    ended = invoke("run", "no-such-lab")
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert "no-such-lab" in ended.stderr
    assert "disk" in ended.stderr


def test_a_wrong_option_ends_with_two() -> None:
    assert invoke("run", "disk", "--format", "xml").exit_code == 2
    assert invoke("run").exit_code == 2


@pytest.mark.usefixtures("clone")
def test_run_prints_table_and_reading_and_says_where_the_files_are(tmp_path: Path) -> None:
    ended = invoke("run", "toy", "--out", str(tmp_path / "out"), "--dir", str(tmp_path))
    assert ended.exit_code == 0
    assert "works" in ended.stdout
    assert "It works." in ended.stdout
    assert "quick run: sizes shrunk, figures not comparable" in ended.stdout
    assert str(tmp_path / "out" / "toy.svg") in ended.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["toy.json", "toy.svg"]


def test_run_writes_to_the_current_directory_by_default(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = clone / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert invoke("run", "toy", "--dir", str(tmp_path)).exit_code == 0
    assert sorted(path.name for path in here.iterdir()) == ["toy.json", "toy.svg"]


@pytest.mark.usefixtures("clone")
def test_run_as_json_prints_the_document_that_it_writes(tmp_path: Path) -> None:
    ended = invoke("run", "toy", "--out", str(tmp_path / "out"), "--dir", str(tmp_path), "--format", "json")
    assert ended.stdout == (tmp_path / "out" / "toy.json").read_text()
    assert json.loads(ended.stdout)["reading"] == ["It works."]


@pytest.mark.usefixtures("clone")
def test_a_lab_that_the_machine_refuses_is_one_line_and_ends_with_one(tmp_path: Path) -> None:
    ended = invoke("run", "full", "--out", str(tmp_path / "out"), "--dir", str(tmp_path))
    assert ended.exit_code == 1
    assert ended.stderr.strip().endswith("the lab full failed: [Errno 28] No space left on device")
    assert not (tmp_path / "out").exists()
