"""Recompression of batches, for a topic that has its own codec. A pure module.

By default `compression.type` is `producer`, and a batch is stored as it was sent. On a topic that names a codec, every
batch with another codec is decompressed and compressed again. The records stay the same, with the offsets, the sequence
numbers and the timestamps of the producer.
"""

from minibroker.log.batch import COMPRESSION_MASK, RECORDS_AT, BatchHeader, encode_batch
from minibroker.log.compression import Compression, decompress
from minibroker.log.errors import LogError
from minibroker.partitions.admission import Incoming
from minibroker.partitions.errors import refusal

CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def codec_of(compression_type: str) -> Compression | None:
    """The codec of a topic, or None if the producer's codec is kept."""
    return CODECS.get(compression_type)


def recompressed(it: Incoming, codec: Compression) -> memoryview:
    """The batch, compressed with `codec`, unless it is a control batch. A decompression bomb is refused early."""
    if it.header.compression == codec or it.header.is_control:
        return it.batch
    try:
        records = decompress(it.header.compression, it.batch[RECORDS_AT:])
        return memoryview(encode_batch(_with_codec(it.header, codec), records))
    except LogError as error:
        raise refusal(error) from error


def _with_codec(header: BatchHeader, codec: Compression) -> BatchHeader:
    return header._replace(attributes=header.attributes & ~COMPRESSION_MASK | codec)
