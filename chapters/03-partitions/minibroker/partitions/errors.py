"""What a broker says no with, and why. A pure module."""

from collections.abc import Sequence

from minibroker.wire.codes import ErrorCode


class Refused(Exception):
    """A partition, a rule or a handler refuses something; the client gets the code, and the message where it fits."""

    def __init__(self, code: ErrorCode, message: str, *, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.records = records
        """Which records of a batch are to blame, by their place in it, and for what."""


class BrokerFailure(Exception):
    """The broker cannot start or go on; the message says what to do."""


class Disconnect(Exception):
    """There is no answer that the client would understand, so the connection is closed; the message is for our log."""
