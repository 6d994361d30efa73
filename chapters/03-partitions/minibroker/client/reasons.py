"""What to say, and what to do, when a broker cannot be reached. The transports share it."""

import os
import socket
from collections.abc import Sequence

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerUnavailable, TurnedAway
from minibroker.wire.apis import APIS
from minibroker.wire.schema import Request


def no_broker(reasons: Sequence[BrokerUnavailable]) -> str:
    """What to say, and what to do, when every address failed."""
    said = "; ".join(map(str, reasons))
    if not any(isinstance(it, TurnedAway) for it in reasons):
        return f"{said}: is it running? start one with `minibroker serve`"
    return (
        f"{said}: a node turns clients away until it is part of its cluster, and says in its log whom it waits for "
        "(whatever else does so is no Kafka broker, or wants TLS): start the nodes that are down"
    )


def unanswered(address: Address, message: Request, wait_ms: float) -> str:
    """What to say when a broker took a request and did not answer it in time."""
    name = APIS[message.schema.key or 0].name
    return (
        f"{address} did not answer {name} within {wait_ms:.0f} ms: it may be overloaded or cut off, and"
        " may or may not have done what was asked"
    )


def why(error: OSError) -> str:
    """What the operating system said, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    # asyncio puts words of its own in place of the operating system's.
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
