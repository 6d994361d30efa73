"""The site builds without a warning, and its pages ask no other host for anything.

The theme's script names one foreign address: that of mermaid, which it loads where a page has a diagram and no script
has defined `mermaid` before. So each page with a diagram must bring the copy in docs/javascripts, and that copy must
define it. Where Chromium is installed, a browser shows the same.
"""

import functools
import html
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from lessons import ROOT, Page, lessons

AXE = importlib.util.find_spec("axe_core_python")
PALETTES = {
    "light": '{index: 0, color: {media: "(prefers-color-scheme: light)", scheme: "default"}}',
    "dark": '{index: 1, color: {media: "(prefers-color-scheme: dark)", scheme: "slate"}}',
}
ACCESSIBLE = (
    "index",
    "course",
    "differences",
    "history",
    "measurements",
    "log-or-queue",
    "reference/protocol/fetch",
    "chapters/01-log/lessons/02-batches",
    "chapters/05-raft-controller/index",
    "chapters/06-groups-offsets/lessons/12-looking-back",
)
# What a browser would fetch by itself from another host.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, shared by all tests: a build takes many seconds."""
    return build(tmp_path_factory.mktemp("built") / "site")


def test_the_site_builds_strictly_and_is_whole(site: Path) -> None:
    assert pages_without_their_title(site) == []
    assert images_that_are_missing(site) == []
    assert links_that_a_disk_cannot_follow(site) == []
    assert pages_that_need_another_host(site) == []
    assert diagrams_that_would_be_drawn_by_another_host(site) == []
    assert scripts_that_the_theme_may_load(site) == []
    assert names_that_the_reference_lacks(site) == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_a_browser_draws_the_diagrams_and_asks_no_other_host(site: Path, tmp_path: Path) -> None:
    (page, *_) = [path for path in sorted(site.rglob("*.html")) if '<pre class="mermaid">' in path.read_text()]
    asked, drawn = browse(site, page, tmp_path / "first")
    assert drawn
    assert "http://here/assets/" in " ".join(asked)
    assert [url for url in asked if not url.startswith("http://here/")] == []

    # Without our script the theme asks another host, and this test would see it.
    bare = page.with_name("bare.htm")
    bare.write_text(re.sub(r'<script src="[^"]*mermaid[^"]*"></script>', "", page.read_text()))
    asked, drawn = browse(site, bare, tmp_path / "second")
    assert not drawn
    assert [url for url in asked if not url.startswith("http://here/")] != []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_a_browser_shows_whole_lines_of_code_at_1280_pixels(site: Path, tmp_path: Path) -> None:
    script = """
        const blocks = [...document.querySelectorAll("pre > code")];
        const cut = blocks.filter((block) => block.scrollWidth > block.clientWidth + 1);
        report({blocks: blocks.length, cut: cut.map((block) => block.textContent.slice(0, 60))});
    """
    for name in ("02-batches", "03-recovery"):
        found = run_in(site / f"chapters/01-log/lessons/{name}.html", script, tmp_path / name)
        assert found["blocks"] > 0, name
        assert found["cut"] == [], name


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_the_search_finds_a_kip_in_a_site_that_is_read_from_a_disk(tmp_path: Path) -> None:
    """A small site with the settings of ours, because the index of the whole site takes many seconds."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs/javascripts", docs / "javascripts", ignore=shutil.ignore_patterns("mermaid*"))
    (docs / "index.md").write_text("# First\n\nNothing here.\n")
    (docs / "second.md").write_text("# Second\n\nEligible leader replicas are those of KIP-966.\n")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "docs", "nav": [{"a": "index.md"}, {"b": "second.md"}]}
    settings |= {"extra_javascript": [], "extra_css": [], "watch": []}
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings))
    script = """
        const field = document.querySelector("input.md-search__input");
        field.focus();
        field.value = "KIP-966";
        field.dispatchEvent(new KeyboardEvent("keyup", {key: "6"}));
        const look = () => {
            const found = [...document.querySelectorAll(".md-search-result__item > a")].map((link) => link.pathname);
            if (found.length) report(found); else setTimeout(look, 100);
        };
        look();
    """
    page = build(tmp_path / "site", repository=tmp_path, search="true") / "index.html"
    assert any(path.endswith("/second.html") for path in run_in(page, script, tmp_path / "browser"))


@pytest.mark.skipif(shutil.which("chromium") is None or AXE is None, reason="Chromium or axe is not installed")
def test_axe_finds_no_fault_in_ten_pages(site: Path, tmp_path: Path) -> None:
    assert AXE is not None
    assert AXE.origin is not None
    shutil.copy(Path(AXE.origin).with_name("axe.min.js"), site / "axe.min.js")
    for palette in PALETTES:
        found = faults_in_frames(site, palette, tmp_path / palette)
        assert sorted(found) == sorted(ACCESSIBLE), palette
        assert {page: faults for page, faults in found.items() if faults} == {}, palette


def faults_in_frames(site: Path, palette: str, scratch: Path) -> dict[str, list[Any]]:
    """Load the pages into the frames of one page, because a browser starts slowly; return the faults of each."""
    frames = [frame_with_axe(site, name, palette) for name in ACCESSIBLE]
    iframes = "".join(f'<iframe src="{frame}" style="width: 1280px; height: 900px"></iframe>' for frame in frames)
    sheet = site / "sheet.htm"
    sheet.write_text("<!doctype html><title>Frames</title><body></body>")
    # The frames are added by the script that listens to them, so that no message is missed.
    script = f"""
        const found = {{}};
        addEventListener("message", ({{data: [page, faults]}}) => {{
            found[page] = faults;
            if (Object.keys(found).length === {len(frames)}) report(found);
        }});
        document.body.insertAdjacentHTML("beforeend", {json.dumps(iframes)});
    """
    faults: dict[str, list[Any]] = run_in(sheet, script, scratch)
    return faults


def frame_with_axe(site: Path, name: str, palette: str) -> Path:
    """A copy of a page in one palette that runs axe when its diagrams are drawn, and tells the page around it."""
    page = site / f"{name}.html"
    axe = os.path.relpath(site / "axe.min.js", page.parent)
    script = f"""
        addEventListener("load", () => setTimeout(() => axe.run().then(({{violations}}) => {{
            const faults = violations.map((it) => [it.id, it.nodes.map((node) => node.html.slice(0, 200))]);
            parent.postMessage(["{name}", faults], "*");
        }}), 2000));
    """
    text = re.sub(
        r"(<script>__md_scope=.*?</script>)",
        lambda found: f'{found[1]}<script>__md_set("__palette", {PALETTES[palette]})</script>',
        page.read_text(),
        count=1,
    )
    frame = page.with_name(f"axe-{page.stem}.htm")
    frame.write_text(text.replace("</body>", f'<script src="{axe}"></script><script>{script}</script></body>'))
    return frame.relative_to(site)


def run_in(page: Path, script: str, scratch: Path) -> Any:
    """Open a page from the disk, run a script when it is loaded, and return what the script reports."""
    probe = page.with_name(f"probe-{page.stem}.htm")
    report = "const report = (value) => { document.body.dataset.report = JSON.stringify(value); };"
    run = f'<script>{report} addEventListener("load", () => setTimeout(() => {{ {script} }}, 500));</script>'
    probe.write_text(page.read_text().replace("</body>", f"{run}</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += ["--window-size=1280,900", f"--user-data-dir={scratch}", "--dump-dom", probe.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    reported = re.search(r'data-report="([^"]*)"', shown)
    assert reported is not None, shown[-2000:]
    return json.loads(html.unescape(reported[1]))


def browse(site: Path, page: Path, scratch: Path) -> tuple[list[str], bool]:
    """Open a page; return the addresses it asked for (the site is `here`) and whether it drew a diagram.

    No name is resolved, so that a request to another host ends on this machine.
    """
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        # Chromium's own sandbox needs rights that a container does not have.
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
        command += [f"--user-data-dir={scratch}", f"--log-net-log={scratch}.json", "--dump-dom"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"{origin}/{page.relative_to(site)}"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        server.shutdown()
    # The browser itself asks hosts of its vendor; requests of the page have the page's origin.
    events = [event.get("params", {}) for event in json.loads(Path(f"{scratch}.json").read_text())["events"]]
    asked = {event["url"] for event in events if event.get("initiator") == origin and "url" in event}
    return sorted(url.replace(origin, "http://here") for url in asked), '<div class="mermaid">' in shown


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests free of requests."""


