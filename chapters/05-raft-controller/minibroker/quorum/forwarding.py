"""Forwarding with an envelope around each request, so that the controller learns which client asks (KIP-590).

What a node asks on its own behalf, such as a topic that a client has only mentioned, goes without an envelope.
"""

from collections.abc import Mapping

from minibroker.partitions.access import Access
from minibroker.partitions.registry import Call
from minibroker.quorum.envelope import unwrap, wrap
from minibroker.replicas.forwarding import Forwarded, Wrap
from minibroker.wire.apis import ApiKey
from minibroker.wire.schema import Request


def in_envelopes(rows: Mapping[ApiKey, Access]) -> Wrap:
    """How chapter 04's `Forward` is to send a request. `rows` say which requests change nothing."""

    def enveloped(call: Call[Request]) -> Forwarded:
        header = call.header
        row = rows.get(ApiKey(header.api_key))
        return Forwarded(
            call.request,
            call.version,
            wrap(call),
            # The version in which the client asked is that of the request inside.
            None,
            lambda response: unwrap(header, response),
            is_read=row is not None and row.is_read,
        )

    return enveloped
