"""Bad input on a bare socket: each kind gets its answer or a closed connection, and other clients are not disturbed.

After each test a client that was connected all the time is still served, the broker has logged no traceback, and its
memory is back to what it was.
"""

import contextlib
import gzip
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import lz4.frame
import pytest
from brokers import IS_OURS, Broker, StartBroker, eventually, unique
from cases import case
from clients_raw import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    METADATA,
    NO_TAGS,
    PRODUCE,
    Batch,
    Bystander,
    Connection,
    array,
    create_topics,
    data32,
    fetch,
    header,
    i8,
    i16,
    i32,
    i64,
    list_offsets,
    metadata,
    produce,
    record,
    records,
    settles,
    string,
    uvarint,
    varint,
)
from clients_stock import bounds, confluent_read, create_topic, python_read
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from minibroker.bench.launcher import forget_peak, peak_resident_bytes

pytest_plugins = ["clients_fixtures"]

MIB = 1 << 20
GROWTH_MAX = 64 * MIB

OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE = 1, 2, 3, 10
INVALID_TOPIC, INVALID_REQUIRED_ACKS, UNSUPPORTED_VERSION, INVALID_PARTITIONS = 17, 21, 35, 37
POLICY_VIOLATION, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 44, 45, 47
FETCH_SESSION_ID_NOT_FOUND, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 70, 74, 75
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, PRODUCER_FENCED, THROTTLING_QUOTA_EXCEEDED = 76, 87, 90, 89


@pytest.fixture(scope="module")
def bystander(broker: Broker) -> Iterator[Bystander]:
    one = Bystander(broker)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _other_clients_are_not_disturbed(broker: Broker, bystander: Bystander) -> Iterator[None]:
    before = broker.resident_bytes()
    yield
    assert broker.is_alive(), broker.log()[-4000:]
    bystander.goes_on()
    assert not broker.complaints(), broker.complaints()
    settles(broker, before, GROWTH_MAX)


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection(broker) as one:
        yield one


@pytest.fixture
def topic(broker: Broker) -> str:
    name = create_topic(broker.address, unique("bad"))
    with Connection(broker) as connection:
        eventually(lambda: connection.fetch(fetch(name, epoch=0))[1] == 0, "the topic is there")
    return name


@pytest.fixture
def validating(broker: Broker) -> Iterator[None]:
    """The broker checks every record. Kafka always does; ours does when this setting is changed, even while it runs."""
    if not IS_OURS:
        yield
        return
    set_validation(broker, AlterConfigOpType.SET)
    yield
    set_validation(broker, AlterConfigOpType.DELETE)


def set_validation(broker: Broker, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry("minibroker.validate.records", "true", incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)


def hangs_up_on(broker: Broker, frame: bytes) -> bool:
    """Whether the broker ends a new connection on which this frame is sent."""
    with Connection(broker) as connection:
        connection.send(frame)
        return connection.is_hung_up()


# Frames


def test_a_frame_of_an_impossible_length_ends_the_connection(broker: Broker) -> None:
    for length in (-1, 0, -(2**31), 2**31 - 1, 200 * MIB):
        with Connection(broker) as connection:
            connection.send_bytes(i32(length))
            if length == 0:
                connection.send_bytes(b"more")  # Kafka's own broker waits for a header to come
            assert connection.is_hung_up(), length


def test_a_frame_too_short_for_a_header_ends_the_connection(broker: Broker) -> None:
    for count in range(1, 10):
        assert hangs_up_on(broker, header(METADATA, 8)[:count]), f"{count} bytes"


@pytest.mark.skipif(not IS_OURS, reason="Kafka allocates all of it, and runs out of memory with a small heap")
def test_a_frame_that_never_comes_takes_no_memory(broker: Broker) -> None:
    """A hundred clients announce 100 MB each, send ten bytes and wait: no memory is allocated for them."""
    before = broker.resident_bytes()
    waiting = [Connection(broker) for _ in range(100)]
    for one in waiting:
        one.send_bytes(i32(100 * 1000 * 1000) + header(PRODUCE, 7)[:10])
    with Connection(broker) as other:
        assert other.is_answered()
    assert broker.resident_bytes() - before < GROWTH_MAX
    for one in waiting:
        one.socket.close()


@pytest.mark.skipif(not IS_OURS, reason="Kafka has no limit for the requests in memory")
def test_clients_that_stop_in_the_middle_of_large_frames_do_not_block_the_others(start: StartBroker) -> None:
    broker = start("queued.max.request.bytes=8000000")
    topic = create_topic(broker.address, unique("stall"))
    stalled = [Connection(broker) for _ in range(3)]
    for one in stalled:
        one.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            one.socket.sendall(i32(100 * 1000 * 1000) + header(PRODUCE, 7) + bytes(8_000_000))
    with Connection(broker) as other:
        assert other.produce(produce(topic, Batch(record(bytes(500_000))).encode())).code == 0
    for one in stalled:
        one.socket.close()
    assert "bytes of a request have arrived" in broker.log()


def test_a_connection_may_break_in_the_middle_of_a_frame(broker: Broker, topic: str) -> None:
    frame = produce(topic, Batch(records(100), count=100).encode())
    for count in (1, 3, 4, 5, 20, len(frame) - 1):
        with Connection(broker) as connection:
            connection.send_bytes((i32(len(frame)) + frame)[:count])
    with Connection(broker) as connection:
        # A reset instead of an end.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.send_bytes((i32(len(frame)) + frame)[:50])
    assert bounds(broker.address, topic) == (0, 0)


def test_a_frame_that_comes_byte_by_byte_is_answered(connection: Connection) -> None:
    frame = metadata([])
    for byte in i32(len(frame)) + frame:
        connection.send_bytes(bytes([byte]))
    assert connection.receive() is not None


def test_many_requests_in_one_segment_are_answered_in_order(connection: Connection, topic: str) -> None:
    frames = []
    for n in range(200):
        frame = bytearray(list_offsets(topic) if n % 2 else metadata([topic]))
        frame[4:8] = i32(n)
        frames.append(i32(len(frame)) + bytes(frame))
    connection.send_bytes(b"".join(frames))
    answers = [connection.receive() or b"" for _ in range(200)]
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(200))


