"""Read a topic with one executor, and with two."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.spark_stage import Stage

from minibroker.bench import Bar, Benchmark, Case, Context, scaled

# The tasks of a query run in rounds, so their number is a multiple of the number of executors.
PARTITIONS = 8
ROWS = scaled(full=4_000_000, quick=1_000)
VALUE_BYTES = 100
WARMUPS = scaled(full=2, quick=0)
# Each executor needs a core for its JVM and one for its Python worker.
CORES_MIN = 4
ONE, TWO = "1 executor", "2 executors"


def benchmark(context: Context) -> Benchmark:
    stage = Stage(context)
    topic = stage.filled_topic(ROWS, VALUE_BYTES, partitions=PARTITIONS)
    cores = os.cpu_count() or 1
    cases = [case(context, stage, topic, name, number) for number, name in enumerate((ONE, TWO), start=1)]
    return Benchmark(
        f"Read a topic of {PARTITIONS} partitions with one and two executors of one core",
        cases,
        bars=[Bar(TWO, "ratio", at_least=1.6)] if cores >= CORES_MIN else [],
        metric="ops_per_s",
        note=(
            f"An operation is one row of {VALUE_BYTES} B. Each executor is a JVM with a Python worker. The ratio is how"
            f" much faster two are; below {CORES_MIN} cores it has no bar, and this machine has {cores}."
        ),
    )


def case(context: Context, stage: Stage, topic: str, name: str, executors: int) -> Case:
    command = [sys.executable, str(Path(__file__).with_name("spark_executors.py")), str(executors)]
    child = subprocess.Popen(
        [*command, stage.broker.address, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Master and executors find each other under the address that Spark binds to.
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    context.on_close(partial(end, child))
    for _ in range(1 + WARMUPS):
        read(child)
    return Case(name, partial(read, child), operations_count=ROWS, limit="" if executors == 1 else ONE)


def read(child: "subprocess.Popen[str]") -> None:
    """Let a Spark read the topic, and wait until it is done."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("read\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    assert answer == "done\n", f"Spark ended with exit code {child.wait()}"


def end(child: "subprocess.Popen[str]") -> None:
    child.communicate()
