"""The errors of transactions. A pure module."""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class TransactionRefused(ExpectedError):
    """The coordinator refuses a request, with the error code for the client."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code
