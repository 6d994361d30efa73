"""The errors of this package. A pure module."""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class GroupRefused(ExpectedError):
    """A coordinator refuses a request with one of Kafka's codes."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or f"{code.name}: {code.message}")
        self.code = code
