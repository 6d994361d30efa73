"""One row per chapter: whether it is written, how many tasks each track has and how many are done, and the state."""

from dataclasses import dataclass

from minibroker.course.checking import DONE
from minibroker.course.errors import CourseError
from minibroker.course.exercises import FILE_NAME, Chapter, Track, chapter_title, count_tasks, is_written, load_chapter
from minibroker.course.repository import CHAPTER_NUMBERS, Repository
from minibroker.course.workspace import Copy, drift, files_digest, find_copy, last_copy


@dataclass(frozen=True)
class Row:
    """One chapter of the course: how many exercises (fast track) and modules to build it has, and how many are done.

    A number of done tasks is None if the track was not started.
    """

    chapter: int
    title: str
    written: bool
    exercises: int
    builds: int
    state: str
    exercises_done: int | None = None
    builds_done: int | None = None


def overview(repository: Repository) -> list[Row]:
    """Return a row for every chapter, written or not."""
    return [_row(repository, number) for number in CHAPTER_NUMBERS]


def _row(repository: Repository, number: int) -> Row:
    folder = repository.folder(number)
    title = chapter_title(folder) if folder else ""
    if folder is None or not is_written(folder):
        return Row(number, title, written=False, exercises=0, builds=0, state="not written yet")
    if not (folder / FILE_NAME).is_file():
        return Row(number, title, written=True, exercises=0, builds=0, state="no exercises yet")
    counts = count_tasks(repository, number)
    done = {track: _done(repository, number, track) for track in Track if counts[track]}
    return Row(
        chapter=number,
        title=title,
        written=True,
        exercises=counts[Track.FAST],
        builds=counts[Track.BUILD],
        state=_state(repository, number),
        exercises_done=done.get(Track.FAST),
        builds_done=done.get(Track.BUILD),
    )


def _done(repository: Repository, number: int, track: Track) -> int | None:
    chapter = load_chapter(repository, number, track)
    copy = last_copy(repository, chapter)
    return None if copy is None else sum(copy.checked.get(task.id) == DONE for task in chapter.tasks)


def _state(repository: Repository, number: int) -> str:
    copy = find_copy(repository, number)
    if copy is None:
        return "not started"
    try:
        chapter = load_chapter(repository, number, copy.track)
    except CourseError:
        return f"started on the {copy.track} track, which the chapter no longer has"
    state = open_work(repository, chapter, copy) or _count_done(chapter, copy)
    state = f"build track: {state}" if copy.track is Track.BUILD else state
    return f"{state}; your copy no longer matches the repository" if drift(chapter, copy) else state


def open_work(repository: Repository, chapter: Chapter, copy: Copy) -> str:
    """Return how far an unfinished copy is; empty if the copy is done.

    A copy is done when `course check` has passed with its current code, including the chapter's other tests.
    """
    if not copy.checked:
        return "started, not checked yet"
    done, check = _count_done(chapter, copy), f"run `minibroker course check {chapter.number}`"
    if not all(copy.checked.get(task.id) == DONE for task in chapter.tasks):
        return done
    if copy.others_failing is None:
        return f"{done}, but other tests of the chapter have not run; {check}"
    if copy.others_failing:
        return f"{done}, but other tests of the chapter fail ({copy.others_failing}); {check}"
    if copy.passed and copy.passed != files_digest(repository.workspace, copy.packages):
        return f"{done}, but your code has changed since; {check}"
    return ""


def _count_done(chapter: Chapter, copy: Copy) -> str:
    done = sum(copy.checked.get(task.id) == DONE for task in chapter.tasks)
    return f"{done} of {len(chapter.tasks)} done"
