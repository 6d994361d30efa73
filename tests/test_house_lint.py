"""`make lint` catches what breaks the house: each fault is planted in a copy, and the right tool names it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOG = Path("chapters/01-log/minibroker/log")
BENCH = Path("final/minibroker/bench")
CLI = Path("final/minibroker/cli")

# lint-imports reads the tree that Python would import. Without `site` there are no .pth files, so the editable install
# of the real tree does not mix with the copy.
LINT_IMPORTS = """
import sys
sys.path[:0] = sys.argv[2:]
sys.path.append(sys.argv[1])
from importlinter.cli import lint_imports_command
lint_imports_command(["--no-cache", "--no-logo"])
"""


class House:
    """A copy of the tree in which things may be broken."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ignore = shutil.ignore_patterns("__pycache__", "figures")
        for folder in ("chapters", "final", "tests"):
            shutil.copytree(ROOT / folder, root / folder, ignore=ignore)
        for name in ("pyproject.toml", "conftest.py", "Makefile"):
            shutil.copy2(ROOT / name, root / name)

    def write(self, path: Path, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def append(self, path: Path, text: str) -> None:
        with (self.root / path).open("a") as file:
            file.write(text)

    def lint_imports(self) -> tuple[int, str]:
        roots = [str(folder.parent) for folder in sorted(self.root.glob("*/**/minibroker"))]
        return self.run(sys.executable, "-S", "-c", LINT_IMPORTS, sysconfig.get_path("purelib"), *roots)

    def breaks(self, *findings: str) -> None:
        """Check that lint-imports refuses the tree, and says all of this."""
        code, output = self.lint_imports()
        assert code == 1
        for finding in findings:
            assert finding in output

    def run(self, *command: str) -> tuple[int, str]:
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
        env |= {"NO_SETUP": "1", "VENV": sys.prefix, "COLUMNS": "200"}
        result = subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=240, check=False
        )
        return result.returncode, result.stdout + result.stderr


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "house")


def test_an_untouched_copy_keeps_every_contract(house: House) -> None:
    code, output = house.lint_imports()
    assert code == 0, output
    assert "4 kept, 0 broken" in output


def test_an_import_of_a_later_room_breaks_the_layers(house: House) -> None:
    house.write(LOG / "planted.py", "import minibroker.segments.config\n")
    house.breaks(
        "minibroker.log is not allowed to import minibroker.segments",
        "minibroker.log.planted -> minibroker.segments.config",
    )


def test_the_bench_imports_no_broker(house: House) -> None:
    house.write(BENCH / "planted.py", "import minibroker.broker\n")
    house.breaks("minibroker.bench is not allowed to import minibroker.broker")


def test_a_chapter_that_imports_final_breaks_the_layers(house: House) -> None:
    house.append(LOG / "errors.py", "\nimport minibroker.cli.main\n")
    house.breaks("minibroker.log is not allowed to import minibroker.cli")


@pytest.mark.parametrize("module", ["os", "time", "random", "socket", "asyncio", "threading", "selectors"])
def test_io_in_a_core_is_forbidden(house: House, module: str) -> None:
    house.append(LOG / "varint.py", f"\nimport {module}\n")
    house.breaks(f"minibroker.log.varint is not allowed to import {module}")


def test_io_in_a_core_is_forbidden_through_another_module_too(house: House) -> None:
    house.write(LOG / "planted.py", "from time import monotonic\n")
    house.append(LOG / "varint.py", "\nfrom minibroker.log import planted\n")
    house.breaks("minibroker.log.varint is not allowed to import time", "minibroker.log.planted -> time")


def test_io_in_the_init_of_a_room_with_cores_is_forbidden(house: House) -> None:
    house.append(LOG / "__init__.py", "\nimport os\n")
    house.breaks("minibroker.log is not allowed to import os")


def test_an_import_for_type_checking_only_is_allowed_in_a_core(house: House) -> None:
    house.append(LOG / "varint.py", "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n")
    code, output = house.lint_imports()
    assert code == 0, output


@pytest.mark.parametrize("root", ["chapters/01-log", "final"])
def test_a_room_that_no_layer_lists_is_refused(house: House, root: str) -> None:
    house.write(Path(root, "minibroker/attic/__init__.py"), '"""An unlisted room."""\n')
    house.breaks("minibroker.attic", "not listed as layers")


def test_mypy_finds_a_type_error_in_the_second_root(house: House) -> None:
    # The real tree's cache makes this a matter of seconds; without it mypy merely takes longer.
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", house.root / ".mypy_cache")
    house.append(CLI / "pending.py", '\nPLANTED: int = "not a number"\n')
    code, output = house.run(sys.executable, "-m", "mypy")
    assert code == 1
    assert f"{CLI}/pending.py" in output
    assert "Incompatible types in assignment" in output


@pytest.mark.parametrize("root", ["chapters/01-log", "final"])
def test_an_init_file_in_the_namespace_stops_lint(house: House, root: str) -> None:
    house.write(Path(root, "minibroker/__init__.py"), "")
    code, output = house.run("make", "lint")
    assert code != 0
    assert f"{root}/minibroker/__init__.py must not exist" in output
