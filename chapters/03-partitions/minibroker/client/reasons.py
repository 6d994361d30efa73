"""Messages for a broker that cannot be reached or does not answer. All transports use them."""

import os
import socket
from collections.abc import Sequence

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerUnavailable, TurnedAway
from minibroker.wire.apis import APIS
from minibroker.wire.schema import Request

FULL_HINT = ": if its log names max.connections, other clients have taken all its connections"
"""A hint for the error message if a node closes a connection after it has answered only ApiVersions.

The node does not send the reason to the client.
"""


def no_broker(reasons: Sequence[BrokerUnavailable]) -> str:
    """The message when no address could be reached. It says what to do."""
    failures = "; ".join(map(str, reasons))
    if not any(isinstance(it, TurnedAway) for it in reasons):
        return f"{failures}: check the address, or start a broker with `minibroker serve`"
    return (
        f"{failures}: a node refuses clients until it has joined its cluster, and its log names the nodes that it "
        "waits for. Start the nodes that are down. If this is not a minibroker node, it may need TLS"
    )


def unanswered(address: Address, message: Request, wait_ms: float) -> str:
    """The message when a broker did not answer a request in time."""
    name = APIS[message.schema.key or 0].name
    return (
        f"{address} did not answer {name} within {wait_ms:.0f} ms: it may be overloaded or unreachable,"
        " and may or may not have carried out the request"
    )


def why(error: OSError) -> str:
    """The error of the operating system in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    # asyncio replaces the operating system's message with its own, so look the message up by its number.
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
