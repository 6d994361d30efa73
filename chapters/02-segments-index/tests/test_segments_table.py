"""The example of row L13: a table rebuilt from a compacted topic equals a dict."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "table.py"


def test_a_table_rebuilt_from_a_compacted_log_equals_the_one_in_memory() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("has 400 articles and equals the one in memory") == 3
    counts = [int(found) for found in re.findall(r": (\d+) records", ran.stdout)]
    assert counts == [20_100, 500, 400]  # all changes; a record for each article; a tombstone for none
    sizes = [int(found) for found in re.findall(r"(\d+) bytes", ran.stdout)]
    assert sizes[0] > 10 * sizes[1] > 10 * sizes[2]
