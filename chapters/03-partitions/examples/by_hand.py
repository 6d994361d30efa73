"""Speak to a broker by hand: the bytes of a request on the command line, the bytes of the answer on the screen.

    python chapters/03-partitions/examples/by_hand.py 00 12 00 00  00 00 00 07  00 04 68 61 6e 64

The four bytes of the length are put before the request, and taken off the answer; the rest is yours. The broker is the
one in MINIBROKER_BOOTSTRAP_SERVER, or that on 127.0.0.1:9092.
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
    """Exactly so many bytes: a stream comes in pieces of any size."""
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
