"""A stock client on the fast connection, in this process, so that a learner's connection serves it, too."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cases import case
from clients_stock import Message, confluent_read, confluent_write

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.transfer.node import fast_node
from minibroker.transfer.sending import Transfer

T = TypeVar("T")
START_S = 30


@contextmanager
def running(path: Path, transfer: Transfer) -> Iterator[str]:
    """A node that serves in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(START_S)

    async def start() -> Node:
        settings = {"node.id": "1", "log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        node = fast_node(NodeConfig(settings | {"minibroker.fetch.transfer": transfer.value}))
        await node.start()
        return node

    try:
        node = wait_for(start())
        try:
            yield node.address
        finally:
            wait_for(node.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_stock_client_writes_and_reads_on_the_fast_connection(tmp_path: Path) -> None:
    """The records are longer than the inbox, and so are the answers."""
    for transfer in Transfer:
        with case(transfer.value), running(tmp_path / transfer.value, transfer) as address:
            orders = [Message(b"%d" % number * 40_000) for number in range(10)]
            assert confluent_write(address, "orders", orders) == list(range(10))
            read = confluent_read(address, "orders", 10)
            assert [it.value for it in read] == [it.value for it in orders]
