"""Help for a learner who is stuck: the hints of a task in steps, and the section of its lesson to read again."""

from minibroker.course.exercises import Chapter, Task
from minibroker.course.repository import Repository
from minibroker.course.workspace import Copy, save_copy

SECTION = "## The mechanism"


def next_hints(repository: Repository, chapter: Chapter, copy: Copy, task: Task) -> tuple[tuple[str, ...], int]:
    """Return the hints that were shown before and one more, and the number of all hints."""
    hints = task.outline((chapter.folder / task.file).read_text(encoding="utf-8"))
    copy.hinted[task.id] = min(copy.hinted.get(task.id, 0) + 1, len(hints))
    save_copy(repository, chapter.number, copy)
    return hints[: copy.hinted[task.id]], len(hints)


def lesson_to_read(repository: Repository, chapter: Chapter, task: Task) -> str:
    """Return the page, and if it has one, the section that explains the task's mechanism; empty without a lesson."""
    if not task.lesson:
        return ""
    page = chapter.folder / task.lesson
    lines = page.read_text(encoding="utf-8").splitlines()
    section = f", {SECTION.removeprefix('## ')} (line {lines.index(SECTION) + 1})" if SECTION in lines else ""
    return f"{repository.show(page)}{section}"
