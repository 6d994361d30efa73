"""Which partition the record of a key goes to: the hash of Kafka's own clients. A pure module.

The broker has no say in it, so every client must choose alike: a key that two clients send to two partitions has lost
its order. What is done with records without a key, and with a key that is too popular, is in
`minibroker.clients.partitioners`.
"""

from struct import unpack_from

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Kafka's clients take of a key, signed as it is in Java."""
    size = len(data)
    mixed = SEED ^ size
    # Four bytes at a time, little-endian. Each word is multiplied, mixed with its own highest byte (a shift by 24), and
    # multiplied again; then the hash is multiplied and takes the word in. All within 32 bits.
    for word in unpack_from(f"<{size >> 2}I", data):
        word = word * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        mixed = (mixed * MULTIPLIER & MASK) ^ word
    # Up to three bytes are left, one number: the hash takes it in and is multiplied. Where none is left, it is not.
    if size & 3:
        mixed = (mixed ^ int.from_bytes(data[size & ~3 :], "little")) * MULTIPLIER & MASK
    # The last bytes are made to count in every bit: shift by 13, multiply, shift by 15. Then the sign, as Java has it.
    mixed = (mixed ^ mixed >> 13) * MULTIPLIER & MASK
    mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed > POSITIVE else mixed


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key: the same for Kafka's Java client, for librdkafka's `murmur2` and for kafka-python.

    The sign bit is dropped, not the number negated: that is what Kafka's `toPositive` does.
    """
    return (murmur2(key) & POSITIVE) % partition_count
