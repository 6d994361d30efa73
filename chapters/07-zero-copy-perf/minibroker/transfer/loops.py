"""Runs a node on the fastest event loop that is installed."""

import asyncio
import importlib.util
from collections.abc import Coroutine
from typing import Any

_UVLOOP = "uvloop"


def run(main: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, on uvloop where it is installed."""
    is_installed = importlib.util.find_spec(_UVLOOP) is not None
    new_loop = importlib.import_module(_UVLOOP).new_event_loop if is_installed else None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)
