"""Claims about the thread of a producer: it does not sleep past the end of a wait. Its clock is set by the test."""

import threading

import pytest

from minibroker.clients import producer
from minibroker.clients.accumulator import Accumulator, ProducerConfig
from minibroker.clients.blocking import Client


def test_a_wait_that_ends_while_the_thread_is_busy_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(producer, "precise_ms", lambda: now[0])
    config = ProducerConfig(acks=1, idempotence=False)
    accumulator = Accumulator(config, lambda: 0.5)
    sender = producer._Sender(Client("127.0.0.1:1"), config, accumulator, threading.Condition())
    accumulator.append("orders", 0, key=None, value=b"one", timestamp=0, now_ms=0)
    # Neither the metadata nor node 1 may be asked before 1100.
    sender._metadata_not_before_ms = 1100
    sender._not_before_ms[1] = 1100
    sender._send_due()
    assert sender._sleep_s() == pytest.approx(0.1)
    now[0] = 1150
    assert sender._sleep_s() == 0
    # A thread that is stopped before it begins only closes its sockets.
    sender._is_stopping = True
    sender.run()
