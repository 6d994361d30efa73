"""How fast a simulated cluster runs: the cost of a seed.

Every round runs the same seeds in one process, so the work is the same to the event. Beside it the bare minimum of such
a run: a heap from which as many events are taken, in order, and nothing done with them.
"""

import heapq
import sys
from pathlib import Path

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, scaled
from minibroker.simulation.running import Summary, load_world, run_seeds

WORLD = "replication_world"
# The world is this chapter's cluster with its clients, which only its tests have.
WORLD_FOLDER = Path(__file__).parents[1] / "tests"
SEEDS = "seeds of chapter 04's world"
HEAP = "bare heap of events"


def benchmark(context: Context) -> Benchmark:
    sys.path.insert(0, str(WORLD_FOLDER))
    context.on_close(sys.path.remove, str(WORLD_FOLDER))
    world, seeds = load_world(WORLD), range(1, scaled(full=2, quick=1) + 1)
    summaries: list[Summary] = []

    def run() -> None:
        summaries.append(run_seeds(world, seeds))
        assert not summaries[-1].failures, f"seed {summaries[-1].failures[0].seed} breaks an invariant"

    run()
    events = summaries[0].events
    return Benchmark(
        "The simulator, one process",
        [
            Case(HEAP, lambda: pop_all(events), operations_count=events),
            Case(SEEDS, run, operations_count=events, limit=HEAP),
        ],
        # An event is a message or a timer: a request is handled, bytes are written, and the invariants are checked.
        bars=[Bar(SEEDS, "ratio", at_least=0.015)],
        log=True,
        facts=[
            Fact("speed", "seeds/s", lambda: per_s(summaries, float(len(seeds)))),
            Fact("virtual time", "s/s", lambda: per_s(summaries, summaries[0].virtual_ms / 1000)),
            Fact("acked records", "records/s", lambda: per_s(summaries, float(summaries[0].acks))),
        ],
        note=f"An operation is an event. A round is {len(seeds)} seeds, {events:,} events.",
    )


def per_s(summaries: list[Summary], amount: float) -> float:
    """A rate per second, as the median of the measured rounds."""
    times_s = sorted(summary.seconds for summary in summaries[2:])
    return amount / times_s[len(times_s) // 2]


def pop_all(events: int) -> None:
    heap = [(number * 7919 % events, number) for number in range(events)]
    heapq.heapify(heap)
    while heap:
        heapq.heappop(heap)
