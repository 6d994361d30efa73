"""Slices of real files on a real socket, sent in three ways, while the files change."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from cases import case

from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import FileSlice
from minibroker.partitions.files import BoundedFile, BoundedFiles
from minibroker.transfer.sending import PIECE_BYTES, Handle, Maps, Sending, Transfer

SIZE = 12 * 1024**2
SOON_S = 20
HEADER = b"header"


class Exchange:
    """A slice that is being sent to a client that reads it when the test wants."""

    def __init__(self, path: Path) -> None:
        self.files = BoundedFiles(OSFiles(), handles_max=10)
        self.file: BoundedFile = self.files.open(str(path))
        self.content = os.urandom(1024) * (SIZE // 1024)
        self.file.pwrite(self.content, 0)
        self.outcome: list[Exception | None] = []
        self.pieces = 0

    async def begin(self, transfer: Transfer) -> None:
        here, self.there = socket.socketpair()
        self.there.setblocking(False)
        loop = asyncio.get_running_loop()
        self.transport, _protocol = await loop.create_connection(asyncio.Protocol, sock=here)
        self.sending = Sending(
            self.transport,
            [HEADER, FileSlice(self.file, 0, SIZE)],
            transfer=transfer,
            maps=Maps(),
            on_progress=self._count_piece,
            on_sent=lambda: self._end(None),
            on_failed=self._end,
        )
        self.sending.go_on()
        assert not self.outcome, "the socket must not take everything at once"

    def _count_piece(self) -> None:
        self.pieces += 1

    def _end(self, error: Exception | None) -> None:
        self.outcome.append(error)
        self.transport.close()

    async def received(self) -> bytes:
        """Everything that the client gets until the connection is closed."""
        loop, found = asyncio.get_running_loop(), bytearray()
        while piece := await asyncio.wait_for(loop.sock_recv(self.there, 1024**2), SOON_S):
            found += piece
        self.there.close()
        return bytes(found)


def in_every_way(path: Path, change: Callable[[Exchange], None], check: Callable[[Exchange, bytes], None]) -> None:
    async def main(transfer: Transfer) -> None:
        exchange = Exchange(path / f"{transfer.value}.log")
        await exchange.begin(transfer)
        change(exchange)
        check(exchange, await exchange.received())

    for transfer in Transfer:
        with case(transfer.value):
            asyncio.run(main(transfer))


def is_whole(exchange: Exchange, received: bytes) -> None:
    assert exchange.outcome == [None]
    assert received == HEADER + exchange.content
    assert exchange.pieces >= SIZE / PIECE_BYTES


def test_a_slice_is_sent_as_the_client_reads_it(tmp_path: Path) -> None:
    in_every_way(tmp_path, lambda exchange: None, is_whole)


def test_a_file_that_is_deleted_while_it_is_sent_is_sent_to_its_end(tmp_path: Path) -> None:
    def delete(exchange: Exchange) -> None:
        assert exchange.file.path is not None
        exchange.files.unlink(exchange.file.path)

    in_every_way(tmp_path, delete, is_whole)


def test_a_file_that_is_replaced_while_it_is_sent_is_sent_to_its_end(tmp_path: Path) -> None:
    def replace(exchange: Exchange) -> None:
        assert exchange.file.path is not None
        other = exchange.files.open(exchange.file.path + ".swap")
        other.pwrite(b"other records", 0)
        exchange.files.rename(exchange.file.path + ".swap", exchange.file.path)

    in_every_way(tmp_path, replace, is_whole)


def test_a_file_that_is_truncated_while_it_is_sent_closes_the_connection(tmp_path: Path) -> None:
    """Other records are written where the old ones were. The client gets none of them."""

    def truncate(exchange: Exchange) -> None:
        exchange.file.truncate(1000)
        exchange.file.pwrite(b"z" * SIZE, 1000)

    def check(exchange: Exchange, received: bytes) -> None:
        assert "truncated" in str(exchange.outcome[0])
        assert len(received) < SIZE
        if exchange.sending.transfer is not Transfer.SENDFILE:
            assert (HEADER + exchange.content).startswith(received)

    in_every_way(tmp_path, truncate, check)


def test_a_file_that_loses_its_end_unnoticed_closes_the_connection(tmp_path: Path) -> None:
    """Somebody has cut the file by other means. A process that reads a mapped page beyond the end would be killed."""

    def cut(exchange: Exchange) -> None:
        assert exchange.file.path is not None
        os.truncate(exchange.file.path, 1000)

    def check(exchange: Exchange, received: bytes) -> None:
        assert isinstance(exchange.outcome[0], Exception)
        assert len(received) < SIZE

    in_every_way(tmp_path, cut, check)


def test_a_map_follows_a_file_that_grows(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path / "grows.log")
    maps, handle = Maps(), exchange.file.handle()
    assert isinstance(handle, Handle)
    assert len(maps.view(handle, SIZE - 10, 100)) == 10
    assert not maps.view(handle, SIZE, 100)
    exchange.file.pwrite(b"more", SIZE)
    assert bytes(maps.view(handle, SIZE, 4)) == b"more"
    # A second window begins in the middle of what is asked for.
    exchange.file.pwrite(exchange.content, SIZE + 4)
    at = 16 * 1024**2 - 3
    assert bytes(maps.view(handle, at, 10)) == exchange.content[at - SIZE - 4 :][:3]
    assert bytes(maps.view(handle, at + 3, 10)) == exchange.content[at - SIZE - 1 :][:10]
