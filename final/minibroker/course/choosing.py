"""Which of the learner's packages a run uses.

A chapter builds on all earlier ones, so an unfinished copy of chapter 1 would fail every test of chapter 4. A run
therefore uses a copy only if its chapter is *done*, that is, `course check` passed with the code that is there now, or
if the run tests that very chapter. The reference replaces the other copies, and the run says why.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from minibroker.course.errors import CourseError
from minibroker.course.exercises import load_chapter
from minibroker.course.overview import open_work
from minibroker.course.repository import CHAPTER_NUMBERS, Repository
from minibroker.course.workspace import Copy, find_copy, held_packages


@dataclass(frozen=True)
class Choice:
    """The packages of the workspace that a run uses, and those that it does not use, with the reason for each."""

    mine: tuple[str, ...]
    unused: dict[str, str]
    unfinished: tuple[int, ...]
    """The chapters of the packages that are not used."""
    reference: tuple[Path, ...]
    """The folders of the chapters whose reference is used. They come before the workspace on `sys.path`."""


def choose(repository: Repository, tested: Collection[int], *, unfinished: bool = False) -> Choice:
    """Choose the copies that are done or belong to the chapters `tested`; with `unfinished`, choose all of them."""
    unused: dict[str, str] = {}
    numbers: list[int] = []
    reference: list[Path] = []
    for number in CHAPTER_NUMBERS:
        copy, folder = find_copy(repository, number), repository.folder(number)
        if copy is None or folder is None or number in tested or unfinished:
            continue
        if reason := why_unfinished(repository, number, copy):
            unused.update(dict.fromkeys(copy.packages, reason))
            numbers.append(number)
            reference.append(folder)
    held = held_packages(repository.workspace)
    return Choice(
        mine=tuple(package for package in held if package not in unused),
        unused={package: reason for package, reason in unused.items() if package in held},
        unfinished=tuple(numbers),
        reference=tuple(reference),
    )


def why_unfinished(repository: Repository, number: int, copy: Copy) -> str:
    """Return the reason why a chapter is not done, with the command that explains more; empty if it is done."""
    try:
        missing = open_work(repository, load_chapter(repository, number, copy.track), copy)
    except CourseError as error:
        missing = str(error)
    return f"because chapter {number} is not done ({missing})" if missing else ""


def chapters_of(repository: Repository, paths: Iterable[Path]) -> set[int]:
    """Return the numbers of the chapters whose folders contain one of these paths, or are contained in one."""
    folders = {number: folder.resolve() for number in CHAPTER_NUMBERS if (folder := repository.folder(number))}
    return {
        number
        for path in map(Path.resolve, paths)
        for number, folder in folders.items()
        if path.is_relative_to(folder) or folder.is_relative_to(path)
    }
