"""The smallest broker: stock clients write and read, and its five APIs answer what the protocol says."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import case
from clients_stock import Message, confluent_read, confluent_write
from partitions_broker import NOW_MS, batch, fetch_request, produce_request

from minibroker.log.batch import batches
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.small import SmallBroker
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import LENGTH_SIZE, frame_request, read_response_header
from minibroker.wire.schema import Request, decode_whole
from minibroker.wire.tables.api_versions import ApiVersionsRequest
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic

VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 9,
    ApiKey.API_VERSIONS: 3,
}


def frame_of(request: Request, version: int) -> memoryview:
    parts = frame_request(request, version=version, correlation_id=7, client_id="test")
    joined = bytearray().join(part.read() if isinstance(part, FileSlice) else part for part in parts)
    return memoryview(joined)[LENGTH_SIZE:]


async def ask_async(broker: SmallBroker, request: Request, version: int | None = None) -> Any:
    """The broker's answer to a request, or None."""
    key = request.schema.key
    assert key is not None
    version = VERSIONS[ApiKey(key)] if version is None else version
    parts = await broker.answer(frame_of(request, version))
    if not parts:
        return None
    answer = memoryview(b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts))
    assert int.from_bytes(answer[:LENGTH_SIZE], "big") == len(answer) - LENGTH_SIZE
    correlation_id, position = read_response_header(key, version, answer[LENGTH_SIZE:])
    assert correlation_id == 7
    return decode_whole(APIS[key].response, answer[LENGTH_SIZE:], position, version)


def ask(broker: SmallBroker, request: Request, version: int | None = None) -> Any:
    return asyncio.run(ask_async(broker, request, version))


def metadata_of(*names: str, may_create: bool = True) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=may_create)


def broker_with(*batches_of_orders: bytearray, partition_count: int = 1) -> SmallBroker:
    """A broker on a disk in memory, with the topic `orders` and these batches in its first partition."""
    broker = SmallBroker(MemoryFiles(), "data", partition_count=partition_count)
    ask(broker, metadata_of("orders"))
    for records in batches_of_orders:
        answer = ask(broker, produce_request("orders", records))
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return broker


def values_in(fetched: Any) -> list[bytes | None]:
    parts = [it.records for topic in fetched.responses for it in topic.partitions]
    return [record.value for part in parts for it in batches(part or b"") for record in it.records()]


