"""Nodes in network namespaces of their own, so that links between them are cut in the kernel: no socket is closed.

    this process, the hub: 10.77.1.1 ─── veth ─── 10.77.1.2, node 1
                           10.77.2.1 ─── veth ─── 10.77.2.2, node 2
                           …                                  clients are here, and reach all

`enter` makes this process the hub, which forwards between the nodes. A rule that drops packets from one node to another
cuts that direction only. All of it belongs to the hub: it changes nothing on the machine and disappears with this
process, however that ends. The nodes are killed with it.

It needs Linux, the right to make namespaces, and the programs `unshare`, `nsenter`, `setpriv` and `ip`.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusters import QuorumCluster, QuorumNode
from proxy import Verdict

from minibroker.replicas.secret import SECRET, make_secret
from minibroker.replication.keys import CLUSTER_SECRET_FILE

_PROGRAMS = ("unshare", "nsenter", "setpriv", "ip")
_ATTEMPT = """set -e
ip link set lo up
ip link add hub type veth peer name node
ip rule add from 10.77.1.2 to 10.77.2.2 blackhole
echo 1 > /proc/sys/net/ipv4/ip_forward"""
_CLONE_NEWNET = 0x40000000
_NAMESPACE = "/proc/thread-self/ns/net"
_PORT = 9092
_RULES_FIRST = 10
# Dropped and refused packets, in the words of `ip rule`: a refused packet is reported to its sender by ICMP.
_ACTIONS = {Verdict.DROP: "blackhole", Verdict.CUT: "unreachable"}


def why_not() -> str | None:
    """Why links cannot be cut in the kernel here; None if they can."""
    if sys.platform != "linux":
        return "it needs Linux"
    missing = [it for it in _PROGRAMS if shutil.which(it) is None]
    if missing:
        return f"{missing[0]} is not installed"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", _ATTEMPT], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it is not allowed"])[0]


def enter() -> None:
    """Become the hub: from here on this process and its children are in a network of their own."""
    _call("unshare", _CLONE_NEWNET)
    _ip("link", "set", "lo", "up")
    with open("/proc/sys/net/ipv4/ip_forward", "w") as switch:
        switch.write("1")


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _address(number: int) -> str:
    return f"10.77.{number}.2"


class Namespace:
    """A node's network: one interface, connected to the hub. It exists as long as its descriptor is open."""

    def __init__(self, number: int) -> None:
        hub = os.open(_NAMESPACE, os.O_RDONLY)
        try:
            _call("unshare", _CLONE_NEWNET)
            self._descriptor = os.open(_NAMESPACE, os.O_RDONLY)
        finally:
            _call("setns", hub, _CLONE_NEWNET)
            os.close(hub)
        link = f"node{number}"
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.path)
        _ip("address", "add", f"10.77.{number}.1/24", "dev", link)
        _ip("link", "set", link, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{_address(number)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", f"10.77.{number}.1"),
        ):
            subprocess.run(self.inside("ip", *words), check=True, capture_output=True)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in this namespace."""
        return ["nsenter", f"--net={self.path}", *command]

    def close(self) -> None:
        os.close(self._descriptor)


class RemoteNode(QuorumNode):
    """A node with a link of its own; it is killed when the process that started it ends."""

    def __init__(self, number: int, data: Path, settings: Sequence[str]) -> None:
        super().__init__(number, data, settings)
        self.namespace = Namespace(number)
        self.address = f"{_address(number)}:{_PORT}"

    def command(self, listen: str) -> list[str]:
        return self.namespace.inside("setpriv", "--pdeathsig", "KILL", "--", *super().command(listen))

    def close(self) -> None:
        super().close()
        self.namespace.close()


class RemoteCluster(QuorumCluster):
    """Nodes whose links are cut in the kernel, one way or both. Call `enter` before."""

    kind = RemoteNode

    def __init__(self, path: Path, *settings: str, size: int = 3) -> None:
        # The nodes are on several machines, as far as they know, so they make no secret themselves.
        make_secret(str(path / SECRET))
        super().__init__(path, f"{CLUSTER_SECRET_FILE.name}={path / SECRET}", *settings, size=size)

    def cut(self, sender: int, to: int, verdict: Verdict = Verdict.DROP) -> None:
        """From now on packets from node `sender` to node `to` vanish or are refused, answers included."""
        if (sender, to) not in self.cuts:
            self._rule("add", sender, to, _ACTIONS[verdict])
            super().cut(sender, to, verdict)

    def heal(self) -> None:
        for (sender, to), verdict in self.cuts.items():
            self._rule("del", sender, to, _ACTIONS[verdict])
        super().heal()

    def _rule(self, what: str, sender: int, to: int, action: str) -> None:
        preference = str(_RULES_FIRST + len(self.nodes) * sender + to)
        words: Sequence[str] = ("from", _address(sender), "to", _address(to), action)
        _ip("rule", what, "preference", preference, *words)
