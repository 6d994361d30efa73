"""The result of an event in a coordinator: records to append, and replies that wait for them. A pure module.

A coordinator decides without IO. Its driver calls it with an event, and gets a `Step`:

    event ──▶ coordinator ──▶ Step: records ──▶ appended as one batch ──▶ applied to the state
                                    replies ──▶ sent when the high watermark has passed the records

The driver hands a *ticket* with each request. A request without a reply in the step is parked: a later step has the
reply for its ticket. If the log refuses the records, they are not applied, and `refused` makes the step that the driver
uses instead.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.groups.records import GroupRecord
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

Ticket = object
"""Stands for a request that is waiting for its answer. The driver knows how to refuse it."""


class Client(NamedTuple):
    """The client that a member is: its client.id, and the host that it connects from."""

    id: str
    host: str


class Reply(NamedTuple):
    """The answer to one request. An `ErrorCode` instead of a response refuses the request with this code."""

    ticket: Ticket
    response: Response | ErrorCode


@dataclass(slots=True)
class Step:
    """The records and the replies of one event."""

    records: list[GroupRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    on_refused: Callable[[ErrorCode], "Step"] | None = None

    def refused(self, code: ErrorCode) -> "Step":
        """The step to use instead if the log refuses the records: every reply becomes a refusal."""
        if self.on_refused is not None:
            return self.on_refused(code)
        return Step(replies=[Reply(ticket, code) for ticket, _response in self.replies])
