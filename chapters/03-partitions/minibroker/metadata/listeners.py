"""Addresses in a configuration: listeners as `NAME://HOST:PORT`, the security protocol of each name, and addresses with
a count. A pure module.
"""

import enum
import ipaddress
import re
from collections.abc import Mapping
from typing import NamedTuple

PORT_MAX = 65535


class SecurityProtocol(enum.IntEnum):
    """How a listener is protected, with Kafka's numbers. This broker has no TLS yet."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


WITHOUT_TLS = (SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT)
_LISTENER = re.compile(r"([a-zA-Z][a-zA-Z0-9_]*)://(\[[0-9a-fA-F:.%a-zA-Z]+\]|[^\s:/\[\]]*):([0-9]{1,5})")


class Listener(NamedTuple):
    """One listener. Port 0 is any free port; an empty host is every address."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Parse a comma-separated list. A name or a port may occur only once."""
    listeners = tuple(_parse(item.strip()) for item in text.split(","))
    ports = [listener.port for listener in listeners if listener.port != 0]
    if len({listener.name for listener in listeners}) < len(listeners) or len(set(ports)) < len(ports):
        raise ValueError(f"{text!r} has a name or a port twice: use each only once")
    return listeners


def parse_protocols(text: str) -> Mapping[str, SecurityProtocol]:
    """Parse a comma-separated list of NAME:PROTOCOL."""
    found = {}
    for item in filter(None, (it.strip() for it in text.split(","))):
        name, _, protocol = item.upper().partition(":")
        if not name or protocol not in SecurityProtocol.__members__:
            raise ValueError(f"{item!r} is not NAME:PROTOCOL, such as INSIDE:SASL_PLAINTEXT")
        found[name] = SecurityProtocol[protocol]
    return found


def parse_address_counts(text: str) -> Mapping[str, int]:
    """Parse a comma-separated list of ADDRESS:COUNT."""
    found = {}
    for item in filter(None, (it.strip() for it in text.split(","))):
        address, _, count = item.rpartition(":")
        if not count.isdecimal():
            raise ValueError(f"{item!r} is not ADDRESS:COUNT, such as 10.0.0.7:200")
        found[str(ipaddress.ip_address(address.strip("[]")))] = int(count)
    return found


def _parse(item: str) -> Listener:
    match = _LISTENER.fullmatch(item)
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{item!r} is not NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092")
    return Listener(match[1].upper(), match[2].strip("[]"), int(match[3]))
