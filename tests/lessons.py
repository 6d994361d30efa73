"""Reads the pages of the course and checks what they claim: quotations, links, and commands with their output.

Three comments, each on the line above a fence, say that the rule does not apply to it; the reason is required:

    <!-- no-check: pseudocode -->       a python fence that quotes no file
    <!-- no-run: needs a network -->    shell commands that the tests must not run
    <!-- fails: nothing is done yet --> shell commands that are meant to exit with an error
"""

import difflib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import spark_settings

ROOT = Path(__file__).resolve().parent.parent
SHELLS_BY_ANOTHER_NAME = {"bash", "shell", "zsh", "shell-session", "shellsession", "terminal"}
COMMAND_SECONDS_MAX = 300

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
TITLE = re.compile(r'title="([^"]+)"')
MARK = re.compile(r"\s*<!--\s*(?P<mark>no-check|no-run|fails)(?::\s*(?P<reason>.*?))?\s*-->\s*$")
DEFINITION = re.compile(r"^ {0,3}\[(?P<id>[^\]^]+)\]:\s+<?(?P<target>[^\s>]+)", re.MULTILINE)
INLINE_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^\s)>]+)[^)]*\)")
HTML_LINK = re.compile(r"""<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=["'](?P<target>[^"']+)["']""")


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    line: int
    language: str
    title: str | None
    lines: list[str]
    marks: dict[str, str]

    @property
    def is_shell(self) -> bool:
        return self.language in ("sh", "console")


class Page(NamedTuple):
    """A Markdown page; `where` is its path from the root of the repository."""

    root: Path
    where: Path

    @property
    def text(self) -> str:
        return (self.root / self.where).read_text(encoding="utf-8")

    def fences(self) -> list[Fence]:
        return list(_fences(self.text.splitlines()))

    def prose(self) -> str:
        """The page without its fences and code spans, where a link is only an example."""
        return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", self.outside_fences(), flags=re.DOTALL)

    def outside_fences(self) -> str:
        """What is read as text: prose, tables and code spans, but no comments."""
        return re.sub(r"<!--.*?-->", "", "\n".join(_outside_fences(self.text.splitlines())), flags=re.DOTALL)

    def definitions(self) -> dict[str, str]:
        return {match["id"].lower(): match["target"] for match in DEFINITION.finditer(self.prose())}

    def inline_targets(self) -> list[str]:
        """The targets of links and images that are not references."""
        prose = self.prose()
        return [match["target"] for pattern in (INLINE_LINK, HTML_LINK) for match in pattern.finditer(prose)]


def pages(root: Path) -> list[Page]:
    """Every page of the repository, in a fixed order."""
    found = {root / "README.md", root / "CONTRIBUTING.md", root / "CHANGELOG.md", root / "final/README.md"}
    found |= {*root.glob("chapters/*/README.md"), *lessons(root), *root.glob("docs/**/*.md")}
    return [Page(root, path.relative_to(root)) for path in sorted(found) if path.exists()]


def lessons(root: Path) -> list[Path]:
    """The lessons of all chapters, each one sitting, in the order in which they are read."""
    return sorted(root.glob("chapters/*/lessons/*.md"))


def _fences(lines: list[str]) -> Iterator[Fence]:
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = _closing(lines, number, opening)
        indent = len(opening["indent"])
        body = [line[indent:] if not line[:indent].strip() else line for line in lines[number + 1 : end]]
        info = opening["info"].strip()
        title = TITLE.search(info)
        language = info.split()[0] if info else ""
        yield Fence(number + 1, language, title[1] if title else None, body, _marks(lines, number))
        number = end + 1


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    ticks = opening["ticks"]
    for number in range(start + 1, len(lines)):
        stripped = lines[number].strip()
        if stripped.startswith(ticks) and not stripped.strip(ticks[0]):
            return number
    return len(lines)


