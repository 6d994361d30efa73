"""The pipeline archive: each record once in Parquet, through kills at every step, and back into a topic."""

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import case

from minibroker.pipelines import archive, running
from minibroker.pipelines.errors import ArchiveInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["clients_fixtures", "spark_fixtures"]


def test_a_batch_that_is_published_again_replaces_its_first_attempt(spark: "SparkSession", tmp_path: Path) -> None:
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value", "TIMESTAMP'2023-11-13 12:00:00Z' AS timestamp")
    for name in ("q-0000000001", "q-0000000002", "q-0000000002"):
        archive.withdraw(tmp_path, name=name)
        archive.publish(rows, tmp_path, name=name)
    assert spark.read.parquet(str(tmp_path)).count() == 20
    assert not any((tmp_path / "_staging").iterdir())


def test_ctrl_c_stops_the_queries_of_a_pipeline_and_leaves_the_session_whole(
    spark: "SparkSession", tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds").start()
    before, told = signal.getsignal(signal.SIGINT), Told()
    with pytest.raises(KeyboardInterrupt):
        running.follow({"rate": query}, out=told)
    assert not query.isActive
    assert told.getvalue().startswith("rate: batch 0: ")
    assert caplog.text == ""
    assert spark.range(3).count() == 3
    assert signal.getsignal(signal.SIGINT) is before


class Told(io.StringIO):
    """Progress lines; a moment after the first one it sends Ctrl-C, while Spark is being called."""

    def write(self, text: str) -> int:
        if not self.getvalue():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return super().write(text)


# Without Spark ------------------------------------------------------------------------------------------------------


def plan(directory: Path, *, is_moved: bool, removed: int) -> None:
    """Make the files of a compaction that died after its plan, with `removed` old files removed already."""
    folder = directory / "date=2023-11-13"
    for part in (folder, directory / "_plans", directory / "_staging" / "compacted-1"):
        part.mkdir(parents=True, exist_ok=True)
    for number in range(removed, 3):
        (folder / f"old-{number}.parquet").write_text("old")
    place = folder / "compacted-1.parquet" if is_moved else directory / "_staging" / "compacted-1" / "part.parquet"
    place.write_text("new")
    document = {
        "add": ["_staging/compacted-1/part.parquet", "date=2023-11-13/compacted-1.parquet"],
        "remove": [f"date=2023-11-13/old-{number}.parquet" for number in range(3)],
    }
    (directory / "_plans" / "compacted-1.json").write_text(json.dumps(document))


def test_a_compaction_that_was_decided_is_finished_by_the_next_run(tmp_path: Path) -> None:
    for removed, is_moved in [(0, False), (1, False), (3, False), (3, True)]:
        with case(removed, is_moved):
            directory = tmp_path / f"{removed}-{is_moved}"
            plan(directory, is_moved=is_moved, removed=removed)
            assert archive.finish_plans(directory) == 1
            assert [it.read_text() for it in directory.glob("date=*/*.parquet")] == ["new"]
            assert archive.finish_plans(directory) == 0


def test_a_compaction_that_was_not_decided_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    plan(tmp_path, is_moved=False, removed=0)
    (tmp_path / "_plans" / "compacted-1.json").rename(tmp_path / "_plans" / ".compacted-1")
    assert archive.finish_plans(tmp_path) == 0
    assert [it.read_text() for it in tmp_path.glob("date=*/*.parquet")] == ["old"] * 3
    assert not any((tmp_path / "_staging").iterdir()), "its new files are removed"


def test_small_files_are_grouped_up_to_the_target_and_large_ones_stay(tmp_path: Path) -> None:
    for name, size in {"a": 30, "b": 30, "c": 30, "d": 100, "e": 30}.items():
        (tmp_path / f"{name}.parquet").write_bytes(bytes(size))
    groups = archive.small_groups(tmp_path, small_bytes=100, target_bytes=70)
    assert [[path.stem for path in group] for group in groups] == [["a", "b"], ["c", "e"]]
    assert archive.small_groups(tmp_path, small_bytes=10, target_bytes=70) == []


def test_one_run_at_a_time_writes_to_an_archive(tmp_path: Path) -> None:
    with archive.locked(tmp_path), pytest.raises(ArchiveInvalid, match="is being written by another run"):
        archive.locked(tmp_path).__enter__()
    with archive.locked(tmp_path):
        pass


def test_a_folder_without_an_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArchiveInvalid, match="holds no archive: `minibroker pipeline run archive` makes one"):
        archive.read(None, tmp_path)  # type: ignore[arg-type]
