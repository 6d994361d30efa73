"""The examples with stock clients run, and what they print is true."""

import re
import subprocess
import sys
from pathlib import Path

from brokers import Broker

pytest_plugins = ["clients_fixtures"]

EXAMPLES = Path(__file__).resolve().parent.parent / "chapters" / "03-partitions" / "examples"


def run(name: str, broker: Broker) -> str:
    command = [sys.executable, str(EXAMPLES / name), broker.address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # librdkafka may print a line at the end; Python must not.
    said = [line for line in ran.stderr.splitlines() if not line.startswith("%")]
    assert (ran.returncode, said) == (0, [])
    return ran.stdout


def test_one_order_in_three_formats_is_the_same_order(broker: Broker) -> None:
    """Values are opaque to the broker; schemas are external."""
    printed = run("opaque_values.py", broker)
    assert printed.count("the same order") == 3
    assert all(name in printed for name in ("application/json", "avro/binary", "application/x-protobuf"))
    sizes = [int(found) for found in re.findall(r"(\d+) bytes", printed)]
    assert sizes[1] < sizes[2] < sizes[0]


def test_the_life_of_a_topic(broker: Broker) -> None:
    printed = run("admin.py", broker)
    assert "created it again: TOPIC_ALREADY_EXISTS" in printed
    assert "wrote 200 orders" in printed
    assert "retention.ms=a while: INVALID_CONFIG" in printed
    assert "retention.ms is 3600000, cleanup.policy is delete" in printed
    assert "1 partition: INVALID_PARTITIONS" in printed
    found = re.search(r"offsets (\d+) to (\d+), and begins at (\d+)", printed)
    assert found is not None
    first, end, low = (int(number) for number in found.groups())
    assert (first, low) == (0, end // 2)
    assert printed.endswith("listed still: False\n")