def _marks(lines: list[str], number: int) -> dict[str, str]:
    """The comments right above a fence; one blank line between is allowed."""
    marks = {}
    above = number - 1
    while above >= 0 and (not lines[above].strip() or MARK.match(lines[above])):
        found = MARK.match(lines[above])
        if found:
            marks[found["mark"]] = found["reason"] or ""
        elif marks or above < number - 1:
            break
        above -= 1
    return marks


def _outside_fences(lines: list[str]) -> Iterator[str]:
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            yield lines[number]
            number += 1
        else:
            number = _closing(lines, number, opening) + 1


# Quotations


def quotation_faults(page: Page) -> list[str]:
    """What is wrong with the page's quoted code: a fence with a title must be a run of lines of that file."""
    faults = []
    for fence in page.fences():
        if "no-check" in fence.marks:
            if not fence.marks["no-check"]:
                faults.append(f"{page.where}:{fence.line}: no-check needs its reason")
        elif fence.title is not None:
            faults += _quotation_fault(page, fence, fence.title)
        elif fence.language in ("python", "py"):
            faults.append(f'{page.where}:{fence.line}: a python fence needs title="…", or a no-check and its reason')
    return faults


def _quotation_fault(page: Page, fence: Fence, title: str) -> list[str]:
    places = (page.root / title, *page.root.glob(f"chapters/*/{title}"), page.root / "final" / title)
    files = [path for path in places if path.is_file()]
    if len(files) != 1:
        return [f"{page.where}:{fence.line}: {title} names {len(files)} files, not one"]
    source = files[0].read_text(encoding="utf-8").splitlines()
    quoted = textwrap.dedent("\n".join(line.rstrip() for line in fence.lines)).strip("\n").split("\n")
    windows = [source[at : at + len(quoted)] for at in range(len(source) - len(quoted) + 1)]
    if any(textwrap.dedent("\n".join(window)).split("\n") == quoted for window in windows):
        return []
    return [f"{page.where}:{fence.line}: not in {title}; the nearest lines there:\n{_nearest(quoted, source)}"]


def _nearest(quoted: list[str], source: list[str]) -> str:
    stripped = [line.strip() for line in source]
    wanted = [line.strip() for line in quoted]
    scores = [
        sum(a == b for a, b in zip(wanted, stripped[at:], strict=False))
        + difflib.SequenceMatcher(None, wanted[0], stripped[at]).ratio()
        for at in range(len(stripped))
    ]
    at = scores.index(max(scores)) if scores else 0
    there = textwrap.dedent("\n".join(source[at : at + len(quoted)])).split("\n")
    return "\n".join(difflib.unified_diff(there, quoted, "the file", "the page", lineterm="", n=1))


# Links


def link_faults(page: Page) -> list[str]:
    """Every relative link or image that leads to no file."""
    return [
        f"{page.where}: {target} leads nowhere"
        for target in [*page.inline_targets(), *page.definitions().values()]
        if _is_relative(target) and not _file(page, target).exists()
    ]


def site_link_faults(page: Page) -> list[str]:
    """Every link of a chapter's page that breaks on the site, where the page is included by its stub.

    The stub may define a reference again; an inline link must lead to a file of docs/ by itself.
    """
    stub = Page(page.root, Path("docs") / page.where)
    redefined = stub.definitions()
    pairs = [(target, redefined.get(name, target)) for name, target in page.definitions().items()]
    pairs += [(target, target) for target in page.inline_targets()]
    return [
        f"{page.where}: {target} leads nowhere on the site: make it a reference, and define it again in {stub.where}"
        for target, on_site in pairs
        if _is_relative(target) and not _is_the_same_page(_file(page, target), _file(stub, on_site), page.root)
    ] + [f"{stub.where}: [{name}] is not in the page" for name in redefined if name not in page.definitions()]


