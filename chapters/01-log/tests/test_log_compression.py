"""Compression: every codec and framing, and bombs that cost little (invariant 6)."""

import gzip
import importlib
import itertools
import tracemalloc
from collections.abc import Callable
from types import ModuleType

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case

from minibroker.log.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
    decompressed_bytes_max,
)
from minibroker.log.errors import CorruptBatch, LogError, RecordsTooLarge, UnsupportedCompressionType

COMPRESSED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
BOMB_BYTES = 64 * 1024 * 1024


@given(st.binary(max_size=100_000), st.sampled_from(list(Compression)))
def test_what_is_compressed_comes_back(data: bytes, codec: Compression) -> None:
    assert decompress(codec, compress(codec, data)) == data


@given(st.binary(max_size=100_000))
def test_other_packages_decompress_what_we_compress(data: bytes) -> None:
    assert gzip.decompress(compress(Compression.GZIP, data)) == data
    assert lz4.frame.decompress(compress(Compression.LZ4, data)) == data
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(Compression.ZSTD, data)) == data


@given(st.binary(max_size=100_000))
def test_we_decompress_what_other_packages_compress(data: bytes) -> None:
    assert decompress(Compression.GZIP, gzip.compress(data)) == data
    assert decompress(Compression.LZ4, lz4.frame.compress(data)) == data  # linked blocks, as other clients may send
    assert decompress(Compression.ZSTD, zstandard.ZstdCompressor().compress(data)) == data


@given(st.binary(max_size=100_000))
def test_snappy_is_read_raw_as_librdkafka_sends_it(data: bytes) -> None:
    assert decompress(Compression.SNAPPY, snappy.compress(data)) == data


def test_snappy_is_written_in_xerial_frames_as_the_java_client_reads_it() -> None:
    compressed = compress(Compression.SNAPPY, b"x" * 70_000)
    assert compressed[:16] == b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    blocks, position = [], 16
    while position < len(compressed):
        length = int.from_bytes(compressed[position : position + 4], "big")
        blocks.append(snappy.decompress(compressed[position + 4 : position + 4 + length]))
        position += 4 + length
    assert b"".join(blocks) == b"x" * 70_000
    assert max(len(block) for block in blocks) == 32 * 1024


def test_lz4_blocks_are_independent_because_the_java_client_refuses_linked_ones() -> None:
    info = lz4.frame.get_frame_info(compress(Compression.LZ4, b"x" * 200_000))
    assert info["block_linked"] is False
    assert info["block_size"] == 64 * 1024


def bomb(codec: Compression) -> bytes:
    return compress(codec, bytes(BOMB_BYTES))


@each_case("codec", COMPRESSED)
def test_a_bomb_costs_no_more_than_the_limit(codec: Compression) -> None:
    compressed = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(RecordsTooLarge, match="more than 1000000 bytes"):
            decompress(codec, compressed, bytes_max=1_000_000)
        # The output, its copy while the parts are joined, and the input: never the whole content of the bomb.
        assert tracemalloc.get_traced_memory()[1] < 3_000_000 + 2 * len(compressed)
    finally:
        tracemalloc.stop()


@each_case(("codec", "count"), itertools.product(COMPRESSED, (1, 65_536, 65_537, 256_000)))
def test_exactly_the_limit_is_allowed(codec: Compression, count: int) -> None:
    data = (bytes(range(256)) * 1000)[:count]
    assert decompress(codec, compress(codec, data), bytes_max=len(data)) == data
    with pytest.raises(RecordsTooLarge):
        decompress(codec, compress(codec, data), bytes_max=len(data) - 1)


