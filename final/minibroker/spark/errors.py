"""The errors of the Spark connector, each one line, which Spark shows below a traceback. A pure module."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from minibroker.log.errors import ExpectedError

P = ParamSpec("P")
T = TypeVar("T")


def shown_plainly(hook: Callable[P, T]) -> Callable[P, T]:
    """Decorate what Spark calls: an expected error keeps its line, and loses the frames, which Spark would all show."""

    @wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return hook(*args, **kwargs)
        except ExpectedError as error:
            raise error.with_traceback(None) from None

    return call


class ConnectorError(ExpectedError):
    """The base of all errors of this package."""


class InvalidOption(ConnectorError):
    """An option that is missing, unknown, or has a value that cannot work; the message begins with its name."""


class UnknownTopic(ConnectorError):
    """A topic or a partition that the query names and the cluster does not have."""


class DataLoss(ConnectorError):
    """Records were deleted before they were read, by retention, by a client, or with their whole topic."""


class ReadTimedOut(ConnectorError):
    """The broker has not returned the records of a split in time."""


class SparkMissing(ConnectorError):
    """The extra `spark` is not installed, or only in part."""


class JavaMissing(ConnectorError):
    """Neither the machine nor the extra `spark` has a Java that Spark runs on."""
