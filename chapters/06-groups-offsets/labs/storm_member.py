"""A process of the lab `storm`: one member in each of several groups, until its stdin is closed.

    python storm_member.py '{"topic": "orders", "share": 2, "bucket_s": 0.5, "groups": {"eager": {"group.id": …}}}'

It says when each member has its share of the partitions. If the process is paused, its member is paused in every group,
so all groups have the same storm. At the end it prints a JSON document: for each group the partitions that were read in
each bucket of time, and the times of its assignments.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

POLL_S = 0.1


class Member:
    """One member, which reads on a thread of its own."""

    def __init__(self, topic: str, bucket_s: float, settings: Mapping[str, Any]) -> None:
        self._bucket_s = bucket_s
        self._read: Counter[tuple[int, int]] = Counter()
        self._assigned_s: list[float] = []
        self._is_over = threading.Event()
        self._consumer = Consumer(dict(settings))
        # Asking the consumer from another thread could block it for ever, so the member keeps count itself.
        self._owned: set[int] = set()
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, _consumer: Consumer, given: list[TopicPartition]) -> None:
        self._owned |= {it.partition for it in given}
        self._assigned_s.append(time.monotonic())

    def _on_revoke(self, _consumer: Consumer, taken: list[TopicPartition]) -> None:
        self._owned -= {it.partition for it in taken}

    def _run(self) -> None:
        while not self._is_over.is_set():
            for record in self._consumer.consume(500, POLL_S):
                if record.error() is None:
                    # All processes of a machine share this clock.
                    self._read[int(time.monotonic() / self._bucket_s), record.partition() or 0] += 1
        self._consumer.close()

    def has(self, share: int) -> bool:
        """Whether it has so many partitions."""
        return len(self._owned) == share

    def end(self) -> dict[str, object]:
        """Leave the group, and return what was seen."""
        self._is_over.set()
        self._thread.join()
        return {"read": [[*key, count] for key, count in self._read.items()], "assigned_s": self._assigned_s}


def main() -> None:
    """Join every group, read, and report."""
    task = json.loads(sys.argv[1])
    members = {name: Member(task["topic"], task["bucket_s"], settings) for name, settings in task["groups"].items()}
    while not all(member.has(task["share"]) for member in members.values()):
        time.sleep(POLL_S)
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps({name: member.end() for name, member in members.items()}), flush=True)


if __name__ == "__main__":
    main()
