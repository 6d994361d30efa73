"""Auto-commit: the client commits every few seconds, whatever the worker is doing. A crash repeats or loses orders.

    python chapters/06-groups-offsets/examples/auto_commit.py 127.0.0.1:9092

`poll` hands out an order and notes the position after it; a timer commits the noted position. If the crash comes before
the timer, all orders since the last commit are done again. If the timer comes while the worker is busy with an
order, the crash loses the order. So auto-commit is neither at most once nor at least once.
"""

import sys
import time

from confluent_kafka import Message
from crashing import ANSWER_S_MAX, Program, Worker, after, main, number_of


def crash_before_the_timer(worker: Worker, order: Message) -> None:
    """Five seconds are the default interval, and these orders take less: nothing is committed yet."""
    worker.results.add(number_of(order))
    worker.crash_if_doomed(order)


def crash_after_the_timer(worker: Worker, order: Message) -> None:
    """The work on one order takes longer than the interval."""
    if worker.is_doomed(order):
        until_s = time.monotonic() + ANSWER_S_MAX
        while worker.committed() < after(order).offset:
            if time.monotonic() > until_s:
                sys.exit(f"nothing was committed within {ANSWER_S_MAX} s")
            time.sleep(0.02)
    worker.crash_if_doomed(order)
    worker.results.add(number_of(order))


if __name__ == "__main__":
    main(
        Program(
            "auto-commit, crash before the timer",
            crash_before_the_timer,
            {"enable.auto.commit": True, "auto.commit.interval.ms": 5000},
        ),
        Program(
            "auto-commit, crash during long work",
            crash_after_the_timer,
            {"enable.auto.commit": True, "auto.commit.interval.ms": 100},
        ),
    )
