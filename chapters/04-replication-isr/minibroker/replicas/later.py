"""Answers that need other nodes first: a handler starts a task, and the client waits for the task's result."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from minibroker.log.clock import monotonic_ms
from minibroker.partitions.registry import Answer
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.replicas.refusing import refusal
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000


class Later:
    """The tasks that compute answers."""

    def __init__(self, waiting: Waiting[Response]) -> None:
        self._waiting = waiting
        self._tasks: set[asyncio.Task[Response]] = set()

    def answer(self, request: Request, version: int, work: Coroutine[Any, Any, Response]) -> Answer:
        """Wait for a task that asks other brokers, and answer with its result."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        too_late = f"a broker did not answer within {_TIMEOUT_MS} ms"
        return Wait(
            keys=(task,),
            timeout_ms=_TIMEOUT_MS,
            attempt=lambda: task.result() if task.done() else None,
            expire=lambda: refusal(request, version, ErrorCode.REQUEST_TIMED_OUT, too_late),
        )

    def _on_done(self, task: asyncio.Task[Response]) -> None:
        self._tasks.discard(task)
        # Fetch the error, even if the client is gone: otherwise asyncio would log it as never retrieved.
        if not task.cancelled() and task.exception() is not None:
            log.debug("a request that needs other brokers was not answered: %s", task.exception())
        self._waiting.wake(task)
        self._waiting.settle()

    async def answered(self, answer: Answer) -> Response:
        """Return a handler's response; wait for it if it is not ready."""
        assert answer is not None, "every request that needs other brokers has an answer"
        if not isinstance(answer, Wait):
            return answer
        done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.park(answer, done.set_result, now_ms=monotonic_ms(), fail=done.set_exception)
        return await done
