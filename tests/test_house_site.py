"""The site builds without a warning, and asks no other host for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What a browser would fetch by itself from another host.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//')


def test_the_site_builds_strictly_and_is_whole(tmp_path: Path) -> None:
    """One test, because a build takes seconds and every claim needs one."""
    site = build(tmp_path / "site")
    assert pages_without_their_title(site) == []
    assert images_that_are_missing(site) == []
    assert links_that_a_disk_cannot_follow(site) == []
    assert pages_that_need_another_host(site) == []
    assert names_that_the_reference_lacks(site) == []


def test_strict_counts_the_warnings_of_a_build(tmp_path: Path) -> None:
    """The build above is only worth something if a page with a dead link fails it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A page\n\n[nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\n")
    with pytest.raises(AssertionError, match=r"nowhere\.md"):
        build(tmp_path / "site", house=tmp_path)


def test_the_server_watches_what_the_pages_are_made_of() -> None:
    listed = re.search(r"^watch: \[(.*)\]$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert listed is not None
    pages = (page.read_text() for page in ROOT.glob("docs/**/*.md"))
    included = {name.split("/")[0] for page in pages for name in re.findall(r'^--8<-- "([^"]+)"$', page, re.MULTILINE)}
    assert included | {"chapters", "final"} <= set(listed[1].split(", "))


def build(out: Path, house: Path = ROOT) -> Path:
    # Not --quiet: it would silence the warnings before --strict counts them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=house, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def pages_without_their_title(site: Path) -> list[str]:
    """Chapters whose page on the site is not their README."""
    missing = []
    for chapter in ROOT.glob("chapters/*/README.md"):
        title = chapter.read_text().splitlines()[0].removeprefix("# ").replace("`", "")
        page = (site / "chapters" / chapter.parent.name / "index.html").read_text()
        missing += [] if title in re.sub(r"<[^>]+>", "", page) else [title]
    return missing


def images_that_are_missing(site: Path) -> list[str]:
    return [
        f"{page.relative_to(site)}: {source}"
        for page in site.rglob("*.html")
        for source in re.findall(r'<img[^>]+src="([^"]+)"', page.read_text())
        if not (page.parent / source).exists()
    ]


def links_that_a_disk_cannot_follow(site: Path) -> list[str]:
    """Links that need a server, which answers for a folder with the page in it."""
    return [
        f"{page.relative_to(site)}: {link}"
        for page in site.rglob("*.html")
        if page.name != "404.html"  # a server shows it, from any place, so its links are absolute
        for link in re.findall(r'<a[^>]+href="([^"#?]+)', page.read_text())
        if ":" not in link and not (page.parent / link).is_file()
    ]


def pages_that_need_another_host(site: Path) -> list[str]:
    return [str(page.relative_to(site)) for page in site.rglob("*.html") if FETCHED.search(page.read_text())]


def names_that_the_reference_lacks(site: Path) -> list[str]:
    text = (site / "reference/log.html").read_text()
    names = ("batch.BatchHeader", "logfile.LogFile", "varint.encode_varint")
    return [name for name in names if f'id="minibroker.log.{name}"' not in text]
