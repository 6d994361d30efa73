"""Compression of a whole record set: gzip, snappy, lz4, zstd. A pure module.

A batch's header stays uncompressed. Its records are compressed together, because similar records compress far better
together than one by one. A broker normally stores the compressed bytes that the producer sent.

Decompression is always bounded: a kilobyte of zstd can claim to hold gigabytes, and a broker that allocates them runs
out of memory. The codec packages are imported on first use; if a package is missing, the error names it.
"""

import enum
import importlib
import struct
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from minibroker.log.errors import CorruptBatch, RecordsTooLarge, UnsupportedCompressionType

Bytes = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024


class Compression(enum.IntEnum):
    """The codec numbers in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Bytes) -> bytes:
    """Compress a record set as a producer does."""
    if codec == Compression.NONE:
        return bytes(data)
    return _codec(codec)[0](bytes(data))


def decompress(codec: int, data: Bytes, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress a record set; raise as soon as its size is known to exceed `bytes_max`."""
    if codec == Compression.NONE:
        return bytes(data)
    return _codec(codec)[1](bytes(data), bytes_max)


def decompressed_bytes_max(codec: int, count: int) -> int:
    """The most bytes to which `count` compressed bytes can decompress, and never more than `DECOMPRESSED_BYTES_MAX`."""
    return min(_RATIO_MAX.get(codec, DECOMPRESSED_BYTES_MAX) * count, DECOMPRESSED_BYTES_MAX)


def _codec(codec: int) -> tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]:
    if codec not in _CODECS:
        raise UnsupportedCompressionType(f"compression type {codec} is unknown: 0 to 4 are assigned")
    return _CODECS[codec]


def _load(name: str, codec: str) -> Any:
    try:
        module: ModuleType = importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedCompressionType(f"{codec} needs the package {name.split('.')[0]}: {error}") from None
    return module


def _too_large(codec: str, bytes_max: int) -> RecordsTooLarge:
    return RecordsTooLarge(f"{codec} records decompress to more than {bytes_max} bytes")


# gzip ---------------------------------------------------------------------------------------------------------------

_GZIP_WBITS = 31  # 15 bits of window, +16 for the gzip wrapper


def _gzip_compress(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_GZIP_WBITS)
    return compressor.compress(data) + compressor.flush()


def _gzip_decompress(data: bytes, bytes_max: int) -> bytes:
    # A gzip stream may have several members, one after the other; Kafka reads them all.
    parts: list[bytes] = []
    room = bytes_max
    while True:
        decompressor = zlib.decompressobj(wbits=_GZIP_WBITS)
        try:
            # Request one byte more than is allowed. If zlib returns that byte, the records are too large. This also
            # avoids the limit 0, which zlib reads as "no limit".
            parts.append(decompressor.decompress(data, room + 1))
        except zlib.error as error:
            raise CorruptBatch(f"gzip records do not decompress: {error}") from None
        room -= len(parts[-1])
        if room < 0:
            raise _too_large("gzip", bytes_max)
        if not decompressor.eof:
            raise CorruptBatch(f"gzip records are cut off after {len(data)} bytes")
        if not decompressor.unused_data:
            return b"".join(parts)
        data = decompressor.unused_data


# lz4 ----------------------------------------------------------------------------------------------------------------


_LZ4_FIRST_STEP = 64 * 1024


def _lz4_compress(data: bytes) -> bytes:
    frame = _load("lz4.frame", "lz4")
    # Use independent blocks of 64 KiB, because Kafka's Java client refuses linked blocks.
    compressed: bytes = frame.compress(
        data, block_size=frame.BLOCKSIZE_MAX64KB, block_linked=False, content_checksum=False, store_size=False
    )
    return compressed


