"""The learner's copies: made once, never overwritten, and remembered with the reference they were made from.

workspace/minibroker/log/       the copy of a chapter's package, the tasks of one track taken out
workspace/.old/01-log.1/        a copy that was set aside, numbered, with a record of its own
workspace/.course.json          per chapter: track; the hash of every reference file at copy time; the last verdicts
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
from minibroker.course.house import House

RECORD = ".course.json"
_NAMES_MAX = 3  # how many files of a kind a message names


@dataclass
class Copy:
    """What is remembered of a copy: reference file → hash, task id → state at the last check, and its track.

    And how many of the chapter's other tests failed; None if they have not run since a task was open.
    """

    files: dict[str, str]
    checked: dict[str, str] = field(default_factory=dict)
    others_failing: int | None = None
    track: Track = Track.FAST

    @property
    def packages(self) -> list[str]:
        """The packages that were copied."""
        return sorted({name.split("/")[1] for name in self.files})


@dataclass(frozen=True)
class Drift:
    """How the reference differs from the one that a copy was made from: reference files by what became of them."""

    gone: list[str]
    new: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed)

    @property
    def is_moved(self) -> bool:
        """Whether files came or went: then other packages may import what the copy does not have."""
        return bool(self.gone or self.new)

    def __str__(self) -> str:
        kinds = {"no longer in the repository": self.gone, "new": self.new, "changed": self.changed}
        return "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names)


@dataclass(frozen=True)
class Started:
    """What `start` did with earlier copies: where it put one, where it took one back from."""

    aside: Path | None = None
    aside_track: Track | None = None
    resumed_from: Path | None = None


def start(house: House, chapter: Chapter, *, again: bool = False) -> Started:
    """Copy the chapter's packages into the workspace for one track.

    A copy that is there stays there, and `start` refuses, unless the learner says `again`, changes the track, or the
    repository has files that the copy does not have. Then the copy is set aside. A change of track goes on with the
    copy of that track that was set aside last, if there is one.
    """
    copy = find_copy(house, chapter.number)
    is_switch = copy is not None and copy.track != chapter.track
    earlier = _earlier_copy(house, chapter) if is_switch and not again else None
    made = _read(house, earlier)[str(chapter.number)] if earlier else Copy({}, track=chapter.track)
    taken = _taken(house, {*chapter.packages, *made.packages, *(copy.packages if copy else [])})
    if taken and not again and not is_switch and not (copy and drift(chapter, copy).is_moved):
        n, build = chapter.number, " --build" if chapter.track is Track.BUILD else ""
        raise CourseError(
            f"{house.show(taken[0])} is already there: `minibroker course check {n}` tests it, "
            f"`minibroker course start {n}{build} --again` keeps it aside and starts anew"
        )
    house.workspace.mkdir(parents=True, exist_ok=True)
    # The copy is made beside its place and moved in whole: an interrupted start leaves no half package.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=house.workspace) as fresh:
        source = earlier or Path(fresh)
        if not earlier:
            made.files = copy_packages(chapter, source, chapter.tasks)
        aside = _set_aside(house, chapter, taken, copy) if taken else None
        for package in sorted((source / "minibroker").iterdir()):
            place = house.workspace / "minibroker" / package.name
            place.parent.mkdir(exist_ok=True)
            package.rename(place)
    if earlier:
        shutil.rmtree(earlier)
    save_copy(house, chapter.number, made)
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
    """Return the reference files that changed, came or went since the copy was made."""
    now = {name: _hash(path.read_bytes()) for name, path in reference_files(chapter)}
    return Drift(
        gone=sorted(copy.files.keys() - now.keys()),
        new=sorted(now.keys() - copy.files.keys()),
        changed=sorted(name for name in now.keys() & copy.files.keys() if now[name] != copy.files[name]),
    )


def complaints(house: House) -> list[str]:
    """Say, for each package in the workspace that no longer matches the repository, what differs and what helps."""
    return [*_drifted(house), *_unknown(house)]


def _drifted(house: House) -> Iterator[str]:
    for number, copy in sorted(_read(house).items()):
        try:
            found = drift(load_chapter(house, int(number), copy.track), copy)
        except CourseError as error:
            yield f"your copy of chapter {number}: {error}"
            continue
        if found:
            start_again = f"minibroker course start {number}{' --build' if copy.track is Track.BUILD else ''}"
            start_again += "" if found.is_moved else " --again"
            yield (
                f"your copy of chapter {number} ({', '.join(f'minibroker.{it}' for it in copy.packages)}) no longer "
                f"matches the repository: {found}; `minibroker course diff {number}` shows it, "
                f"`{start_again}` sets your copy aside and begins from the repository's"
            )


def _unknown(house: House) -> Iterator[str]:
    """A package in the workspace that the repository does not have: every import of it takes the learner's."""
    known = {package.name for root in house.roots() for package in (root / "minibroker").iterdir()}
    folders = sorted(path for path in (house.workspace / "minibroker").glob("[a-z]*/") if any(path.glob("*.py")))
    recorded = {package for copy in _read(house).values() for package in copy.packages}
    for folder in folders:
        if folder.name not in known | recorded:
            yield f"{house.show(folder)} is a package that the repository does not have: move it out of the workspace"


