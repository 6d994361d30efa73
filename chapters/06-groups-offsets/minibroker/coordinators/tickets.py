"""Tickets: requests that wait for the answer of a coordinator. A pure module.

A coordinator completes a ticket with the answer, now or later. The handler turns an incomplete ticket into chapter 03's
`Wait`.
"""

from collections.abc import Callable, Sequence

from minibroker.partitions.registry import Answer
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

NEVER_MS = 2**40  # 34 years: every client times out long before


class Ticket:
    """One request, or the part of a request that one coordinator answers."""

    __slots__ = ("_convert", "on_done", "refuse", "response")

    def __init__(
        self,
        refuse: Callable[[ErrorCode], Response],
        convert: Callable[[Response], Response] | None = None,
        on_done: Callable[[Response], None] | None = None,
    ) -> None:
        """`refuse` makes an answer that has only an error. `convert` turns an answer into that of another API.

        `on_done` is called with the answer, if no request of a client waits for it.
        """
        self.refuse = refuse
        self._convert = convert
        self.on_done = on_done
        self.response: Response | None = None

    def complete(self, response: Response | ErrorCode) -> bool:
        """Set the answer; return False if the ticket has one already, because its request was refused."""
        if self.response is not None:
            return False
        if isinstance(response, ErrorCode):
            self.response = self.refuse(response)
        else:
            self.response = response if self._convert is None else self._convert(response)
        if self.on_done is not None:
            self.on_done(self.response)
        return True


def answer_of(ticket: Ticket) -> Answer:
    """The answer to a ticket, or a `Wait` for it."""
    if ticket.response is not None:
        return ticket.response

    def expire() -> Response:
        # The broker stops. The client must find the next coordinator.
        ticket.complete(ErrorCode.NOT_COORDINATOR)
        assert ticket.response is not None
        return ticket.response

    return Wait((ticket,), NEVER_MS, attempt=lambda: ticket.response, expire=expire)


def merged(tickets: Sequence[Ticket], merge: Callable[[Sequence[Response]], Response]) -> Answer:
    """One answer, merged from the answers to several tickets, or a `Wait` for the last of them."""

    def attempt() -> Response | None:
        found = [ticket.response for ticket in tickets if ticket.response is not None]
        return merge(found) if len(found) == len(tickets) else None

    def expire() -> Response:
        for ticket in tickets:
            ticket.complete(ErrorCode.NOT_COORDINATOR)
        response = attempt()
        assert response is not None
        return response

    return attempt() or Wait(tuple(tickets), NEVER_MS, attempt=attempt, expire=expire)


def tell(waiting: Waiting[Response], ticket: object, response: Response | ErrorCode) -> None:
    """Complete a ticket, and wake the request that waits for it. The caller must call `waiting.settle` afterwards."""
    assert isinstance(ticket, Ticket)
    if ticket.complete(response):
        waiting.wake(ticket)
