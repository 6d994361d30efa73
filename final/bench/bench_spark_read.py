"""Read a topic through Spark: our source compared with tuples, confluent-kafka and Spark's own connector."""

from functools import partial

from bench.spark_stage import KAFKA, OURS, Stage, spark_kafka

from minibroker.bench import Bar, Benchmark, Case, Context, scaled

# Rows of each size: enough to outweigh the planning of a query. Tuples are slow, so they get a quarter of the rows.
SIZES = {"100 B": (100, 2_000_000), "1 KB": (1000, 1_000_000)}
SOURCES = {"tuples": 0.25, "confluent": 1.0, KAFKA: 1.0, OURS: 1.0}
LABELS = {
    "tuples": "tuples, plain decoder",
    "confluent": "confluent-kafka to Arrow",
    KAFKA: "Spark's own connector",
    OURS: "minibroker",
}
WARMUPS = 3


def benchmark(context: Context) -> Benchmark:
    stage = Stage(context)
    found = spark_kafka()
    sources = {name: share for name, share in SOURCES.items() if name != KAFKA or found}
    beside = KAFKA if found else "tuples"
    peers = SIZES if found else {}
    cases = [case for name in SIZES for case in read_cases(stage, name, sources, beside)]
    return Benchmark(
        "Read a topic through Spark, one task slot",
        cases,
        bars=[
            Bar("100 B, minibroker", "ratio", at_least=5, against=f"100 B, {LABELS['tuples']}"),
            Bar("100 B, minibroker", "ratio", at_least=2, against=f"100 B, {LABELS['confluent']}"),
            # A large row is mostly bytes, which Spark sends through a socket into the JVM in both cases.
            Bar("1 KB, minibroker", "ratio", at_least=1.5, against=f"1 KB, {LABELS['confluent']}"),
            *(Bar(f"{it}, minibroker", "ratio", at_least=0.8, against=f"{it}, {LABELS[KAFKA]}") for it in peers),
        ],
        metric="ops_per_s",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note=(
            "An operation is one row, the planning of the query included. CPU is that of the JVM and its Python"
            " workers, not the broker's. Sizes vary by half around the one named."
        ),
    )


def read_cases(stage: Stage, name: str, sources: dict[str, float], beside: str) -> list[Case]:
    size, row_count = SIZES[name][0], scaled(full=SIZES[name][1], quick=2_000)
    topic = stage.filled_topic(row_count, size)
    cases = []
    for source, share in sources.items():
        rows = int(row_count * share)
        # The JVM compiles code that runs often, so it warms up before the first round.
        for _ in range(scaled(full=WARMUPS, quick=0)):
            stage.read(source, topic, rows // 4)
        cases.append(
            Case(
                f"{name}, {LABELS[source]}",
                partial(stage.read, source, topic, rows),
                bytes_count=rows * size,
                operations_count=rows,
                limit="" if source == beside else f"{name}, {LABELS[beside]}",
                series=LABELS[source],
                group=name,
                cpu_s=stage.cpu_s,
            )
        )
    return cases
