"""A segment is deleted, compacted or truncated while a slow client reads it from a real socket, sent in three ways.

The client gets the records that were there when it asked, or the connection is closed in the middle of the answer. It
never gets a whole answer with other bytes, and the process goes on.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, chdir
from pathlib import Path

import pytest
from cases import case
from partitions_broker import NOW_MS, MemoryBroker, batch, fetch_request
from test_transfer_connection import Followers, correlation_ids, framed, safely_produced

from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import FileSlice
from minibroker.metadata.listeners import Listener
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.machine import bind
from minibroker.partitions.partition import CONSUMER
from minibroker.partitions.registry import Session
from minibroker.partitions.server import Limits, Server
from minibroker.segments.compaction import clean
from minibroker.transfer.connection import fast_connection
from minibroker.transfer.sending import Transfer
from minibroker.wire.schema import decode_whole
from minibroker.wire.tables.fetch import FetchResponse

LIMITS = Limits(request_bytes_max=1024**2, queued_bytes_max=2**30, connections_max=10, idle_ms_max=60_000)
SOON_S = 30
BATCHES = 14
BATCH_BYTES = 900_000
VERSION = 12
RESPONSE_HEADER_BYTES = 4 + 1  # correlation id, no tagged fields


class Node:
    """A broker on a real disk, with a log of two segments. The first one is far larger than what sockets hold."""

    def __init__(self) -> None:
        self.files = BoundedFiles(OSFiles(), handles_max=20)
        self.broker = MemoryBroker(self.files)  # type: ignore[arg-type]
        self.broker.create("orders", cleanup_policy="compact,delete", min_compaction_lag_ms="0")
        self.partition = self.broker.store.partition("orders", 0)
        for _ in range(BATCHES):
            self.broker.produce("orders", batch(os.urandom(BATCH_BYTES)))
        self.content = self.slice().read()
        self.partition.log.roll()
        self.broker.produce("orders", batch(b"in the next segment"))
        self.partition.log.flush()

    def slice(self) -> FileSlice:
        """The first segment, as a client reads it."""
        return self.partition.read(self.partition.log_start_offset, bytes_max=2**30, reader=CONSUMER)

    def write_other_records(self) -> None:
        """Fill the place of the old records with others, and have them in the page cache."""
        for _ in range(BATCHES):
            self.broker.produce("orders", batch(b"z" * BATCH_BYTES))


@asynccontextmanager
async def reader_of(node: Node, transfer: Transfer) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A client whose socket holds little, connected to a server."""
    server = Server(node.broker.registry, node.broker.waiting, LIMITS, fast_connection(transfer))
    listener = bind(Listener("PLAINTEXT", "127.0.0.1", 0))
    await server.start(listener, Session)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    client.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
        yield server, client
    finally:
        client.close()
        await server.stop()


async def received(transfer: Transfer, change: Callable[[Node], None]) -> tuple[Node, bytes, bytes]:
    """What a client gets that reads only the beginning of an answer, waits for the change, and reads the rest."""
    node, loop = Node(), asyncio.get_running_loop()
    async with reader_of(node, transfer) as (server, client):
        fetch = fetch_request("orders", partition_max_bytes=2**30)
        await loop.sock_sendall(client, framed(fetch, 1, VERSION))
        first = await asyncio.wait_for(loop.sock_recv(client, 10_000), SOON_S)
        assert not next(iter(server.connections)).is_idle, "the sockets must not hold the whole answer"
        change(node)
        found = bytearray(first)
        while piece := await asyncio.wait_for(_piece(client), SOON_S):
            found += piece
            if len(found) == 4 + struct.unpack_from(">i", found)[0]:
                break
        return node, bytes(found[:4]), bytes(found[4:])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.001)


async def _all(client: socket.socket) -> bytes:
    found = bytearray()
    while piece := await _piece(client):
        found += piece
    return bytes(found)


async def _piece(client: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1024**2)
    except ConnectionError:
        return b""


def in_every_way(change: Callable[[Node], None], check: Callable[[Node, Transfer, bytes, bytes], None]) -> None:
    for transfer in Transfer:
        Path(transfer.value).mkdir()
        with case(transfer.value), chdir(transfer.value):
            node, length, answer = asyncio.run(received(transfer, change))
            check(node, transfer, length, answer)


