"""What the lesson draws and lists is what the code has: the table of roles, and the planted bugs."""

import re
from pathlib import Path

from planted_bugs import BUGS

from minibroker.raft.roles import NEXT

LESSON = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_lesson_draws_every_change_of_role_and_no_other() -> None:
    (diagram,) = re.findall(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", LESSON, re.MULTILINE | re.DOTALL)
    expected = {f"{role.value} --> {after.value}: {cause.value}" for (role, cause), after in NEXT.items()}
    assert {line.strip() for line in diagram.splitlines()} == expected


def test_the_lesson_lists_every_planted_bug_with_what_finds_it() -> None:
    (table,) = re.findall(r"^\| planted \| found by \|\n\|---\|---\|\n((?:\|.*\n)+)", LESSON, re.MULTILINE)
    assert table.splitlines() == [f"| {bug.name} | {bug.found_by} |" for bug in BUGS]
