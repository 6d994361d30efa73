"""Every page holds: its quoted code is in the file it names, its links lead somewhere."""

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
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.where))

CODE = '''"""A module."""


def double(number: int) -> int:
    # Twice is enough.
    twice = number * 2
    return twice


class Tripler:
    def triple(self, number: int) -> int:
        return number * 3
'''


@every_page
def test_quoted_code_is_in_the_file_it_names(page: Page) -> None:
    assert quotation_faults(page) == []


@every_page
def test_links_and_images_lead_to_files(page: Page) -> None:
    assert link_faults(page) == []


@every_page
def test_shell_fences_are_of_the_kinds_that_are_run(page: Page) -> None:
    assert shell_faults(page) == []


@every_page
def test_pages_read_the_same_on_the_code_host_and_on_the_site(page: Page) -> None:
    assert markup_faults(page) == []


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: str(page.where))
def test_a_chapters_links_work_on_the_site_too(page: Page) -> None:
    """A chapter's README is read in its folder and, through its stub, in docs/chapters/NN: a link must do in both."""
    assert site_link_faults(page) == []


# The checks themselves


@pytest.fixture
def house(tmp_path: Path) -> Path:
    module = tmp_path / "chapters/01-log/minibroker/log/module.py"
    module.parent.mkdir(parents=True)
    module.write_text(CODE)
    return tmp_path


def page_of(house: Path, text: str) -> Page:
    (house / "README.md").write_text(text)
    return Page(house, Path("README.md"))


def quoting(code: str) -> str:
    return f'```python title="minibroker/log/module.py"\n{code}```\n'


@pytest.mark.parametrize(
    "code",
    [
        "def double(number: int) -> int:\n    # Twice is enough.\n",
        "twice = number * 2\nreturn twice\n",
        "    def triple(self, number: int) -> int:\n        return number * 3\n",
        "def triple(self, number: int) -> int:\n    return number * 3\n",
    ],
)
def test_a_true_quotation_passes_at_any_indentation(house: Path, code: str) -> None:
    assert quotation_faults(page_of(house, quoting(code))) == []


@pytest.mark.parametrize(
    "code",
    [
        "def double(number: int) -> int:\n    twice = number * 2\n",
        "def double(number: int) -> int:\n    # Twice is plenty.\n",
        "def triple(self, number: int) -> int:\nreturn number * 3\n",
    ],
)
def test_a_wrong_quotation_is_flagged_with_the_nearest_lines(house: Path, code: str) -> None:
    (fault,) = quotation_faults(page_of(house, quoting(code)))
    assert fault.startswith("README.md:1: not in minibroker/log/module.py")
    assert "def " in fault


def test_a_quotation_of_a_missing_file_is_flagged(house: Path) -> None:
    (fault,) = quotation_faults(page_of(house, '```python title="minibroker/log/gone.py"\nx\n```\n'))
    assert "names 0 files" in fault


def test_python_without_a_file_needs_a_reason(house: Path) -> None:
    assert len(quotation_faults(page_of(house, "```python\nx = 1\n```\n"))) == 1
    assert len(quotation_faults(page_of(house, "<!-- no-check -->\n```python\nx = 1\n```\n"))) == 1
    assert quotation_faults(page_of(house, "<!-- no-check: pseudocode -->\n```python\nx = 1\n```\n")) == []


def test_a_fence_inside_a_list_is_checked_too(house: Path) -> None:
    text = '1. Look:\n\n   ```python title="minibroker/log/module.py"\n   return thrice\n   ```\n'
    assert len(quotation_faults(page_of(house, text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "see [it](gone.md)",
        "![figure](gone.svg)",
        "see [it][x]\n\n[x]: gone.md",
        '<img src="gone.svg">',
        "[it](gone.md#a)",
    ],
)
def test_a_dead_link_is_flagged(house: Path, text: str) -> None:
    assert link_faults(page_of(house, text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "[it](README.md)",
        "[it](README.md#part)",
        "[it](#part)",
        "[it](https://example.org/x)",
        "`[it](gone.md)`",
        "```\n[it](gone.md)\n```",
    ],
)
def test_a_live_link_and_an_example_of_a_link_pass(house: Path, text: str) -> None:
    assert link_faults(page_of(house, text)) == []


@pytest.fixture
def chapter(house: Path) -> Page:
    """A chapter's page that nothing is in yet, its stub, its neighbour, and a file outside the site."""
    for name in (
        "chapters/01-log",
        "chapters/02-segments",
        "docs/chapters/01-log/figures",
        "docs/chapters/02-segments",
    ):
        (house / name).mkdir(parents=True, exist_ok=True)
        (house / name / "README.md").touch()
    (house / "README.md").touch()
    (house / "docs/chapters/01-log/figures/a.svg").touch()
    return Page(house, Path("chapters/01-log/README.md"))


@pytest.mark.parametrize(
    ("text", "stub"),
    [
        ("[next](../02-segments/README.md)", ""),
        ("[next](../02-segments/README.md#part)", ""),
        ("[next][n]\n\n[n]: ../02-segments/README.md", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", "[f]: figures/a.svg"),
        ("[it](https://example.org/x) and [there](#part)", ""),
        ("`[it](../../README.md)`", ""),
    ],
)
def test_a_link_that_works_in_both_places_passes(chapter: Page, text: str, stub: str) -> None:
    (chapter.root / chapter.where).write_text(text)
    (chapter.root / "docs" / chapter.where).write_text(stub)
    assert site_link_faults(chapter) == []


@pytest.mark.parametrize(
    ("text", "stub"),
    [
        ("[up](../../README.md)", ""),
        ("[code](minibroker/log/module.py)", ""),
        ('<img src="../../docs/chapters/01-log/figures/a.svg">', ""),
        ("![figure](../../docs/chapters/01-log/figures/a.svg)", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", ""),
        ("![figure][f]\n\n[f]: ../../docs/chapters/01-log/figures/a.svg", "[f]: figures/b.svg"),
        ("no figure any more", "[f]: figures/a.svg"),
    ],
)
def test_a_link_that_works_only_in_the_chapters_folder_is_flagged(chapter: Page, text: str, stub: str) -> None:
    (chapter.root / chapter.where).write_text(text)
    (chapter.root / "docs" / chapter.where).write_text(stub)
    assert len(site_link_faults(chapter)) == 1
    assert link_faults(chapter) == []


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nls\n```",
        "```\n$ ls\n```",
        "```console\nls\n```",
        "<!-- no-run -->\n```sh\nls\n```",
        "<!-- fails: -->\n```sh\nls\n```",
    ],
)
def test_a_shell_fence_that_would_not_be_run_is_flagged(house: Path, text: str) -> None:
    assert shell_faults(page_of(house, text)) != []


def test_folded_text_that_the_site_would_show_raw_is_flagged(house: Path) -> None:
    assert markup_faults(page_of(house, "<details>\n<summary>Answer</summary>\n\n*42*\n\n</details>\n")) != []
    assert (
        markup_faults(page_of(house, '<details markdown="1">\n<summary>Answer</summary>\n\n*42*\n\n</details>\n')) == []
    )