def records_of(length: bytes, answer: bytes) -> bytes | None:
    """The records of a whole answer; None if it is not whole."""
    if len(answer) != struct.unpack(">i", length)[0]:
        return None
    response = decode_whole(FetchResponse, memoryview(answer), RESPONSE_HEADER_BYTES, VERSION)
    records = response.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    return bytes(records)


def has_the_old_records(node: Node, transfer: Transfer, length: bytes, answer: bytes) -> None:
    assert records_of(length, answer) == node.content


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_records_that_are_deleted_meanwhile_are_sent_to_the_end() -> None:
    def delete(node: Node) -> None:
        node.partition.delete_records(BATCHES)
        assert len(node.partition.log.segments) == 1
        node.write_other_records()

    in_every_way(delete, has_the_old_records)


def test_records_that_retention_removes_meanwhile_are_sent_to_the_end() -> None:
    def retain(node: Node) -> None:
        later_ms = NOW_MS + 365 * 24 * 3600 * 1000
        assert node.partition.log.retain(later_ms, upto_offset=node.partition.high_watermark) == 1

    in_every_way(retain, has_the_old_records)


def test_a_segment_that_is_compacted_meanwhile_is_sent_to_its_end() -> None:
    def compact(node: Node) -> None:
        clean(node.partition.log, first_dirty_offset=0, now_ms=NOW_MS + 10**6)
        assert node.slice().count < len(node.content), "old records of the same key are gone"
        node.write_other_records()

    in_every_way(compact, has_the_old_records)


def test_a_topic_that_is_deleted_meanwhile_is_sent_to_its_end() -> None:
    def delete_topic(node: Node) -> None:
        node.broker.delete("orders")
        node.broker.create("orders")
        node.write_other_records()

    in_every_way(delete_topic, has_the_old_records)


def test_a_log_that_is_truncated_meanwhile_closes_the_connection() -> None:
    """A leader that was deposed truncates. Other records come to the same place. No client takes them for its own."""

    def truncate(node: Node) -> None:
        node.partition.log.truncate(BATCHES // 2)
        node.write_other_records()

    def check(node: Node, transfer: Transfer, length: bytes, answer: bytes) -> None:
        assert records_of(length, answer) is None, "the answer must not be whole"
        # With sendfile, the socket may refer to the page of the file in which the log was cut.
        if transfer is not Transfer.SENDFILE:
            begin = answer.find(node.content[:100])
            assert node.content.startswith(answer[begin:])

    in_every_way(truncate, check)


def test_a_log_that_is_emptied_meanwhile_never_gives_other_records() -> None:
    def empty(node: Node) -> None:
        node.partition.log.truncate_fully_and_start_at(5)
        node.write_other_records()

    def check(node: Node, transfer: Transfer, length: bytes, answer: bytes) -> None:
        records = records_of(length, answer)
        if records is None:
            records = answer[answer.find(node.content[:100]) :]
        assert node.content.startswith(records)

    in_every_way(empty, check)


def test_an_answer_behind_a_large_one_is_not_sent_after_a_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stood in line while the large one was sent, and its segment was truncated in that time."""

    async def main() -> None:
        node = Node()
        followers = Followers(node.broker, monkeypatch)
        async with reader_of(node, Transfer.MMAP) as (server, client):
            large = framed(fetch_request("orders", partition_max_bytes=2**30), 2, VERSION)
            small = framed(fetch_request("orders", offset=BATCHES + 1), 3, VERSION)
            await asyncio.get_running_loop().sock_sendall(client, safely_produced(1) + large + small)
            await until(lambda: [it.served_count for it in server.connections] == [3])
            await followers.copy(BATCHES + 2)
            # Not to the base offset of the segment: then its file would be deleted, and the records would be sent.
            node.partition.log.truncate(BATCHES + 1)
            node.broker.produce("orders", batch(b"in the same place"), acks=1)
            found = await asyncio.wait_for(_all(client), SOON_S)
        assert correlation_ids(found) == [1, 2]

    asyncio.run(main())