def test_another_protocol_ends_the_connection(broker: Broker) -> None:
    http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600)
    for protocol in (http, tls):
        with Connection(broker) as connection:
            connection.send_bytes(protocol)
            assert connection.is_hung_up(), protocol[:20]


def test_a_silent_connection_is_closed_after_its_time(start: StartBroker) -> None:
    broker = start("connections.max.idle.ms=1000")
    with Connection(broker) as silent, Connection(broker) as greeted:
        assert greeted.is_answered()
        assert silent.is_hung_up()
        assert greeted.is_hung_up()


@pytest.mark.skipif(not IS_OURS, reason="stricter than Kafka, which counts any byte as activity")
def test_a_request_that_trickles_in_is_closed_after_its_time(start: StartBroker) -> None:
    broker = start("connections.max.idle.ms=1000")
    with Connection(broker) as slow:
        slow.send_bytes(i32(10_000))
        slow.socket.settimeout(0.1)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            slow.send_bytes(b"x")
            try:
                assert slow.socket.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            break
        else:
            pytest.fail("a byte now and then kept the connection open")


# Headers


def test_an_unknown_key_ends_the_connection(broker: Broker) -> None:
    for api_key in (-1, 999, 32767, -32768):
        assert hangs_up_on(broker, header(api_key, 0) + bytes(20)), f"API {api_key}"


def test_an_unknown_version_ends_the_connection(broker: Broker) -> None:
    for api_key, version in (
        (PRODUCE, 2),
        (PRODUCE, 99),
        (FETCH, 3),
        (METADATA, -1),
        (METADATA, 99),
        (CREATE_TOPICS, 1),
    ):
        assert hangs_up_on(broker, header(api_key, version) + bytes(40)), f"API {api_key} v{version}"


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones(
    connection: Connection, version: int
) -> None:
    """KIP-511: the answer is in version 0 and names the range of this one API; then the client asks again."""
    answer = connection.ask(header(API_VERSIONS, version, 7) + NO_TAGS + b"\xff\xff\xff\xff garbage")
    assert struct.unpack_from(">i", answer.data)[0] == 7
    assert answer.take("h") == UNSUPPORTED_VERSION
    ranges = [(answer.take("h"), answer.take("h"), answer.take("h")) for _ in range(answer.take("i"))]
    assert (API_VERSIONS, 0, 4) in ranges
    again = connection.ask(header(API_VERSIONS, 0))
    assert again.take("h") == 0
    known = {
        key: (low, high)
        for key, low, high in ((again.take("h"), again.take("h"), again.take("h")) for _ in range(again.take("i")))
    }
    # librdkafka up to 2.11 switches codecs on by Produce v0.
    assert known[PRODUCE][0] == 0
    assert known[METADATA][0] == 0


