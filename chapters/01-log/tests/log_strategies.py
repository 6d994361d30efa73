"""Records and batches of every kind, generated for the tests of this chapter."""

from typing import Any

from hypothesis import strategies as st

from minibroker.log.batch import BatchBuilder
from minibroker.log.compression import Compression
from minibroker.log.record import Record

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Milliseconds until the year 2286, so that differences between any two of them fit wherever Kafka puts them.
TIMESTAMPS = st.integers(0, 10**13)
MAYBE_BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), MAYBE_BYTES), max_size=4)


@st.composite
def records(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 20) -> list[Record]:
    """Records with dense offsets from 0, as a producer numbers them."""
    count = draw(st.integers(min_size, max_size))
    fields = st.tuples(TIMESTAMPS, MAYBE_BYTES, MAYBE_BYTES, HEADERS)
    return [Record(offset, *draw(fields)) for offset in range(count)]


def build(given: list[Record], **options: Any) -> bytearray:
    """A batch of these records."""
    builder = BatchBuilder(**options)
    for record in given:
        builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers)
    return builder.build()


def small_batch(*values: bytes, **options: Any) -> bytearray:
    """A batch of these values, always the same bytes."""
    return build([Record(n, 1_700_000_000_000 + n, None, value) for n, value in enumerate(values)], **options)


CODECS = list(Compression)
