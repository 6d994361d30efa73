"""A program whose stack is sampled; `draw_flames.py` starts it.

    python sampled.py FILE MODULE ARGUMENTS

Every millisecond of CPU time the kernel interrupts the process, and its stack is counted. At the end the counts are
written into FILE, a line for each stack: the functions from the outermost in, joined with `;`, and the count.
"""

import atexit
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

SAMPLE_S = 0.001
counts: Counter[str] = Counter()


def sample(_number: int, frame: FrameType | None) -> None:
    """Count the present stack."""
    names = []
    while frame is not None:
        names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    counts[";".join(reversed(names))] += 1


def write(path: Path) -> None:
    """Stop sampling, and write the counts."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    path.write_text("".join(f"{stack} {count}\n" for stack, count in sorted(counts.items())))


if __name__ == "__main__":
    _, file, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    atexit.register(write, Path(file))
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    runpy.run_module(module, run_name="__main__")
