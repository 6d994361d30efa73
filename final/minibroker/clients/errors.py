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


class TransactionFailed(ClientError):
    """A transaction cannot be committed any more: abort it, and do its work again in a new one."""


class TransactionAborted(ClientError):
    """A record was not sent, because its transaction was aborted."""


class WrongState(ClientError):
    """A call that a transactional producer does not allow at this point, such as a second `begin`."""


class Fenced(BrokerError):
    """This producer must stop: another one uses its transactional id, or its transaction took too long."""

    def __init__(self, code: int, transactional_id: str, timeout_ms: int) -> None:
        message = (
            f"another producer has taken over, or a transaction was open for longer than {timeout_ms} ms; the open "
            "transaction is aborted. Make a new producer, unless another one does the work now"
        )
        super().__init__(code, message, about=f"transactional id {transactional_id}")


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
