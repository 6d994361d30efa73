"""Fetch from a leader as a follower whose log diverges, and show the answer byte by byte.

    python chapters/04-replication-isr/examples/diverging.py orders 1002 0

asks for offset 1002 of orders-0 and says that the record before it is of epoch 0. A follower says that with every
fetch, and so may a consumer (KIP-320, KIP-595).
"""

import os
import socket
import sys

from minibroker.cli.frame_tree import explain_response, render
from minibroker.clients.blocking import Client
from minibroker.wire.headers import frame_request
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic

BOOTSTRAP = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")
VERSION = 16
LENGTH_BYTES = 4


def question(topic_id: bytes, offset: int, last_fetched_epoch: int) -> FetchRequest:
    """A fetch of partition 0 that does not wait."""
    partition = FetchPartition(
        partition=0, fetch_offset=offset, last_fetched_epoch=last_fetched_epoch, partition_max_bytes=1024
    )
    topic = FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1024, session_epoch=-1, topics=[topic])


def asked(host: str, port: int, request: FetchRequest) -> memoryview:
    """Send the request, and return the answer without its length."""
    with socket.create_connection((host, port), timeout=5) as connection, connection.makefile("rb") as stream:
        for part in frame_request(request, version=VERSION, correlation_id=7, client_id=None):
            assert isinstance(part, bytes | bytearray | memoryview)
            connection.sendall(part)
        return memoryview(stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "big")))


def main(topic: str, offset: str, last_fetched_epoch: str) -> None:
    """Find the leader, ask it, show the answer."""
    with Client(BOOTSTRAP) as client:
        (found,) = client.metadata([topic]).topics
        leader = client.leader(topic, 0)
        address = client.core.routes.nodes[leader].address
    answer = asked(address.host, address.port, question(found.topic_id, int(offset), int(last_fetched_epoch)))
    print(*render(explain_response(FetchRequest.schema.key or 0, VERSION, answer), answer), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
