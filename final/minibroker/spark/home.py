"""Lets Spark's Python processes import PySpark from the installed package instead of from a zip file.

Spark puts `python/lib/pyspark.zip` of SPARK_HOME before all other places in which its workers look for modules. Python
keeps no compiled code for a zip file, so each daemon and each worker would compile PySpark again: half a second of CPU
at each start. The zip file and the package have the same modules. So SPARK_HOME is set to a folder with links to
Spark's programs and jars, and without the zip file.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

LINKS = ("bin", "sbin", "jars")


def prepare_home() -> str | None:
    """Set SPARK_HOME, and return it; None if it is set already, or if PySpark was not installed with Spark in it."""
    spec = importlib.util.find_spec("pyspark")
    package = Path(spec.origin).parent if spec and spec.origin else None
    if "SPARK_HOME" in os.environ or package is None or not all((package / name).is_dir() for name in LINKS):
        return None
    home = Path(tempfile.mkdtemp(prefix="minibroker-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in LINKS:
        (home / name).symlink_to(package / name)
    os.environ["SPARK_HOME"] = str(home)
    return str(home)
