"""The lessons of this chapter agree with the code: the diagram of states is the table of transitions."""

import re
import runpy
from pathlib import Path

CHAPTER = Path(__file__).parents[1]
LESSON = CHAPTER / "lessons" / "02-joining.md"


def test_the_lesson_draws_every_transition_of_a_classic_group_and_no_other() -> None:
    """The diagram is made by `python chapters/06-groups-offsets/examples/group_states.py`."""
    drawing = runpy.run_path(str(CHAPTER / "examples" / "group_states.py"))["drawing"]()
    (drawn,) = re.findall(r"^```mermaid\n(stateDiagram.*?)\n```$", LESSON.read_text(), re.MULTILINE | re.DOTALL)
    assert drawn == drawing
