"""Claims about labs: how they are found, `minibroker lab list|run`, and the lab `disk`."""

import json
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker.bench import limits
from minibroker.bench.lab import find_labs, rooms_with_labs
from minibroker.bench.measure import Case, Sample
from minibroker.bench.measure import Result as Measured
from minibroker.cli.lab import lab
from minibroker.log import labs as log_labs

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


def make_room(root: Path, room: str, **files: str) -> None:
    folder = root / "minibroker" / room
    folder.mkdir(parents=True)
    for name, content in {"__init__": "", **files}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(content))


@pytest.fixture
def toy_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A namespace root of its own, as a learner's workspace or a later chapter is."""
    root = tmp_path / "root"
    make_room(root, "toyroom", labs=LABS_FILE)
    monkeypatch.syspath_prepend(str(root))
    yield root
    for name in [name for name in sys.modules if name.startswith("minibroker.toyroom")]:
        del sys.modules[name]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(lab, arguments)


# Discovery.


def test_the_lab_of_chapter_01_is_found() -> None:
    assert find_labs()["disk"].chapter == "01"


@pytest.mark.usefixtures("toy_root")
def test_a_lab_in_another_root_of_the_namespace_is_found_in_the_order_of_the_course() -> None:
    labs = find_labs()
    assert {"disk", "toy", "full"} <= labs.keys()
    assert [each.chapter for each in labs.values()] == sorted(each.chapter for each in labs.values())


def test_only_modules_called_labs_are_imported(toy_root: Path) -> None:
    make_room(toy_root, "brokenroom", __init__="raise AssertionError('imported')")
    assert "toy" in find_labs()
    assert "minibroker.brokenroom" not in sys.modules


def test_the_first_root_that_holds_a_room_hides_its_namesakes(tmp_path: Path) -> None:
    make_room(tmp_path / "workspace", "log")
    make_room(tmp_path / "chapter", "log", labs="LABS = []")
    make_room(tmp_path / "chapter", "wire", labs="LABS = []")
    roots = [str(tmp_path / name / "minibroker") for name in ("workspace", "chapter")]
    assert rooms_with_labs(roots) == ["wire"]
    assert rooms_with_labs(reversed(roots)) == ["log", "wire"]


def test_roots_that_do_not_exist_hold_no_rooms(tmp_path: Path) -> None:
    assert rooms_with_labs([str(tmp_path / "missing")]) == []


def test_two_labs_of_one_name_are_refused(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_room(toy_root, "toyroom_twin", labs=LABS_FILE)
    with pytest.raises(ValueError, match="two labs are called 'toy'"):
        find_labs()


# The command.


def test_list_shows_name_chapter_and_what_it_shows() -> None:
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


@pytest.mark.usefixtures("toy_root")
def test_run_prints_table_and_reading_and_says_where_the_files_are(tmp_path: Path) -> None:
    ended = invoke("run", "toy", "--out", str(tmp_path / "out"), "--dir", str(tmp_path))
    assert ended.exit_code == 0
    assert "works" in ended.stdout
    assert "It works." in ended.stdout
    assert "quick run: sizes shrunk, figures not comparable" in ended.stdout
    assert str(tmp_path / "out" / "toy.svg") in ended.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["toy.json", "toy.svg"]


@pytest.mark.usefixtures("toy_root")
def test_run_writes_to_the_current_directory_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert invoke("run", "toy", "--dir", str(tmp_path)).exit_code == 0
    assert sorted(path.name for path in here.iterdir()) == ["toy.json", "toy.svg"]


@pytest.mark.usefixtures("toy_root")
def test_run_as_json_prints_the_document_that_it_writes(tmp_path: Path) -> None:
    ended = invoke("run", "toy", "--out", str(tmp_path / "out"), "--dir", str(tmp_path), "--format", "json")
    assert ended.stdout == (tmp_path / "out" / "toy.json").read_text()
    assert json.loads(ended.stdout)["reading"] == ["It works."]


@pytest.mark.usefixtures("toy_root")
def test_a_lab_that_the_machine_refuses_is_one_line_and_ends_with_one(tmp_path: Path) -> None:
    ended = invoke("run", "full", "--out", str(tmp_path / "out"), "--dir", str(tmp_path))
    assert ended.exit_code == 1
    assert ended.stderr.strip().endswith("the lab full failed: [Errno 28] No space left on device")
    assert not (tmp_path / "out").exists()


# The lab `disk`.


def test_the_disk_lab_writes_its_figure_and_its_document(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ended = invoke("run", "disk", "--out", str(tmp_path / "out"), "--dir", str(scratch))
    assert ended.exit_code == 0, ended.output
    svg = (tmp_path / "out" / "disk.svg").read_text()
    ElementTree.fromstring(svg)
    assert "a flush per MiB" in svg
    text = (tmp_path / "out" / "disk.json").read_text()
    document = json.loads(text)
    assert document["quick"] is True
    assert all(len(case["samples"]) == 3 for case in document["cases"])
    assert str(tmp_path) not in text
    assert list(scratch.iterdir()) == []


def measured(name: str, mb_per_s: float, operations_count: int = 1) -> Measured:
    case = Case(name, lambda: None, bytes_count=10**6, operations_count=operations_count)
    return Measured(case, (Sample(1 / mb_per_s, 0.0),))


def test_the_disk_lab_reads_its_figures_in_plain_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "can_drop_cache", True)
    figures = [
        measured("Memory: memcpy, 64 KiB", 10_000),
        measured("Page cache: sequential write, 64 KiB", 5_000),
        measured("Page cache: sequential read, 64 KiB", 8_000),
        measured("Page cache: random read, 4 KiB", 2_000),
        measured("Device: sequential read, 64 KiB", 1_000),
        measured("Device: random read, 4 KiB", 20),
        measured("Append 16 KiB batches: one flush at the end", 500),
        measured("Append 16 KiB batches: a flush per MiB", 250),
        measured(
            "Append 16 KiB batches: a flush per batch, before its ack",
            5,
            operations_count=100,
        ),
    ]
    memory, order, flushes = log_labs.reading({each.case.name: each for each in figures})
    assert "runs at 5,000 MB/s, 0.500 of a memcpy" in memory
    assert "50.0 times as fast as a random one of 4 KiB (1,000 against 20.0 MB/s)" in order
    assert "in the page cache the factor is 4.00" in order
    assert "a flush per 16 KiB costs 50.0 times a flush per MiB and 100 times one at the end" in flushes
    assert "take 2.00 ms" in flushes


def test_the_disk_lab_does_without_device_reads_where_the_cache_cannot_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "can_drop_cache", False)
    ended = invoke("run", "disk", "--out", str(tmp_path), "--dir", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    assert "Device: sequential write" in ended.stdout
    assert "Device: sequential read" not in ended.stdout
    assert "on this disk a sequential write is" in " ".join(ended.stdout.split())
