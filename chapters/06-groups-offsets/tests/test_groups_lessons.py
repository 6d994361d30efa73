"""The lessons of this chapter agree with the code: a diagram of states is the table of transitions."""

import re
import runpy
from pathlib import Path

from cases import case

CHAPTER = Path(__file__).parents[1]
LESSONS = {"group": "02-joining.md", "transaction": "08-two-phases.md"}


def test_a_lesson_draws_every_transition_of_its_table_and_no_other() -> None:
    """The diagrams are made by `python chapters/06-groups-offsets/examples/draw_states.py`."""
    drawing = runpy.run_path(str(CHAPTER / "examples" / "draw_states.py"))["drawing"]
    for what, lesson in LESSONS.items():
        with case(what):
            text = (CHAPTER / "lessons" / lesson).read_text()
            (drawn,) = re.findall(r"^```mermaid\n(stateDiagram.*?)\n```$", text, re.MULTILINE | re.DOTALL)
            assert drawn == drawing(what)
