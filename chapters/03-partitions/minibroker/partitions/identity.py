"""The owner of a data directory: `meta.properties`, in Kafka's format, and a lock while a node uses it.

    version=1
    cluster.id=cYd0C3vXQ3a0yL7yq6m3Fw
    node.id=1
    directory.id=tS0mTAtRRm2T3zUYpK2fWw

The first node that is started on a new directory writes this file. From then on, no node with another id can start on
the directory. Otherwise one copy of the data could count as two replicas.
"""

import errno
import fcntl
import os
from typing import NamedTuple

from minibroker.partitions.errors import BrokerFailure
from minibroker.wire.uuids import uuid_text

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
_VERSION = "1"


class Identity(NamedTuple):
    """The content of `meta.properties`."""

    cluster_id: str
    node_id: int
    directory_id: str


def lock(path: str) -> int:
    """Lock the directory. The kernel releases the lock when the process ends, even after a crash."""
    os.makedirs(path, exist_ok=True)
    descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BrokerFailure(f"{path} is in use by another node: stop that node, or use another --data") from None
    return descriptor


class OccupiedDirectory:
    """The directory that a node uses. Its path may later be gone, or lead to another directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._device_and_inode = _device_and_inode(path)

    def loss(self) -> str | None:
        """What has happened to the directory, or None if it is still there with its `meta.properties`."""
        try:
            found = _device_and_inode(self.path)
            os.stat(f"{self.path}/{META_PROPERTIES}")
        except OSError as error:
            return f"cannot be found any more ({error.filename}: {error.strerror})"
        return None if found == self._device_and_inode else "has been replaced by another directory"

    def check(self) -> None:
        """Raise an OSError if the directory is lost: its open files can be written, but no restart would find them."""
        loss = self.loss()
        if loss is not None:
            raise OSError(errno.ENOENT, f"the data directory {loss}", self.path)


def _device_and_inode(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def identify(path: str, node_id: int, *, cluster_id: str | None = None) -> Identity:
    """Read the identity of a directory. A new directory is assigned to this node, in the named or a new cluster."""
    try:
        with open(f"{path}/{META_PROPERTIES}", encoding="utf-8") as file:
            found = _parse(file.read(), path)
    except FileNotFoundError:
        return _format(path, node_id, cluster_id or new_id())
    if found.node_id != node_id:
        raise BrokerFailure(
            f"{path} belongs to node {found.node_id}, but this is node {node_id}: set node.id, or use another --data"
        )
    if cluster_id not in (None, found.cluster_id):
        raise BrokerFailure(
            f"{path} belongs to cluster {found.cluster_id}, but the other nodes belong to {cluster_id}: "
            "use another --data"
        )
    return found


def _parse(text: str, path: str) -> Identity:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    values = {name.strip(): value.strip() for name, _, value in pairs}
    version = values.get("version")
    if version != _VERSION:
        raise BrokerFailure(
            f"{path}/{META_PROPERTIES} has version {version}, but this broker reads only version {_VERSION}"
        )
    try:
        return Identity(values["cluster.id"], int(values["node.id"]), values.get("directory.id", ""))
    except (KeyError, ValueError) as error:
        raise BrokerFailure(f"{path}/{META_PROPERTIES} is damaged ({error}): restore it from a backup") from error


def _format(path: str, node_id: int, cluster_id: str) -> Identity:
    """Write a temporary file, flush it and rename it, so that a crash leaves the whole file or none."""
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
    """Sixteen random bytes as a UUID of version 4. As in Kafka, its text never begins with a dash."""
    while True:
        data = bytearray(os.urandom(16))
        data[6] = data[6] & 0x0F | 0x40
        data[8] = data[8] & 0x3F | 0x80
        if not uuid_text(bytes(data)).startswith("-"):
            return bytes(data)


def new_id() -> str:
    """A new random id as text, in Kafka's format."""
    return uuid_text(new_id_bytes())
