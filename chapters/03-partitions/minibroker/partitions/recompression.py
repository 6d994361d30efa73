"""A topic that has its own codec: batches that come with another are compressed anew. A pure module.

By default `compression.type` is `producer`: what came is what is stored, and no record is touched. A topic that names a
codec pays for it with every batch that comes in another. The records themselves stay as they are; only the bytes
around them change, so offsets, sequence and timestamps are those of the producer.
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
    """The codec that a topic wants, or None if it takes the producer's."""
    return CODECS.get(compression_type)


def recompressed(it: Incoming, codec: Compression) -> memoryview:
    """The batch in that codec. A bomb is refused before it is unpacked."""
    if it.header.compression == codec:
        return it.batch
    try:
        records = decompress(it.header.compression, it.batch[RECORDS_AT:])
        return memoryview(encode_batch(_with_codec(it.header, codec), records))
    except LogError as error:
        raise refusal(error) from error


def _with_codec(header: BatchHeader, codec: Compression) -> BatchHeader:
    return header._replace(attributes=header.attributes & ~COMPRESSION_MASK | codec)
