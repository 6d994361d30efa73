"""The proof of an exercise: with its functions taken out, every test it lists fails, and fails for that reason.

Without it an exercise could be "done" before the learner wrote a line. CI runs it for every exercise of every chapter
(`tests/test_exercises_proof.py`). Each function here returns complaints; none is proof.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from minibroker.course.checking import Outcome, node_ids, outcomes_of, run_tests
from minibroker.course.exercises import Chapter, Exercise
from minibroker.course.house import House
from minibroker.course.workspace import copy_rooms


def complaints_about_reference(house: House, chapter: Chapter) -> list[str]:
    """Run every listed test of the chapter against the reference: each must be there and pass."""
    tests = [test for exercise in chapter.exercises for test in node_ids(house, chapter, exercise)]
    outcomes = run_tests(house, tests, mine=False)
    return [complaint for test in tests for complaint in _unless_all(test, "passed", outcomes)]


def complaints_about_exercise(house: House, chapter: Chapter, exercise: Exercise, scratch: Path) -> list[str]:
    """Strip this exercise alone, in a workspace under `scratch`: each of its tests must fail because of it."""
    tests = node_ids(house, chapter, exercise)
    outcomes = _run_without(house, chapter, [exercise], tests, scratch / "all")
    complaints = [
        complaint
        for test in tests
        for complaint in (*_unless_all(test, "failed", outcomes), *_unless_because(test, exercise, outcomes))
    ]
    # Of several functions each must count: one that no test needs would never have to be written.
    for function in exercise.functions if len(exercise.functions) > 1 else ():
        alone = replace(exercise, functions=(function,))
        outcomes = _run_without(house, chapter, [alone], tests, scratch / function, to_first_failure=True)
        if all(it.outcome == "passed" for it in outcomes):
            complaints.append(f"{exercise.id}: with {function} alone taken out, all tests pass")
    return complaints


def complaints_about_order(house: House, chapter: Chapter, exercise: Exercise, scratch: Path) -> list[str]:
    """Strip all later exercises: the tests of this one must pass, or a learner could not finish them in order."""
    tests = node_ids(house, chapter, exercise)
    later = chapter.exercises[chapter.exercises.index(exercise) + 1 :]
    outcomes = _run_without(house, chapter, later, tests, scratch)
    return [complaint for test in tests for complaint in _unless_all(test, "passed", outcomes)]


def _run_without(
    house: House,
    chapter: Chapter,
    stripped: Sequence[Exercise],
    tests: Sequence[str],
    workspace: Path,
    *,
    to_first_failure: bool = False,
) -> list[Outcome]:
    copy_rooms(chapter, workspace, stripped)
    return run_tests(House(house.root, workspace), tests, mine=True, to_first_failure=to_first_failure)


def _unless_all(test: str, wanted: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    seen = outcomes_of([test], outcomes)
    if not seen:
        yield f"{test}: there is no such test"
    for outcome in seen:
        if outcome.outcome != wanted:
            yield f"{outcome.test}: {outcome.outcome}, not {wanted}{': ' if outcome.line else ''}{outcome.line}"


def _unless_because(test: str, exercise: Exercise, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes_of([test], outcomes):
        reasons = [number for number, _ in outcome.stripped]
        if outcome.outcome == "failed" and exercise.id not in reasons:
            yield f"{outcome.test}: fails, but not because of exercise {exercise.id}: {outcome.line}"
        elif "::" not in outcome.test:
            # Then the learner could begin with no other exercise before this one is done.
            yield f"{outcome.test}: exercise {exercise.id} is called while it is imported"
