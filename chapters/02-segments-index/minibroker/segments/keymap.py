"""A map from each key to its newest offset, in memory of a fixed size. A pure module.

Compaction must know the newest offset of every key in a log's dirty part. A dict of all keys could grow without limit.
So, as in Kafka, the map is a hash table in one byte array. Each slot has

    digest:16 bytes  offset:8 bytes            offsets are stored plus one, so that an empty slot is zero

A key of up to 15 bytes is stored itself, padded with zeros and its length. For a longer key, a digest of 120 bits is
stored. Two keys with the same digest would count as one key, and a record would be lost. Among 10**12 keys the chance
of that is below one in 10**12. The digest is BLAKE2b, not MD5, because a client can construct two keys with the same
MD5 to have another client's record removed.

A key whose slot is taken goes to the next free slot (open addressing). The fuller the table, the longer the search. In
a table that is three quarters full, finding a key takes 2.5 lookups, and finding that a key is missing takes 8.5. At
nine tenths, the numbers are 5.5 and 50. So the table counts as full at three quarters and then refuses new keys.

Both methods run once for each record of a log, and a function call costs as much as a lookup. So their common code is
written out twice.
"""

import struct
from hashlib import blake2b

_SLOT = struct.Struct("=16sQ")
SLOT_BYTES = 16 + 8  # digest, offset plus one
assert _SLOT.size == SLOT_BYTES
_pack, _unpack = _SLOT.pack_into, _SLOT.unpack_from

SHORT_MAX = 15
_PADDING = [bytes(SHORT_MAX - n) + bytes([n + 1]) for n in range(SHORT_MAX + 1)]  # the padding for each length of key

LOAD_MAX = 0.75
LOAD_WANTED = 0.5


def bytes_wanted(keys_max: int) -> int:
    """The size of a table in which `keys_max` keys are found quickly."""
    return SLOT_BYTES * (int(keys_max / LOAD_WANTED) + 2)


_LONG = b"\xff"  # the last byte of a long key's digest; a short key's padding never ends with this byte


class KeyMap:
    """Newest offsets by key, in at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._slots = bytes_max // SLOT_BYTES
        self._keys_max = int(self._slots * LOAD_MAX)
        if self._keys_max < 1:
            raise ValueError(f"{bytes_max} bytes hold no key: at least {2 * SLOT_BYTES} are needed")
        self._table = bytearray(self._slots * SLOT_BYTES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The size of the table in bytes."""
        return len(self._table)

    def put(self, key: bytes, offset: int) -> bool:
        """Set the newest offset of a key; it only grows. Return False if there is no room for the key."""
        digest = key + _PADDING[len(key)] if len(key) <= SHORT_MAX else blake2b(key, digest_size=15).digest() + _LONG
        # Search from the digest's slot on, until the key or an empty slot is found. There always is an empty slot.
        table, at = self._table, hash(digest) % self._slots * SLOT_BYTES
        while True:
            found, stored = _unpack(table, at)
            if found == digest:
                break
            if not stored:
                if self._count == self._keys_max:
                    return False
                self._count += 1
                break
            at += SLOT_BYTES
            if at == len(table):
                at = 0
        _pack(table, at, digest, offset + 1)
        return True

    def newest(self, key: bytes) -> int:
        """The newest offset of a key, or -1."""
        digest = key + _PADDING[len(key)] if len(key) <= SHORT_MAX else blake2b(key, digest_size=15).digest() + _LONG
        table, at = self._table, hash(digest) % self._slots * SLOT_BYTES
        while True:
            found, stored = _unpack(table, at)
            if found == digest or not stored:
                return int(stored) - 1
            at += SLOT_BYTES
            if at == len(table):
                at = 0
