"""The partition of a key: the hash of Kafka's own clients. A pure module.

The client chooses the partition, not the broker. All clients must choose the same partition for a key. Otherwise the
key's records are in two partitions, and their order is lost. Partitioners for records without a key and for very
frequent keys are in `minibroker.clients.partitioners`.
"""

from struct import unpack_from

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of a key, as in Kafka's clients. It is signed, as in Java."""
    size = len(data)
    mixed = SEED ^ size
    # Take four bytes at a time, little-endian. Multiply each word, mix it with its highest byte (a shift by 24), and
    # multiply it again. Then multiply the hash and mix the word into it. All numbers stay within 32 bits.
    for word in unpack_from(f"<{size >> 2}I", data):
        word = word * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        mixed = (mixed * MULTIPLIER & MASK) ^ word
    # Up to three bytes remain. Mix them into the hash as one number, and multiply it. Skip this if none remain.
    if size & 3:
        mixed = (mixed ^ int.from_bytes(data[size & ~3 :], "little")) * MULTIPLIER & MASK
    # Spread the last bytes over all bits: shift by 13, multiply, shift by 15. Then apply the sign, as in Java.
    mixed = (mixed ^ mixed >> 13) * MULTIPLIER & MASK
    mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed > POSITIVE else mixed


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same as in Kafka's Java client, librdkafka's `murmur2` and kafka-python.

    The sign bit of a negative hash is cleared, as in Kafka's `toPositive`; the hash is not negated.
    """
    return (murmur2(key) & POSITIVE) % partition_count
