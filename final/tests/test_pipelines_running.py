"""The shared parts of the pipelines: topics, progress, errors in one line. No session is needed here."""

import socket

import pytest
from brokers import Broker

from minibroker.pipelines import running
from minibroker.pipelines.errors import PipelineError, PipelineFailed

pytest_plugins = ["clients_fixtures"]


def test_a_topic_that_is_not_there_is_named_with_what_to_do(broker: Broker) -> None:
    with pytest.raises(PipelineError, match=r"^there is no topic 'nowhere-at-all': "):
        running.prepare_topics(broker.address, read=["nowhere-at-all"])


def test_an_error_in_a_worker_becomes_one_line() -> None:
    text = """Job aborted due to stage failure: Task 0 failed 4 times:
Traceback (most recent call last):
  File "worker.py", line 1, in write
minibroker.spark.writing.RowRefused: topic t has no partition 3: its partitions are 0 to 2

Driver stacktrace:"""
    assert running.reason(Exception(text)) == "topic t has no partition 3: its partitions are 0 to 2"
    assert running.reason(Exception("[X] first line\nsecond")) == "[X] first line"
    called = "An error occurred while calling None.org.apache.spark.X.\n: java.lang.Y: stopped\n\tat org.apache"
    assert running.reason(Exception(called)) == "java.lang.Y: stopped"
    lost = "minibroker.spark.errors.DataLoss: they are gone; to continue with the records that are left, "
    lost += "set failOnDataLoss=false"
    assert (
        running.reason(Exception(lost))
        == "they are gone; to continue with the records that are left, run it with --skip-lost"
    )


def test_a_spark_master_that_is_not_there_is_one_line_before_spark_starts() -> None:
    told = r"^no Spark master answers at 127\.0\.0\.1:1 \(.*refused.*\), nowhere \(.*\): start one there, or"
    with pytest.raises(PipelineFailed, match=told):
        running.start_session("x", "spark://127.0.0.1:1,nowhere", {})
    with socket.create_server(("127.0.0.1", 0)) as there:
        running.demand_master(f"spark://127.0.0.1:1,127.0.0.1:{there.getsockname()[1]}")


def test_a_pipeline_fails_on_lost_records_unless_it_may_skip_them() -> None:
    always = {"startingOffsets": "earliest", "includeHeaders": "true"}
    assert running.read_options(None, skips_lost=False) == always
    assert running.read_options(7, skips_lost=True) == always | {"maxOffsetsPerTrigger": "7", "failOnDataLoss": "false"}


def test_the_lag_is_computed_from_the_offsets_of_a_progress_report() -> None:
    assert running.lag_between('{"t":{"0":5,"1":7},"$start":{"t":{"0":0}}}', '{"t":{"0":9,"1":7}}') == 4
    assert running.lag_between({"t": {"0": 5}}, None) is None
    progress = {
        "batchId": 3, "numInputRows": 10, "processedRowsPerSecond": 1234.5,
        "sources": [{"endOffset": '{"t":{"0":5}}', "latestOffset": '{"t":{"0":6}}'}],
    }  # fmt: skip
    assert running.progress_line("q", progress) == "q: batch 3: 10 records, 1,234/s, 1 behind"
