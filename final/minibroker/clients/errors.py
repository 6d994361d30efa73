"""What the full client refuses or reports, beside the errors of any client. A pure module."""

from collections.abc import Mapping

from minibroker.client.errors import BrokerError, ClientError


class InvalidSetting(ClientError):
    """Settings that cannot work, alone or together."""


class BrokerErrors(ClientError):
    """Several things were asked for in one request, and some of them were refused."""

    def __init__(self, errors: Mapping[str, BrokerError]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(str(error) for error in self.errors.values()))


class BufferFull(ClientError):
    """Records are produced faster than the brokers take them, and the memory set aside for them is used up."""


class RecordTooLarge(ClientError):
    """A record that no request may carry."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged in time; whether it was written is not known."""


class DeliveryInDoubt(ClientError):
    """A record may have been written or not, and cannot be sent again without the risk of a second copy."""


class OffsetOutOfRange(ClientError):
    """The log no longer has, or does not have yet, the offset that a consumer wants to read."""


class LogTruncated(ClientError):
    """A new leader's log ends before what a consumer has read: the records after that are gone."""


class CorruptRecords(ClientError):
    """A fetched batch whose checksum or layout is wrong."""
