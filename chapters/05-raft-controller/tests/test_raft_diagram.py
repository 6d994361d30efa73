"""The lesson's diagram of roles and list of planted bugs agree with the code."""

import re
import runpy
from pathlib import Path

from planted_bugs import BUGS

CHAPTER = Path(__file__).parents[1]
LESSON = (CHAPTER / "README.md").read_text(encoding="utf-8")
FIGURE = CHAPTER.parents[1] / "docs" / "chapters" / CHAPTER.name / "figures" / "roles.svg"


def test_the_figure_draws_every_change_of_role_and_no_other() -> None:
    """It is made by `python chapters/05-raft-controller/examples/roles.py`."""
    path = str(CHAPTER / "examples" / "roles.py")
    assert runpy.run_path(path)["drawing"]() == FIGURE.read_text(encoding="utf-8")


def test_the_lesson_lists_every_planted_bug_with_what_finds_it() -> None:
    (table,) = re.findall(r"^\| planted \| found by \|\n\|---\|---\|\n((?:\|.*\n)+)", LESSON, re.MULTILINE)
    assert table.splitlines() == [f"| {bug.name} | {bug.found_by} |" for bug in BUGS]
