"""Every target of the Makefile is there, and is listed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = [f"{number:02}" for number in range(1, 8)]
WORKING = [
    "setup",
    "setup-spark",
    "setup-dev",
    "run",
    "bench-spark",
    "bench-peers",
    "test",
    "test-java",
    "test-kafka",
    "lint",
    "bench",
    "simulate",
    "chaos",
    "chaos-transactions",
    "chaos-spark",
    "demo",
    "docs",
    "site",
    "clean",
    "help",
]


def make(*arguments: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    # Variables of a `make` that runs this test would change what the inner one does.
    strange = ("MAKE", "MFLAGS", "MINIBROKER_QUICK")
    env = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=env | more, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_target_that_works_would_run_something() -> None:
    for target in [*WORKING, *(f"{kind}-{number}" for kind in ("chapter", "bench") for number in NUMBERS)]:
        result = make("--dry-run", target)
        assert result.returncode == 0, f"make {target}: {result.stderr}"
        assert result.stdout.strip(), f"make {target} runs nothing"
        # What make says of a name without a rule.
        assert "Nothing to be done" not in result.stdout, f"make {target}"


def test_make_alone_lists_every_target() -> None:
    result = make()
    assert result.returncode == 0
    for target in [*WORKING, "chapter-01", "bench-01"]:
        assert f"make {target} " in result.stdout


def test_the_descriptions_of_the_targets_stand_in_one_column() -> None:
    # `make chapter-01 to 07` has single spaces only; the column begins after two or more.
    found = [re.search(r"(?<=\S)  +", line) for line in make().stdout.splitlines()]
    assert len({gap and gap.end() for gap in found}) == 1


def test_a_quick_run_leaves_the_figures_in_docs_alone() -> None:
    for quick, out in (
        ("1", "build/figures/01-log"),
        ("", "docs/chapters/01-log/figures"),
        ("0", "docs/chapters/01-log/figures"),
    ):
        result = make("--dry-run", "bench-01", MINIBROKER_QUICK=quick)
        assert result.stdout.rstrip().endswith(f"--out {out}"), f"MINIBROKER_QUICK={quick}"


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
    result = make("-f", str(ROOT / "Makefile"), "help", cwd=tmp_path)
    assert "make demo " in result.stdout


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "test" in script.read_text().split()
