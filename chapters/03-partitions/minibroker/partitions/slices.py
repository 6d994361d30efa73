"""Long requests in slices: the server answers other clients between two slices. A pure module.

A request may name thousands of topics. A handler that answered it at once would stop the whole broker for seconds. So
such a handler is a generator. It yields after each small step, and returns the response:

    def describe(self, call) -> Answer:
        return sliced(self._described(call), steps_per_turn=100)

The first slice is done at once, so a short request is answered at once. The rest becomes a `Wait` for a `Turn`, a key
that the server wakes in each turn of its event loop.

`in_parts` does the same with a handler that knows nothing of slices. It passes the request in parts to the handler, and
joins the responses. This is correct if the handler treats the elements of the request one by one. A topic with very
many partitions is cut, too.
"""

import copy
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

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


class Inner(NamedTuple):
    """An array inside the elements of another one, such as the partitions of topics: its name in request and answer."""

    requested: str
    answered: str


PARTITIONS = Inner("partitions", "partitions")


def in_parts(handler: Handler, requested: str, answered: str, *, size: int, inner: Inner | None = None) -> Handler:
    """Wrap a handler. It gets at most `size` elements of the request's array `requested` at a time.

    The arrays `answered` of the responses are joined. The last response gives the other fields. With `inner`, the
    elements of the inner arrays count, too, and an element with many of them is cut. Then the handler must answer the
    elements in their order.
    """

    def answer(call: Call[Any]) -> Answer:
        elements = getattr(call.request, requested)
        if elements is None or _weight(elements, inner) <= size:
            return handler(call)
        return _InParts(handler, call, (requested, answered), inner, size).answer()

    return answer


def _weight(elements: Sequence[Any], inner: Inner | None) -> int:
    inside = 0 if inner is None else sum(len(getattr(it, inner.requested) or ()) for it in elements)
    return len(elements) + inside


class _Piece(NamedTuple):
    """An element of the request, or a piece of one. `continues` says that it is not the first piece."""

    element: Any
    continues: bool


def _pieces(elements: Sequence[Any], inner: Inner | None, size: int) -> Iterator[_Piece]:
    for element in elements:
        inside = () if inner is None else getattr(element, inner.requested) or ()
        if inner is None or len(inside) <= size:
            yield _Piece(element, continues=False)
            continue
        for start in range(0, len(inside), size):
            piece = copy.copy(element)
            setattr(piece, inner.requested, inside[start : start + size])
            yield _Piece(piece, continues=start > 0)


def _parts(elements: Sequence[Any], inner: Inner | None, size: int) -> Iterator[list[_Piece]]:
    """All elements, in parts as large as `size` allows."""
    part, weight = list[_Piece](), 0
    for piece in _pieces(elements, inner, size):
        more = _weight([piece.element], inner)
        if part and weight + more > size:
            yield part
            part, weight = [], 0
        part.append(piece)
        weight += more
    yield part


class _InParts:
    """A long request, which a handler answers in parts."""

    def __init__(
        self, handler: Handler, call: Call[Any], names: tuple[str, str], inner: Inner | None, size: int
    ) -> None:
        self._handler = handler
        self._call = call
        self._requested, self._answered = names
        self._inner = inner
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
        found: list[Any] = []
        for pieces in _parts(getattr(self._call.request, self._requested), self._inner, self._size):
            part = yield from self._part([it.element for it in pieces])
            self._join(found, getattr(part, self._answered), continues=pieces[0].continues)
            yield None
        setattr(part, self._answered, found)
        return part

    def _join(self, found: list[Any], answers: list[Any], *, continues: bool) -> None:
        # A piece that is not the first one of its element begins a part, because each piece but the last is as large as
        # a part may be.
        if continues:
            assert self._inner is not None
            getattr(found[-1], self._inner.answered).extend(getattr(answers.pop(0), self._inner.answered))
        found += answers

    def _part(self, elements: list[Any]) -> Generator[str | None, None, Response]:
        request = copy.copy(self._call.request)
        setattr(request, self._requested, elements)
        answer = self._handler(self._call.about(request))
        assert answer is not None, "a request that is answered in parts has an answer"
        while isinstance(answer, Wait):
            response = answer.expire() if self._is_late else answer.attempt()
            if response is not None:
                return response
            yield PAUSE
        return answer
