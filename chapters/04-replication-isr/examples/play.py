"""Play a scenario step by step with the real replicas and the real controller, on disks in memory.

    python chapters/04-replication-isr/examples/play.py kip-101-divergence
    python chapters/04-replication-isr/examples/play.py "nodes 1 2" "produce a" "fetch 2" "fetch 2" acks
    python chapters/04-replication-isr/examples/play.py kip-101-divergence --planted "not noticed"

The first plays a file of tests/scenarios, the second the steps that you name, the third a file with one of the bugs of
tests/replication_bugs.py in the code. The steps are explained in tests/replication_stage.py.
"""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

import replication_bugs  # noqa: E402
from replication_stage import Stage  # noqa: E402


def text_of(words: list[str]) -> str:
    """The scenario of this name, or one of these steps."""
    file = TESTS / "scenarios" / f"{words[0]}.txt"
    if file.exists():
        return file.read_text(encoding="utf-8")
    return "".join(f"> {word}\n" for word in words)


def bug(words: str) -> replication_bugs.Bug:
    """The bug whose name has these words."""
    found = [it for it in replication_bugs.BUGS if words in it.name]
    if len(found) != 1:
        sys.exit(f"{len(found)} bugs have {words!r} in their names; they are:\n" + "\n".join(NAMES))
    return found[0]


NAMES = [f"  {it.name}" for it in replication_bugs.BUGS]


def main() -> None:
    """Print the steps, each with what was seen."""
    parser = argparse.ArgumentParser(description="Play a scenario.")
    parser.add_argument("words", nargs="+", metavar="SCENARIO | STEP", help="a file of tests/scenarios, or steps")
    parser.add_argument("--planted", metavar="WORDS", help="put the bug with these words in its name into the code")
    options = parser.parse_args()
    planted = bug(options.planted).planted() if options.planted else nullcontext()
    stage = Stage()
    with planted:
        for line in text_of(options.words).splitlines():
            if line.startswith(("> ", "#")) or not line:
                print(stage.play(line), end="")


if __name__ == "__main__":
    main()
