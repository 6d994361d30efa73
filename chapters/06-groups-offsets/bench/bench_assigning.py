"""The time that the coordinator needs to compute a target assignment: `uniform` for 10,000 members.

The full assignment begins with nothing. The incremental one begins with a balanced assignment and one member more, as
when a group grows. Kafka publishes 4 ms and 15 ms for these sizes, measured on the JVM after a warm-up; the two bars
are printed beside ours and are from another machine.
"""

from minibroker.bench import BarChart, BarRow, Benchmark, Case, Context, Results, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.plot import LIMIT, OURS
from minibroker.groups.server_assignors import MemberSpec, assign_uniform

FULL, INCREMENTAL = "full", "incremental, one member more"
KAFKA_MS = {FULL: 4.0, INCREMENTAL: 15.0}


def benchmark(context: Context) -> Benchmark:  # noqa: ARG001
    members_count, topics_count = scaled(full=(10_000, 100), quick=(100, 10))
    counts = {bytes([number]) * 16: 10 * members_count // topics_count for number in range(topics_count)}
    topics = frozenset(counts)
    names = [f"member-{number:05}" for number in range(members_count)]
    nothing = {name: MemberSpec(topics) for name in names}
    before = assign_uniform({name: nothing[name] for name in names[:-1]}, counts)
    grown = {name: MemberSpec(topics, before.get(name, {})) for name in names}

    def figure(results: Results) -> BarChart:
        rows = [BarRow(f"{OURS}, {name}", *ours_ms(results, name), series=OURS) for name in KAFKA_MS]
        rows += [BarRow(f"Kafka, published, {name}", ms, series=LIMIT) for name, ms in KAFKA_MS.items()]
        title = f"uniform: {members_count:,} members, {10 * members_count:,} partitions"
        return BarChart(title, "milliseconds, median and quartiles", rows, note=quick_note())

    return Benchmark(
        f"The assignor uniform, {members_count:,} members and {10 * members_count:,} partitions",
        [
            Case(FULL, lambda: assign_uniform(nothing, counts), operations_count=1),
            Case(INCREMENTAL, lambda: assign_uniform(grown, counts), operations_count=1),
        ],
        metric="ms_per_op",
        columns=["ms_per_op"],
        figure=figure,
        note=f"Kafka's published figures for the full size: {KAFKA_MS[FULL]:g} ms and {KAFKA_MS[INCREMENTAL]:g} ms.",
    )


def ours_ms(results: Results, name: str) -> tuple[float, float, float]:
    """The median and the quartiles of a case, in milliseconds."""
    spread = results[name].spread("ms_per_op")
    assert spread is not None
    return spread
