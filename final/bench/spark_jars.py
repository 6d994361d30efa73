"""Fetches Spark's own Kafka connector, a set of jars on Maven Central, once, if Maven is installed."""

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
# The dependencies of the connector that Spark does not include.
NEEDED = ("spark-", "kafka-clients-", "commons-pool2-")
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
METADATA_S_MAX, MAVEN_S_MAX = 20, 300

# Spark's parent POM names a mirror first that not every network reaches; here the same name means Maven Central.
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
    """The connector is not available; the message says why."""


def find() -> tuple[str, list[Path]]:
    """Return the connector's version and its jars; raise Missing with the reason if it cannot be fetched."""
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
    # Kafka's client comes with the connector; Spark itself is installed already.
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
    """Return the version of Scala that the installed Spark is built for: 2.13 for spark-sql_2.13-4.3.0.jar."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-sql_*.jar")
    return jar.name.split("_")[1].split("-")[0]


def _newest(artifact: str) -> str:
    """Return the newest release that is not newer than the installed Spark, which is usually the same version."""
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
