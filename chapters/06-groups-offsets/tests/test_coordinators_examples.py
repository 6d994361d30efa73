"""The examples of delivery run against a real broker, and the losses and duplicates that they print are true."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brokers import StartBroker
from cases import case

pytest_plugins = ["clients_fixtures"]

EXAMPLES = Path(__file__).parents[1] / "examples"
# The first member of a group waits for nobody, and the broker is soon ready for it.
AT_ONCE = (
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
)

PRINTED = {
    "at_most_once.py": ["at most once: 10 orders, lost 1, duplicated 0"],
    "at_least_once.py": ["at least once: 10 orders, lost 0, duplicated 1"],
    "idempotent_consumer.py": ["idempotent consumer: 10 orders, lost 0, duplicated 0"],
    "auto_commit.py": [
        "auto-commit, crash before the timer: 10 orders, lost 0, duplicated 6",
        "auto-commit, crash during long work: 10 orders, lost 1, duplicated 0",
    ],
    "offsets_in_sqlite.py": ["offsets in SQLite: 10 orders, lost 0, duplicated 0"],
    "exactly_once.py": [
        "exactly once, killed after the begin: 20 orders, lost 0, duplicated 0",
        "exactly once, killed after the records: 20 orders, lost 0, duplicated 0",
        "exactly once, killed after the position: 20 orders, lost 0, duplicated 0",
        "exactly once, killed after the commit: 20 orders, lost 0, duplicated 0",
        "copy, then commit, killed after the records: 20 orders, lost 0, duplicated 5",
        "commit, then copy, killed after the position: 20 orders, lost 5, duplicated 0",
    ],
}


def run(name: str, address: str) -> list[str]:
    """Run an example, and return the lines that it prints."""
    command = [sys.executable, str(EXAMPLES / name), address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # librdkafka may print a line at the end; Python must not.
    said = [line for line in ran.stderr.splitlines() if not line.startswith("%")]
    assert (ran.returncode, said) == (0, [])
    return ran.stdout.splitlines()


def test_each_guarantee_loses_and_repeats_what_it_says_when_the_worker_is_killed(start: StartBroker) -> None:
    """A kill -9 in the worst place of each program; the crashes of all programs run side by side."""
    broker = start(*AT_ONCE)
    with ThreadPoolExecutor() as threads:
        printed = {name: threads.submit(run, name, broker.address) for name in PRINTED}
    for name, lines in PRINTED.items():
        with case(name):
            assert printed[name].result() == lines


def test_a_commit_from_outside_moves_a_group_only_while_it_has_no_members(start: StartBroker) -> None:
    """Idempotence, lz4, a linger of 5 ms and manual commits, and a commit of offset + 1 by a stranger."""
    *delivered, first, refused, accepted, second = run("careful_service.py", start(*AT_ONCE).address)
    assert delivered == [f"delivered at offset {offset}" for offset in range(6)]
    assert first == "the first member reads [0, 1, 2, 3, 4, 5], and commits nothing"
    assert refused == "commit from outside while it is a member: UNKNOWN_MEMBER_ID"
    assert accepted == "commit from outside after it has left: NO_ERROR"
    assert second == "the next member reads [4, 5]"