@each_case(
    ("codec", "compress_best"),
    [
        (Compression.GZIP, lambda data: gzip.compress(data, 9)),
        (Compression.SNAPPY, snappy.compress),
        (Compression.LZ4, lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
        (Compression.ZSTD, zstandard.ZstdCompressor(level=19).compress),
    ],
)
def test_no_codec_compresses_better_than_the_most_that_is_reckoned_with(
    codec: Compression, compress_best: Callable[[bytes], bytes]
) -> None:
    count = len(compress_best(bytes(BOMB_BYTES)))
    assert BOMB_BYTES <= decompressed_bytes_max(codec, count) < 1.1 * BOMB_BYTES
    assert decompressed_bytes_max(codec, DECOMPRESSED_BYTES_MAX) == DECOMPRESSED_BYTES_MAX


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_refused() -> None:
    claims_200_mib = b"\x80\x80\x80\x64" + b"\x00" * 10
    with pytest.raises(CorruptBatch, match="claims to decompress to 209715200"):
        decompress(Compression.SNAPPY, claims_200_mib)
    with pytest.raises(CorruptBatch, match="of 10 bytes claims to decompress to 221"):
        decompress(Compression.SNAPPY, b"\xdd\x01" + b"\x00" * 8)


def test_a_xerial_block_longer_than_what_is_left_is_refused() -> None:
    compressed = bytearray(compress(Compression.SNAPPY, b"hello"))
    left = len(compressed) - 20
    for wrong in (left + 1, -1):
        compressed[16:20] = wrong.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptBatch, match=f"claims {wrong} bytes, but {left} follow"):
            decompress(Compression.SNAPPY, bytes(compressed))


@each_case("codec", COMPRESSED)
def test_a_limit_below_the_first_buffer_size_counts(codec: Compression) -> None:
    with pytest.raises(RecordsTooLarge, match="more than 100 bytes"):
        decompress(codec, compress(codec, bytes(101)), bytes_max=100)


@each_case("codec", COMPRESSED)
def test_a_little_data_costs_little_memory_whatever_the_limit(codec: Compression) -> None:
    compressed = compress(codec, b"hello")
    decompress(codec, compressed)
    tracemalloc.start()
    try:
        assert decompress(codec, compressed) == b"hello"
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_all_members_of_a_gzip_stream_are_read_and_garbage_is_refused() -> None:
    both = gzip.compress(b"one, ") + gzip.compress(b"two")
    assert decompress(Compression.GZIP, both) == b"one, two"
    assert decompress(Compression.GZIP, both, bytes_max=8) == b"one, two"
    with pytest.raises(RecordsTooLarge):
        decompress(Compression.GZIP, both, bytes_max=7)
    with pytest.raises(CorruptBatch):
        decompress(Compression.GZIP, both + b"garbage")


@each_case("codec", COMPRESSED)
def test_every_prefix_is_refused(codec: Compression) -> None:
    compressed = compress(codec, b"hello, " * 100)
    for cut in range(len(compressed)):
        if codec is Compression.SNAPPY and cut == 16:
            continue  # a xerial stream of no blocks is a valid, empty one
        with pytest.raises(CorruptBatch):
            decompress(codec, compressed[:cut])


@given(st.binary(max_size=200), st.sampled_from(COMPRESSED))
def test_arbitrary_bytes_give_a_log_error_or_data(data: bytes, codec: Compression) -> None:
    try:
        assert len(decompress(codec, data, bytes_max=10_000)) <= 10_000
    except LogError as error:
        assert str(error)


@each_case("number", [5, 6, 7])
def test_an_unassigned_number_is_refused(number: int) -> None:
    with pytest.raises(UnsupportedCompressionType, match=f"type {number} is unknown"):
        decompress(number, b"")


@pytest.mark.parametrize(
    ("codec", "package"), [(Compression.LZ4, "lz4"), (Compression.ZSTD, "cramjam"), (Compression.SNAPPY, "cramjam")]
)
def test_a_missing_package_is_named(codec: Compression, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, within: str | None = None) -> ModuleType:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named '{name}'")
        return real(name, within)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UnsupportedCompressionType, match=f"needs the package {package}"):
        compress(codec, b"x")


def test_cramjam_still_has_the_message_for_a_buffer_that_is_too_small() -> None:
    compressed = bytes(cramjam.zstd.compress(bytes(1000)))
    with pytest.raises(cramjam.DecompressionError, match="write whole buffer"):
        cramjam.zstd.decompress_into(compressed, bytearray(10))
