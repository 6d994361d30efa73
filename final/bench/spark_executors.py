"""A Spark of several processes that reads a topic for each line on its stdin, and answers with a line when it is done.

    python final/bench/spark_executors.py EXECUTORS BOOTSTRAP TOPIC

A process has one Spark context, and the session of the other benchmarks has one task slot. So this one has its own.
"""

import sys

from minibroker.spark.java import session

EXECUTOR_MB = 1024
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
}


def main() -> None:
    """Serve until stdin ends."""
    executors, bootstrap, topic = sys.argv[1:]
    spark = session("bench", f"local-cluster[{executors},1,{EXECUTOR_MB}]", **CONF)
    rows = spark.read.format("minibroker").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    for _ in sys.stdin:
        rows.load().write.format("noop").mode("overwrite").save()
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
