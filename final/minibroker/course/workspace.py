"""The learner's copies, which are made once and never overwritten, and the record of each copy.

workspace/minibroker/log/       the copy of a chapter's package, with the tasks of one track taken out
workspace/.old/01-log.1/        a copy that was set aside, numbered, with a record of its own
workspace/.course.json          per chapter: its track, the hashes of the reference files it was made from, the verdicts
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minibroker.course.errors import CourseError
from minibroker.course.exercises import Chapter, Task, Track, load_chapter
from minibroker.course.repository import Repository

RECORD = ".course.json"
_NAMES_MAX = 3  # a message lists at most this many file names for each kind of change


@dataclass
class Copy:
    """The record of a copy.

    `files` maps each reference file to its hash, `checked` each task's id to its state at the last check.
    `others_failing` is the number of the chapter's other tests that failed; None if they have not run yet, or if a task
    has failed since. `passed` is the digest of the learner's files when all tests passed. `hinted` maps a task's id to
    the number of hints that were shown.
    """

    files: dict[str, str]
    checked: dict[str, str] = field(default_factory=dict)
    others_failing: int | None = None
    track: Track = Track.FAST
    passed: str | None = None
    hinted: dict[str, int] = field(default_factory=dict)

    @property
    def packages(self) -> list[str]:
        """The packages that were copied."""
        return sorted({name.split("/")[1] for name in self.files})


@dataclass(frozen=True)
class Drift:
    """The difference between the reference and the version that a copy was made from, by kind of change."""

    gone: list[str]
    new: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed)

    @property
    def is_moved(self) -> bool:
        """Whether files were added or removed; then other packages may import a file that the copy does not have."""
        return bool(self.gone or self.new)

    def __str__(self) -> str:
        kinds = {"no longer in the repository": self.gone, "new": self.new, "changed": self.changed}
        return "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names)


@dataclass(frozen=True)
class Started:
    """The folder to which `start` moved the current copy, and the folder of the earlier copy that it resumed."""

    aside: Path | None = None
    aside_track: Track | None = None
    resumed_from: Path | None = None


def start(repository: Repository, chapter: Chapter, *, again: bool = False) -> Started:
    """Copy the chapter's packages into the workspace for one track.

    If there is a copy already, `start` refuses, unless `again` is set, the track changes, or files were added to or
    removed from the repository. In these cases the old copy is set aside. A change of track resumes the last copy of
    that track that was set aside, if there is one.
    """
    copy = find_copy(repository, chapter.number)
    is_switch = copy is not None and copy.track != chapter.track
    earlier = _earlier_copy(repository, chapter) if is_switch and not again else None
    made = _read(repository, earlier)[str(chapter.number)] if earlier else Copy({}, track=chapter.track)
    taken = _taken(repository, {*chapter.packages, *made.packages, *(copy.packages if copy else [])})
    if taken and not again and not is_switch and not (copy and drift(chapter, copy).is_moved):
        n, build = chapter.number, " --build" if chapter.track is Track.BUILD else ""
        raise CourseError(
            f"{repository.show(taken[0])} is already there: `minibroker course check {n}` tests it, "
            f"`minibroker course start {n}{build} --again` sets it aside and starts again"
        )
    repository.workspace.mkdir(parents=True, exist_ok=True)
    # The copy is made in a temporary folder and moved as a whole, so that an interrupted start leaves no half package.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=repository.workspace) as fresh:
        source = earlier or Path(fresh)
        if not earlier:
            made.files = copy_packages(chapter, source, chapter.tasks)
        aside = _set_aside(repository, chapter, taken, copy) if taken else None
        for package in sorted((source / "minibroker").iterdir()):
            place = repository.workspace / "minibroker" / package.name
            place.parent.mkdir(exist_ok=True)
            package.rename(place)
    if earlier:
        shutil.rmtree(earlier)
    save_copy(repository, chapter.number, made)
    return Started(aside, copy.track if aside and copy else None, earlier)


def copy_packages(chapter: Chapter, into: Path, tasks: Iterable[Task]) -> dict[str, str]:
    """Copy the chapter's packages with these tasks taken out; return the hash of every reference file."""
    stripped = list(tasks)
    hashes = {}
    for name, path in reference_files(chapter):
        content = path.read_bytes()
        hashes[name] = _hash(content)
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for task in stripped:
            content = task.strip(content.decode()).encode() if task.file == name else content
        target.write_bytes(content)
    return hashes