def test_strict_counts_the_warnings_of_a_build(tmp_path: Path) -> None:
    """The build above proves nothing unless a page with a dead link fails it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A page\n\n[nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\n")
    with pytest.raises(AssertionError, match=r"nowhere\.md"):
        build(tmp_path / "site", repository=tmp_path)


def test_the_server_watches_what_the_pages_are_made_of() -> None:
    listed = re.search(r"^watch: \[(.*)\]$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert listed is not None
    pages = (page.read_text() for page in ROOT.glob("docs/**/*.md"))
    included = {name.split("/")[0] for page in pages for name in re.findall(r'^--8<-- "([^"]+)"$', page, re.MULTILINE)}
    assert included | {"chapters", "final"} <= set(listed[1].split(", "))


def build(out: Path, repository: Path = ROOT, search: str = "false") -> Path:
    # Not --quiet: it would silence the warnings before --strict counts them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    # Most claims need no index of the search and no highlighted sources, which take most of the time.
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "SITE_SEARCH": search, "SITE_CODE": "false"}
    result = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def pages_without_their_title(site: Path) -> list[str]:
    """Titles of chapters and lessons that their page on the site does not show."""
    missing = []
    for path in [*ROOT.glob("chapters/*/README.md"), *lessons(ROOT)]:
        title = path.read_text().splitlines()[0].removeprefix("# ").replace("`", "")
        where = path.relative_to(ROOT).with_suffix(".html")
        page = (site / (where.with_name("index.html") if path.name == "README.md" else where)).read_text()
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


def diagrams_that_would_be_drawn_by_another_host(site: Path) -> list[str]:
    """Pages with a diagram but without a script of ours that defines `mermaid`, and diagrams that became plain code."""
    faults = []
    drawn = 0
    for page in site.rglob("*.html"):
        text = page.read_text()
        drawn += text.count('<pre class="mermaid">')
        scripts = [page.parent / source for source in re.findall(r'<script src="([^":]*mermaid[^":]*)"', text)]
        if '<pre class="mermaid">' in text and not any(defines_mermaid(script) for script in scripts):
            faults.append(str(page.relative_to(site)))
    in_sources = [Page(ROOT, path.relative_to(ROOT)) for path in [*ROOT.glob("chapters/*/README.md"), *lessons(ROOT)]]
    meant = sum(fence.language == "mermaid" for page in in_sources for fence in page.fences())
    return faults if drawn >= meant > 0 else [*faults, f"{drawn} diagrams on the site, {meant} in the chapters"]


def defines_mermaid(script: Path) -> bool:
    return script.is_file() and 'globalThis["mermaid"] =' in script.read_text(encoding="utf-8")


def scripts_that_the_theme_may_load(site: Path) -> list[str]:
    """Scripts of other hosts that the theme's own script names; of mermaid's there is a copy here."""
    bundles = [path.read_text(encoding="utf-8") for path in site.glob("assets/javascripts/bundle*.js")]
    assert bundles
    named = [address for text in bundles for address in re.findall(r"https?://[\w./@-]+\.js\b", text)]
    return [address for address in named if not re.search(r"/mermaid(@\d+)?/", address)]


def names_that_the_reference_lacks(site: Path) -> list[str]:
    text = (site / "reference/log.html").read_text()
    names = ("batch.BatchHeader", "logfile.LogFile", "varint.encode_varint")
    return [name for name in names if f'id="minibroker.log.{name}"' not in text]