@contextmanager
def running(path: Path, **options: int) -> Iterator[str]:
    """A broker that serves on a port of its own, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def end() -> None:
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    try:
        broker = SmallBroker(OSFiles(), str(path), **options)
        yield wait_for(broker.start("127.0.0.1", 0))
        wait_for(broker.stop())
    finally:
        wait_for(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_confluent_kafka_writes_and_reads(tmp_path: Path) -> None:
    with running(tmp_path, partition_count=3) as address:
        for codec in ("none", "gzip", "zstd"):
            with case(codec):
                orders = [Message(b"%d" % number, key=b"alice") for number in range(500)]
                topic = f"orders-{codec}"
                assert confluent_write(address, topic, orders, codec, partition=2) == list(range(500))
                read = confluent_read(address, topic, 500, partition=2)
                assert [(it.key, it.value) for it in read] == [(it.key, it.value) for it in orders]


def test_a_restart_finds_the_topics_and_their_records(tmp_path: Path) -> None:
    for start in range(0, 6, 2):
        with running(tmp_path) as address:
            assert confluent_write(address, "orders", [Message(b"a"), Message(b"b")]) == [start, start + 1]
    with running(tmp_path) as address:
        assert [it.value for it in confluent_read(address, "orders", 6)] == [b"a", b"b"] * 3


def test_bytes_that_are_no_request_end_their_connection_and_no_other(tmp_path: Path) -> None:
    with running(tmp_path) as address:
        host, _colon, port = address.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x04\x00\x12\x00", b"\x00\x00\x00\x01\x00"):
            with case(garbage), socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(garbage)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b""
        assert confluent_write(address, "orders", [Message(b"a")]) == [0]


def test_apiversions_lists_what_is_served_and_answers_an_unknown_version_in_version_0() -> None:
    broker = broker_with()
    listed = {it.api_key: (it.min_version, it.max_version) for it in ask(broker, ApiVersionsRequest()).api_keys}
    assert listed.keys() == VERSIONS.keys()
    assert all(listed[key][1] >= version for key, version in VERSIONS.items())
    unknown = frame_of(ApiVersionsRequest(), 3)
    unknown[3] = 99
    parts = asyncio.run(broker.answer(unknown))
    assert b"".join(parts)[LENGTH_SIZE:].hex(" ", 2) == "0000 0007 0023 0000 0001 0012 0000 0004"  # type: ignore[arg-type]
    # Fetch 13 has a table, but this broker does not serve it.
    for api, version in ((metadata_of("orders"), 99), (fetch_request("orders"), 13)):
        of_another_api = frame_of(api, 9 if isinstance(api, MetadataRequest) else 12)
        of_another_api[3] = version
        with case(version), pytest.raises(Disconnect):
            asyncio.run(broker.answer(of_another_api))


def test_bytes_after_a_request_are_ignored() -> None:
    """librdkafka sends three bytes too many in Metadata."""
    broker = broker_with()
    frame = memoryview(bytearray(frame_of(metadata_of("orders"), 9)) + bytes(3))
    assert asyncio.run(broker.answer(frame))


def test_metadata_creates_a_topic_and_names_its_partitions() -> None:
    broker = SmallBroker(MemoryFiles(), "data", partition_count=2)
    assert ask(broker, metadata_of("orders", may_create=False)).topics[0].error_code == 3
    (topic,) = ask(broker, metadata_of("orders")).topics
    assert [(it.partition_index, it.leader_id) for it in topic.partitions] == [(0, 1), (1, 1)]
    assert [it.name for it in ask(broker, MetadataRequest(topics=None)).topics] == ["orders"]
    assert ask(broker, MetadataRequest(topics=[])).topics == []
    assert ask(broker, metadata_of("../etc")).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_batch_that_is_refused_gets_its_own_error() -> None:
    damaged = batch(b"x")
    damaged[-1] ^= 1
    broker = broker_with(batch(b"a"))
    for topic, partition, records, code in (
        ("orders", 0, batch(b"b", b"c"), ErrorCode.NONE),
        ("orders", 9, batch(b"b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("others", 0, batch(b"b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 0, damaged, ErrorCode.CORRUPT_MESSAGE),
        ("orders", 0, None, ErrorCode.INVALID_RECORD),
    ):
        with case(topic, partition, code):
            answer = ask(broker, produce_request(topic, records, partition=partition)).responses[0]
            assert answer.partition_responses[0].error_code == code
            assert answer.partition_responses[0].base_offset == (1 if code == ErrorCode.NONE else -1)


def test_a_producer_without_acks_gets_no_answer() -> None:
    broker = broker_with()
    assert ask(broker, produce_request("orders", batch(b"a"), acks=0)) is None
    assert values_in(ask(broker, fetch_request("orders"))) == [b"a"]


def test_a_fetch_begins_with_the_batch_that_holds_the_offset() -> None:
    broker = broker_with(batch(b"a", b"b"), batch(b"c"))
    assert values_in(ask(broker, fetch_request("orders", 1))) == [b"a", b"b", b"c"]
    assert values_in(ask(broker, fetch_request("orders", 2))) == [b"c"]
    (partition,) = ask(broker, fetch_request("orders", 3)).responses[0].partitions
    assert (partition.error_code, partition.high_watermark, partition.log_start_offset) == (0, 3, 0)
    assert ask(broker, fetch_request("orders", 4)).responses[0].partitions[0].error_code == 1
    assert ask(broker, fetch_request("others")).responses[0].partitions[0].error_code == 3
    # A fetch with an error does not wait for records.
    waiting = fetch_request("orders", 4, min_bytes=1, max_wait_ms=60_000)
    answer = asyncio.run(asyncio.wait_for(ask_async(broker, waiting), 30))
    assert answer.responses[0].partitions[0].error_code == 1


def test_a_partition_gives_no_more_than_its_own_limit() -> None:
    broker = broker_with(*(batch(bytes(500)) for _ in range(4)))
    for limit, count in ((10, 1), (1200, 2), (10_000, 4)):
        wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=limit)]
        topics = [FetchTopic(topic="orders", partitions=wanted)]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=10_000, topics=topics)
        with case(limit):
            assert len(values_in(ask(broker, request))) == count


def test_only_the_first_partition_with_records_may_exceed_the_limit_of_a_fetch() -> None:
    broker = broker_with(batch(bytes(500)), partition_count=3)
    ask(broker, produce_request("orders", batch(bytes(500)), partition=1))
    wanted = [FetchPartition(partition=it, fetch_offset=0, partition_max_bytes=10_000) for it in (2, 0, 1)]
    topics = [FetchTopic(topic="orders", partitions=wanted)]
    for max_bytes, counts in ((10, [0, 1, 0]), (600, [0, 1, 0]), (10_000, [0, 1, 1])):
        with case(max_bytes):
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=topics)
            found = ask(broker, request).responses[0].partitions
            assert [len(list(batches(it.records or b""))) for it in found] == counts


def test_a_fetch_waits_for_the_next_append_and_no_longer_than_it_may() -> None:
    broker = broker_with()

    async def read_then_write() -> list[bytes | None]:
        reading = asyncio.create_task(ask_async(broker, fetch_request("orders", min_bytes=1, max_wait_ms=60_000)))
        await asyncio.sleep(0)
        assert not reading.done()
        await ask_async(broker, produce_request("orders", batch(b"a")))
        return values_in(await asyncio.wait_for(reading, 30))

    assert asyncio.run(read_then_write()) == [b"a"]
    assert values_in(ask(broker, fetch_request("orders", 1, min_bytes=1, max_wait_ms=1))) == []


def test_a_time_becomes_an_offset() -> None:
    broker = broker_with(*(batch(b"a", timestamp=NOW_MS + it) for it in (0, 10, 5)))
    for timestamp, offset, found in (
        (-1, 3, -1),
        (-2, 0, -1),
        (-3, 1, NOW_MS + 10),
        (NOW_MS + 1, 1, NOW_MS + 10),
        (NOW_MS + 11, -1, -1),
    ):
        with case(timestamp):
            wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
            (answer,) = ask(broker, ListOffsetsRequest(replica_id=-1, topics=topics)).topics[0].partitions
            assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.NONE, offset, found)
