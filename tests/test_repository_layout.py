"""The repository is as it is described: one namespace package, lists that agree, nothing copied, nothing left over."""

import hashlib
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from lessons import Page, lessons

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted(ROOT.glob("chapters/[0-9][0-9]-*"))
CHAPTERS_WITH_CODE = [folder for folder in CHAPTERS if (folder / "minibroker").is_dir()]
ROOTS = [*CHAPTERS_WITH_CODE, ROOT / "final"]
NAMES = [str(root.relative_to(ROOT)) for root in ROOTS]
LESSONS = [path.relative_to(ROOT) for path in lessons(ROOT)]
LESSON_WORDS_MAX = 2000
MODULES_NAMED_MIN = 0.8
# A copy of another project's file, so our rules for text do not apply.
VENDORED = ROOT / "docs/javascripts"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_of(root: Path) -> list[str]:
    return sorted(folder.name for folder in (root / "minibroker").iterdir() if any(folder.glob("*.py")))


def files_of_the_repository() -> list[Path]:
    """The files that are or would be committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def places_of(pattern: str) -> list[str]:
    """The file and the line of each match of a regular expression in the repository's texts."""
    expression, found = re.compile(pattern, re.MULTILINE), []
    for path in files_of_the_repository():
        content = path.read_bytes()
        if b"\0" not in content and not path.is_relative_to(VENDORED):
            text = content.decode("utf-8")
            matches = expression.finditer(text)
            found += [f"{path.relative_to(ROOT)}:{1 + text.count(chr(10), 0, it.start())}" for it in matches]
    return found


# The namespace


def test_the_namespace_has_no_init_file() -> None:
    """Such a file would hide every package of the other roots."""
    assert [path for path in files_of_the_repository() if path.parts[-2:] == ("minibroker", "__init__.py")] == []


def test_every_package_has_an_init_file() -> None:
    missing = [
        name
        for root in ROOTS
        for name in packages_of(root)
        if not (root / "minibroker" / name / "__init__.py").is_file()
    ]
    assert missing == []


def test_no_two_roots_have_a_package_of_the_same_name() -> None:
    counted = Counter(name for root in ROOTS for name in packages_of(root))
    assert [name for name, count in counted.items() if count > 1] == []


def test_the_build_names_every_root() -> None:
    build = pyproject()["tool"]["hatch"]["build"]
    assert build["dev-mode-dirs"] == NAMES
    # Spark finds a data source by the name of a module beside the namespace.
    packages = [f"{name}/minibroker" for name in NAMES] + ["final/pyspark_minibroker.py"]
    assert build["targets"]["wheel"]["packages"] == packages


def test_mypy_checks_every_root_with_its_tests_benchmarks_and_labs() -> None:
    mypy = pyproject()["tool"]["mypy"]
    assert mypy["mypy_path"][: len(NAMES)] == NAMES
    folders = ("minibroker", "tests", "bench", "labs", "peers")
    parts = [f"{name}/{part}" for name in NAMES for part in folders if (ROOT / name / part).is_dir()]
    assert sorted(mypy["files"]) == sorted([*parts, "final/pyspark_minibroker.py", "tests", "conftest.py"])


