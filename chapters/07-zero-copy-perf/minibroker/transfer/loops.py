"""Runs a node on the fastest event loop that is installed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        runner.run(main)
