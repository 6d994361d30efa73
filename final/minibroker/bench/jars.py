"""Finds the jars that a POM names. Maven fetches them once and keeps them, so later runs need no network."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_JAVA_MIN = 17
_MAVEN_S_MAX = 300


class Missing(Exception):
    """The jars are not available; the message says why."""


def classpath(pom: Path) -> str:
    """The jars of a POM, as the variable CLASSPATH names them; raise Missing with the reason if there are none."""
    if shutil.which("mvn") is None or _java_version() < _JAVA_MIN:
        raise Missing(f"it needs Maven (mvn) and Java {_JAVA_MIN} or newer on this machine")
    found = _resolve(pom, "--offline")
    if found is None:
        print(f"Maven fetches the jars of {pom.name}, about 45 MB, once", file=sys.stderr, flush=True)
        found = _resolve(pom)
    if found is None:
        raise Missing(f"Maven could not fetch the jars of {pom.name}")
    return found


def _java_version() -> int:
    """The major version of the `java` on the path, or 0."""
    if shutil.which("java") is None:
        return 0
    told = subprocess.run(["java", "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def _resolve(pom: Path, *options: str) -> str | None:
    with tempfile.TemporaryDirectory(prefix="minibroker-jars-") as folder:
        output = Path(folder, "classpath")
        command = ["mvn", "-B", "-q", "-f", str(pom), *options, _GOAL, f"-Dmdep.outputFile={output}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_MAVEN_S_MAX)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        return output.read_text().strip()
