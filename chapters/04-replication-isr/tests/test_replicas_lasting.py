"""Claims about the warnings of a node that tries something again and again: only a failure that lasts is logged."""

import logging

import pytest

from minibroker.replicas.lasting import LASTING_MS, LastingFailure

log = logging.getLogger(__name__)


def test_only_a_failure_that_lasts_is_logged_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 7
    failure = LastingFailure(log, clock=lambda: now_ms)
    for _ in range(3):
        # It fails for a moment, as while another node restarts, and then it succeeds.
        failure.note("node %d does not answer", 2)
        now_ms += LASTING_MS - 1
        failure.note("node %d does not answer", 2)
        failure.end()
    assert caplog.messages == []
    for _ in range(10):
        failure.note("node %d does not answer", 2)
        now_ms += LASTING_MS
    assert caplog.messages == ["node 2 does not answer"]
    failure.end()
    failure.note("node %d does not answer", 2)
    now_ms += LASTING_MS
    failure.note("node %d does not answer", 3)
    assert caplog.messages == ["node 2 does not answer", "node 3 does not answer"]
