"""The paths of a clone of the repository: its chapters and the learner's workspace."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from minibroker.course.errors import CourseError

CHAPTER_NUMBERS = range(1, 7 + 1)


@dataclass(frozen=True)
class Repository:
    """A clone of the repository, and its workspace."""

    root: Path
    workspace: Path

    def folder(self, number: int) -> Path | None:
        """Return the chapter's folder, `chapters/NN-topic`, or None."""
        found = sorted((self.root / "chapters").glob(f"{number:02}-*"))
        return found[0] if found else None

    def roots(self) -> list[Path]:
        """Return the folders that hold a part of the namespace package, in course order."""
        candidates = [*sorted((self.root / "chapters").iterdir()), self.root / "final"]
        return [folder for folder in candidates if (folder / "minibroker").is_dir()]

    def show(self, path: Path) -> str:
        """Return a path relative to the clone, if it is inside."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)


def find_repository(start: Path, environ: Mapping[str, str] = os.environ) -> Repository:
    """Find the clone that contains `start`, or else the clone that contains this file."""
    for folder in [*_upwards(start), *_upwards(Path(__file__))]:
        if _is_clone(folder):
            return Repository(folder, workspace_of(folder, environ))
    raise CourseError("the course needs a clone of the repository: change into the clone, and run the command there")


def workspace_of(root: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the learner's folder: $MINIBROKER_WORKSPACE, or `workspace/` in the clone."""
    return Path(environ.get("MINIBROKER_WORKSPACE") or root / "workspace").absolute()


def _upwards(path: Path) -> Iterator[Path]:
    yield path.absolute()
    yield from path.absolute().parents


def _is_clone(folder: Path) -> bool:
    # Another project may have a folder `chapters` too, so the name of the project is checked.
    project = folder / "pyproject.toml"
    if not (folder / "chapters").is_dir() or not project.is_file():
        return False
    try:
        name = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("name")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    return bool(name == "minibroker")
