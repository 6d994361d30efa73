"""The targets of the Makefile: all there, and those of later chapters say so in one line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = [f"{number:02}" for number in range(1, 8)]
PRESENT = [number for number in NUMBERS if list(ROOT.glob(f"chapters/{number}-*/minibroker"))]
ABSENT = [number for number in NUMBERS if number not in PRESENT]
WORKING = [
    "setup",
    "setup-spark",
    "setup-dev",
    "run",
    "bench-spark",
    "test",
    "test-java",
    "test-kafka",
    "lint",
    "bench",
    "simulate",
    "chaos",
    "docs",
    "site",
    "clean",
    "help",
]
LATER = {
    "chaos-transactions": "chapter 06 (groups-offsets)",
    "bench-peers": "chapter 07 (zero-copy-perf)",
    "demo": "after chapter 07",
    "chaos-spark": "after chapter 07",
}


def make(*arguments: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    strange = ("MAKE", "MFLAGS", "MINIBROKER_QUICK")
    env = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=env | more, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "target", [*WORKING, *(f"{kind}-{number}" for kind in ("chapter", "bench") for number in PRESENT)]
)
def test_a_target_that_works_would_run_something(target: str) -> None:
    result = make("--dry-run", target)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert "arrives" not in result.stdout


@pytest.mark.parametrize(("target", "arrives"), LATER.items())
def test_a_target_to_come_says_so_in_one_line(target: str, arrives: str) -> None:
    result = make(target)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.startswith(f"make {target}: arrives ")
    assert arrives in result.stdout


@pytest.mark.parametrize("target", [f"{kind}-{number}" for kind in ("chapter", "bench") for number in ABSENT])
def test_a_chapter_to_come_says_so_in_one_line(target: str) -> None:
    result = make(target)
    (folder,) = ROOT.glob(f"chapters/{target[-2:]}-*")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"make {target}: arrives with chapter {target[-2:]} ({folder.name[3:]})")
    assert len(result.stdout.splitlines()) == 1


def test_make_alone_lists_every_target() -> None:
    result = make()
    assert result.returncode == 0
    for target in [*WORKING, *LATER, "chapter-01", "bench-01"]:
        assert f"make {target} " in result.stdout


def test_what_the_targets_do_stands_in_one_column() -> None:
    # `make chapter-01 to 07` has single spaces only; the column begins behind more of them.
    found = [re.search(r"(?<=\S)  +", line) for line in make().stdout.splitlines()]
    assert len({gap and gap.end() for gap in found}) == 1


@pytest.mark.parametrize(
    ("quick", "out"),
    [
        ("1", "build/figures/01-log"),
        ("", "docs/chapters/01-log/figures"),
        ("0", "docs/chapters/01-log/figures"),
    ],
)
def test_a_quick_run_leaves_the_figures_in_docs_alone(quick: str, out: str) -> None:
    result = make("--dry-run", "bench-01", MINIBROKER_QUICK=quick)
    assert result.stdout.rstrip().endswith(f"--out {out}")


def test_clean_removes_every_cache_of_python_and_keeps_the_learners_work(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".", "chapters/01-log", "final", "tests"):
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
    for folder in ("build/figures", "workspace", "data"):
        (tmp_path / folder).mkdir(parents=True)
    assert make("clean", cwd=tmp_path).returncode == 0
    assert list(tmp_path.rglob("__pycache__")) == []
    assert not (tmp_path / "build").exists()
    assert (tmp_path / "workspace").exists()
    assert (tmp_path / "data").exists()


def test_make_works_from_another_folder(tmp_path: Path) -> None:
    result = make("-f", str(ROOT / "Makefile"), "chapter-07", cwd=tmp_path)
    assert result.stdout.startswith("make chapter-07: arrives with chapter 07 (zero-copy-perf)")


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "test" in script.read_text().split()
