"""Kafka's hash of keys for a whole column at once, equal to `minibroker.client.partitioners.murmur2`. A pure module.

The hash reads four bytes at a time, so all keys are processed together: the first word of every key, the second word of
every key that has one, and so on. Long keys, which would need many steps for few rows, are hashed one by one.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibroker.client import partitioners

Hashes = npt.NDArray[np.int32]

_MULTIPLIER = np.uint32(partitioners.MULTIPLIER)
_LONG = 256  # bytes; a key of this size or more is hashed by itself


def murmur2(keys: pa.Array) -> Hashes:
    """Return the signed 32-bit hash of each key, binary or string; the hash of a null has no meaning."""
    if pa.types.is_string(keys.type) or pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type):
        keys = keys.cast(pa.binary())
    count = len(keys)
    if count == 0 or keys.null_count == count:
        return np.full(count, partitioners.murmur2(b""), np.int32)
    _validity, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    start, size = offsets[:-1], np.diff(offsets)
    if keys.null_count:
        size[keys.is_null().to_numpy(zero_copy_only=False)] = 0
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return _hash_all(octets, start, size)


def partitions_of(keys: pa.Array, partition_count: int) -> Hashes:
    """Return the partition of each key, as Kafka's clients choose it; -1 for a null, which may go to any partition."""
    partitions = (murmur2(keys) & np.int32(partitioners.POSITIVE)) % np.int32(partition_count)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def _hash_all(octets: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> Hashes:
    is_long = size >= _LONG
    if not is_long.any():
        return _hash_short(octets, start, size)
    hashes = np.empty(len(start), np.int32)
    hashes[~is_long] = _hash_short(octets, start[~is_long], size[~is_long])
    for row in np.flatnonzero(is_long).tolist():
        hashes[row] = partitioners.murmur2(octets[start[row] : start[row] + size[row]].tobytes())
    return hashes


def _hash_short(octets: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> Hashes:
    mixed = np.uint32(partitioners.SEED) ^ size.astype(np.uint32)
    word_count = size >> 2
    for step in range(int(word_count.max(initial=0))):
        rows = np.flatnonzero(word_count > step)
        if len(rows) == len(start):
            mixed = (mixed * _MULTIPLIER) ^ _mixed_word(octets, start + 4 * step)
        else:
            mixed[rows] = (mixed[rows] * _MULTIPLIER) ^ _mixed_word(octets, start[rows] + 4 * step)
    mixed = _with_rest(octets, start, size, mixed)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * _MULTIPLIER
    return (mixed ^ (mixed >> np.uint32(15))).view(np.int32)


def _mixed_word(octets: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    word = octets[at].astype(np.uint32)
    for index in range(1, 4):
        word |= octets[at + index].astype(np.uint32) << np.uint32(8 * index)
    word *= _MULTIPLIER
    return (word ^ (word >> np.uint32(24))) * _MULTIPLIER


def _with_rest(
    octets: npt.NDArray[np.uint8],
    start: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    mixed: npt.NDArray[np.uint32],
) -> npt.NDArray[np.uint32]:
    """Hash the last one to three bytes of the keys whose length is not a multiple of four."""
    rest_size = size & 3
    rows = np.flatnonzero(rest_size)
    if not len(rows):
        return mixed
    at = start[rows] + (size[rows] & ~3)
    rest = octets[at].astype(np.uint32)
    for index in (1, 2):
        longer = rest_size[rows] > index
        rest[longer] |= octets[at[longer] + index].astype(np.uint32) << np.uint32(8 * index)
    mixed[rows] = (mixed[rows] ^ rest) * _MULTIPLIER
    return mixed
