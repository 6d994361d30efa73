"""`make lint` finds what breaks the rules: each fault is planted in a copy, and the right tool names it."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOG = Path("chapters/01-log/minibroker/log")
BENCH = Path("final/minibroker/bench")

# lint-imports reads the tree that Python would import. Without `site` there are no .pth files, so the editable install
# of the real tree does not mix with the copy.
LINT_IMPORTS = """
import sys
sys.path[:0] = sys.argv[2:]
sys.path.append(sys.argv[1])
from importlinter.cli import lint_imports_command
lint_imports_command(["--no-cache", "--no-logo"])
"""


class Copy:
    """A copy of the repository in which things may be broken."""

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
        """Check that lint-imports refuses the copy, and reports all of these findings."""
        code, output = self.lint_imports()
        assert code == 1
        for finding in findings:
            assert finding in output

    def run(self, *command: str) -> tuple[int, str]:
        return run(self.root, *command)


def run(folder: Path, *command: str) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    env |= {"NO_SETUP": "1", "VENV": sys.prefix, "COLUMNS": "200"}
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    return result.returncode, result.stdout + result.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


def test_an_import_for_type_checking_only_is_allowed_in_a_core(copy: Copy) -> None:
    copy.append(LOG / "varint.py", "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n")
    code, output = copy.lint_imports()
    assert code == 0, output
    assert "4 kept, 0 broken" in output


def test_an_import_of_a_later_package_or_of_io_in_a_core_is_refused(copy: Copy) -> None:
    """I/O is forbidden through another module and in the `__init__` of a package, too."""
    modules = ("os", "time", "random", "socket", "asyncio", "threading", "selectors")
    copy.write(LOG / "planted.py", "import minibroker.segments.config\n")
    copy.append(LOG / "errors.py", "\nimport minibroker.cli.main\n")
    copy.write(BENCH / "planted.py", "import minibroker.broker\n")
    copy.append(LOG / "varint.py", "".join(f"\nimport {module}\n" for module in modules))
    copy.write(LOG / "secret.py", "from secrets import token_bytes\n")
    copy.append(LOG / "text.py", "\nfrom minibroker.log import secret\n")
    copy.append(LOG / "__init__.py", "\nimport uuid\n")
    copy.breaks(
        "minibroker.log is not allowed to import minibroker.segments",
        "minibroker.log.planted -> minibroker.segments.config",
        "minibroker.log is not allowed to import minibroker.cli",
        "minibroker.log.errors -> minibroker.cli.main",
        "minibroker.bench is not allowed to import minibroker.broker",
        "minibroker.bench.planted -> minibroker.broker",
        *(f"minibroker.log.varint is not allowed to import {module}" for module in modules),
        *(f"minibroker.log.varint -> {module}" for module in modules),
        "minibroker.log.text is not allowed to import secrets",
        "minibroker.log.secret -> secrets",
        "minibroker.log is not allowed to import uuid",
        "minibroker.log -> uuid",
    )


def test_a_package_that_no_layer_lists_is_refused(copy: Copy) -> None:
    for root, name in (("chapters/01-log", "attic"), ("final", "cellar")):
        copy.write(Path(root, "minibroker", name, "__init__.py"), '"""A package that no layer lists."""\n')
    copy.breaks("minibroker.attic", "minibroker.cellar", "not listed as layers")


def test_mypy_finds_a_type_error_in_every_place(tmp_path: Path) -> None:
    # Modules of one line are checked in a second; the places and the settings are those of the repository.
    settings = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(settings)
    places = tomllib.loads(settings)["tool"]["mypy"]["files"]
    packages = [*ROOT.glob("chapters/*/minibroker"), ROOT / "final/minibroker", ROOT / "tests"]
    assert {str(package.relative_to(ROOT)) for package in packages} <= set(places)
    planted = []
    for number, place in enumerate(places):
        path = tmp_path / place if place.endswith(".py") else tmp_path / place / f"planted{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('PLANTED: int = "not a number"\n')
        planted.append(path.relative_to(tmp_path))
    code, output = run(tmp_path, sys.executable, "-m", "mypy")
    assert code == 1, output
    for path in planted:
        assert f"{path}:1: error: Incompatible types in assignment" in output


def test_an_init_file_in_the_namespace_stops_lint(copy: Copy) -> None:
    for root in ("chapters/01-log", "final"):
        path = Path(root, "minibroker/__init__.py")
        copy.write(path, "")
        code, output = copy.run("make", "lint")
        assert code != 0, root
        assert f"{path} must not exist" in output
        (copy.root / path).unlink()


def test_every_module_that_says_it_is_pure_is_checked() -> None:
    """The docstring of such a module has the sentence "A pure module." """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = {module for it in contracts if "as_packages" in it for module in it["source_modules"]}
    for path in sorted(ROOT.glob("*/**/minibroker/**/*.py")):
        says = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        parts = path.with_suffix("").parts
        name = ".".join(parts[parts.index("minibroker") :]).removesuffix(".__init__")
        assert name in checked or "A pure module." not in says, f"pyproject.toml: add {name} to the contract for cores"
