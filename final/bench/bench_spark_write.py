"""Write rows to a topic through Spark: our sink compared with one that gets rows one by one, and with Spark's own."""

from functools import partial

from bench.spark_stage import KAFKA, ONCE, OURS, Stage, spark_kafka
from pyspark.sql import DataFrame

from minibroker.bench import Bar, Benchmark, Case, Context, scaled

# The number of rows of each size, and the share of them that the slower sink writes.
SIZES = {"100 B": (100, 800_000), "1 KB": (1000, 200_000)}
SINKS = {"tuples": 0.2, KAFKA: 0.5, OURS: 1.0, ONCE: 1.0}
LABELS = {"tuples": "rows, plain encoder", KAFKA: "Spark's own connector", OURS: OURS, ONCE: ONCE}
WARMUPS = 3


def benchmark(context: Context) -> Benchmark:
    stage = Stage(context)
    sinks = {name: share for name, share in SINKS.items() if name != KAFKA or spark_kafka()}
    beside = KAFKA if spark_kafka() else "tuples"
    return Benchmark(
        "Write a topic through Spark, one task slot",
        [case for name in SIZES for case in write_cases(stage, name, sinks, beside)],
        bars=[
            Bar("100 B, minibroker", "ratio", at_least=5, against=f"100 B, {LABELS['tuples']}"),
            Bar("1 KB, minibroker", "ratio", at_least=2, against=f"1 KB, {LABELS['tuples']}"),
            *(Bar(f"{size}, {ONCE}", "ratio", at_least=0.8, against=f"{size}, {OURS}") for size in SIZES),
        ],
        metric="ops_per_s",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note=(
            "An operation is one row, made by Spark, acknowledged by the broker (acks=all). CPU is that of the JVM and"
            " its Python workers, not the broker's. Sizes vary by half around the one named."
        ),
    )


def write_cases(stage: Stage, name: str, sinks: dict[str, float], beside: str) -> list[Case]:
    size, full = SIZES[name]
    cases = []
    for sink, share in sinks.items():
        count = int(scaled(full=full, quick=2_000) * share)
        for _ in range(scaled(full=WARMUPS, quick=0)):
            stage.write(sink, stage.new_topic(), made_rows(stage, count // 4, size))
        topics: list[str] = []
        cases.append(
            Case(
                f"{name}, {LABELS[sink]}",
                partial(write, stage, sink, topics, made_rows(stage, count, size)),
                bytes_count=count * size,
                operations_count=count,
                limit="" if sink == beside else f"{name}, {LABELS[beside]}",
                series=LABELS[sink],
                group=name,
                before=partial(begin, stage, topics),
                # A transaction ends with a marker, which has an offset of its own.
                after=partial(check, stage, topics, count + (sink == ONCE)),
                cpu_s=stage.cpu_s,
            )
        )
    return cases


def made_rows(stage: Stage, count: int, size: int) -> DataFrame:
    """Make rows that cost Spark almost nothing: prefixes of a byte string. For a text it would count characters."""
    text = f"CAST(repeat('x', {size * 3 // 2}) AS BINARY)"
    value = f"substring({text}, 1, CAST({size // 2} + (id * 7919) % {size + 1} AS INT))"
    return stage.spark.range(0, count, 1, 1).selectExpr(f"{value} AS value")


def begin(stage: Stage, topics: list[str]) -> None:
    if topics:
        stage.delete(topics.pop())
    topics.append(stage.new_topic())


def write(stage: Stage, sink: str, topics: list[str], rows: DataFrame) -> None:
    stage.write(sink, topics[0], rows)


def check(stage: Stage, topics: list[str], count: int) -> None:
    found = stage.row_count(topics[0])
    assert found == count, f"{count} offsets were expected, the topic has {found}"
