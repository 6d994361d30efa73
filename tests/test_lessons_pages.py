"""What a page says is true: its quoted code is in the file that it names, and its links lead somewhere.

Each fault names its page and line.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from lessons import (
    ROOT,
    Page,
    link_faults,
    markup_faults,
    pages,
    quotation_faults,
    shell_faults,
    site_link_faults,
)

PAGES = pages(ROOT)
CHAPTERS = [page for page in PAGES if page.where.parts[0] == "chapters"]

CODE = '''"""A module."""


def double(number: int) -> int:
    # Twice is enough.
    twice = number * 2
    return twice


class Tripler:
    def triple(self, number: int) -> int:
        return number * 3
'''


def faults_of(pages: list[Page], check: Callable[[Page], list[str]]) -> dict[str, list[str]]:
    """The faults that a check finds, by page."""
    found = {str(page.where): check(page) for page in pages}
    return {where: faults for where, faults in found.items() if faults}


def test_quoted_code_is_in_the_file_it_names() -> None:
    assert faults_of(PAGES, quotation_faults) == {}


def test_links_and_images_lead_to_files() -> None:
    assert faults_of(PAGES, link_faults) == {}


def test_shell_fences_are_of_the_kinds_that_are_run() -> None:
    assert faults_of(PAGES, shell_faults) == {}


def test_pages_read_the_same_on_the_code_host_and_on_the_site() -> None:
    assert faults_of(PAGES, markup_faults) == {}


def test_a_chapters_links_work_on_the_site_too() -> None:
    """A chapter's README is read in its folder and, through its stub, in docs/chapters/NN: a link must do in both."""
    assert faults_of(CHAPTERS, site_link_faults) == {}


# The checks themselves


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    module = tmp_path / "chapters/01-log/minibroker/log/module.py"
    module.parent.mkdir(parents=True)
    module.write_text(CODE)
    return tmp_path


def page_of(repository: Path, text: str) -> Page:
    (repository / "README.md").write_text(text)
    return Page(repository, Path("README.md"))


def quoting(code: str) -> str:
    return f'```python title="minibroker/log/module.py"\n{code}```\n'


def test_a_true_quotation_passes_at_any_indentation(repository: Path) -> None:
    for code in (
        "def double(number: int) -> int:\n    # Twice is enough.\n",
        "twice = number * 2\nreturn twice\n",
        "    def triple(self, number: int) -> int:\n        return number * 3\n",
        "def triple(self, number: int) -> int:\n    return number * 3\n",
    ):
        assert quotation_faults(page_of(repository, quoting(code))) == [], code


def test_a_wrong_quotation_is_flagged_with_the_nearest_lines(repository: Path) -> None:
    for code in (
        "def double(number: int) -> int:\n    twice = number * 2\n",
        "def double(number: int) -> int:\n    # Twice is plenty.\n",
        "def triple(self, number: int) -> int:\nreturn number * 3\n",
    ):
        faults = quotation_faults(page_of(repository, quoting(code)))
        assert len(faults) == 1, code
        assert faults[0].startswith("README.md:1: not in minibroker/log/module.py"), code
        assert "def " in faults[0], code


def test_a_quotation_of_a_missing_file_is_flagged(repository: Path) -> None:
    (fault,) = quotation_faults(page_of(repository, '```python title="minibroker/log/gone.py"\nx\n```\n'))
    assert "names 0 files" in fault


def test_python_without_a_file_needs_a_reason(repository: Path) -> None:
    assert len(quotation_faults(page_of(repository, "```python\nx = 1\n```\n"))) == 1
    assert len(quotation_faults(page_of(repository, "<!-- no-check -->\n```python\nx = 1\n```\n"))) == 1
    assert quotation_faults(page_of(repository, "<!-- no-check: pseudocode -->\n```python\nx = 1\n```\n")) == []


def test_a_fence_inside_a_list_is_checked_too(repository: Path) -> None:
    text = '1. Look:\n\n   ```python title="minibroker/log/module.py"\n   return thrice\n   ```\n'
    assert len(quotation_faults(page_of(repository, text))) == 1


def test_a_dead_link_is_flagged(repository: Path) -> None:
    for text in (
        "see [it](gone.md)",
        "![figure](gone.svg)",
        "see [it][x]\n\n[x]: gone.md",
        '<img src="gone.svg">',
        "[it](gone.md#a)",
    ):
        assert link_faults(page_of(repository, text)) != [], text


def test_a_live_link_and_an_example_of_a_link_pass(repository: Path) -> None:
    for text in (
        "[it](README.md)",
        "[it](README.md#part)",
        "[it](#part)",
        "[it](https://example.org/x)",
        "`[it](gone.md)`",
        "```\n[it](gone.md)\n```",
    ):
        assert link_faults(page_of(repository, text)) == [], text


@pytest.fixture
def chapter(repository: Path) -> Page:
    """A chapter's page that nothing is in yet, its stub, its neighbour, and a file outside the site."""
    for name in (
        "chapters/01-log",
        "chapters/02-segments",
        "docs/chapters/01-log/figures",
        "docs/chapters/02-segments",
    ):
        (repository / name).mkdir(parents=True, exist_ok=True)
        (repository / name / "README.md").touch()
    (repository / "README.md").touch()
    (repository / "docs/chapters/01-log/figures/a.svg").touch()
    return Page(repository, Path("chapters/01-log/README.md"))


def test_a_link_that_works_in_both_places_passes(chapter: Page) -> None:
    for text, stub in (
        ("[next](../02-segments/README.md)", ""),
        ("[next](../02-segments/README.md#part)", ""),
        ("[next][n]\n\n[n]: ../02-segments/README.md", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", "[f]: figures/a.svg"),
        ("[it](https://example.org/x) and [there](#part)", ""),
        ("`[it](../../README.md)`", ""),
    ):
        (chapter.root / chapter.where).write_text(text)
        (chapter.root / "docs" / chapter.where).write_text(stub)
        assert site_link_faults(chapter) == [], text


def test_a_link_that_works_only_in_the_chapters_folder_is_flagged(chapter: Page) -> None:
    for text, stub in (
        ("[up](../../README.md)", ""),
        ("[code](minibroker/log/module.py)", ""),
        ('<img src="../../docs/chapters/01-log/figures/a.svg">', ""),
        ("![figure](../../docs/chapters/01-log/figures/a.svg)", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", "[f]: figures/b.svg"),
        ("no figure any more", "[f]: figures/a.svg"),
    ):
        (chapter.root / chapter.where).write_text(text)
        (chapter.root / "docs" / chapter.where).write_text(stub)
        assert len(site_link_faults(chapter)) == 1, text
        assert link_faults(chapter) == [], text


def test_a_shell_fence_that_would_not_be_run_is_flagged(repository: Path) -> None:
    for text in (
        "```bash\nls\n```",
        "```\n$ ls\n```",
        "```console\nls\n```",
        "<!-- no-run -->\n```sh\nls\n```",
        "<!-- fails: -->\n```sh\nls\n```",
    ):
        assert shell_faults(page_of(repository, text)) != [], text


def test_folded_text_that_the_site_would_show_raw_is_flagged(repository: Path) -> None:
    assert markup_faults(page_of(repository, "<details>\n<summary>Answer</summary>\n\n*42*\n\n</details>\n")) != []
    assert (
        markup_faults(page_of(repository, '<details markdown="1">\n<summary>Answer</summary>\n\n*42*\n\n</details>\n'))
        == []
    )
    assert markup_faults(page_of(repository, '<details markdown="1">\n<summary>Answer</summary>\n\n*42*\n')) != []
