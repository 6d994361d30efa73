"""The pipeline orders: its sums against those made by hand, and a run that is killed and run again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokers import Broker, eventually, unique

from minibroker.client.blocking import Client
from minibroker.client.consumer import EARLIEST, Consumer
from minibroker.log.record import Record
from minibroker.pipelines import generating, orders, running
from minibroker.pipelines.errors import PipelineError
from minibroker.pipelines.generator import Event, Shape, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["clients_fixtures", "spark_fixtures"]
pytestmark = pytest.mark.xdist_group("spark")

START_MS = 1_700_000_000_000
SHAPE = Shape(bad_fraction=0.05, per_second=10, late_fraction=0.2)


def records_of(broker: Broker, topic: str) -> list[Record]:
    """Every record, those of a partition in their order."""
    found: list[Record] = []
    with Client(broker.address) as client, Consumer(client, max_wait_ms=50) as consumer:
        partitions = consumer.assign_topic(topic, EARLIEST)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(it) < ends[it] for it in partitions):
            for fetched in consumer.poll(timeout_ms=1000):
                found += fetched
    return found


def latest(records: list[Record]) -> dict[str, dict[str, object]]:
    """The last word on each key, as a compacted topic would keep it."""
    return {(it.key or b"").decode(): json.loads(it.value or b"") for it in records}


def by_hand(made: list[Event]) -> dict[str, tuple[int, Decimal]]:
    """Orders and revenue of each region and minute."""
    sums: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    for event in made:
        if event.bad is None:
            order = json.loads(event.value, parse_float=Decimal)
            key = f"{order['region']}|{order['time'][:16]}:00Z"
            count, revenue = sums[key]
            sums[key] = (count + 1, revenue + order["amount"])
    return sums


def settings_for(broker: Broker, checkpoint: Path) -> orders.Orders:
    name = unique("orders")
    return orders.Orders(
        broker.address,
        str(checkpoint),
        topic=name,
        results=f"{name}-revenue",
        dead_letters=f"{name}-dead",
        watermark="1 hour",
        once=True,
    )


def fill(broker: Broker, topic: str, count: int) -> list[Event]:
    generating.generate(broker.address, topic, SHAPE, count=count, partitions=2, start_ms=START_MS)
    return list(events(SHAPE, count=count, start_ms=START_MS, first=START_MS))


def check(broker: Broker, settings: orders.Orders, made: list[Event]) -> None:
    results = latest(records_of(broker, settings.results))
    found = {key: (it["orders"], Decimal(str(it["revenue"]))) for key, it in results.items()}
    assert found == dict(by_hand(made))
    letters = {it.value for it in records_of(broker, settings.dead_letters)}
    assert letters == {event.value for event in made if event.bad}


def test_sums_and_dead_letters_are_those_made_by_hand(
    spark: "SparkSession", broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(broker, tmp_path)
    made = fill(broker, settings.topic, 400)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    orders.run(spark, settings)
    check(broker, settings, made)
    problems = {dict(it.headers)["problem"] for it in records_of(broker, settings.dead_letters)}
    assert problems == {b"not json of an order", b"no region", b"no time", b"amount is not above 0"}
    told = capfd.readouterr().err
    assert "revenue: batch 0: 400 records, " in told
    assert "dead-letters: batch 0: 400 records, " in told


def test_a_run_that_is_killed_goes_on_from_its_checkpoint_and_nothing_is_lost(
    spark: "SparkSession", broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(broker, tmp_path / "checkpoint")
    made = fill(broker, settings.topic, 300)
    command = [
        sys.executable,
        "-m",
        "minibroker.cli",
        "pipeline",
        "run",
        "orders",
        "--once",
        "--max-per-trigger",
        "100",
    ]
    command += ["--bootstrap-server", broker.address, "--checkpoint", settings.checkpoint, "--topic", settings.topic]
    command += ["--results", settings.results, "--dead-letters", settings.dead_letters, "--watermark", "1 hour"]
    command += ["--max-per-trigger", "100"]
    command += ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
    with (tmp_path / "first").open("wb") as log:
        first = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)
    commits = Path(settings.checkpoint, "revenue", "commits")
    try:
        eventually(lambda: (commits / "0").exists() or first.poll() is not None, "a batch is committed", seconds=120)
        is_killed = first.poll() is None
    finally:
        # The JVM and its workers are in the same group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert is_killed, f"it was to be killed in the middle:\n{(tmp_path / 'first').read_text()[-2000:]}"
    assert not (commits / "2").exists(), "it was killed in the middle"
    # The run after it, with the session that is there already.
    capfd.readouterr()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    orders.run(spark, replace(settings, max_per_trigger=100))
    assert "revenue: batch 2: 100 records" in capfd.readouterr().err
    check(broker, settings, made)


def test_a_topic_that_is_not_there_is_named_with_what_to_do(broker: Broker) -> None:
    with pytest.raises(PipelineError, match=r"^there is no topic 'nowhere-at-all': "):
        running.prepare_topics(broker.address, read=["nowhere-at-all"])


def test_a_worker_s_error_becomes_the_one_line_that_it_raised() -> None:
    text = """Job aborted due to stage failure: Task 0 failed 4 times:
Traceback (most recent call last):
  File "worker.py", line 1, in write
minibroker.spark.writing.RowRefused: partition 3 is not one of topic t: it has 3, from 0 to 2

Driver stacktrace:"""
    assert running.reason(Exception(text)) == "partition 3 is not one of topic t: it has 3, from 0 to 2"
    assert running.reason(Exception("[X] first line\nsecond")) == "[X] first line"


def test_what_is_behind_is_told_from_the_offsets_of_a_progress_report() -> None:
    assert running.behind_of('{"t":{"0":5,"1":7},"$start":{"t":{"0":0}}}', '{"t":{"0":9,"1":7}}') == 4
    assert running.behind_of({"t": {"0": 5}}, None) is None
    progress = {
        "batchId": 3, "numInputRows": 10, "processedRowsPerSecond": 1234.5,
        "sources": [{"endOffset": '{"t":{"0":5}}', "latestOffset": '{"t":{"0":6}}'}],
    }  # fmt: skip
    assert running.progress_line("q", progress) == "q: batch 3: 10 records, 1,234/s, 1 behind"
