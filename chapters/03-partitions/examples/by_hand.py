"""Send a request as bytes in hex, and print the bytes of the response.

    python chapters/03-partitions/examples/by_hand.py 00 12 00 00  00 00 00 07  00 04 68 61 6e 64

The length is added before the request, and removed from the response. The broker's address is
MINIBROKER_BOOTSTRAP_SERVER, or 127.0.0.1:9092.
"""

import os
import socket
import sys

ANSWER_S_MAX = 5
BYTES_PER_LINE = 16


def ask(address: str, request: bytes) -> bytes:
    """Send one request and return its answer."""
    host, _colon, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        length = int.from_bytes(receive(connection, 4), "big")
        return receive(connection, length)


def receive(connection: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes. A stream arrives in pieces of any size."""
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            sys.exit("the broker has closed the connection")
        received += piece
    return received


if __name__ == "__main__":
    broker = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")
    answer = ask(broker, bytes.fromhex("".join(sys.argv[1:])))
    for row in range(0, len(answer), BYTES_PER_LINE):
        print(f"{row:4}  {answer[row : row + BYTES_PER_LINE].hex(' ')}")
