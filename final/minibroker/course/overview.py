"""One row per chapter: is it there, how many exercises has it, how far is the learner."""

from dataclasses import dataclass

from minibroker.course.checking import DONE
from minibroker.course.exercises import FILE_NAME, Chapter, chapter_title, is_written, load_chapter
from minibroker.course.house import CHAPTER_NUMBERS, House
from minibroker.course.workspace import Copy, find_copy, moved_on


@dataclass(frozen=True)
class Row:
    """One chapter of the course."""

    chapter: int
    title: str
    written: bool
    exercises: int
    state: str


def overview(house: House) -> list[Row]:
    """Return a row for every chapter, written or not."""
    return [_row(house, number) for number in CHAPTER_NUMBERS]


def _row(house: House, number: int) -> Row:
    folder = house.folder(number)
    title = chapter_title(folder) if folder else ""
    if folder is None or not is_written(folder):
        return Row(number, title, written=False, exercises=0, state="not written yet")
    if not (folder / FILE_NAME).is_file():
        return Row(number, title, written=True, exercises=0, state="no exercises yet")
    chapter = load_chapter(house, number)
    return Row(number, title, written=True, exercises=len(chapter.exercises), state=_state(house, chapter))


def _state(house: House, chapter: Chapter) -> str:
    copy = find_copy(house, chapter.number)
    if copy is None:
        return "not started"
    state = _progress(chapter, copy) if copy.checked else "started, not checked yet"
    return f"{state}; the reference moved on" if moved_on(chapter, copy) else state


def _progress(chapter: Chapter, copy: Copy) -> str:
    done = sum(copy.checked.get(exercise.id) == DONE for exercise in chapter.exercises)
    progress = f"{done} of {len(chapter.exercises)} done"
    if done < len(chapter.exercises) or copy.others_failing == 0:
        return progress
    # The exercises are not the whole chapter: its other tests run when all of them are done.
    others = "have not run" if copy.others_failing is None else f"fail: {copy.others_failing}"
    return f"{progress}, but other tests of the chapter {others}; `minibroker course check {chapter.number}`"
