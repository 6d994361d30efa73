"""The result of an event in a coordinator: records to append, and replies that wait for them. A pure module.

A coordinator decides without IO. Its driver calls it with an event, and gets a `Step`:

    event ──▶ coordinator ──▶ Step: records ──▶ applied to the state, and appended in one batch
                                    replies ──▶ sent when the high watermark has passed the records

The driver passes a *ticket* with each request. A request without a reply in the step is parked: a later step has the
reply for its ticket. If the log cannot accept the records, they are not applied, and the driver uses the step that
`refused` returns instead.

The records of a step with a producer are part of its transaction. A step with a marker ends a transaction.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.groups.pending import Producer
from minibroker.groups.records import GroupRecord
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

Ticket = object
"""A handle for a request that waits for its answer. Only the driver looks into it."""


class Client(NamedTuple):
    """The client of a member: its client.id, and the host that it connects from."""

    id: str
    host: str


class Reply(NamedTuple):
    """The answer to one request. An `ErrorCode` instead of a response refuses the request with this code."""

    ticket: Ticket
    response: Response | ErrorCode


class EndMarker(NamedTuple):
    """The outcome of a transaction, as the control batch that is to be appended."""

    producer: Producer
    is_commit: bool
    batch: bytes | bytearray


@dataclass(slots=True)
class Step:
    """The records and the replies of one event."""

    records: list[GroupRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    on_refused: Callable[[ErrorCode], "Step"] | None = None
    producer: Producer | None = None
    marker: EndMarker | None = None

    def refused(self, code: ErrorCode) -> "Step":
        """The step to use instead if the log refuses the records. By default, every reply becomes a refusal."""
        if self.on_refused is not None:
            return self.on_refused(code)
        return Step(replies=[Reply(ticket, code) for ticket, _response in self.replies])
