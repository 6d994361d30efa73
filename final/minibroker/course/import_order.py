"""The order of `sys.path`, which decides whether Python imports the learner's package or the reference.

`minibroker` is a namespace package: Python looks for `minibroker.log` in every `minibroker/` folder along `sys.path`
and takes the first. A workspace at the front of the path therefore replaces the packages that it holds, and no others.
If a chapter's folder comes before the workspace, the reference of that chapter is used again. A package that was
imported before the order was set is not imported again; `imported_from_elsewhere` finds such packages.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from minibroker.course.choosing import Choice


def put_first(workspace: Path, *, before: Sequence[Path] = ()) -> None:
    """Make this process and its children import from the folders `before`, then from the workspace, then elsewhere."""
    first = [*map(str, before), str(workspace)]
    sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]
    importlib.invalidate_caches()
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, *(it for it in inherited if it and it not in first)])
    os.environ["MINIBROKER_WORKSPACE"] = str(workspace)
    # `python -m` puts the current folder before PYTHONPATH. If that is a chapter's folder, a child process would
    # silently import the reference.
    os.environ["PYTHONSAFEPATH"] = "1"


def is_mine(package: str, workspace: Path) -> bool:
    """Tell whether `minibroker.<package>` is, or would be, imported from the workspace."""
    spec = importlib.util.find_spec(f"minibroker.{package}")
    places = list(spec.submodule_search_locations or []) if spec else []
    return bool(places) and Path(places[0]).resolve().is_relative_to(workspace.resolve())


def imported_from_elsewhere(workspace: Path, packages: Sequence[str]) -> list[str]:
    """Return the modules of these packages that were imported, but not from the workspace."""
    prefixes = tuple(f"minibroker.{package}." for package in packages)
    loaded = [name for name in sys.modules if f"{name}.".startswith(prefixes)] if prefixes else []
    return sorted(name for name in loaded if not _is_inside(name, workspace))


def report(choice: Choice, workspace: Path, shown: str) -> list[str]:
    """Say, for each package in the workspace, whether the learner's copy or the reference is under test."""
    held = [*choice.mine, *choice.unused]
    mine = [package for package in held if is_mine(package, workspace)]
    if not mine:
        return [f"minibroker: the reference (add --mine to test {shown}/)" if held else "minibroker: the reference"]
    lines = [f"minibroker.{package}: yours ({shown}/minibroker/{package})" for package in sorted(mine)]
    for package in sorted(set(held) - set(mine)):
        reason = choice.unused.get(package, f"although {shown}/ has a copy")
        lines.append(f"minibroker.{package}: the reference, {reason}")
    return [*lines, "the rest of minibroker: the reference"]


def _is_inside(name: str, workspace: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or Path(file).resolve().is_relative_to(workspace.resolve())