def _lz4_decompress(data: bytes, bytes_max: int) -> bytes:
    # The package allocates `max_length` bytes at once, so the first limit is small, and each further limit is larger.
    decompressor = _load("lz4.frame", "lz4").LZ4FrameDecompressor()
    plain = bytearray()
    step = max(_LZ4_FIRST_STEP, 4 * len(data))
    try:
        plain += decompressor.decompress(data, max_length=min(step, bytes_max + 1))
        while not decompressor.eof and not decompressor.needs_input and len(plain) <= bytes_max:
            step *= 4
            plain += decompressor.decompress(b"", max_length=min(step, bytes_max + 1 - len(plain)))
    except RuntimeError as error:
        raise CorruptBatch(f"lz4 records do not decompress: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large("lz4", bytes_max)
    if not decompressor.eof:
        raise CorruptBatch(f"lz4 records are cut off after {len(data)} bytes")
    return bytes(plain)


# zstd ---------------------------------------------------------------------------------------------------------------

_ZSTD_FIRST_GUESS = 64 * 1024


def _zstd_compress(data: bytes) -> bytes:
    return bytes(_load("cramjam", "zstd").zstd.compress(data))


def _zstd_decompress(data: bytes, bytes_max: int) -> bytes:
    # Producers compress a stream, so a frame seldom states its decompressed size. Try a small buffer, and one four
    # times as large whenever the buffer was too small. So memory stays within four times the real size, whatever the
    # frame claims.
    cramjam = _load("cramjam", "zstd")
    capacity = min(max(_ZSTD_FIRST_GUESS, 4 * len(data)), bytes_max)
    while True:
        plain = bytearray(capacity)
        try:
            count = cramjam.zstd.decompress_into(data, plain)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise CorruptBatch(f"zstd records do not decompress: {error}") from None
            if capacity >= bytes_max:
                raise _too_large("zstd", bytes_max) from None
            capacity = min(4 * capacity, bytes_max)
        else:
            return bytes(memoryview(plain)[:count])


# snappy -------------------------------------------------------------------------------------------------------------
# Two framings are in use. librdkafka sends one raw snappy block; the Java client and kafka-python send the stream of
# the library snappy-java ("xerial"): a magic, two version numbers, then length-prefixed raw blocks.

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_RATIO_MAX = 22  # 3 bytes decompress to at most 64; 64 / 3, rounded up
_INT32 = struct.Struct(">i")


def _snappy_compress(data: bytes) -> bytes:
    compress_raw = _load("cramjam", "snappy").snappy.compress_raw
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_INT32.pack(len(block)), block]
    return b"".join(parts)


def _snappy_decompress(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, bytes_max)
    parts: list[bytes] = []
    room = bytes_max
    for block in _xerial_blocks(data):
        parts.append(_snappy_block(block, room, bytes_max))
        room -= len(parts[-1])
    return b"".join(parts)


def _xerial_blocks(data: bytes) -> list[bytes]:
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptBatch(f"snappy stream header is cut off after {len(data)} bytes")
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + _INT32.size > len(data):
            raise CorruptBatch(f"snappy block length at byte {position} of {len(data)} is cut off")
        (length,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 <= length <= len(data) - position:
            left = len(data) - position
            raise CorruptBatch(f"snappy block at byte {position} claims {length} bytes, but {left} follow")
        blocks.append(data[position : position + length])
        position += length
    return blocks


def _snappy_block(block: bytes, room: int, bytes_max: int | None = None) -> bytes:
    # A raw block begins with its decompressed length, which is checked before anything is allocated. Three
    # bytes of a block decompress to at most 64, so a block that claims a higher ratio is damaged.
    cramjam = _load("cramjam", "snappy")
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > room:
            raise _too_large("snappy", room if bytes_max is None else bytes_max)
        if claimed > _SNAPPY_RATIO_MAX * len(block):
            raise CorruptBatch(
                f"snappy block of {len(block)} bytes claims to decompress to {claimed} bytes, which is impossible"
            )
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy records do not decompress: {error}") from None


# The largest ratio that each format allows. A zstd block of 4 bytes can repeat one byte 128 Ki times.
_RATIO_MAX: dict[int, int] = {
    Compression.GZIP: 1032,
    Compression.SNAPPY: _SNAPPY_RATIO_MAX,
    Compression.LZ4: 255,
    Compression.ZSTD: 32 * 1024,
}

_CODECS: dict[int, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    Compression.GZIP: (_gzip_compress, _gzip_decompress),
    Compression.SNAPPY: (_snappy_compress, _snappy_decompress),
    Compression.LZ4: (_lz4_compress, _lz4_decompress),
    Compression.ZSTD: (_zstd_compress, _zstd_decompress),
}