def test_an_rpc_between_nodes_is_not_for_clients(broker: Broker) -> None:
    """Not known here yet, or refused with CLUSTER_AUTHORIZATION_FAILED; never obeyed."""
    for api_key in (4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67):
        with Connection(broker) as connection:
            connection.send(header(api_key, 0) + NO_TAGS + bytes(60))
            answer = connection.receive()
        if IS_OURS and answer is not None:
            assert b"\x00\x1f" in answer[:16], f"API {api_key}"


def test_a_client_id_may_be_null_and_must_be_whole(broker: Broker) -> None:
    with Connection(broker) as connection:
        assert connection.ask(header(API_VERSIONS, 0, client_id=None)).take("h") == 0
    with Connection(broker) as connection:
        connection.send(header(METADATA, 8)[:8] + i16(30_000) + b"short")
        assert connection.is_hung_up()
    with Connection(broker) as connection:
        connection.send(header(METADATA, 8)[:8] + i16(-2) + metadata([])[-10:])
        assert connection.is_hung_up()


# Bodies


def test_an_array_longer_than_the_request_ends_the_connection(broker: Broker) -> None:
    for count in (1, 1000, 2**31 - 1, -2, -(2**31)):
        assert hangs_up_on(broker, header(METADATA, 8) + i32(count)), f"{count} entries"
    for count in (2, 1000, 2**31, 2**32 - 1, 2**35):
        assert hangs_up_on(broker, header(METADATA, 9) + NO_TAGS + uvarint(count)), f"compact, {count} - 1 entries"


def test_a_varint_that_does_not_end_ends_the_connection(broker: Broker) -> None:
    assert hangs_up_on(broker, header(METADATA, 9) + NO_TAGS + b"\xff" * 40)


def test_tagged_fields_that_lie_end_the_connection(broker: Broker) -> None:
    body = header(METADATA, 9) + NO_TAGS + uvarint(1) + i8(0) + i8(0) + i8(0)
    for tags in (uvarint(2**30), uvarint(5) + b"\x01", b"\x01\x63" + uvarint(2**30), b"\xff" * 10):
        assert hangs_up_on(broker, body + tags), tags.hex()


def test_an_unknown_tagged_field_is_skipped(connection: Connection) -> None:
    tagged = b"\x01\x63\x03abc"
    assert connection.ask(header(METADATA, 9) + tagged + uvarint(1) + i8(0) + i8(0) + i8(0) + tagged).data


