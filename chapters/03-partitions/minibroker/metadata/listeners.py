"""Where a broker listens, and where it tells clients to go: `NAME://HOST:PORT`. A pure module."""

import re
from typing import NamedTuple

PORT_MAX = 65535
_LISTENER = re.compile(r"([a-zA-Z][a-zA-Z0-9_]*)://(\[[0-9a-fA-F:.%a-zA-Z]+\]|[^\s:/\[\]]*):([0-9]{1,5})")


class Listener(NamedTuple):
    """One place to connect to. Port 0 is any free port; an empty host is every address."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read a comma-separated list; no name and no port may be there twice."""
    listeners = tuple(_parse(item.strip()) for item in text.split(","))
    ports = [listener.port for listener in listeners if listener.port != 0]
    if len({listener.name for listener in listeners}) < len(listeners) or len(set(ports)) < len(ports):
        raise ValueError(f"{text!r} has a name or a port twice")
    return listeners


def _parse(item: str) -> Listener:
    match = _LISTENER.fullmatch(item)
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{item!r} is not NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092")
    return Listener(match[1].upper(), match[2].strip("[]"), int(match[3]))


class QuorumVoter(NamedTuple):
    """A node that decides about metadata, and where it is before any metadata says so."""

    node_id: int
    host: str
    port: int


_VOTER = re.compile(r"(\d{1,9})@([^@,\s]+):(\d{1,5})")


def parse_voters(text: str) -> tuple[QuorumVoter, ...]:
    """Read `ID@HOST:PORT,…`; nothing is no voter. What cannot be one is a ValueError."""
    voters = []
    for item in filter(None, (it.strip() for it in text.split(","))):
        match = _VOTER.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not ID@HOST:PORT")
        voters.append(QuorumVoter(int(match[1]), match[2].strip("[]"), int(match[3])))
    if len({it.node_id for it in voters}) < len(voters) or len({it[1:] for it in voters}) < len(voters):
        raise ValueError(f"{text!r} names a node or a place twice")
    if not all(0 < it.port <= PORT_MAX for it in voters):
        raise ValueError(f"{text!r} has a port that is not between 1 and {PORT_MAX}")
    return tuple(voters)
