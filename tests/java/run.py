"""`make test-java`: Kafka's own code against our files and our cluster. `make test-kafka`: our tests against Kafka.

    python run.py test-java|test-kafka [ARGUMENTS OF PYTEST]

Without Maven and Java 17 it says so, and that is no failure.
"""

import os
import shlex
import sys
from pathlib import Path

from minibroker.bench import jars, kafka

HERE = Path(__file__).resolve().parent
CHECKS = ("check_files.py", "check_clients.py", "check_tools.py", "check_groups.py", "check_transactions.py")
# A test's own settings win over these, because they come later in the command.
SETTINGS = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1")
SERVE = [sys.executable, "-m", "minibroker.bench.kafka_program", *(f"--set={it}" for it in SETTINGS)]
# A node lives for minutes in the tests, too short for the optimizing compiler to pay off.
SHORT_LIVED = {
    "KAFKA_HEAP_OPTS": "-Xmx512m",
    "KAFKA_JVM_PERFORMANCE_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "MINIBROKER_TEST_SERVE": shlex.join(SERVE),
}


def main() -> None:
    """Find the jars, then become pytest."""
    target, *arguments = sys.argv[1:]
    is_java = target == "test-java"
    try:
        os.environ["KAFKA_CLASSPATH"] = jars.classpath(HERE / "pom.xml" if is_java else kafka.POM)
    except jars.Missing as missing:
        print(f"make {target}: skipped; {missing}")
        return
    if is_java:
        arguments = [*(str(HERE / it) for it in CHECKS), *arguments]
    else:
        os.environ |= SHORT_LIVED
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


if __name__ == "__main__":
    main()