@pytest.mark.skipif(not IS_OURS, reason="Kafka's Java accepts any bytes as text and replaces those that are not UTF-8")
def test_text_that_is_not_utf_8_ends_the_connection(broker: Broker) -> None:
    for name in (b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80"):
        assert hangs_up_on(broker, metadata([name])), name


def test_a_body_cut_anywhere_ends_the_connection(broker: Broker) -> None:
    start = len(header(METADATA, 8))
    for name, frame in (
        ("Metadata", metadata(["topic"])),
        ("ListOffsets", list_offsets("topic")),
        ("Fetch", fetch("topic")),
        ("Produce", produce("topic", b"x")),
        ("CreateTopics", create_topics([("t", 1)])),
    ):
        for count in range(start, len(frame), max(1, (len(frame) - start) // 8)):
            assert hangs_up_on(broker, frame[:count]), f"{name} of {count} bytes"


def test_an_array_of_empty_arrays_takes_little_memory(broker: Broker, connection: Connection) -> None:
    """A megabyte that decodes into a hundred thousand empty topics."""
    entry = string("") + array([])
    frame = header(FETCH, 11) + i32(-1) + i32(0) + i32(1) + i32(MIB) + i8(0) + i32(0) + i32(-1)
    connection.send(frame + array([entry] * 100_000) + array([]) + string(""))
    connection.receive()


# Names


def test_an_invalid_topic_name_touches_no_path(broker: Broker, connection: Connection) -> None:
    before = _tree(broker)
    for name in ("../x", "..", ".", "a/b", "/etc/x", "nul\x00", "x" * 250, "x" * 30_000, ""):
        assert connection.topic_codes(create_topics([(name, 1)])) == [INVALID_TOPIC], name[:300]
        codes = {
            *connection.metadata_codes(metadata([name], creates=True)).values(),
            connection.produce(produce(name, Batch().encode())).code,
            connection.fetch(fetch(name))[1],
            connection.list_offsets(list_offsets(name))[0],
        }
        assert codes <= {INVALID_TOPIC, UNKNOWN_TOPIC_OR_PARTITION}, name[:300]
        assert _tree(broker) == before, name[:300]


def _tree(broker: Broker) -> set[Path]:
    """What lies beside the data directory, and in it for names that no test uses."""
    if broker.process is None:
        return set()
    beside = {path for path in broker.data.parent.iterdir() if path.suffix not in (".log", ".out")}
    return (
        beside | {path for path in broker.data.iterdir() if path.name[0] in "./x"} | set(broker.data.parent.glob("x*"))
    )


def test_unknown_topics_and_partitions_are_unknown(connection: Connection, topic: str) -> None:
    for name, partition in ((unique("none"), 0), (topic, 1), (topic, -1), (topic, 2**31 - 1)):
        assert (
            connection.produce(produce(name, Batch().encode(), partition=partition)).code == UNKNOWN_TOPIC_OR_PARTITION
        )
        assert connection.fetch(fetch(name, partition=partition))[1] == UNKNOWN_TOPIC_OR_PARTITION
        assert connection.list_offsets(list_offsets(name, partition=partition))[0] == UNKNOWN_TOPIC_OR_PARTITION


# Record batches


def test_a_batch_built_by_hand_is_accepted(broker: Broker, connection: Connection, topic: str) -> None:
    """The control for the tests below: what they see refused is refused for its one lie."""
    assert connection.produce(produce(topic, Batch(records(3), count=3).encode())).base_offset == 0
    assert connection.produce(produce(topic, Batch(records(2), count=2).encode())).base_offset == 3
    assert [one.offset for one in confluent_read(broker.address, topic, 5)] == [0, 1, 2, 3, 4]


def test_a_wrong_checksum_is_corrupt(broker: Broker, connection: Connection, topic: str) -> None:
    assert connection.produce(produce(topic, Batch(crc=1).encode())).code == CORRUPT_MESSAGE
    flipped = bytearray(Batch(records(10), count=10).encode())
    for position in (21, 30, 60, len(flipped) - 1):
        flipped[position] ^= 1
        assert connection.produce(produce(topic, bytes(flipped))).code == CORRUPT_MESSAGE
        flipped[position] ^= 1
    assert bounds(broker.address, topic) == (0, 0)


# Kafka accepts some of these and fails with an internal error on others; this broker refuses all of them.
LIES = {
    "a base offset that is not 0": Batch(base_offset=77),
    "more records than there are": Batch(records(3), count=4),
    "fewer records than there are": Batch(records(3), count=2),
    "a last offset beyond the last": Batch(records(3), count=3, last_offset_delta=9),
    "a last offset before the last": Batch(records(3), count=3, last_offset_delta=1),
    "offsets that do not rise": Batch(record(delta=0) + record(delta=0), count=2),
    "offsets with a gap": Batch(record(delta=0) + record(delta=5), count=2),
    "a negative count": Batch(records(1), count=-1, last_offset_delta=0),
    "no records": Batch(b"", count=0, last_offset_delta=0),
    "two billion records": Batch(records(1), count=2**31 - 1, last_offset_delta=2**31 - 2),
    "a record longer than the batch": Batch(varint(1000) + record()[1:]),
    "a record of negative length": Batch(varint(-5) + record()[1:]),
    "a key longer than its record": Batch(varint(8) + i8(0) + varint(0) + varint(0) + varint(500) + b"kkkk"),
    "more headers than bytes": Batch(record(headers=1000)),
    "a negative number of headers": Batch(record(headers=-1)),
    "bytes after the last record": Batch(record() + b"more"),
    "a varint that does not end": Batch(b"\xff" * 30),
}


@pytest.mark.usefixtures("validating")
def test_a_batch_that_lies_about_its_records_is_invalid(broker: Broker, topic: str) -> None:
    for lie, batch in LIES.items():
        with Connection(broker) as connection:
            code = connection.produce(produce(topic, batch.encode())).code
        if IS_OURS:
            assert code in (INVALID_RECORD, CORRUPT_MESSAGE), lie
            assert bounds(broker.address, topic) == (0, 0), lie


def test_lengths_that_contradict_the_record_count_are_always_refused(broker: Broker, topic: str) -> None:
    """Without the setting the lengths of the first 16 records are followed, and the rest must have room."""
    lies = {
        "5 records, and there is 1": Batch(record(b"x" * 1000), count=5),
        "1 record, and there are 5": Batch(records(5), count=1),
        "a million records, and there are 200": Batch(records(200), count=1_000_000),
        "2,147,483,647 records": Batch(records(200), count=2**31 - 1),
        "a million compressed records": Batch(gzip.compress(records(5)), count=1_000_000, attributes=1),
        "bytes after the last record": LIES["bytes after the last record"],
    }
    for lie, batch in lies.items():
        with case(lie), Connection(broker) as connection:
            code = connection.produce(produce(topic, batch.encode())).code
            assert code in (INVALID_RECORD, CORRUPT_MESSAGE)
            assert bounds(broker.address, topic) == (0, 0)
    # A consumer that trusts the header would ask for the missing records for ever.
    with Connection(broker) as connection:
        assert connection.produce(produce(topic, Batch(records(5), count=5).encode())).code == 0
    read = python_read(broker.address, topic, 5)
    assert [it.offset for it in read] == list(range(5))


@pytest.mark.usefixtures("validating")
def test_a_compressed_batch_that_lies_is_invalid_too(broker: Broker, topic: str) -> None:
    lies = (
        "more records than there are",
        "offsets with a gap",
        "a record longer than the batch",
        "more headers than bytes",
    )
    for codec, (number, compress) in CODECS.items():
        for lie in lies:
            plain = LIES[lie]
            lying = Batch(compress(plain.payload), count=plain.count, attributes=number)
            with Connection(broker) as connection:
                code = connection.produce(produce(topic, lying.encode())).code
            if IS_OURS:
                assert code in (INVALID_RECORD, CORRUPT_MESSAGE), f"{codec}, {lie}"
                assert bounds(broker.address, topic) == (0, 0), f"{codec}, {lie}"


def _snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _lz4(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False))


CODECS = {"gzip": (1, gzip.compress), "snappy": (2, _snappy), "lz4": (3, _lz4), "zstd": (4, _zstd)}


@pytest.mark.usefixtures("validating")
def test_bytes_that_do_not_decompress_are_refused(broker: Broker, connection: Connection, topic: str) -> None:
    refusals = (INVALID_RECORD, CORRUPT_MESSAGE) if IS_OURS else (INVALID_RECORD, CORRUPT_MESSAGE, -1)
    for codec, (number, compress) in CODECS.items():
        whole = compress(records(50))
        for payload in (b"garbage that is no frame of any codec", whole[: len(whole) // 2], b"", whole[:4] + bytes(40)):
            code = connection.produce(produce(topic, Batch(payload, count=50, attributes=number).encode())).code
            assert code in refusals, f"{codec}, {payload[:10]!r}"
        assert bounds(broker.address, topic) == (0, 0), codec


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.usefixtures("validating")
def test_a_compression_bomb_is_refused_before_it_grows(
    broker: Broker, connection: Connection, topic: str, codec: str
) -> None:
    """Hundreds of megabytes of zeros in one record, in less than a megabyte."""
    number, _ = CODECS[codec]
    payload = BOMBS[codec]()
    assert len(payload) < MIB, "the bomb must fit into one request"
    before = broker.resident_bytes()
    code = connection.produce(produce(topic, Batch(payload, attributes=number).encode())).code
    if IS_OURS:
        assert code in (MESSAGE_TOO_LARGE, INVALID_RECORD, CORRUPT_MESSAGE)
        assert _peak(broker) - before < 128 * MIB
        assert bounds(broker.address, topic) == (0, 0)


def _peak(broker: Broker) -> int:
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


BOMB = 300 * MIB


def _zeros() -> Iterator[bytes]:
    """A record that says how long it is, and then is that long: in pieces."""
    start = i8(0) + varint(0) + varint(0) + varint(-1) + varint(BOMB)
    yield varint(len(start) + BOMB + 1) + start
    for _ in range(BOMB // MIB):
        yield bytes(MIB)
    yield b"\x00"


def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return b"".join(packer.compress(piece) for piece in _zeros()) + packer.flush()


def _snappy_bomb() -> bytes:
    """Snappy packs at most 21 to 1: the claim is the bomb, with one short copy behind it."""
    return uvarint(2**32 - 1) + b"\x00\x00" + b"\xfe\x01\x00" * 1000


def _lz4_bomb() -> bytes:
    packer = lz4.frame.LZ4FrameCompressor(
        block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, compression_level=9
    )
    whole = packer.begin() + b"".join(packer.compress(piece) for piece in _zeros()) + packer.flush()
    # 255 to 1 is not enough to fit all: what fits is bomb enough.
    return bytes(whole[: MIB - 1000])


def _zstd_bomb() -> bytes:
    packer = cramjam.zstd.Compressor(1)
    for piece in _zeros():
        packer.compress(piece)
    return bytes(packer.finish())


BOMBS = {"gzip": _gzip_bomb, "snappy": _snappy_bomb, "lz4": _lz4_bomb, "zstd": _zstd_bomb}


def test_an_unknown_codec_is_unsupported(broker: Broker, topic: str) -> None:
    for codec in (5, 6, 7):
        with Connection(broker) as connection:
            code = connection.produce(produce(topic, Batch(attributes=codec).encode())).code
        assert code == UNSUPPORTED_COMPRESSION_TYPE or (not IS_OURS and code != 0), f"codec {codec}"
        assert bounds(broker.address, topic) == (0, 0), f"codec {codec}"


def test_zstd_is_unsupported_before_produce_7(broker: Broker, connection: Connection, topic: str) -> None:
    zstd = Batch(_zstd(records(3)), count=3, attributes=4).encode()
    assert connection.produce(produce(topic, zstd, version=6)).code == UNSUPPORTED_COMPRESSION_TYPE
    assert connection.produce(produce(topic, zstd, version=7)).code == 0
    assert bounds(broker.address, topic) == (0, 3)


def test_a_control_batch_of_a_client_is_invalid(broker: Broker, connection: Connection, topic: str) -> None:
    marker = record(i16(0) + i32(0), i16(0) + i16(1))
    producer_id, epoch = connection.new_producer_id()
    for control in (
        Batch(marker, attributes=0x20, producer_id=producer_id, producer_epoch=epoch),
        Batch(attributes=0x20),
    ):
        assert connection.produce(produce(topic, control.encode())).code == INVALID_RECORD
    assert bounds(broker.address, topic) == (0, 0)


def answer_to(broker: Broker, frame: bytes) -> bytes | None:
    """What the broker answers to this frame on a new connection; None where it ends the connection."""
    with Connection(broker) as connection:
        connection.send(frame)
        return connection.receive()


def test_another_format_of_batches_is_refused(broker: Broker, topic: str) -> None:
    for magic in (0, 1, 3, -1):
        answer = answer_to(broker, produce(topic, Batch(magic=magic).encode()))
        assert answer is None or b"\x00\x00\x00\x00\x00\x00" not in answer[10:16], f"magic {magic}"
        assert bounds(broker.address, topic) == (0, 0), f"magic {magic}"


def test_a_batch_that_is_not_whole_is_refused(broker: Broker, topic: str) -> None:
    for count in (0, 1, 11, 12, 30, 60):
        answer = answer_to(broker, produce(topic, Batch().encode()[:count]))
        assert answer is None or answer[-30:-28] != b"\x00\x00", f"{count} bytes"
        assert bounds(broker.address, topic) == (0, 0), f"{count} bytes"


def test_a_batch_that_lies_about_its_length_is_refused(broker: Broker, topic: str) -> None:
    for length in (-1, 0, 10, 48, 100_000, 2**31 - 1):
        answer_to(broker, produce(topic, Batch(length=length).encode()))
        assert bounds(broker.address, topic) == (0, 0), f"length {length}"


def test_two_batches_for_one_partition_are_invalid(broker: Broker, connection: Connection, topic: str) -> None:
    assert connection.produce(produce(topic, Batch().encode() * 2)).code == INVALID_RECORD
    assert bounds(broker.address, topic) == (0, 0)


@pytest.mark.skipif(not IS_OURS, reason="Kafka fails inside and never answers")
def test_no_batch_at_all_is_refused(broker: Broker, topic: str) -> None:
    with Connection(broker) as connection:
        connection.send(produce(topic, None))
        connection.receive()
    assert bounds(broker.address, topic) == (0, 0)


def test_a_batch_over_the_limit_is_too_large(connection: Connection, topic: str) -> None:
    assert connection.produce(produce(topic, Batch(record(bytes(2 * MIB))).encode())).code == MESSAGE_TOO_LARGE


# Acks


def test_acks_that_do_not_exist_are_invalid(broker: Broker, connection: Connection, topic: str) -> None:
    for acks in (7, 2, -2, 32767):
        code = connection.produce(produce(topic, Batch().encode(), acks=acks)).code
        assert code == INVALID_REQUIRED_ACKS, f"acks={acks}"
        assert bounds(broker.address, topic) == (0, 0), f"acks={acks}"


def test_acks_0_gets_no_answer_and_an_error_ends_the_connection(broker: Broker, topic: str) -> None:
    with Connection(broker) as connection:
        connection.send(produce(topic, Batch().encode(), acks=0))
        # The next answer on this connection is that of the next request.
        assert connection.ask(header(API_VERSIONS, 0, 4711)).data[:4] == i32(4711)
        connection.send(produce(topic, Batch(crc=5).encode(), acks=0))
        assert connection.is_hung_up()
    eventually(lambda: bounds(broker.address, topic) == (0, 1), "the good record, and only that")


# Sequences


def test_sequences_are_kept_per_producer(broker: Broker, connection: Connection, topic: str) -> None:
    producer_id, epoch = connection.new_producer_id()

    def send(sequence: int, count: int = 1, *, epoch: int = epoch) -> tuple[int, int]:
        batch = Batch(
            records(count), count=count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        answer = connection.produce(produce(topic, batch.encode()))
        return answer.code, answer.base_offset

    assert send(0, 3) == (0, 0)
    assert send(3, 2) == (0, 3)
    # The same once more: success, and the offset that it had.
    assert send(0, 3) == (0, 0)
    assert send(3, 2) == (0, 3)
    assert send(9)[0] == OUT_OF_ORDER_SEQUENCE
    assert send(5) == (0, 5)
    # A new epoch begins at 0 and fences the old one.
    assert send(7, epoch=epoch + 1)[0] == OUT_OF_ORDER_SEQUENCE
    assert send(0, epoch=epoch + 1) == (0, 6)
    assert send(6)[0] in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
    assert bounds(broker.address, topic) == (0, 7)


def test_an_unknown_producer_may_begin_anywhere_in_a_log_that_has_had_records(
    connection: Connection, topic: str
) -> None:
    """In a log that never had a record, only sequence 0 can be the first one (KAFKA-15591)."""
    producer_id, epoch = connection.new_producer_id()
    batch = Batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=41)
    assert connection.produce(produce(topic, batch.encode())).code == OUT_OF_ORDER_SEQUENCE
    assert connection.produce(produce(topic, Batch().encode())).code == 0
    assert connection.produce(produce(topic, batch.encode())).code == 0


def test_every_producer_has_an_id_of_its_own(broker: Broker) -> None:
    with Connection(broker) as one, Connection(broker) as other:
        ids = [connection.new_producer_id()[0] for connection in (one, other) * 20]
    assert len(set(ids)) == 40


# Epochs, offsets and sessions


def test_leader_epochs_are_checked(connection: Connection, topic: str) -> None:
    assert connection.fetch(fetch(topic, epoch=0))[1] == 0
    assert connection.fetch(fetch(topic, epoch=1000))[1] == UNKNOWN_LEADER_EPOCH
    assert connection.list_offsets(list_offsets(topic, epoch=0))[0] == 0
    assert connection.list_offsets(list_offsets(topic, epoch=1000))[0] == UNKNOWN_LEADER_EPOCH


def test_offsets_outside_the_log_are_out_of_range(connection: Connection, topic: str) -> None:
    for offset in (-1, -(2**63), 1, 2**63 - 1):
        assert connection.fetch(fetch(topic, offset))[1] == OFFSET_OUT_OF_RANGE, offset


def test_a_fetch_session_that_does_not_exist_is_not_found(connection: Connection, topic: str) -> None:
    assert connection.fetch(fetch(topic, session=(4711, 5)))[0] == FETCH_SESSION_ID_NOT_FOUND


def test_special_timestamps_of_an_empty_log(connection: Connection, topic: str) -> None:
    # The largest timestamp, -3, can be asked for from version 7 on; this request has version 5.
    for timestamp, expected in ((-1, (0, 0)), (-2, (0, 0)), (-3, (UNSUPPORTED_VERSION, -1))):
        assert connection.list_offsets(list_offsets(topic, timestamp)) == expected, timestamp


def test_a_fetch_with_limits_that_make_no_sense_is_answered(broker: Broker, topic: str) -> None:
    where = i32(0) + i32(-1) + i64(0) + i64(-1)
    for wait, least, most, partition_most in ((-1, -1, -1, -1), (0, 2**31 - 1, 2**31 - 1, 2**31 - 1), (0, 0, 0, 0)):
        with Connection(broker) as connection:
            start = header(FETCH, 11) + i32(-1) + i32(wait) + i32(least) + i32(most) + i8(0) + i32(0) + i32(-1)
            connection.send(
                start + array([string(topic) + array([where + i32(partition_most)])]) + array([]) + string("")
            )
            assert connection.receive() is not None


# Many


def test_a_hundred_thousand_topics_in_one_request_are_refused(broker: Broker, connection: Connection) -> None:
    """Our broker closes the connection, because it accepts 20,000 elements in one request."""
    prefix = unique("flood")
    flood = create_topics((f"{prefix}-{n}", 1) for n in range(100_000))
    if IS_OURS:
        assert hangs_up_on(broker, flood)
        assert "minibroker.request.elements.max=20000" in broker.log()
    else:
        assert set(connection.topic_codes(flood)) <= {POLICY_VIOLATION, THROTTLING_QUOTA_EXCEEDED}
    assert prefix + "-5" not in connection.metadata_codes(metadata(None))


@pytest.mark.skipif(not IS_OURS, reason="Kafka decodes all of it")
def test_a_large_request_of_millions_of_elements_is_closed_and_takes_little_memory(broker: Broker) -> None:
    """Fifty megabytes that name millions of empty topics: the bytes are read, but no object is made of them."""
    topics = 3_500_000
    before = broker.resident_bytes()
    for name, frame in (
        ("Produce", header(PRODUCE, 7) + string(None) + i16(-1) + i32(0)),
        ("Fetch", header(FETCH, 11) + i32(-1) + i32(0) + i32(1) + i32(MIB) + i8(0) + i32(0) + i32(-1)),
    ):
        forget_peak(broker.pid)
        entry = string("") + array([i32(0) + data32(None)]) if name == "Produce" else string("abcdefgh") + array([])
        flood = frame + i32(topics) + entry * topics
        assert hangs_up_on(broker, flood), name
        assert peak_resident_bytes(broker.pid) - before < 3 * len(flood), name


def test_a_million_partitions_in_one_topic_are_refused(connection: Connection) -> None:
    refusals = (POLICY_VIOLATION, THROTTLING_QUOTA_EXCEEDED, INVALID_PARTITIONS)
    for partitions in (1_000_000, 2**31 - 1):
        name = unique("flood")
        assert connection.topic_codes(create_topics([(name, partitions)]))[0] in refusals, partitions
        assert connection.metadata_codes(metadata([name])) == {name: UNKNOWN_TOPIC_OR_PARTITION}, partitions


def test_a_client_that_does_not_read_its_answers_takes_little_memory(broker: Broker) -> None:
    """The client sends many fetches and reads no answer, so the broker stops reading from it."""
    topic = create_topic(broker.address, unique("unread"))
    with Connection(broker) as connection:
        for _ in range(8):
            connection.produce(produce(topic, Batch(record(bytes(1000 * 1000))).encode()))
        before = broker.resident_bytes()
        frame = fetch(topic)
        connection.socket.settimeout(2)
        try:
            for _ in range(200):
                connection.socket.sendall((i32(len(frame)) + frame) * 20)
        except TimeoutError:
            pass  # the pipe is full, as it should be
        with Connection(broker) as other:
            assert other.fetch(fetch(topic))[2]
        settles(broker, before, GROWTH_MAX)


def test_connections_over_the_limit_wait_or_are_closed(start: StartBroker) -> None:
    broker = start("max.connections=20")
    within = []
    try:
        for _ in range(15):
            within.append(Connection(broker))
            assert within[-1].is_answered()
        over = [Connection(broker) for _ in range(30)]
        # Connections within the limit are served while more clients try to connect.
        for connection in within:
            assert connection.is_answered()
        for connection in over:
            connection.socket.close()
    finally:
        for connection in within:
            connection.socket.close()

    def is_served() -> bool:
        with Connection(broker) as one:
            one.send(metadata([]))
            return one.receive() is not None

    eventually(is_served, "a new client is served after the others have left")


def test_connections_of_one_address_over_its_limit_are_closed(start: StartBroker) -> None:
    broker = start("max.connections.per.ip=5")
    within = [Connection(broker) for _ in range(4)]
    try:
        for connection in within:
            assert connection.is_answered()
        # At most one of these two is within the limit.
        with Connection(broker) as fifth, Connection(broker) as sixth:
            fifth.send(metadata([]))
            sixth.send(metadata([]))
            assert fifth.receive() is None or sixth.is_hung_up()
        assert within[0].is_answered()
    finally:
        for connection in within:
            connection.socket.close()


def test_five_hundred_connections_that_come_and_go_leave_nothing(broker: Broker) -> None:
    before = broker.open_files() if broker.process is not None else 0
    for _ in range(5):
        crowd = [Connection(broker) for _ in range(100)]
        for one in crowd:
            one.send(metadata([]))
        for one in crowd:
            assert one.receive() is not None
            one.socket.close()
    if broker.process is not None:
        eventually(lambda: broker.open_files() < before + 20, "their sockets are closed")


def test_a_request_over_the_limit_of_the_broker_ends_the_connection(start: StartBroker) -> None:
    broker = start("socket.request.max.bytes=100000")
    with Connection(broker) as connection:
        assert connection.is_answered()
        connection.send_bytes(i32(100_001))
        assert connection.is_hung_up()


@pytest.mark.skipif(not IS_OURS, reason="Kafka fails inside and never answers")
def test_null_records_in_any_version_do_no_harm(broker: Broker, topic: str) -> None:
    for version in range(3, 8):
        with Connection(broker) as connection:
            connection.send(
                header(PRODUCE, version)
                + string(None)
                + i16(-1)
                + i32(0)
                + array([string(topic) + array([i32(0) + data32(None)])])
            )
            connection.receive()
