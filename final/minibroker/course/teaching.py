"""Help for a learner who is stuck: the hints of a task in steps, and the part of its lesson to read again."""

import re

from minibroker.course.exercises import Build, Chapter, Task
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
    """Return the page and the line of the mechanism, or of the task of a module to build; empty without a lesson."""
    if not task.lesson:
        return ""
    page = chapter.folder / task.lesson
    lines = page.read_text(encoding="utf-8").splitlines()
    name, start = SECTION.removeprefix("## "), f"{SECTION}$"
    if isinstance(task, Build):
        name, start = f"task {task.id}", rf"\*\*Build track,.* {re.escape(task.id)}:"
    row = next((row for row, line in enumerate(lines, start=1) if re.match(start, line)), None)
    return f"{repository.show(page)}, {name} (line {row})" if row else repository.show(page)
