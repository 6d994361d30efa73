"""What the Spark connector refuses or reports, each in one line: Spark shows it below a traceback. A pure module."""

from minibroker.log.errors import ExpectedError


class ConnectorError(ExpectedError):
    """Anything that this package raises."""


class InvalidOption(ConnectorError):
    """An option that is missing, not known, or has a value that cannot work; the line begins with its name."""


class UnknownTopic(ConnectorError):
    """A topic or a partition that was asked for and is not there."""


class DataLoss(ConnectorError):
    """Records that were to be read are gone: deleted, expired, or their whole topic was removed."""


class ReadTimedOut(ConnectorError):
    """The broker has not given the records of a split for too long."""


class SparkMissing(ConnectorError):
    """The extra `spark` is not installed, or not all of it."""


class JavaMissing(ConnectorError):
    """Neither the machine nor the extra `spark` has a Java that Spark runs on."""
