"""Addresses of nodes: `HOST:PORT`. A pure module."""

from typing import NamedTuple

from minibroker.client.errors import InvalidAddress
from minibroker.metadata.listeners import PORT_MAX


class Address(NamedTuple):
    """The address of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`. An IPv6 host is in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= PORT_MAX:
        raise InvalidAddress(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:9092")
    return Address(host, int(port))
