"""The fingerprint of rows: a hash of each row, summed, so that the order of the rows does not matter. A pure module.

All rows are hashed together: the first 64 bytes of every row, then the next 64 bytes of every row that has more. Long
values, which would need many steps for few rows, are hashed one by one.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibroker.spark.encoding import RAW_NULL, Payload, payload, tails
from minibroker.spark.progress import Fingerprint

Hashes = npt.NDArray[np.uint64]

_BLOCK = 64
_WORDS = _BLOCK // 8
_LONG = 64 * _BLOCK  # bytes; a value of this size or more is hashed by itself


def _constants(count: int) -> Hashes:
    """Return odd numbers without a pattern: SplitMix64."""
    state, made = 0, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        made.append((mixed ^ (mixed >> 31)) | 1)
    return np.array(made, np.uint64)


_WEIGHTS = _constants(_WORDS)
_SIZE, _NEXT, _MIX, _KEY, _VALUE, _HEADERS, _TOPIC, _PARTITION = _constants(_WORDS + 8)[_WORDS:]
_MASKS = np.frombuffer(
    b"".join(b"\xff" * size + b"\0" * (_BLOCK - size) for size in range(_BLOCK + 1)), np.dtype("<u8")
).reshape(_BLOCK + 1, _WORDS)


def fingerprint(
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None = None,
    topics: pa.Array | None = None,
    partitions: pa.Array | None = None,
) -> Fingerprint:
    """Return the fingerprint of rows with these columns; a column that is not given counts as none."""
    count = len(values)
    if count == 0:
        return Fingerprint()
    hashes = hashes_of(payload("value", values, count)) * _VALUE
    if keys.null_count < count:
        hashes += hashes_of(payload("key", keys, count)) * _KEY
    if topics is not None:
        hashes += hashes_of(payload("topic", topics, count)) * _TOPIC
    encoded = tails(headers, count)
    if encoded is not None:
        hashes += hashes_of(encoded) * _HEADERS
    if partitions is not None:
        hashes += partitions.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).view(np.uint64) * _PARTITION
    return Fingerprint(count, int(_mixed(hashes).sum()))


def hashes_of(column: Payload) -> Hashes:
    """Return a hash of each value. That of a null is 0, so a column of nulls counts as none."""
    hashes: Hashes = _mixed((column.raw + RAW_NULL).astype(np.uint64) * _SIZE)
    # Zeros after the data let the last block be read whole. They are masked out of the hash.
    octets = np.frombuffer(b"".join([column.data, bytes(_BLOCK)]), np.uint8)
    is_long = column.size >= _LONG
    for row in np.flatnonzero(is_long).tolist():
        data = octets[column.start[row] : column.start[row] + column.size[row]].tobytes()
        hashes[row] ^= np.uint64(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little"))
    left = np.where(is_long, 0, column.size)
    for step in range(-(-int(left.max()) // _BLOCK)):
        rows: Any = slice(None) if left.min() > step * _BLOCK else np.flatnonzero(left > step * _BLOCK)
        sums = _sums(octets, column.start[rows] + step * _BLOCK, left[rows] - step * _BLOCK)
        hashes[rows] = _mixed(hashes[rows] * _NEXT + sums)
    hashes[column.raw == RAW_NULL] = 0
    return hashes


def _sums(octets: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Hashes:
    """Return the weighted sum of the words of one block per row; `left` is the size of the row from there on."""
    blocks: Any = np.ndarray((len(octets) - _BLOCK + 1,), f"V{_BLOCK}", octets, strides=(1,))
    words = blocks[at].view(np.dtype("<u8")).reshape(-1, _WORDS)
    is_short = left < _BLOCK
    if is_short.all():
        words &= _MASKS[left]
    elif is_short.any():
        words[is_short] &= _MASKS[left[is_short]]
    sums: Hashes = words @ _WEIGHTS
    return sums


def _mixed(hashes: Hashes) -> Hashes:
    mixed: Hashes = (hashes ^ (hashes >> np.uint64(29))) * _MIX
    return mixed
