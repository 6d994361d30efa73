"""Finds the partition that has the state of a group, by Java's hash of the group's id. A pure module.

A broker must find the same partition as Kafka does, so the hash is that of Java's strings.
"""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: a hash of the UTF-16 code units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (value * 31 + (units[position] << 8) + units[position + 1]) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(key: str, partition_count: int) -> int:
    """The partition for a key. The hash -2^31 has no positive counterpart in 32 bits, and counts as 0."""
    value = java_hash(key)
    return 0 if value == -(2**31) else abs(value) % partition_count
