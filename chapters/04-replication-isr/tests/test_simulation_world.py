"""Finding, replaying, shrinking and drawing failures of a toy world whose bugs are known."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from register_world import ForgetfulWorld, StutteringWorld, World
from simulation_claims import check_one_trace

from minibroker.simulation.__main__ import main
from minibroker.simulation.diagram import draw, tail_ms
from minibroker.simulation.running import replay, run_seeds, shrunk
from minibroker.simulation.trace import MARK, Happened, lines

HERE = Path(__file__).parent
SEEDS = range(1, 21)


def test_a_correct_world_passes_and_reaches_its_states() -> None:
    summary = run_seeds(World, SEEDS)
    assert summary.failures == []
    assert summary.missing == []
    assert summary.seeds == len(SEEDS)
    assert min(summary.acks, summary.faults, summary.events, summary.virtual_ms) > 0
    assert "20 seeds" in summary.text()


@pytest.mark.parametrize(("world", "invariants"), [(ForgetfulWorld, {1, 2}), (StutteringWorld, {3, 4})])
def test_a_planted_bug_is_found_replayed_and_shrunk(world: type[World], invariants: set[int]) -> None:
    failure = run_seeds(world, range(1, 101)).failure
    assert failure is not None
    assert failure.invariant in invariants
    # The same seed fails in the same way.
    again = replay(world, failure.seed)
    assert (again.violation, again.faults, again.events) == (failure.violation, failure.faults, failure.events)
    # Most faults do not matter: the rest still fails, and without any one of them it does not.
    fewer = shrunk(world, failure)
    assert len(fewer) < len(failure.faults)
    assert replay(world, failure.seed, fewer).invariant == failure.invariant
    for fault in fewer:
        left = [it for it in fewer if it is not fault]
        assert replay(world, failure.seed, left).invariant != failure.invariant


class BrokenWorld(World):
    def play(self) -> None:
        self.scheduler.run(7)
        raise ValueError("a bug")


def test_an_error_in_the_code_is_a_failure_with_its_place() -> None:
    outcome = BrokenWorld(1).run()
    assert outcome.invariant is None
    assert outcome.violation is not None
    assert outcome.violation.startswith("the code failed at 7 ms: ValueError: a bug (")
    assert "test_simulation_world.py" in outcome.violation


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_has_one_trace_under_any_hash_seed(seed: int) -> None:
    check_one_trace(World, seed)


def test_no_trace_is_kept_unless_requested() -> None:
    assert World(1).run().entries == []


# The diagram


def test_a_run_is_drawn_with_all_that_happens_in_the_window() -> None:
    outcome = World(3, is_traced=True).run()
    killed = next(it.at_ms for it in outcome.entries if isinstance(it, Happened) and it.what == "killed")
    drawing = draw(outcome.entries, title="A kill", from_ms=killed - 40, to_ms=killed + 300)
    ElementTree.fromstring(drawing)
    assert all(f">{words}<" in drawing for words in ("A kill", "a", "b", "server", "killed", "started", "life 2"))
    assert "polygon" in drawing
    assert "prefers-color-scheme:dark" in drawing


def test_a_drawing_shows_only_the_selected_entries() -> None:
    outcome = World(3, is_traced=True).run()
    whole = draw(outcome.entries, title="x")
    quiet = draw(outcome.entries, title="x", nodes=["a", "server"], shows=lambda it: getattr(it, "what", "") != MARK)
    assert ">b<" in whole
    assert ">b<" not in quiet
    assert "end " in whole
    assert "end " not in quiet
    assert tail_ms(outcome.entries, 10) > tail_ms(outcome.entries, 100)
    assert tail_ms([]) == 0


# The program


def test_the_program_runs_seeds_in_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["register_world", "--path", str(HERE), "--seeds", "20", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^20 seeds in .* seeds/s, 0 failed$", printed, re.MULTILINE)
    assert re.search(r"^ +[\d,]+  restart$", printed, re.MULTILINE)


def test_the_program_reports_a_failure_with_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_register.py").write_text("from register_world import StutteringWorld as World\n")
    assert main(["broken_register", "--path", str(tmp_path), "--seeds", "50", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    found = re.search(r"^again: python -m minibroker.simulation (.*)$", printed, re.MULTILINE)
    assert found is not None
    assert "invariant" in printed
    # Run the printed command, and draw a picture.
    figure = tmp_path / "run.svg"
    assert main([*found[1].split(), "--draw", str(figure)]) == 1
    again = capsys.readouterr().out
    assert again[again.index("\nseed") :] == printed[printed.index("\nseed") :]
    ElementTree.parse(figure)


def test_the_program_stops_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["register_world", "--path", str(HERE), "--seeds", "1000000", "--jobs", "1", "--seconds", "0.1"]) == 0
    assert "seeds/s" in capsys.readouterr().out


def test_the_program_fails_if_a_state_was_never_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "import register_world\nclass World(register_world.World):\n"
    source += "    STATES = (*register_world.World.STATES, 'utopia')\n    STORM_MS = 50\n"
    (tmp_path / "hopeful_register.py").write_text(source)
    assert main(["hopeful_register", "--path", str(tmp_path), "--seeds", "100", "--jobs", "1"]) == 1
    assert "never reached: utopia" in capsys.readouterr().out


def test_the_whole_trace_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["register_world", "--path", str(HERE), "--replay", "3", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("\n".join(lines(World(3, is_traced=True).run().entries)))
    assert "every invariant holds" in printed
