"""Whose data directory this is: `meta.properties`, in Kafka's format, and a lock while a node uses it.

    version=1
    cluster.id=cYd0C3vXQ3a0yL7yq6m3Fw
    node.id=1
    directory.id=tS0mTAtRRm2T3zUYpK2fWw

A directory without it is formatted by the first node that is started on it. From then on no node with another id takes
it, because two nodes with the same data would be one replica too few.
"""

import fcntl
import os
from typing import NamedTuple

from minibroker.partitions.errors import BrokerFailure
from minibroker.wire.uuids import uuid_text

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
_VERSION = "1"


class Identity(NamedTuple):
    """What a data directory says of itself."""

    cluster_id: str
    node_id: int
    directory_id: str


def lock(path: str) -> int:
    """Take the directory for this process; the lock ends with it, however it ends."""
    os.makedirs(path, exist_ok=True)
    descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BrokerFailure(f"{path} is in use by another node: stop it, or give this one another --data") from None
    return descriptor


def identify(path: str, node_id: int, *, cluster_id: str | None = None) -> Identity:
    """Read whose directory this is, or make it this node's: of the cluster that is named, or of a new one."""
    try:
        with open(f"{path}/{META_PROPERTIES}", encoding="utf-8") as file:
            found = _parse(file.read(), path)
    except FileNotFoundError:
        return _format(path, node_id, cluster_id or new_id())
    if found.node_id != node_id:
        raise BrokerFailure(
            f"{path} belongs to node {found.node_id}, this one is {node_id}: set node.id, or give it another --data"
        )
    if cluster_id not in (None, found.cluster_id):
        raise BrokerFailure(
            f"{path} belongs to cluster {found.cluster_id}, the other nodes are of {cluster_id}: give it another --data"
        )
    return found


def _parse(text: str, path: str) -> Identity:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    values = {name.strip(): value.strip() for name, _, value in pairs}
    version = values.get("version")
    if version != _VERSION:
        raise BrokerFailure(f"{path}/{META_PROPERTIES} has version {version}, only {_VERSION} is understood")
    try:
        return Identity(values["cluster.id"], int(values["node.id"]), values.get("directory.id", ""))
    except (KeyError, ValueError) as error:
        raise BrokerFailure(f"{path}/{META_PROPERTIES} is damaged ({error}): restore it from a backup") from error


def _format(path: str, node_id: int, cluster_id: str) -> Identity:
    """Write it beside, flush, rename: it is there as a whole, or not at all."""
    identity = Identity(cluster_id, node_id, new_id())
    text = (
        f"version={_VERSION}\ncluster.id={identity.cluster_id}\n"
        f"node.id={node_id}\ndirectory.id={identity.directory_id}\n"
    )
    temporary = f"{path}/{META_PROPERTIES}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, f"{path}/{META_PROPERTIES}")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return identity


def new_id_bytes() -> bytes:
    """Sixteen random bytes as a UUID of version 4. Like Kafka's they do not begin with a dash when written."""
    while True:
        data = bytearray(os.urandom(16))
        data[6] = data[6] & 0x0F | 0x40
        data[8] = data[8] & 0x3F | 0x80
        if not uuid_text(bytes(data)).startswith("-"):
            return bytes(data)


def new_id() -> str:
    """A new id as Kafka writes it."""
    return uuid_text(new_id_bytes())
