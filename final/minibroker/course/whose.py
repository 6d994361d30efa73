"""Whose code is it? The order of the paths decides, so this module sets the order and says who won.

`minibroker` is a namespace package: Python looks for `minibroker.log` in every `minibroker/` folder along
`sys.path` and takes the first. The workspace in front therefore replaces the packages it holds, and no
others. A package that was imported before the order was set stays what it was: `strangers` finds those.
"""

import importlib.util
import os
import sys
from pathlib import Path


def packages(workspace: Path) -> list[str]:
    """Return the names of the packages that the workspace holds."""
    folders = sorted((workspace / "minibroker").glob("[a-z]*/"))
    return [folder.name for folder in folders if any(folder.glob("*.py"))]


def put_first(workspace: Path) -> None:
    """Make this process, and the processes it starts, take the workspace's packages before all others."""
    first = str(workspace)
    sys.path[:] = [first, *(entry for entry in sys.path if entry != first)]
    importlib.invalidate_caches()
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([first, *(it for it in inherited if it and it != first)])
    os.environ["MINIBROKER_WORKSPACE"] = first
    # `python -m` puts the current folder before PYTHONPATH. Inside a chapter's folder that is the
    # reference, and a child would take it without a word.
    os.environ["PYTHONSAFEPATH"] = "1"


def is_mine(package: str, workspace: Path) -> bool:
    """Tell whether `minibroker.<package>` is, or would be, imported from the workspace."""
    spec = importlib.util.find_spec(f"minibroker.{package}")
    places = list(spec.submodule_search_locations or []) if spec else []
    return bool(places) and Path(places[0]).resolve().is_relative_to(workspace.resolve())


def strangers(workspace: Path) -> list[str]:
    """Return the modules already imported from elsewhere although the workspace holds their package."""
    held = tuple(f"minibroker.{package}." for package in packages(workspace))
    loaded = [name for name in sys.modules if f"{name}.".startswith(held)] if held else []
    return sorted(name for name in loaded if not _is_inside(name, workspace))


def report(workspace: Path, shown: str) -> list[str]:
    """Say whose code is under test, package by package where the workspace holds one."""
    held = packages(workspace)
    mine = [package for package in held if is_mine(package, workspace)]
    if not mine:
        return [f"minibroker: the reference (add --mine to test {shown}/)" if held else "minibroker: the reference"]
    theirs = [package for package in held if package not in mine]
    return [
        *(f"minibroker.{package}: yours ({shown}/minibroker/{package})" for package in mine),
        *(f"minibroker.{package}: the reference, although {shown}/ has one" for package in theirs),
        "the rest of minibroker: the reference",
    ]


def _is_inside(name: str, workspace: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or Path(file).resolve().is_relative_to(workspace.resolve())
