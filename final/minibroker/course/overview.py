"""One row per chapter: is it there, how many tasks has it on each track, how far is the learner."""

from dataclasses import dataclass

from minibroker.course.checking import DONE
from minibroker.course.errors import CourseError
from minibroker.course.exercises import FILE_NAME, Chapter, Track, chapter_title, count_tasks, is_written, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House
from minibroker.course.workspace import Copy, drift, find_copy


@dataclass(frozen=True)
class Row:
    """One chapter of the course: how many exercises (fast track) and modules to build it has."""

    chapter: int
    title: str
    written: bool
    exercises: int
    builds: int
    state: str


def overview(house: House) -> list[Row]:
    """Return a row for every chapter, written or not."""
    return [_row(house, number) for number in CHAPTER_NUMBERS]


def _row(house: House, number: int) -> Row:
    folder = house.folder(number)
    title = chapter_title(folder) if folder else ""
    if folder is None or not is_written(folder):
        return Row(number, title, written=False, exercises=0, builds=0, state="not written yet")
    if not (folder / FILE_NAME).is_file():
        return Row(number, title, written=True, exercises=0, builds=0, state="no exercises yet")
    counts = count_tasks(house, number)
    return Row(number, title, True, counts[Track.FAST], counts[Track.BUILD], _state(house, number))


def _state(house: House, number: int) -> str:
    copy = find_copy(house, number)
    if copy is None:
        return "not started"
    try:
        chapter = load_chapter(house, number, copy.track)
    except CourseError:
        return f"started on the {copy.track} track, which the chapter no longer has"
    state = _progress(chapter, copy) if copy.checked else "started, not checked yet"
    state = f"build track: {state}" if copy.track is Track.BUILD else state
    return f"{state}; no longer matches the repository" if drift(chapter, copy) else state


def _progress(chapter: Chapter, copy: Copy) -> str:
    done = sum(copy.checked.get(task.id) == DONE for task in chapter.tasks)
    progress = f"{done} of {len(chapter.tasks)} done"
    if done < len(chapter.tasks) or copy.others_failing == 0:
        return progress
    # The tasks are not the whole chapter: its other tests run when all of them are done.
    others = "have not run" if copy.others_failing is None else f"fail: {copy.others_failing}"
    return f"{progress}, but other tests of the chapter {others}; `minibroker course check {chapter.number}`"
