"""The site builds without a warning, and asks no other host for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What a browser would fetch by itself from another host.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//')


def test_the_site_builds_strictly_and_is_whole(tmp_path: Path) -> None:
    """One test, because a build takes seconds and every claim needs one."""
    site = build(tmp_path / "site")
    assert pages_without_their_title(site) == []
    assert images_that_are_missing(site) == []
    assert pages_that_need_another_host(site) == []
    assert names_that_the_reference_lacks(site) == []


def build(out: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
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


def pages_that_need_another_host(site: Path) -> list[str]:
    return [str(page.relative_to(site)) for page in site.rglob("*.html") if FETCHED.search(page.read_text())]


def names_that_the_reference_lacks(site: Path) -> list[str]:
    text = (site / "reference/log/index.html").read_text()
    names = ("batch.BatchHeader", "logfile.LogFile", "varint.encode_varint")
    return [name for name in names if f'id="minibroker.log.{name}"' not in text]
