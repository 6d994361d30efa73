"""The learner's copies: made once, never overwritten, and remembered with the reference they were made from.

workspace/minibroker/log/       the copy of a chapter's package, exercises stripped
workspace/.old/01-log.1/        what `start --again` set aside, numbered
workspace/.course.json          per chapter: the hash of every reference file at copy time; what the last check said
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
from minibroker.course.exercises import Chapter, Exercise
from minibroker.course.house import House
from minibroker.course.stripping import strip

RECORD = ".course.json"


@dataclass
class Copy:
    """What is remembered of a copy: reference file → hash, exercise id → state at the last check.

    And how many of the chapter's other tests failed; None if they have not run since an exercise was open.
    """

    files: dict[str, str]
    checked: dict[str, str] = field(default_factory=dict)
    others_failing: int | None = None


def start(house: House, chapter: Chapter, *, again: bool = False) -> Path | None:
    """Copy the chapter's packages into the workspace; return where an older copy was put, if any."""
    taken = [path for path in _rooms_in_workspace(house, chapter) if path.exists()]
    if taken and not again:
        n = chapter.number
        raise CourseError(
            f"{house.show(taken[0])} is already there: `minibroker course check {n}` tests it, "
            f"`minibroker course start {n} --again` keeps it aside and starts anew"
        )
    house.workspace.mkdir(parents=True, exist_ok=True)
    # The copy is made beside its place and moved in whole: an interrupted start leaves no half package.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=house.workspace) as fresh:
        files = copy_rooms(chapter, Path(fresh), chapter.exercises)
        aside = _set_aside(house, chapter, taken) if taken else None
        for room in _rooms_in_workspace(house, chapter):
            room.parent.mkdir(exist_ok=True)
            (Path(fresh) / "minibroker" / room.name).rename(room)
    save_copy(house, chapter.number, Copy(files))
    return aside


def copy_rooms(chapter: Chapter, into: Path, exercises: Iterable[Exercise]) -> dict[str, str]:
    """Copy the chapter's packages with these exercises stripped; return the hash of every reference file."""
    stripped = list(exercises)
    hashes = {}
    for name, path in reference_files(chapter):
        content = path.read_bytes()
        hashes[name] = _hash(content)
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_strip_all(content, [it for it in stripped if it.file == name]))
    return hashes


def reference_files(chapter: Chapter) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every file in the packages that hold the chapter's exercises."""
    for room in chapter.rooms:
        for path in sorted((chapter.folder / "minibroker" / room).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(chapter.folder).as_posix(), path


def moved_on(chapter: Chapter, copy: Copy) -> list[str]:
    """Return the reference files that changed, came or went since the copy was made."""
    now = {name: _hash(path.read_bytes()) for name, path in reference_files(chapter)}
    return sorted(name for name in now.keys() | copy.files.keys() if now.get(name) != copy.files.get(name))


def find_copy(house: House, number: int) -> Copy | None:
    """Return what is remembered of a chapter's copy; None if the learner has not started it."""
    entry = _read(house).get(str(number))
    return Copy(entry["files"], entry["checked"], entry.get("others_failing")) if entry else None


def started_copy(house: House, chapter: Chapter) -> Copy:
    """Return what is remembered of a chapter's copy, which must be there."""
    copy = find_copy(house, chapter.number)
    if copy is None or not all(path.is_dir() for path in _rooms_in_workspace(house, chapter)):
        raise CourseError(f"chapter {chapter.number} is not started: `minibroker course start {chapter.number}`")
    return copy


def save_copy(house: House, number: int, copy: Copy) -> None:
    """Remember a chapter's copy."""
    chapters = {**_read(house), str(number): asdict(copy)}
    text = json.dumps({"chapters": chapters}, indent=2, sort_keys=True) + "\n"
    # Replaced in one step, so that nobody ever reads half a record.
    with tempfile.NamedTemporaryFile("w", dir=house.workspace, prefix=RECORD, delete=False) as file:
        file.write(text)
    os.replace(file.name, house.workspace / RECORD)


def _strip_all(content: bytes, exercises: list[Exercise]) -> bytes:
    if not exercises:
        return content
    source = content.decode()
    for exercise in exercises:
        for function in exercise.functions:
            source = strip(source, function, exercise.id)
    return source.encode()


def _rooms_in_workspace(house: House, chapter: Chapter) -> list[Path]:
    return [house.workspace / "minibroker" / room for room in chapter.rooms]


def _set_aside(house: House, chapter: Chapter, rooms: list[Path]) -> Path:
    number = 1
    while (aside := house.workspace / ".old" / f"{chapter.folder.name}.{number}").exists():
        number += 1
    (aside / "minibroker").mkdir(parents=True)
    for room in rooms:
        shutil.move(room, aside / "minibroker" / room.name)
    return aside


def _read(house: House) -> dict[str, Any]:
    path = house.workspace / RECORD
    try:
        chapters: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["chapters"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise CourseError(f"{house.show(path)} cannot be read: move it away and start the chapter again") from error
    return chapters


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
