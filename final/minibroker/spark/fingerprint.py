"""The fingerprint of rows: a hash of each row, summed, so that the order of the rows does not matter. A pure module.

The hash of a row is made of the sizes and the checksums (CRC-32C) of its fields. It tells rows apart that were
partitioned differently by a change of options or of code. It does not tell rows apart that were made up to look alike.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from minibroker.spark.encoding import tails
from minibroker.spark.progress import Fingerprint

Hashes = npt.NDArray[np.uint64]

# Odd numbers without a pattern, one for each field: the first outputs of SplitMix64.
_KEY, _VALUE, _HEADERS, _TOPIC, _PARTITION, _MIX = (
    np.uint64(it | 1)
    for it in (
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
        0xF88BB8A8724C81EC,
        0x1B39896A51A8749B,
        0x53CB9F0C747EA2EA,
    )
)


def fingerprint(
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None = None,
    topics: pa.Array | None = None,
    partitions: pa.Array | None = None,
) -> Fingerprint:
    """Return the fingerprint of rows with these columns; a column that is not given counts as nulls."""
    count = len(values)
    hashes = hashes_of(values) * _VALUE
    if keys.null_count < count:
        hashes += hashes_of(keys) * _KEY
    if topics is not None:
        hashes += hashes_of(topics.cast(pa.binary())) * _TOPIC
    if headers is not None:
        hashes += _header_hashes(headers) * _HEADERS
    if partitions is not None:
        numbers = partitions.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        hashes += numbers.view(np.uint64) * _PARTITION
    return Fingerprint(count, int(_mixed(hashes).sum()))


def hashes_of(column: pa.Array) -> Hashes:
    """Return a hash of each value. That of a null is 0, so a column of nulls counts like a missing one."""
    filled = column.fill_null(b"") if column.null_count else column
    sizes = pc.binary_length(filled).to_numpy(zero_copy_only=False)
    hashes = _hashes(np.fromiter(map(crc32c, filled.to_pylist()), np.uint64, len(column)), sizes)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _header_hashes(headers: pa.Array) -> Hashes:
    """Return a hash of each row's headers; that of a row without headers is 0."""
    encoded = tails(headers, len(headers))
    if encoded is None:
        return np.zeros(len(headers), np.uint64)
    data, start, size, _raw = encoded
    checksums = [crc32c(data[at : at + length]) for at, length in zip(start.tolist(), size.tolist(), strict=True)]
    hashes = _hashes(np.array(checksums, np.uint64), size)
    # The headers of a row without any are one byte, their number.
    hashes[size == 1] = 0
    return hashes


def _hashes(checksums: Hashes, sizes: npt.NDArray[np.integer]) -> Hashes:
    return _mixed((checksums << np.uint64(32)) + sizes.astype(np.uint64) + np.uint64(1))


def _mixed(hashes: Hashes) -> Hashes:
    mixed: Hashes = (hashes ^ (hashes >> np.uint64(29))) * _MIX
    return mixed ^ (mixed >> np.uint64(32))
