"""The wheel holds every package, and runs where it is installed, outside of the repository."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path, **env: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out), cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_package_and_nothing_else(wheel: Path) -> None:
    # Spark finds a data source by the name of a module beside the namespace.
    places = [*ROOT.glob("chapters/*/minibroker"), ROOT / "final/minibroker"]
    expected = {str(path.relative_to(place.parent)) for place in places for path in place.rglob("*.py")}
    expected.add("pyspark_minibroker.py")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("minibroker-")}
    assert {name for name in held if name.endswith(".py")} == expected
    assert {Path(name).parts[0] for name in held} == {"minibroker", "pyspark_minibroker.py"}


def test_the_wheel_runs_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    # An environment that uv made has no pip, so the new one gets its own, which takes seconds.
    has_pip = importlib.util.find_spec("pip") is not None
    venv.create(tmp_path / "venv", with_pip=not has_pip)
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)] if has_pip else [str(python), "-m", "pip"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=tmp_path)
    # The dependencies come from the environment of the tests, so that no network is needed. The editable install is not
    # visible there: its path is in a .pth file, which is read from site-packages only.
    others = sysconfig.get_path("purelib")
    where = run(str(python), "-c", "import minibroker.cli as m; print(m.__file__)", cwd=tmp_path, PYTHONPATH=others)
    assert Path(where.strip()).is_relative_to(tmp_path)
    program = str(tmp_path / "venv/bin/minibroker")
    assert run(program, "--help", cwd=tmp_path, PYTHONPATH=others).startswith("Usage: minibroker")
    assert "usage" in run(str(python), "-m", "minibroker.log", "--help", cwd=tmp_path, PYTHONPATH=others).lower()