def test_the_site_reads_every_root() -> None:
    listed = re.search(r"^ *paths: \[(.*)\]$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert listed is not None
    assert listed[1].split(", ") == NAMES


def test_every_package_is_a_required_layer() -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    layers = [name.strip() for layer in contracts[0]["layers"] for name in layer.split("|")]
    assert sorted(name for name in layers if "(" not in name) == sorted(
        name for root in ROOTS for name in packages_of(root)
    )


# The chapters


def test_there_are_seven_chapters() -> None:
    assert [folder.name[:2] for folder in CHAPTERS] == ["01", "02", "03", "04", "05", "06", "07"]


def test_a_chapter_with_code_is_complete() -> None:
    for chapter in CHAPTERS_WITH_CODE:
        parts = ("README.md", "exercises.toml", "tests/test_*.py", "bench/bench_*.py")
        assert [part for part in parts if not list(chapter.glob(part))] == [], chapter.name


def test_every_chapter_has_its_page_on_the_site() -> None:
    for chapter in CHAPTERS:
        stub = (ROOT / "docs/chapters" / chapter.name / "README.md").read_text()
        assert stub.splitlines()[0] == f'--8<-- "chapters/{chapter.name}/README.md"', chapter.name


def test_every_lesson_has_its_page_on_the_site_and_its_place_in_the_navigation() -> None:
    entries = [line.rpartition(" ")[2] for line in (ROOT / "mkdocs.yml").read_text().splitlines()]
    chapters = [entry for entry in entries if re.fullmatch(r"chapters/[^/]+/README\.md", entry)]
    for lesson in LESSONS:
        stub = ROOT / "docs" / lesson
        assert stub.is_file(), f'write docs/{lesson} with one line: --8<-- "{lesson}"'
        assert stub.read_text().splitlines()[0] == f'--8<-- "{lesson}"', lesson
        assert str(lesson) in entries, f"mkdocs.yml: name {lesson} in nav, under its chapter"
        # Under its chapter: after the chapter's own page, before the next chapter's.
        before = [entry for entry in entries[: entries.index(str(lesson))] if entry in chapters]
        assert before[-1] == f"chapters/{lesson.parts[1]}/README.md", lesson


def test_no_lesson_is_on_the_site_that_its_chapter_does_not_have() -> None:
    stubs = [path.relative_to(ROOT / "docs") for path in sorted(ROOT.glob("docs/chapters/*/lessons/*.md"))]
    assert stubs == LESSONS


def test_a_lesson_is_one_sitting_and_has_a_picture() -> None:
    for lesson in LESSONS:
        page = Page(ROOT, lesson)
        assert len(page.outside_fences().split()) <= LESSON_WORDS_MAX, lesson
        assert "![" in page.prose() or any(fence.language == "mermaid" for fence in page.fences()), lesson


def test_a_lesson_has_a_prediction_a_task_a_solution_and_a_check() -> None:
    """The last page of a chapter looks back, and has challenges instead."""
    for lesson in LESSONS:
        prose = Page(ROOT, lesson).prose()
        solution = re.search(r"<summary>.*(?:solutions?|answer), explained</summary>", prose)
        parts = ("## Predict", "<summary>Answer", "## The task", "## The check", "not prove")
        missing = [part for part in parts if part not in prose] + ([] if solution else ["an explained solution"])
        assert missing == [] or lesson.stem.endswith("looking-back"), lesson


def test_most_modules_of_a_chapter_are_named_on_its_pages() -> None:
    for chapter in CHAPTERS_WITH_CODE:
        text = "".join(page.read_text() for page in [chapter / "README.md", *chapter.glob("lessons/*.md")])
        modules = [path.name for path in chapter.glob("minibroker/*/*.py") if not path.name.startswith("__init__")]
        named = [name for name in modules if re.search(rf"[`/]{name}\b", text)]
        assert len(named) >= MODULES_NAMED_MIN * len(modules), chapter.name


def test_a_lesson_is_reached_from_its_chapters_page() -> None:
    for lesson in LESSONS:
        links = Page(ROOT, lesson.parent.parent / "README.md").inline_targets()
        assert f"lessons/{lesson.name}" in [link.partition("#")[0] for link in links], lesson


# What is in the files


def test_no_two_tests_benchmarks_or_labs_have_the_same_file_name() -> None:
    names = (path.name for path in files_of_the_repository() if path.suffix == ".py")
    counted = Counter(name for name in names if name.startswith(("test_", "bench_", "lab_")))
    assert [name for name, count in counted.items() if count > 1] == []


def test_nothing_is_copied() -> None:
    seen: dict[str, Path] = {}
    copies = []
    for path in files_of_the_repository():
        text = b"".join(path.read_bytes().split())
        if path.suffix in (".py", ".md", ".toml", ".sh") and text:
            first = seen.setdefault(hashlib.sha256(text).hexdigest(), path)
            copies += [f"{path} is {first}"] if first != path else []
    assert copies == []


def test_nothing_is_left_for_later() -> None:
    assert places_of("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "X" + "XX"))) == []


def test_no_conflict_of_a_merge_is_left() -> None:
    assert places_of("^(?:" + "<" * 7 + "|" + ">" * 7 + ") ") == []


def test_no_line_names_a_folder_of_one_machine_or_a_package_index() -> None:
    # The look behind stands after the first slash, because a search for a literal is much faster.
    assert places_of(r"/(?<![\w.*}\])]/)(?:home|root|work|Users)/\w") == []
    assert places_of("py" + r"pi\.org\b|python" + r"hosted\.org\b") == []
