"""The errors of the full client, in addition to those of `minibroker.client`. A pure module."""

from collections.abc import Mapping, Sequence

from minibroker.client.errors import BrokerError, ClientError


class InvalidSetting(ClientError):
    """A setting that cannot work, alone or together with another."""


class BrokerErrors(ClientError):
    """Some of the topics or partitions of one request were refused."""

    def __init__(self, errors: Mapping[str, BrokerError]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(str(error) for error in self.errors.values()))


class BufferFull(ClientError):
    """Records are produced faster than the brokers accept them, and buffer_memory is used up."""


class RecordTooLarge(ClientError):
    """A record that does not fit into any request."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged in time; whether it was written is not known."""


class DeliveryInDoubt(ClientError):
    """A record may have been written, and sending it again could write it twice."""


class OffsetOutOfRange(ClientError):
    """The log does not have the offset that a consumer wants to read: it was deleted, or is not written yet."""


class LogTruncated(ClientError):
    """The log of a new leader ends before the position of a consumer: records that were read are lost."""


class CommitRefused(BrokerError):
    """The offsets of some partitions were not committed: this member was removed, or the partitions are not its own."""

    def __init__(self, code: int, group_id: str, partitions: Sequence[object]) -> None:
        names = ", ".join(map(str, partitions))
        super().__init__(code, about=f"group {group_id}: the offsets of {names} were not committed")


class CorruptRecords(ClientError):
    """A fetched batch whose checksum or layout is wrong."""
