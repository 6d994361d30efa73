"""Chapter 04's forwarding with an envelope around each request: the controller learns which client asks."""

from typing import Any

from minibroker.partitions.registry import Call
from minibroker.quorum.envelope import unwrap, wrap
from minibroker.replicas.forwarding import Forward, Passed
from minibroker.wire.schema import Request, Response


class ForwardInEnvelope(Forward):
    """A handler for any request that only the controller can answer.

    What a node asks on its own behalf, a topic that a client has only mentioned, goes without an envelope.
    """

    def wrap(self, call: Call[Request]) -> Passed:
        """The request with its header, and whose it is."""
        return _Enveloped(call)


class _Enveloped(Passed):
    def __init__(self, call: Call[Request]) -> None:
        super().__init__(call.request, call.version)
        self._envelope = wrap(call)
        self._header = call.header

    @property
    def request(self) -> Request:
        return self._envelope

    @property
    def version_max(self) -> None:
        # The version in which the client asked is that of what is inside.
        return None

    def open(self, response: Any) -> Response:
        return unwrap(self._header, response)
