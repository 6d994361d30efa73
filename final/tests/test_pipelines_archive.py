"""The pipeline archive: each record once in Parquet, through kills at every step, and back into a topic."""

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.pipelines import archive, running
from minibroker.pipelines.errors import ArchiveInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["clients_fixtures", "spark_fixtures"]
pytestmark = pytest.mark.xdist_group("spark")


def test_a_batch_that_is_published_again_takes_its_first_attempt_away(spark: "SparkSession", tmp_path: Path) -> None:
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
    """Progress lines; whoever reads the first presses Ctrl-C a moment later, while Spark is being asked."""

    def write(self, text: str) -> int:
        if not self.getvalue():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return super().write(text)


# Files alone --------------------------------------------------------------------------------------------------------


def plan(directory: Path, *, is_moved: bool, removed: int) -> None:
    """A compaction of three files that died behind its plan: so many were removed, the new one moved or not."""
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


@pytest.mark.parametrize(("removed", "is_moved"), [(0, False), (1, False), (3, False), (3, True)])
def test_a_compaction_that_was_decided_is_finished_by_the_next_run(
    tmp_path: Path, removed: int, is_moved: bool
) -> None:
    plan(tmp_path, is_moved=is_moved, removed=removed)
    assert archive.finish_plans(tmp_path) == 1
    assert [it.read_text() for it in tmp_path.glob("date=*/*.parquet")] == ["new"]
    assert archive.finish_plans(tmp_path) == 0


def test_a_compaction_that_was_not_decided_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    plan(tmp_path, is_moved=False, removed=0)
    (tmp_path / "_plans" / "compacted-1.json").rename(tmp_path / "_plans" / ".compacted-1")
    assert archive.finish_plans(tmp_path) == 0
    assert [it.read_text() for it in tmp_path.glob("date=*/*.parquet")] == ["old"] * 3
    assert not any((tmp_path / "_staging").iterdir()), "what it had made is gone"


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


def test_a_folder_that_is_no_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArchiveInvalid, match="holds no archive: `minibroker pipeline run archive` makes one"):
        archive.read(None, tmp_path)  # type: ignore[arg-type]
