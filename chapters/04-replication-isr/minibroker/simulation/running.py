"""Runs many seeds on many cores. Unlike the other modules, it starts processes and reads the clock."""

import importlib
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice

from minibroker.simulation.faults import Fault
from minibroker.simulation.shrinking import shrink
from minibroker.simulation.world import Outcome, World

_CHUNK_SEEDS = 4
"""How many seeds a process gets at once. A larger number needs fewer messages, but ends with a longer wait."""


@dataclass
class Summary:
    """The results of many seeds, added up."""

    seeds: int = 0
    acks: int = 0
    acks_min: int | None = None
    faults: int = 0
    events: int = 0
    virtual_ms: int = 0
    seconds: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one seed."""
        self.seeds += 1
        self.acks += outcome.acks
        self.acks_min = outcome.acks if self.acks_min is None else min(self.acks_min, outcome.acks)
        self.faults += len(outcome.faults)
        self.events += outcome.events
        self.virtual_ms += outcome.virtual_ms
        self.states.update(outcome.states)
        if outcome.violation is not None:
            self.failures.append(outcome)

    @property
    def failure(self) -> Outcome | None:
        """The failure with the smallest seed."""
        return min(self.failures, key=lambda outcome: outcome.seed, default=None)

    @property
    def missing(self) -> list[str]:
        """The states that no seed reached."""
        return [name for name, count in self.states.items() if count == 0]

    def text(self) -> str:
        """The totals, and how often each state was reached."""
        speed = self.virtual_ms / 1000 / self.seconds if self.seconds else 0
        rate = self.seeds / self.seconds if self.seconds else 0
        states = "".join(f"\n  {count:>12,}  {name}" for name, count in self.states.items())
        return (
            f"{self.seeds:,} seeds in {self.seconds:.1f} s, {rate:.1f} seeds/s, {len(self.failures)} failed\n"
            f"{self.virtual_ms / 3_600_000:.2f} virtual hours, {speed:.0f} times as fast as real time\n"
            f"{self.acks:,} acked records, at least {self.acks_min or 0:,} in a seed; "
            f"{self.faults:,} faults, {self.events:,} events"
            f"{chr(10) + 'states reached:' if states else ''}{states}"
        )


def load_world(module: str) -> type[World]:
    """The class `World` of a module on the path."""
    world = importlib.import_module(module).World
    assert issubclass(world, World), f"{module}.World is not a subclass of World"
    return world  # type: ignore[no-any-return]


def run_seeds(world: Callable[[int], World], seeds: Iterable[int]) -> Summary:
    """Run seeds in this process, one after the other, until one fails. A test may plant a bug in the code first."""
    summary = Summary()
    began = time.perf_counter()
    for seed in seeds:
        summary.add(replace(world(seed).run(), entries=()))
        if summary.failures:
            break
    summary.seconds = time.perf_counter() - began
    return summary


def run_in_parallel(
    module: str,
    seeds: Iterable[int],
    *,
    jobs: int,
    seconds_max: float | None = None,
    progress: Callable[[Summary], None] = lambda _summary: None,
) -> Summary:
    """Run seeds on several cores until one fails, the time is up, or all are done."""
    summary = Summary()
    began = time.perf_counter()
    chunks = _chunks(seeds)
    # Each process is new and has another hash seed, which reveals code that depends on the order of a set.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: set[Future[list[Outcome]]] = set()
        while True:
            is_over = bool(summary.failures) or (seconds_max is not None and summary.seconds >= seconds_max)
            if not is_over:
                running |= {pool.submit(_run_chunk, module, it) for it in islice(chunks, 2 * jobs - len(running))}
            if not running:
                return summary
            done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for outcome in (outcome for future in done for outcome in future.result()):
                summary.add(outcome)
            summary.seconds = time.perf_counter() - began
            progress(summary)


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    each = iter(seeds)
    while chunk := list(islice(each, _CHUNK_SEEDS)):
        yield chunk


def _run_chunk(module: str, seeds: Sequence[int]) -> list[Outcome]:
    # The code under test may log a warning for each fault.
    logging.disable()
    world = load_world(module)
    return [replace(world(seed).run(), entries=()) for seed in seeds]


def replay(world: type[World], seed: int, faults: Sequence[Fault] | None = None) -> Outcome:
    """Run one seed again with its trace."""
    return world(seed, faults=faults, is_traced=True).run()


def shrunk(world: type[World], failure: Outcome) -> list[Fault]:
    """The fewest faults with which a seed still breaks the same invariant."""

    def is_failing(faults: Sequence[Fault]) -> bool:
        outcome = world(failure.seed, faults=faults).run()
        return outcome.violation is not None and outcome.invariant == failure.invariant

    return shrink(failure.faults, is_failing)
