"""The proof of a task: with its code taken out, every test it lists fails, and fails for that reason.

Without this proof a task could count as done before the learner has written a line. `tests/test_exercises_proof.py`
proves every task of every chapter. Each function here returns complaints; an empty list is the proof.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from minibroker.course.checking import Outcome, node_ids, outcomes_of, run_tests
from minibroker.course.exercises import Chapter, Exercise, Task
from minibroker.course.repository import Repository
from minibroker.course.workspace import copy_packages


def complaints_about_reference(repository: Repository, chapter: Chapter) -> list[str]:
    """Run every listed test of the chapter against the reference: each must be there and pass."""
    tests = [test for task in chapter.tasks for test in node_ids(repository, chapter, task)]
    outcomes = run_tests(repository, tests, mine=False)
    return [complaint for test in tests for complaint in _unless_all(test, "passed", outcomes)]


def complaints_about_task(repository: Repository, chapter: Chapter, task: Task, scratch: Path) -> list[str]:
    """Strip this task alone, in a workspace under `scratch`: each of its tests must fail because of it.

    A test that fails because a body is missing has imported the stripped module, so that is proved as well.
    """
    tests = node_ids(repository, chapter, task)
    outcomes = _run_without(repository, chapter, [task], tests, scratch / "all")
    complaints = [
        complaint
        for test in tests
        for complaint in (*_unless_all(test, "failed", outcomes), *_unless_because(test, task, outcomes))
    ]
    # Of several functions each must count: one that no test needs would never have to be written. A function whose
    # missing body made a test fail above was the first one that this test reached, so it counts.
    if isinstance(task, Exercise) and len(task.functions) > 1:
        reached = {function for outcome in outcomes for label, function in outcome.stripped if label == task.label}
        for function in [name for name in task.functions if name not in reached]:
            alone = replace(task, functions=(function,))
            outcomes = _run_without(repository, chapter, [alone], tests, scratch / function, to_first_failure=True)
            if all(it.outcome == "passed" for it in outcomes):
                complaints.append(f"{task.id}: with {function} alone taken out, all tests pass")
    return complaints


def complaints_about_order(repository: Repository, chapter: Chapter, task: Task, scratch: Path) -> list[str]:
    """Strip all later tasks: the tests of this one must pass, or a learner could not finish them in order."""
    tests = node_ids(repository, chapter, task)
    later = chapter.tasks[chapter.tasks.index(task) + 1 :]
    outcomes = _run_without(repository, chapter, later, tests, scratch)
    return [complaint for test in tests for complaint in _unless_all(test, "passed", outcomes)]


def _run_without(
    repository: Repository,
    chapter: Chapter,
    stripped: Sequence[Task],
    tests: Sequence[str],
    workspace: Path,
    *,
    to_first_failure: bool = False,
) -> list[Outcome]:
    copy_packages(chapter, workspace, stripped)
    return run_tests(Repository(repository.root, workspace), tests, mine=True, to_first_failure=to_first_failure)


def _unless_all(test: str, wanted: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    seen = outcomes_of([test], outcomes)
    if not seen:
        yield f"{test}: there is no such test"
    for outcome in seen:
        if outcome.outcome != wanted:
            yield f"{outcome.test}: {outcome.outcome}, not {wanted}{': ' if outcome.line else ''}{outcome.line}"


def _unless_because(test: str, task: Task, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes_of([test], outcomes):
        reasons = [label for label, _ in outcome.stripped]
        if outcome.outcome == "failed" and task.label not in reasons:
            yield f"{outcome.test}: fails, but not because of {task.label}: {outcome.line}"
        elif "::" not in outcome.test:
            # Then the learner could begin with no other task before this one is done.
            yield f"{outcome.test}: {task.label} is called while it is imported"