def _is_relative(target: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*:|#", target) is None


def _file(page: Page, target: str) -> Path:
    return ((page.root / page.where).parent / target.partition("#")[0]).resolve()


def _is_the_same_page(target: Path, on_site: Path, root: Path) -> bool:
    """Whether a link leads to the same page in the repository and on the site, which has the files of docs/."""
    docs = root.resolve() / "docs"
    is_there = on_site.exists() and on_site.is_relative_to(docs)
    return is_there and (on_site == target or on_site.relative_to(docs) == target.relative_to(root.resolve()))


def markup_faults(page: Page) -> list[str]:
    """Markup that the code host or the site would show wrongly."""
    prose = page.prose()
    if re.search(r"<details(?![^>]*markdown=)", prose):
        return [f'{page.where}: write <details markdown="1">, or the site shows what is inside as raw text']
    if len(re.findall(r"^<details", prose, re.MULTILINE)) != len(re.findall(r"^</details>", prose, re.MULTILINE)):
        return [f"{page.where}: a <details> is not closed, so all that follows is folded, too"]
    return []


# Commands


@dataclass(frozen=True)
class Command:
    """A command a page shows, and the output it shows under it; None where it shows none."""

    line: int
    script: str
    expected: list[str] | None
    must_fail: bool


def commands(page: Page) -> list[Command]:
    """The commands of a page, in order."""
    found: list[Command] = []
    for fence in page.fences():
        if not fence.is_shell or "no-run" in fence.marks:
            continue
        must_fail = "fails" in fence.marks
        if fence.language == "sh":
            found.append(Command(fence.line + 1, "\n".join(fence.lines), None, must_fail))
        else:
            found += _console_commands(fence, must_fail)
    return found


def _console_commands(fence: Fence, must_fail: bool) -> Iterator[Command]:
    starts = [number for number, line in enumerate(fence.lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(fence.lines)], strict=True):
        last = start
        while fence.lines[last].endswith("\\"):
            last += 1
        script = "\n".join(line.removeprefix("> ") for line in fence.lines[start : last + 1])
        expected = "\n".join(fence.lines[last + 1 : end]).strip("\n")
        yield Command(fence.line + 1 + start, script[2:], expected.split("\n") if expected else None, must_fail)


def shell_faults(page: Page) -> list[str]:
    """Shell fences that would escape the checks."""
    faults = []
    for fence in page.fences():
        at = f"{page.where}:{fence.line}"
        if fence.language in SHELLS_BY_ANOTHER_NAME:
            faults.append(f"{at}: write sh (commands) or console (commands and output), not {fence.language}")
        elif not fence.language and any(line.startswith("$ ") for line in fence.lines):
            faults.append(f"{at}: a fence with commands is a console fence")
        elif fence.language == "console" and not fence.lines[0].startswith("$ "):
            faults.append(f"{at}: a console fence begins with `$ `")
        faults += [f"{at}: {mark} needs its reason" for mark in ("no-run", "fails") if fence.marks.get(mark) == ""]
    return faults


def output_matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the output is what the page shows: a line `...` is any lines, `...` or `…` in a line is any text."""
    parts = []
    for line in expected:
        if line.strip() in ("...", "…"):
            parts.append(r"(?:[^\n]*\n)*")
        else:
            pieces = [re.escape(piece) for piece in re.split(r"\.\.\.|…", line.rstrip())]
            parts.append(r"[^\n]*".join(pieces) + r"[ \t]*\n")
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in actual)) is not None


@dataclass
class Reader:
    """Runs a page's commands, one after the other, in one shell in a copy of the repository.

    The environment is shared: the copy's `.venv` is a link to the one that runs the tests, and its set-up is skipped,
    because an editable install from the copy would redirect the real one. Since that environment points at the real
    tree, the roots of the copy come first on PYTHONPATH: the code that runs is the copy's.
    """

    repository: Path
    venv: Path = field(default_factory=lambda: Path(sys.prefix))
    groups: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="reader-", dir=self.repository.parent))
        (self.state / "cwd").write_text(str(self.repository))
        (self.state / "env").touch()
        (self.state / "spark-defaults.conf").write_text(spark_settings.defaults_file())
        if not (self.repository / ".venv").is_symlink():
            (self.repository / ".venv").symlink_to(self.venv)

    def fault(self, command: Command) -> str | None:
        """Run the command; return what is wrong with it, if anything."""
        code, output = self.run(command.script)
        shown = f"$ {command.script}\n{output}[exit code {code}]"
        if (code != 0) != command.must_fail:
            return f"line {command.line}: {'did not fail' if command.must_fail else 'failed'}\n{shown}"
        if command.expected is not None and not output_matches(command.expected, _plain(output)):
            wanted = "\n".join(command.expected)
            return f"line {command.line}: the output differs; the page shows\n{wanted}\n\nand this came\n{shown}"
        return None

    def run(self, script: str) -> tuple[int, str]:
        """Run a script in the folder and with the variables that the last one left."""
        (self.state / "script").write_text(
            f'cd "$(cat "{self.state}/cwd")" && . "{self.state}/env"\n'
            f'trap \'export -p > "{self.state}/env"; pwd > "{self.state}/cwd"\' EXIT\nset -e\n{script}\n'
        )
        # The output goes to a file: a pipe would stay open as long as something left in the background holds it.
        with (self.state / "output").open("w+") as output:
            shell = subprocess.Popen(
                ["bash", str(self.state / "script")],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.append(shell.pid)
            try:
                code = shell.wait(timeout=COMMAND_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.leave()
                code = shell.wait(timeout=COMMAND_SECONDS_MAX)
                output.write(f"\n[stopped after {COMMAND_SECONDS_MAX} s]\n")
            output.seek(0)
            return code, output.read()

    def leave(self) -> None:
        """End every process that the commands left in the background."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.groups.clear()

    def _environment(self) -> dict[str, str]:
        strange = ("PYTEST_", "MAKE", "MFLAGS", "MINIBROKER_", "PYTHON")
        env = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
        # `**` would search the whole environment in `.venv` for every command.
        folders = [*sorted(self.repository.glob("chapters/*/minibroker")), self.repository / "final/minibroker"]
        return env | {
            "PATH": f"{self.venv / 'bin'}:{env['PATH']}",
            "PYTHONPATH": ":".join(str(folder.parent) for folder in folders),
            "VENV": str(self.venv),
            "NO_SETUP": "1",
            "MINIBROKER_QUICK": "1",
            "SPARK_CONF_DIR": str(self.state),
            "NO_COLOR": "1",
            "COLUMNS": "80",
        }


def _plain(output: str) -> list[str]:
    return [line.rstrip() for line in output.strip("\n").split("\n")] if output.strip() else []


def copy_repository(root: Path, to: Path) -> Path:
    """Copy what a fresh clone would hold, with the changes that are not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = root / name
        # Bytecode is valid in the copy, too: it names the time and size of its source, and the copy keeps both.
        for path in (source, Path(importlib.util.cache_from_source(str(source)))):
            if path.is_file():
                target = to / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    return to


def contents(repository: Path) -> dict[str, str]:
    """Every file of a copy but bytecode, and the hash of what is in it."""
    folders = [(folder, names) for folder, _, names in os.walk(repository) if not folder.endswith("__pycache__")]
    paths = [Path(folder, name) for folder, names in folders for name in names]
    return {str(path.relative_to(repository)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def restore(repository: Path, root: Path, before: dict[str, str], after: dict[str, str]) -> None:
    """Make a copy again what it was: remove what was added, with its folders, and copy what was changed or removed."""
    kept = {str(folder) for name in before for folder in Path(name).parents}
    for name in after.keys() - before.keys():
        # The uppermost folder that was not there, or the file itself.
        added = next(it for it in (*reversed(Path(name).parents), Path(name)) if str(it) not in kept)
        if added == Path(name):
            (repository / added).unlink()
        else:
            shutil.rmtree(repository / added, ignore_errors=True)
    for name in before:
        if after.get(name) != before[name]:
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, repository / name)


def traces(root: Path, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The files of a copy that were added, changed or removed and that `git status` would show."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    command = ["git", "check-ignore", "-z", "--stdin", "--no-index"]
    listed = "".join(f"{name}\0" for name in changed)
    result = subprocess.run(command, cwd=root, input=listed, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    return [name for name in changed if name not in result.stdout.split("\0")]
