"""Variable-length integers: small numbers in one byte. A pure module.

Each byte holds seven bits of the number, lowest first. Its high bit says that another byte follows. Signed values are
zigzagged first (0, -1, 1, -2 … become 0, 1, 2, 3 …), so that small negative numbers stay short. Records use the signed
form. The flexible versions of the wire protocol, from chapter 03 on, use the unsigned form.
"""

from minibroker.log.errors import InvalidVarint

VARINT_BYTES_MAX = 5  # 32 bits at 7 bits a byte
VARLONG_BYTES_MAX = 10  # 64 bits at 7 bits a byte


def zigzag(value: int) -> int:
    """Map a signed number of up to 64 bits to an unsigned one. Numbers near zero stay small."""
    return (value << 1) ^ (value >> 63)


def unzigzag(raw: int) -> int:
    """Undo `zigzag`."""
    return (raw >> 1) ^ -(raw & 1)


def encode_unsigned_varint(raw: int) -> bytes:
    """Write a non-negative number, seven bits per byte."""
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def decode_unsigned_varint(
    buffer: bytes | bytearray | memoryview, position: int, *, bytes_max: int = VARINT_BYTES_MAX
) -> tuple[int, int]:
    """Read an unsigned varint at `position`; return it and the position after it."""
    # Take seven bits from each byte, the lowest first, until a byte has its high bit clear.
    # Refuse a varint that is "cut off" or "longer than 5 bytes" (bytes_max); use these words, and name its position.
    # `_checked` refuses a value that does not fit the type.
    value = 0
    for index in range(bytes_max):
        if position + index >= len(buffer):
            raise InvalidVarint(f"varint at position {position} is cut off after {index} bytes")
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return _checked(value, position, bytes_max), position + index + 1
    raise InvalidVarint(f"varint at position {position} is longer than {bytes_max} bytes")


def _checked(value: int, position: int, bytes_max: int) -> int:
    # The last byte could carry more bits than the type has: 5 x 7 = 35 > 32, 10 x 7 = 70 > 64.
    bits = 32 if bytes_max == VARINT_BYTES_MAX else 64
    if value >> bits:
        raise InvalidVarint(f"varint at position {position} does not fit in {bits} bits")
    return value


def encode_varint(value: int) -> bytes:
    """Write a signed number of up to 64 bits. Kafka's varint and varlong are written alike."""
    if 0 <= value < _SMALL_MAX:
        return _SMALL[value]
    return encode_unsigned_varint(zigzag(value))


def decode_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Read a signed number of up to 32 bits at `position`; return it and the position after it."""
    raw, position = decode_unsigned_varint(buffer, position, bytes_max=VARINT_BYTES_MAX)
    return unzigzag(raw), position


def decode_varlong(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Read a signed number of up to 64 bits at `position`; return it and the position after it."""
    raw, position = decode_unsigned_varint(buffer, position, bytes_max=VARLONG_BYTES_MAX)
    return unzigzag(raw), position


# Nearly every varint in a batch is a small length or a small delta, so the small ones are encoded in advance.
_SMALL_MAX = 2048
_SMALL = [encode_unsigned_varint(zigzag(value)) for value in range(_SMALL_MAX)]
