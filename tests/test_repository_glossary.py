"""The glossary defines each term once, in order, says where the term is taught, and is linked from every chapter."""

import re
from collections import Counter

from lessons import ROOT, Page

GLOSSARY = ROOT / "docs/glossary.md"
SENTENCES_MAX = 5
# The terms that style and messages rely on; a page that uses one may link it by its anchor.
NEEDED = [
    "committed",
    "controller",
    "coordinator",
    "diverge",
    "election timeout",
    "fenced",
    "generation",
    "high watermark",
    "in-sync replica",
    "incarnation",
    "last stable offset",
    "leader epoch",
    "log end offset",
    "observer",
    "quorum",
    "rebalance",
    "segment",
    "snapshot",
    "tombstone",
    "truncate",
    "voter",
]


def entries() -> dict[str, str]:
    """Each term with its text. A term that stands twice keeps its last text."""
    _, *parts = re.split(r"^## ", GLOSSARY.read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


def test_terms_are_sorted_and_each_is_defined_once() -> None:
    terms = re.findall(r"^## (.*)$", GLOSSARY.read_text(), re.MULTILINE)
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert [term for term, after in zip(terms, sorted(terms), strict=True) if term != after] == []
    assert [term for term in NEEDED if term not in terms] == []


def test_a_definition_is_short_and_names_the_page_that_explains_the_term() -> None:
    unexplained = [term for term, text in entries().items() if not re.search(r"(Taught\sin|See)\s\[", text)]
    assert unexplained == []
    long = [
        term
        for term, text in entries().items()
        if len(re.findall(r"[.?!](?:\s|$)", text.split("\n\n")[0])) > SENTENCES_MAX
    ]
    assert long == []


def test_a_term_that_a_definition_points_to_is_in_the_glossary() -> None:
    anchors = {term.replace(" ", "-") for term in entries()}
    assert [link for link in re.findall(r"\]\(#([^)]+)\)", GLOSSARY.read_text()) if link not in anchors] == []


def test_every_chapter_and_the_first_pages_of_the_site_link_the_glossary() -> None:
    chapters = sorted(ROOT.glob("chapters/[0-9][0-9]-*/README.md"))
    unlinked = [str(path.relative_to(ROOT)) for path in chapters if "the [glossary][glossary]" not in path.read_text()]
    for name in ("docs/index.md", "docs/course.md"):
        links = Page(ROOT, (ROOT / name).relative_to(ROOT)).inline_targets()
        unlinked += [] if "glossary.md" in links else [name]
    assert unlinked == []
