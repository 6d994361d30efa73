"""The lessons' diagram of roles and list of planted bugs agree with the code."""

import re
import runpy
from pathlib import Path

from planted_bugs import BUGS

CHAPTER = Path(__file__).parents[1]


def lesson(name: str) -> str:
    return (CHAPTER / "lessons" / name).read_text(encoding="utf-8")


def test_a_lesson_draws_every_change_of_role_and_no_other() -> None:
    """It is made by `python chapters/05-raft-controller/examples/draw_roles.py`."""
    drawing = runpy.run_path(str(CHAPTER / "examples" / "draw_roles.py"))["drawing"]
    (drawn,) = re.findall(r"^```mermaid\n(stateDiagram.*?)\n```$", lesson("02-ask-first.md"), re.MULTILINE | re.DOTALL)
    assert drawn == drawing()


def test_the_lesson_lists_every_planted_bug_with_what_finds_it() -> None:
    text = lesson("10-looking-back.md")
    (table,) = re.findall(r"^\| planted \| found by \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table.splitlines() == [f"| {bug.name} | {bug.found_by} |" for bug in BUGS]
