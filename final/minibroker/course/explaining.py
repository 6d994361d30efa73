"""What a failed test expected, in terms that a learner can act on. These functions only transform text and bytes.

`recorder` keeps both sides of the comparison that failed, in the process that tests the learner's code. The process of
the command explains them, with the help of the reference, which knows the names of the fields. So `checking` must not
import this module: a run of the tests would import the reference before the learner's code.
"""

import difflib
import re
import shlex
import textwrap
from collections.abc import Iterator

from minibroker.course.checking import Outcome
from minibroker.course.recorder import BYTES, TEXT
from minibroker.log.annotate import BYTES_PER_LINE, annotate
from minibroker.log.batch import Batch
from minibroker.log.errors import LogError

ROWS_BEFORE, ROWS_AFTER = 2, 1
TRANSCRIPT_LINES_MAX = 12
EXAMPLE_CHARACTERS_MAX = 400

# Older versions of Hypothesis write the first text, newer ones the second.
_EXAMPLE = re.compile(r"(?:Falsifying example|Failing test case): \w+\(\n(.*?),?\n\s*\)\s*$", re.DOTALL | re.MULTILINE)
_CASE = re.compile(r"(?<!Failing test )\bcase: (.+)")
_LOGGED = re.compile(r"^Traceback \(most recent call last\):\n((?:(?: .*)?\n)*)(\w.*)", re.MULTILINE)
_FRAME = re.compile(r'File "(.+)", line (\d+)')
_AGAIN = re.compile(r"\bagain: (python -m .+)")


def explain(outcome: Outcome, workspace: str) -> Iterator[str]:
    """Yield the lines that explain a failed test: the difference, the case, the example, the seed's command."""
    match outcome.compared:
        case [kind, yours, expected] if kind == BYTES:
            yield from explain_bytes(bytes.fromhex(yours), bytes.fromhex(expected))
        case [kind, yours, expected] if kind == TEXT:
            yield from explain_text(yours, expected)
    yield from _notes(outcome.text, workspace)


def explain_bytes(yours: bytes, expected: bytes) -> Iterator[str]:
    """Show the expected bytes around the first difference, with the fields if they are a batch, and yours below."""
    pairs = zip(yours, expected, strict=False)
    at = next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(yours), len(expected)))
    rows = _rows(expected, at)
    here = max((index for index, (position, _line) in enumerate(rows) if position <= at), default=0)
    yield f"expected {_bytes(expected)}, got {len(yours)}; the first difference is at position {at}:"
    for position, line in rows[max(here - ROWS_BEFORE, 0) : here + ROWS_AFTER + 1]:
        yield line
        if position == rows[here][0]:
            end = rows[here + 1][0] if here + 1 < len(rows) else position + BYTES_PER_LINE
            yield f"{'yours':>6}  {yours[position : min(end, position + BYTES_PER_LINE)].hex(' ')}"
            yield f"{'':>6}  {'   ' * (at - position)}^^"


def _rows(data: bytes, at: int) -> list[tuple[int, str]]:
    """The lines that show some bytes, each with its first position: the fields of a batch, or plain rows."""
    try:
        lines = list(annotate(Batch(data)))
        numbered = [(int(line[:6]), line) for line in lines if line[:6].strip()]
    except (LogError, ValueError, IndexError):
        numbered = []
    # A record set may have several batches, and the difference may be after the first one or in shortened bytes.
    if any(position <= at < position + BYTES_PER_LINE for position, _line in numbered):
        return numbered
    rows = range(0, max(len(data), at + 1), BYTES_PER_LINE)
    return [(row, f"{row:>6}  {data[row : row + BYTES_PER_LINE].hex(' ')}") for row in rows]


def _bytes(data: bytes) -> str:
    return f"{len(data)} {'byte' if len(data) == 1 else 'bytes'}"


def explain_text(yours: str, expected: str) -> Iterator[str]:
    """Show the first lines that differ: with `-` what was expected, with `+` yours."""
    found = list(difflib.unified_diff(expected.splitlines(), yours.splitlines(), lineterm="", n=ROWS_BEFORE))[2:]
    hunk = re.match(r"@@ -(\d+)", found[0]) if found else None
    if hunk is None:
        return
    yield f"the difference begins near line {hunk[1]}; - is expected, + is yours:"
    yield from found[1 : TRANSCRIPT_LINES_MAX + 1]
    if len(found) > TRANSCRIPT_LINES_MAX + 1:
        yield f"… {len(found) - TRANSCRIPT_LINES_MAX - 1} lines more"


def _notes(text: str, workspace: str) -> Iterator[str]:
    """Yield the case, the exception that was only logged, the random example, and the command that replays a seed."""
    # pytest marks the lines of an error with an E.
    plain = re.sub(r"^E ? ?", "", text, flags=re.MULTILINE)
    if named := _CASE.search(plain):
        yield f"the case: {named[1].strip()}"
    if logged := _LOGGED.search(plain):
        mine = [found for found in _FRAME.findall(logged[1]) if f"{workspace}/" in found[0]]
        where = "".join(f" ({path[path.rfind(workspace) :]}, line {row})" for path, row in mine[-1:])
        yield f"this error was logged: {logged[2].strip()}{where}"
    if again := _AGAIN.search(plain):
        yield f"play it again: PYTHONPATH={shlex.quote(workspace)} {again[1].strip()}"
    if example := _EXAMPLE.search(plain):
        yield f"the example: {textwrap.shorten(example[1], EXAMPLE_CHARACTERS_MAX, placeholder=' …')}"