def find_copy(house: House, number: int) -> Copy | None:
    """Return what is remembered of a chapter's copy; None if the learner has not started it."""
    return _read(house).get(str(number))


def started_copy(house: House, chapter: Chapter) -> Copy:
    """Return what is remembered of a chapter's copy, which must be there."""
    copy, n = find_copy(house, chapter.number), chapter.number
    if copy is None:
        raise CourseError(f"chapter {n} is not started: `minibroker course start {n}`")
    for package in chapter.packages:
        place = house.workspace / "minibroker" / package
        if not place.is_dir():
            build = " --build" if chapter.track is Track.BUILD else ""
            raise CourseError(
                f"{house.show(place)} is missing from your copy of chapter {n}: `minibroker course start {n}{build}` "
                "sets aside what is left of it and starts anew"
            )
    return copy


def save_copy(house: House, number: int, copy: Copy) -> None:
    """Remember a chapter's copy."""
    _write(house.workspace, {**_read(house), str(number): copy})


def _taken(house: House, packages: set[str]) -> list[Path]:
    places = [house.workspace / "minibroker" / package for package in sorted(packages)]
    return [place for place in places if place.exists()]


def _set_aside(house: House, chapter: Chapter, packages: list[Path], copy: Copy | None) -> Path:
    number = 1
    while (aside := house.workspace / ".old" / f"{chapter.folder.name}.{number}").exists():
        number += 1
    (aside / "minibroker").mkdir(parents=True)
    for package in packages:
        shutil.move(package, aside / "minibroker" / package.name)
    if copy:
        _write(aside, {str(chapter.number): copy})
    return aside


def _earlier_copy(house: House, chapter: Chapter) -> Path | None:
    """Return where the copy of the chapter's track is that was set aside last."""
    folders = (house.workspace / ".old").glob(f"{chapter.folder.name}.*/")
    for folder in sorted(folders, key=lambda path: int(path.suffix[1:]), reverse=True):
        copy = _read(house, folder).get(str(chapter.number))
        if copy and copy.track == chapter.track:
            return folder
    return None


def _read(house: House, folder: Path | None = None) -> dict[str, Copy]:
    path = (folder or house.workspace) / RECORD
    try:
        chapters: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["chapters"]
        return {number: _copy_of(entry) for number, entry in chapters.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise CourseError(f"{house.show(path)} cannot be read: move it away and start the chapter again") from error


def _copy_of(entry: dict[str, Any]) -> Copy:
    # Records from before there were two tracks do not name one.
    track = Track(entry.get("track", Track.FAST))
    return Copy(entry["files"], entry["checked"], entry.get("others_failing"), track)


def _write(folder: Path, copies: dict[str, Copy]) -> None:
    chapters = {number: asdict(copy) for number, copy in copies.items()}
    text = json.dumps({"chapters": chapters}, indent=2, sort_keys=True) + "\n"
    # Replaced in one step, so that no command ever reads half a record.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=RECORD, delete=False) as file:
        file.write(text)
    os.replace(file.name, folder / RECORD)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_MAX])
    return f"{shown} and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else shown


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
