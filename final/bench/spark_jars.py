"""Spark's own Kafka connector, which is a set of jars on Maven Central: fetched once, where Maven is on the machine."""

import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pyspark

from minibroker.bench import is_quick

CACHE = Path(__file__).resolve().parents[2] / "build" / "spark-kafka"
CENTRAL = "https://repo.maven.apache.org/maven2"
CONNECTOR = "spark-sql-kafka-0-10"
TOKENS = "spark-token-provider-kafka-0-10"
# What Spark does not have itself of all that the connector needs.
NEEDED = ("spark-", "kafka-clients-", "commons-pool2-")
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
METADATA_S_MAX, MAVEN_S_MAX = 20, 300

# Spark's own parent names a mirror first that not every network reaches: under the same name, it is Central here.
POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>minibroker</groupId>
  <artifactId>bench-spark</artifactId>
  <version>1</version>
  <repositories>
    <repository><id>gcs-maven-central-mirror</id><url>{central}</url></repository>
  </repositories>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>{name}</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>{without}</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""

Version = tuple[int, ...]


class Missing(Exception):
    """Why there is no such connector here."""


def find() -> tuple[str, list[Path]]:
    """The connector's version and its jars; raises Missing with the reason, in half a sentence."""
    folder = CACHE / f"spark-{pyspark.__version__}"
    if not list(folder.glob("*.jar")):
        _fetch(folder)
    jars = [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(NEEDED)]
    (connector,) = [jar for jar in jars if jar.name.startswith(CONNECTOR)]
    return connector.stem.rpartition("-")[2], jars


def _fetch(folder: Path) -> None:
    if is_quick():
        raise Missing("a quick run fetches nothing")
    if shutil.which("mvn") is None:
        raise Missing("Maven (mvn) is not on this machine")
    scala = _scala()
    # With the connector comes Kafka's client; of Spark there is enough already.
    names = {f"{CONNECTOR}_{scala}": "org.apache.spark", f"{TOKENS}_{scala}": "*"}
    dependencies = [DEPENDENCY.format(name=it, version=_newest(it), without=names[it]) for it in names]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM.format(central=CENTRAL, dependencies="".join(dependencies)))
    command = ["mvn", "-B", "-q", "-f", str(folder / "pom.xml"), GOAL, f"-DoutputDirectory={folder}"]
    try:
        subprocess.run([*command, "-DincludeScope=runtime"], check=True, capture_output=True, timeout=MAVEN_S_MAX)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder)
        raise Missing(f"Maven could not fetch it: {type(error).__name__}") from None


def _scala() -> str:
    """The version of Scala that the installed Spark is built for: 2.13 of spark-sql_2.13-4.3.0.jar."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-sql_*.jar")
    return jar.name.split("_")[1].split("-")[0]


def _newest(artifact: str) -> str:
    """The newest release that is not newer than the installed Spark: its own, as soon as Central has it."""
    try:
        with urllib.request.urlopen(
            f"{CENTRAL}/org/apache/spark/{artifact}/maven-metadata.xml", timeout=METADATA_S_MAX
        ) as answer:
            metadata = answer.read().decode()
    except OSError:
        raise Missing("Maven Central cannot be reached") from None
    releases = [_version(it) for it in re.findall(r"<version>(\d+\.\d+\.\d+)</version>", metadata)]
    fitting = [it for it in releases if it <= _version(pyspark.__version__)]
    if not fitting:
        raise Missing(f"Maven Central has no {artifact} for Spark {pyspark.__version__}")
    return ".".join(map(str, max(fitting)))


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split(".")[:3])