def reference_files(chapter: Chapter) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every file in the packages that hold the chapter's tasks."""
    for package in chapter.packages:
        for path in sorted((chapter.folder / "minibroker" / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(chapter.folder).as_posix(), path


def drift(chapter: Chapter, copy: Copy) -> Drift:
    """Return the reference files that were changed, added or removed since the copy was made."""
    now = {name: _hash(path.read_bytes()) for name, path in reference_files(chapter)}
    return Drift(
        gone=sorted(copy.files.keys() - now.keys()),
        new=sorted(now.keys() - copy.files.keys()),
        changed=sorted(name for name in now.keys() & copy.files.keys() if now[name] != copy.files[name]),
    )


def complaints(repository: Repository) -> list[str]:
    """Return a message for each package of the workspace that no longer matches the repository."""
    return [*_drifted(repository), *_unknown(repository)]


def _drifted(repository: Repository) -> Iterator[str]:
    for number, copy in sorted(_read(repository).items()):
        try:
            found = drift(load_chapter(repository, int(number), copy.track), copy)
        except CourseError as error:
            yield f"your copy of chapter {number}: {error}"
            continue
        if found:
            start_again = f"minibroker course start {number}{' --build' if copy.track is Track.BUILD else ''}"
            start_again += "" if found.is_moved else " --again"
            yield (
                f"your copy of chapter {number} ({', '.join(f'minibroker.{it}' for it in copy.packages)}) no longer "
                f"matches the repository: {found}; `minibroker course diff {number}` shows it, "
                f"`{start_again}` sets your copy aside and makes a new one"
            )


def _unknown(repository: Repository) -> Iterator[str]:
    """Yield a message for each package of the workspace that the repository does not have."""
    known = {package.name for root in repository.roots() for package in (root / "minibroker").iterdir()}
    recorded = {package for copy in _read(repository).values() for package in copy.packages}
    for package in held_packages(repository.workspace):
        if package not in known | recorded:
            shown = repository.show(repository.workspace / "minibroker" / package)
            yield f"{shown} is a package that the repository does not have: move it out of the workspace"


def held_packages(workspace: Path) -> list[str]:
    """Return the names of the packages that the workspace holds."""
    folders = sorted((workspace / "minibroker").glob("[a-z]*/"))
    return [folder.name for folder in folders if any(folder.glob("*.py"))]


def files_digest(workspace: Path, packages: Iterable[str]) -> str:
    """Return one hash of the names and contents of the learner's files in these packages."""
    folders = [workspace / "minibroker" / package for package in sorted(packages)]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return _hash("".join(f"{path.relative_to(workspace)} {_hash(path.read_bytes())}\n" for path in paths).encode())


def find_copy(repository: Repository, number: int) -> Copy | None:
    """Return the record of a chapter's copy; None if the learner has not started it."""
    return _read(repository).get(str(number))


def last_copy(repository: Repository, chapter: Chapter) -> Copy | None:
    """Return the record of the learner's last copy on the chapter's track, which may have been set aside."""
    copy = find_copy(repository, chapter.number)
    if copy is not None and copy.track == chapter.track:
        return copy
    earlier = _earlier_copy(repository, chapter)
    return _read(repository, earlier)[str(chapter.number)] if earlier else None


def started_copy(repository: Repository, chapter: Chapter) -> Copy:
    """Return the record of a chapter's copy; refuse if the copy or one of its packages is missing."""
    copy, n = find_copy(repository, chapter.number), chapter.number
    if copy is None:
        raise CourseError(f"chapter {n} is not started: run `minibroker course start {n}`")
    for package in chapter.packages:
        place = repository.workspace / "minibroker" / package
        if not place.is_dir():
            build = " --build" if chapter.track is Track.BUILD else ""
            raise CourseError(
                f"{repository.show(place)} is missing from your copy of chapter {n}: "
                f"`minibroker course start {n}{build}` sets the rest of it aside and starts again"
            )
    return copy


def save_copy(repository: Repository, number: int, copy: Copy) -> None:
    """Write the record of a chapter's copy."""
    _write(repository.workspace, {**_read(repository), str(number): copy})


def _taken(repository: Repository, packages: set[str]) -> list[Path]:
    places = [repository.workspace / "minibroker" / package for package in sorted(packages)]
    return [place for place in places if place.exists()]


def _set_aside(repository: Repository, chapter: Chapter, packages: list[Path], copy: Copy | None) -> Path:
    number = 1
    while (aside := repository.workspace / ".old" / f"{chapter.folder.name}.{number}").exists():
        number += 1
    (aside / "minibroker").mkdir(parents=True)
    for package in packages:
        shutil.move(package, aside / "minibroker" / package.name)
    if copy:
        _write(aside, {str(chapter.number): copy})
    return aside


def _earlier_copy(repository: Repository, chapter: Chapter) -> Path | None:
    """Return the folder of the copy of the chapter's track that was set aside last."""
    folders = (repository.workspace / ".old").glob(f"{chapter.folder.name}.*/")
    for folder in sorted(folders, key=lambda path: int(path.suffix[1:]), reverse=True):
        copy = _read(repository, folder).get(str(chapter.number))
        if copy and copy.track == chapter.track:
            return folder
    return None


def _read(repository: Repository, folder: Path | None = None) -> dict[str, Copy]:
    path = (folder or repository.workspace) / RECORD
    try:
        chapters: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["chapters"]
        return {number: _copy_of(entry) for number, entry in chapters.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise CourseError(
            f"{repository.show(path)} cannot be read: move it away and start the chapter again"
        ) from error


def _copy_of(entry: dict[str, Any]) -> Copy:
    # Older records do not have all fields.
    track = Track(entry.get("track", Track.FAST))
    others, passed, hinted = entry.get("others_failing"), entry.get("passed"), entry.get("hinted", {})
    return Copy(entry["files"], entry["checked"], others, track, passed, hinted)


def _write(folder: Path, copies: dict[str, Copy]) -> None:
    chapters = {number: asdict(copy) for number, copy in copies.items()}
    text = json.dumps({"chapters": chapters}, indent=2, sort_keys=True) + "\n"
    # The file is replaced in one step, so that no command reads half a record.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=RECORD, delete=False) as file:
        file.write(text)
    os.replace(file.name, folder / RECORD)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_MAX])
    return f"{shown} and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else shown


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
