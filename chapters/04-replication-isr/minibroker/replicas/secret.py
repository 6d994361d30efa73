"""The file with the secret that all nodes of a cluster share. A node logs in at other nodes with it.

The configuration key `minibroker.cluster.secret.file` names the file. If the key is not set, the nodes of a cluster on
one machine use `data/cluster.secret`, beside their data directories `data/1`, `data/2` and so on. A node that starts a
cluster of its own has the file inside its data directory. The first node that needs the file creates it. Nodes on
several machines have no common directory, so the key must be set.
"""

import ipaddress
import os
import secrets
import stat

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.errors import BrokerFailure
from minibroker.replication.keys import CLUSTER_SECRET_FILE, quorum_voters

SECRET = "cluster.secret"
SECRET_BYTES_MIN = 32
_NEW_BYTES = 32
_MODE = 0o600
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secret_of(config: NodeConfig, *, is_alone: bool) -> bytes:
    """The secret of a node's cluster. `is_alone` is True if the node starts a cluster of its own."""
    named = CLUSTER_SECRET_FILE.of(config)
    if named is not None:
        return read_secret(named)
    check_one_machine(config)
    own = os.path.join(config.log_dirs[0], SECRET)
    # A node that once started a cluster of its own keeps its file. Nodes that join later must set the key to its path.
    path = (
        own
        if is_alone or os.path.exists(own)
        else os.path.join(os.path.dirname(os.path.abspath(config.log_dirs[0])), SECRET)
    )
    make_secret(path)
    return read_secret(path)


def check_one_machine(config: NodeConfig) -> None:
    """Refuse a node without a configured file if its cluster has several machines: others could not read its file."""
    voters = quorum_voters(config)
    hosts = [*(it.host for it in voters), *(it.host for it in config.advertised_listeners)]
    far = next((it for it in hosts if not is_loopback(it)), None)
    if voters and far is not None:
        raise BrokerFailure(
            f"node {config.node_id} is in a cluster of several machines ({far or 'every address'} is not loopback) and"
            " has no secret by which its nodes know each other: `openssl rand -hex 32 > FILE && chmod 600 FILE`, copy"
            f" FILE to every node, and set {CLUSTER_SECRET_FILE.name}=FILE on each"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is certainly on this machine. A host name other than localhost may be on any machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_secret(path: str) -> None:
    """Make the file, unless there is one. If several nodes start at once, all get the same file."""
    if os.path.exists(path):
        return
    whole = f"{path}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        handle = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(_NEW_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # The hard link gives the finished file its name, so no node reads half a secret. It fails if another node
            # was first.
            os.link(whole, path)
        finally:
            os.unlink(whole)
    except FileExistsError:
        return
    except OSError as error:
        raise BrokerFailure(
            f"the secret of the cluster cannot be written to {path} ({error.strerror}): set {CLUSTER_SECRET_FILE.name}"
            " to a file that this node can read"
        ) from error


def read_secret(path: str) -> bytes:
    """The secret in a file, which only its owner may read."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read().strip()
    except OSError as error:
        raise BrokerFailure(
            f"the secret of the cluster, {path}, cannot be read ({error.strerror}): correct {CLUSTER_SECRET_FILE.name}"
        ) from error
    if mode & _OF_OTHERS:
        raise BrokerFailure(f"the secret of the cluster, {path}, is open to other users: `chmod 600 {path}`")
    if len(secret) < SECRET_BYTES_MIN:
        raise BrokerFailure(
            f"the secret of the cluster, {path}, has {len(secret)} bytes, and must have {SECRET_BYTES_MIN} or more:"
            f" `openssl rand -hex 32 > {path}`, and copy it to every node"
        )
    return secret
