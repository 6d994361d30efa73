"""Long requests in slices: the server answers other clients between two slices. A pure module.

A request may name thousands of topics. A handler that answered it at once would stop the whole broker for seconds. So
such a handler is a generator. It yields after each small step, and returns the response:

    def describe(self, call) -> Answer:
        return sliced(self._described(call), steps_per_turn=100)

The first slice is done at once, so a short request is answered at once. The rest becomes a `Wait` for a `Turn`, a key
that the server wakes in each turn of its event loop.

`in_parts` does the same with a handler that knows nothing of slices. It passes the request in parts to the handler, and
joins the responses. This is correct if the handler treats the elements of the request one by one.
"""

import copy
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.waiting import Turn, Wait
from minibroker.wire.schema import Response

PAUSE = "pause"
"""Yielded by a generator that can do nothing now, because it waits for something else."""

Steps = Generator[str | None, None, Response]
_NO_TIMEOUT_MS = 2**31 - 1
_TIMEOUT_MS_MIN = 30_000


def sliced(steps: Steps, *, steps_per_turn: int) -> Answer:
    """The response of a generator, now or after several turns of the event loop."""
    work = _Work(steps, steps_per_turn)
    response = work.slice()
    return work.wait() if response is None else response


class _Work:
    """A generator that has not returned its response yet."""

    def __init__(self, steps: Steps, steps_per_turn: int) -> None:
        self._steps = steps
        self._steps_per_turn = steps_per_turn
        self._turn = Turn()

    def slice(self) -> Response | None:
        """Do the steps of one turn. Return the response, or None if there are more steps."""
        self._turn.is_pausing = False
        try:
            for _ in range(self._steps_per_turn):
                if next(self._steps) is PAUSE:
                    self._turn.is_pausing = True
                    return None
        except StopIteration as end:
            response: Response = end.value
            return response
        return None

    def wait(self) -> Wait[Response]:
        """The wait for the rest."""
        return Wait((self._turn,), _NO_TIMEOUT_MS, attempt=self.slice, expire=self._finish)

    def _finish(self) -> Response:
        """Do all the remaining steps, because the broker stops."""
        while (response := self.slice()) is None:
            assert not self._turn.is_pausing, "work that may pause has a timeout of its own"
        return response


def in_parts(handler: Handler, requested: str, answered: str, *, size: int) -> Handler:
    """Wrap a handler. It gets at most `size` elements of the request's array `requested` at a time.

    The array `answered` of the responses is joined. The last response gives the other fields.
    """

    def answer(call: Call[Any]) -> Answer:
        elements = getattr(call.request, requested)
        if elements is None or len(elements) <= size:
            return handler(call)
        return _InParts(handler, call, requested, answered, size).answer()

    return answer


class _InParts:
    """A long request, which a handler answers in parts."""

    def __init__(self, handler: Handler, call: Call[Any], requested: str, answered: str, size: int) -> None:
        self._handler = handler
        self._call = call
        self._requested = requested
        self._answered = answered
        self._size = size
        self._is_late = False

    def answer(self) -> Answer:
        work = _Work(self._steps(), 1)
        wait = work.wait()
        # A timeout does all the remaining work at once, so a client must not choose a short one.
        timeout_ms = max(getattr(self._call.request, "timeout_ms", 0), _TIMEOUT_MS_MIN)
        return Wait(wait.keys, timeout_ms, wait.attempt, expire=lambda: self._expire(work))

    def _expire(self, work: _Work) -> Response:
        # A part that is waiting gives its timeout answer. The parts after it are still passed to the handler, and each
        # gives its answer at once, or its timeout answer.
        self._is_late = True
        while (response := work.slice()) is None:
            pass
        return response

    def _steps(self) -> Steps:
        elements = getattr(self._call.request, self._requested)
        found: list[Any] = []
        for start in range(0, len(elements), self._size):
            part = yield from self._part(elements[start : start + self._size])
            found += getattr(part, self._answered)
            yield None
        setattr(part, self._answered, found)
        return part

    def _part(self, elements: list[Any]) -> Generator[str | None, None, Response]:
        request = copy.copy(self._call.request)
        setattr(request, self._requested, elements)
        answer = self._handler(replace(self._call, request=request))
        assert answer is not None, "a request that is answered in parts has an answer"
        while isinstance(answer, Wait):
            response = answer.expire() if self._is_late else answer.attempt()
            if response is not None:
                return response
            yield PAUSE
        return answer
