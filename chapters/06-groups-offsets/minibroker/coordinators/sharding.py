"""What a driver uses of a shard, which has the groups or the transactions of one partition. A pure module.

Both kinds of coordinator load their state from a partition, append records to it, and answer when these are replicated.
Only the decisions differ. So there is one driver, and this interface.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from minibroker.groups.pending import Producer
from minibroker.groups.steps import EndMarker, Reply
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode


class StateStep(Protocol):
    """The records and the replies of one event."""

    @property
    def records(self) -> Sequence[Any]:
        """The records to append and to apply."""

    @property
    def replies(self) -> Sequence[Reply]:
        """The answers that wait for the records."""

    @property
    def producer(self) -> Producer | None:
        """The producer whose transaction the records are part of, if there is one."""

    @property
    def marker(self) -> EndMarker | None:
        """A marker to append and to apply in place of records."""

    def refused(self, code: ErrorCode) -> "StateStep":
        """The step to use instead if the log refuses the records."""


class StateShard(Protocol):
    """The state of one partition. `replay` is for records that are loaded, `apply` for those of its own steps."""

    image: Image

    @property
    def summary(self) -> str:
        """How much state there is, for the broker's log."""

    def encode(self, record: Any, /) -> tuple[bytes, bytes | None]:
        """The key and the value of a record."""

    def decode(self, key: bytes, value: bytes | None, /) -> Any:
        """A record; None if its type is unknown."""

    def replay(self, record: Any, offset: int, producer: Producer | None = None) -> None:
        """Apply a record of the log. It may be part of a producer's transaction."""

    def apply(self, record: Any, offset: int, now_ms: int, producer: Producer | None = None) -> None:
        """Apply a record of a step."""

    def apply_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """Apply a marker, which was loaded or appended."""

    def on_loaded(self, now_ms: int) -> None:
        """The whole log has been replayed."""

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None."""

    def on_time(self, now_ms: int) -> Iterable[StateStep]:
        """Act on the time limits that have ended."""

    def on_image(self, old: Image, new: Image) -> Iterable[StateStep]:
        """The metadata have changed."""


class LogSettings(Protocol):
    """The values that a driver needs."""

    @property
    def append_timeout_ms(self) -> int:
        """How long an answer may wait until the records before it are replicated."""

    @property
    def load_buffer_size(self) -> int:
        """How many bytes are read at once while the state is loaded."""

    @property
    def compression_codec(self) -> int:
        """The codec of the batches."""
