"""The diagram of the lesson is the table of roles, line by line."""

import re
from pathlib import Path

from minibroker.raft.roles import NEXT

LESSON = Path(__file__).parents[1] / "README.md"


def test_the_lesson_draws_every_change_of_role_and_no_other() -> None:
    (diagram,) = re.findall(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", LESSON.read_text(), re.MULTILINE | re.DOTALL)
    expected = {f"{role.value} --> {after.value}: {cause.value}" for (role, cause), after in NEXT.items()}
    assert {line.strip() for line in diagram.splitlines()} == expected
