"""Runs a world: many seeds, or one seed again.

    python -m minibroker.simulation MODULE --seeds 1000           many seeds on all cores, until one fails
    python -m minibroker.simulation MODULE --replay 17            one seed again, with its trace
    python -m minibroker.simulation MODULE --replay 17 --shrink   with the fewest faults that still make it fail
    python -m minibroker.simulation MODULE --replay 17 --without "full disk,pause"
    python -m minibroker.simulation MODULE --replay 17 --draw run.svg --from 2000 --to 2500 --nodes node-1,node-2

MODULE is a module on the path with a class `World`. The exit code is 1 if an invariant was broken, or if a state that
the world declares was never reached.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from minibroker.simulation.diagram import draw
from minibroker.simulation.running import load_world, replay, run_in_parallel, shrunk
from minibroker.simulation.trace import digest, lines
from minibroker.simulation.world import Outcome, World

LINES_SHOWN = 40
SEEDS_FOR_STATES = 100  # with fewer seeds, a state that no seed reaches is not a failure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, report, return the exit code."""
    options = _parser().parse_args(arguments)
    if options.path:
        sys.path.insert(0, options.path)
    world = load_world(options.module)
    return _replay(world, options) if options.replay is not None else _run(world, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minibroker.simulation", description="Run a world from seeds.")
    parser.add_argument("module", metavar="MODULE", help="a module with a class World")
    parser.add_argument("--path", default="", metavar="DIR", help="the module's directory (default: the current one)")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="the number of seeds (default: 100)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="K", help="the first seed (default: 1)")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, metavar="J", help="processes (default: one per core)")
    parser.add_argument("--seconds", type=float, metavar="S", help="start no more seeds after S seconds")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed again")
    parser.add_argument("--without", default="", metavar="A,B", help="replay without faults of these kinds")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that the failure does not need")
    parser.add_argument("--trace", action="store_true", help="print the whole trace, not only its end")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw the end of the run, as SVG")
    parser.add_argument("--from", dest="from_ms", type=int, metavar="MS", help="draw from this time on")
    parser.add_argument("--to", dest="to_ms", type=int, metavar="MS", help="draw up to this time")
    parser.add_argument("--nodes", metavar="A,B", help="draw only these nodes, in this order")
    return parser


# Many seeds -----------------------------------------------------------------------------------------------------------


def _run(world: type[World], options: argparse.Namespace) -> int:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    summary = run_in_parallel(
        options.module,
        seeds,
        jobs=options.jobs,
        seconds_max=options.seconds,
        progress=lambda it: _show(f"{it.seeds:,} of {options.seeds:,} seeds, {len(it.failures)} failed"),
    )
    _show(" " * 60 + "\r")
    print(summary.text(), flush=True)
    if summary.failure is not None:
        # Shrinking takes a while, so the seed is printed first.
        seed, count = summary.failure.seed, len(summary.failure.faults)
        print(f"looking for the faults that cause the failure, among the {count} faults of seed {seed}", flush=True)
        faults = shrunk(world, summary.failure)
        _report(replay(world, seed, faults), options, shrunk_from=count)
        return 1
    if summary.missing and summary.seeds >= SEEDS_FOR_STATES:
        print(f"never reached: {', '.join(summary.missing)}. These seeds do not test those states: run more seeds")
        return 1
    return 0


def _show(words: str) -> None:
    """Rewrite one line on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{words}")
        sys.stderr.flush()


# One seed -------------------------------------------------------------------------------------------------------------


def _replay(world: type[World], options: argparse.Namespace) -> int:
    left_out = options.without.split(",")
    outcome = replay(world, options.replay, [it for it in world(options.replay).faults if it.kind not in left_out])
    drawn = len(outcome.faults)
    if options.shrink and outcome.violation is not None:
        outcome = replay(world, options.replay, shrunk(world, outcome))
    if options.draw is not None:
        title = f"{options.module}, seed {outcome.seed}"
        nodes = options.nodes.split(",") if options.nodes else None
        drawing = draw(outcome.entries, title=title, from_ms=options.from_ms, to_ms=options.to_ms, nodes=nodes)
        options.draw.write_text(drawing, encoding="utf-8")
    _report(outcome, options, shrunk_from=drawn)
    return int(outcome.violation is not None)


def _report(outcome: Outcome, options: argparse.Namespace, *, shrunk_from: int) -> None:
    shown = list(lines(outcome.entries))
    print(*(shown if options.trace else shown[-LINES_SHOWN:]), sep="\n")
    print(f"\nseed {outcome.seed}: {outcome.violation or 'every invariant holds'}")
    of = f" of {shrunk_from}; the others do not matter" if len(outcome.faults) < shrunk_from else ""
    print(f"{len(outcome.faults)} faults{of}:", *(f"  {fault}" for fault in outcome.faults), sep="\n")
    print(f"{outcome.acks:,} acked records, {outcome.events:,} events, {outcome.virtual_ms / 1000:.1f} virtual seconds")
    print(f"trace {digest(outcome.entries)[:16]}")
    if outcome.violation is not None:
        path = f" --path {options.path}" if options.path else ""
        print(f"again: python -m minibroker.simulation {options.module}{path} --replay {outcome.seed} --shrink")


if __name__ == "__main__":
    sys.exit(main())
