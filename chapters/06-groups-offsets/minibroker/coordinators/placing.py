"""The partition that has the state of a group: Java's hash of the group's id. A pure module.

Every broker and every version of Kafka must find the same partition, so the hash is that of Java's strings.
"""


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as a number of 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (value * 31 + (units[position] << 8) + units[position + 1]) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(key: str, partition_count: int) -> int:
    """The partition for a key. The smallest number of 32 bits has no positive counterpart, and counts as 0."""
    value = java_hash(key)
    return 0 if value == -(2**31) else abs(value) % partition_count
