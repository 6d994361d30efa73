"""Runs the benchmarks of a folder.

```
python -m minibroker.bench chapters/01-log/bench --out docs/chapters/01-log/figures
```

A benchmark that fails does not stop the others. Exit codes: 0 done, 1 a bar was missed or a benchmark failed, 2 wrong
usage, 130 interrupted. A quick run (`MINIBROKER_QUICK=1`) enforces no bar.
"""

import argparse
import gc
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from minibroker.bench.benchmark import Found, Outcome, Skipped, find_benchmarks, run
from minibroker.bench.context import is_quick, open_context
from minibroker.bench.progress import ProgressLine
from minibroker.bench.report import outcome_text, write_outcome

MET, MISSED, INTERRUPTED = 0, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line names, and return the exit code."""
    parser = command_line()
    options = parser.parse_args(arguments)
    chosen = choose(parser, options)
    if is_quick():
        exempt_modules_from_garbage_collection()
    missed: list[str] = []
    failures: list[str] = []
    try:
        for found in chosen:
            try:
                missed += [found.name] * run_and_report(found, options).is_missed
            except Skipped as reason:
                print(f"benchmark {found.name} is skipped: {reason}", flush=True)
            except Exception as error:
                failures.append(failure_text(found, error))
    except KeyboardInterrupt:
        print("\ninterrupted; temporary files are removed", file=sys.stderr)
        return INTERRUPTED
    return conclude(missed, failures, len(chosen))


def failure_text(found: Found, error: Exception) -> str:
    """Print and return why a benchmark failed. An error other than OSError is a bug: print its traceback, too."""
    if not isinstance(error, OSError):
        traceback.print_exception(error)
    what = str(error) or type(error).__name__
    text = f"benchmark {found.name} failed, and has no figures: {what}"
    print(f"{text}\n", file=sys.stderr, flush=True)
    return text


def conclude(missed: Sequence[str], failures: Sequence[str], count: int) -> int:
    """Print the failures again at the end, where they are easy to see; return the exit code."""
    if missed:
        print(f"bars MISSED in: {', '.join(missed)}", file=sys.stderr)
    if failures:
        print(f"{len(failures)} of {count} benchmarks FAILED:", *failures, sep="\n  ", file=sys.stderr)
    return MISSED if missed or failures else MET


def command_line() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(prog="python -m minibroker.bench", description="Run the benchmarks of a folder.")
    parser.add_argument("folder", type=Path, help="folder with bench_*.py files")
    parser.add_argument("--out", type=Path, help="folder for NAME.json and NAME.svg")
    parser.add_argument("--repeats", type=positive, help="measured rounds (default 11; 1 in a quick run)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="run this benchmark; may be repeated"
    )
    parser.add_argument("--dir", type=Path, help="folder for temporary files, on the disk under test")
    return parser


def positive(text: str) -> int:
    """Read a number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def choose(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Found]:
    """Return the chosen benchmarks; exit with one line of explanation if there are none."""
    for folder in filter(None, (options.folder, options.dir)):
        if not folder.is_dir():
            parser.error(f"there is no folder {folder}")
    benchmarks = find_benchmarks(options.folder)
    if not benchmarks:
        parser.error(f"no bench_*.py in {options.folder} defines a benchmark")
    names = [found.name for found in benchmarks]
    unknown = [name for name in options.only if name not in names]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    return [found for found in benchmarks if not options.only or found.name in options.only]


def exempt_modules_from_garbage_collection() -> None:
    """Exempt loaded modules from garbage collection, which would take most of the time of a quick run."""
    gc.collect()
    gc.freeze()


def run_and_report(found: Found, options: argparse.Namespace) -> Outcome:
    """Run one benchmark, print its table, write its files."""
    progress = ProgressLine(found.name)
    try:
        with open_context(directory=options.dir, repeats=options.repeats, progress=progress) as context:
            outcome = run(found, context)
    finally:
        progress.close()
    print(outcome_text(outcome), flush=True)
    if options.out:
        paths = write_outcome(options.out, outcome)
        print(f"wrote {' and '.join(str(path) for path in paths)}\n", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
