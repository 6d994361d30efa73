"""What to say, and what to do, when a broker cannot be reached. The transports share it."""

import os
import socket
from collections.abc import Sequence

from minibroker.client.errors import BrokerUnavailable, TurnedAway


def no_broker(reasons: Sequence[BrokerUnavailable]) -> str:
    """What to say, and what to do, when every address failed."""
    said = "; ".join(map(str, reasons))
    if not any(isinstance(it, TurnedAway) for it in reasons):
        return f"{said}: is it running? start one with `minibroker serve`"
    return (
        f"{said}: a node turns clients away until it is part of its cluster, and says in its log whom it waits for "
        "(whatever else does so is no Kafka broker, or wants TLS): start the nodes that are down"
    )


def why(error: OSError) -> str:
    """What the operating system said, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    # asyncio puts words of its own in place of the operating system's.
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
