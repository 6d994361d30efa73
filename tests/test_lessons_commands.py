"""Every command that a page shows is run, in a copy of the repository, and does what the page says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import case
from lessons import (
    ROOT,
    Command,
    Page,
    Reader,
    commands,
    contents,
    copy_repository,
    output_matches,
    pages,
    restore,
    traces,
)

PAGES = [page for page in pages(ROOT) if commands(page)]

# How many fences of each page are not run. Each carries its reason; a new one is a decision, so it is counted here.
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 6,
    "chapters/01-log/README.md": 1,
    "chapters/02-segments-index/README.md": 1,
    "chapters/03-partitions/README.md": 1,
    "chapters/04-replication-isr/README.md": 2,
    "chapters/04-replication-isr/lessons/10-bugs-planted.md": 2,
    "chapters/05-raft-controller/README.md": 1,
    "chapters/05-raft-controller/lessons/10-looking-back.md": 1,
    "chapters/06-groups-offsets/lessons/12-looking-back.md": 1,
    "chapters/07-zero-copy-perf/README.md": 1,
    "chapters/07-zero-copy-perf/lessons/03-a-small-request.md": 1,
    "chapters/07-zero-copy-perf/lessons/06-the-race.md": 1,
    "chapters/07-zero-copy-perf/lessons/07-looking-back.md": 1,
    "docs/index.md": 2,
    "docs/operations/pipelines.md": 2,
    "docs/operations/three-machines.md": 6,
    "docs/spark.md": 3,
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the repository, and what is in it. Each page leaves it as it was."""
    repository = copy_repository(ROOT, tmp_path_factory.mktemp("lessons") / "minibroker")
    return repository, contents(repository)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.where))
def test_the_commands_of_a_page_do_what_it_says(page: Page, clone: tuple[Path, dict[str, str]]) -> None:
    repository, before = clone
    reader = Reader(repository)
    try:
        for command in commands(page):
            fault = reader.fault(command)
            assert fault is None, f"{page.where}, {fault}"
    finally:
        reader.leave()
        after = contents(repository)
        restore(repository, ROOT, before, after)
    # The commands of a lesson leave nothing in a clone that git, or these tests, would see.
    assert traces(ROOT, before, after) == []


def test_no_more_fences_are_exempt_than_were_decided() -> None:
    counted = {str(page.where): sum("no-run" in fence.marks for fence in page.fences()) for page in pages(ROOT)}
    assert {where: count for where, count in counted.items() if count} == NOT_RUN


# The checks themselves


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    repository = tmp_path / "repository"
    repository.mkdir()
    reader = Reader(repository)
    yield reader
    reader.leave()


def page_of(reader: Reader, text: str) -> Page:
    (reader.repository / "README.md").write_text(text)
    return Page(reader.repository, Path("README.md"))


def faults(reader: Reader, text: str) -> list[str]:
    return [fault for command in commands(page_of(reader, text)) if (fault := reader.fault(command))]


def test_a_failing_command_is_flagged(reader: Reader) -> None:
    (fault,) = faults(reader, "```sh\ntrue\nls /nowhere/at/all\ntrue\n```\n")
    assert "line 2: failed" in fault
    assert "/nowhere/at/all" in fault


def test_a_wrong_output_is_flagged(reader: Reader) -> None:
    (fault,) = faults(reader, "```console\n$ echo one\none\n$ echo two\nthree\n```\n")
    assert "line 4: the output differs" in fault


def test_a_true_output_passes(reader: Reader) -> None:
    assert faults(reader, "```console\n$ printf 'one\\ntwo\\n'\none\ntwo\n$ true\n```\n") == []


def test_a_command_that_is_meant_to_fail_must_fail(reader: Reader) -> None:
    assert faults(reader, "<!-- fails: on purpose -->\n```console\n$ false\n```\n") == []
    assert len(faults(reader, "<!-- fails: on purpose -->\n```console\n$ true\n```\n")) == 1


def test_a_fence_marked_no_run_is_not_run(reader: Reader) -> None:
    assert faults(reader, "<!-- no-run: it would fail -->\n```sh\nfalse\n```\n") == []


def test_a_reader_has_one_shell(reader: Reader) -> None:
    first = "```sh\nmkdir there\ncd there\nexport WHERE=here\n```\n"
    second = "```console\n$ basename $PWD; echo $WHERE\nthere\nhere\n```\n"
    assert faults(reader, first + "\n" + second) == []


def test_a_command_may_be_continued_on_the_next_line(reader: Reader) -> None:
    assert faults(reader, "```console\n$ echo one \\\n>   two\none two\n```\n") == []


def test_what_is_left_in_the_background_does_not_hold_the_reader_up(reader: Reader) -> None:
    assert reader.run("sleep 1000 &\necho started") == (0, "started\n")


def test_activating_the_environment_is_harmless(reader: Reader) -> None:
    assert faults(reader, "```sh\n. .venv/bin/activate\npython -c 'import click'\n```\n") == []


def test_the_copy_runs_its_own_code(reader: Reader) -> None:
    package = reader.repository / "final/minibroker/attic"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('the copy')\n")
    assert reader.run("python -c 'import minibroker.attic'") == (0, "the copy\n")


def test_what_a_command_leaves_is_a_trace_unless_git_ignores_it() -> None:
    before = {"README.md": "1", "docs/a.svg": "1", "gone.md": "1"}
    after = {"README.md": "1", "docs/a.svg": "2", "orders.log": "1", "data/orders-0/0.log": "1", "docs/orders.log": "1"}
    assert traces(ROOT, before, after) == ["docs/a.svg", "docs/orders.log", "gone.md"]


def test_a_copy_is_restored_after_a_page(tmp_path: Path) -> None:
    for root in (tmp_path / "root", tmp_path / "copy"):
        (root / "docs").mkdir(parents=True)
        (root / "README.md").write_text("one\n")
        (root / "docs/a.svg").write_text("two\n")
    copy = tmp_path / "copy"
    before = contents(copy)
    (copy / "README.md").write_text("changed\n")
    (copy / "docs/a.svg").unlink()
    (copy / "docs/b.svg").touch()
    (copy / "fresh/data/orders-0").mkdir(parents=True)
    (copy / "fresh/data/orders-0/0.log").touch()
    restore(copy, tmp_path / "root", before, contents(copy))
    assert contents(copy) == before
    assert not (copy / "fresh").exists()


def test_dots_in_an_expected_output_stand_for_anything() -> None:
    for expected, actual, matches in (
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a"], True),
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "...", "d"], ["a", "b", "c"], False),
        (["took … ms"], ["took 12 ms"], True),
        (["took ... ms"], ["took 12 s"], False),
        (["(a+b)"], ["(a+b)"], True),
        (["a  "], ["a"], True),
        (["…"], [], True),
    ):
        with case(expected, actual, matches):
            assert output_matches(expected, actual) is matches


def test_a_page_gives_its_commands_in_order(reader: Reader) -> None:
    page = page_of(reader, "# A\n\n```sh\none\n```\n\n```console\n$ two\n2\n$ three\n```\n")
    assert commands(page) == [
        Command(4, "one", None, False),
        Command(8, "two", ["2"], False),
        Command(10, "three", None, False),
    ]
