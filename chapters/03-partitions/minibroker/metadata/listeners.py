"""Listeners and advertised listeners: `NAME://HOST:PORT`. A pure module."""

import re
from typing import NamedTuple

PORT_MAX = 65535
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


def _parse(item: str) -> Listener:
    match = _LISTENER.fullmatch(item)
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{item!r} is not NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092")
    return Listener(match[1].upper(), match[2].strip("[]"), int(match[3]))
