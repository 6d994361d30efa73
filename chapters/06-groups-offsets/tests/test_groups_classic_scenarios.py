"""The main flows of the classic protocol, each compared with its recorded transcript."""

from collections.abc import Callable
from pathlib import Path

import pytest
from classic_stage import Stage

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("classic-*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_plays_as_recorded(path: Path, transcript: Callable[[Path, str], None]) -> None:
    transcript(path, Stage().play(path.read_text()))
