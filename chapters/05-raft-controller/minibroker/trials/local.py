"""A cluster of processes on this machine whose nodes are meant to be killed: for labs and benchmarks.

`minibroker up` keeps nodes running; here they stay as dead or as paused as they were made. Each node is a process of
its own, `minibroker serve`, and ends with this one, however this one ends: its stdin is a pipe that only this process
holds the other end of, and it is in a process group of its own, which the system wakes when nobody is left to.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from minibroker.client.errors import ClientError
from minibroker.clients.admin import NewTopic, create_topics, elect_leaders
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition
from minibroker.trials.watching import Watched, until

HOST = "127.0.0.1"
SIZE = 3
READY_S_MAX = 30.0
STOPPED_S_MAX = 30.0
_COMPLAINT_CHARS = 2000


def reserve_port(reserved: contextlib.ExitStack) -> int:
    """A free port, which is kept for a node while the node is down, until the stack is closed."""
    it = reserved.enter_context(socket.socket())
    # Bound and never listening: a node may bind it as well, and nobody else gets it.
    it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    it.bind((HOST, 0))
    port: int = it.getsockname()[1]
    if sys.platform != "linux":
        # Elsewhere two sockets cannot have one port, even so.
        it.close()
    return port


class LocalNode:
    """One node: a process that is started, killed, paused, and started again on the same data and port."""

    def __init__(
        self, number: int, data: Path, address: str, settings: Sequence[str], environment: Mapping[str, str] | None
    ) -> None:
        self.number = number
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = settings
        self._environment = environment
        self._data = data
        self._out, self._log = (data.with_suffix(kind) for kind in (".out", ".log"))

    def begin(self) -> None:
        """Starts the process, and does not wait for it."""
        assert not self.is_alive(), "stop it or kill it first"
        # One that ended by itself has left its pipe.
        self.kill()
        program = [sys.executable, "-m", "minibroker.cli", "serve", "--child", "--data", str(self._data)]
        command = [*program, "--listen", self.address, *(it for pair in self._settings for it in ("--set", pair))]
        with self._out.open("wb") as stdout, self._log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, process_group=0, env=self._environment
            )

    def await_ready(self) -> None:
        """Waits until it serves clients."""
        until(self._is_ready, f"node {self.number} is ready", seconds=READY_S_MAX)

    def _is_ready(self) -> bool:
        if not self.is_alive():
            complaint = self._log.read_text(errors="replace")[-_COMPLAINT_CHARS:]
            raise ChildProcessError(f"node {self.number} ended before it was ready; it said:\n{complaint}")
        return self._out.read_text().startswith("ready: ")

    def is_alive(self) -> bool:
        """Whether its process is there, paused or not."""
        return self.process is not None and self.process.poll() is None

    def restart(self) -> None:
        """Starts it again, and waits until it serves."""
        self.begin()
        self.await_ready()

    def kill(self) -> None:
        """kill -9; nothing happens if the process is gone."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> None:
        """A controlled shutdown; one that does not end is killed, and that is an error."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOPPED_S_MAX)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"node {self.number} did not stop within {STOPPED_S_MAX:g} s") from None
        finally:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            assert self.process is not None
            os.kill(self.process.pid, number)

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


class LocalCluster(Watched):
    """Three nodes that vote, in a folder that the caller removes; nobody is left at the end of the `with`."""

    def __init__(self, folder: Path, *settings: str, environment: Mapping[str, str] | None = None) -> None:
        self._reserved = contextlib.ExitStack()
        addresses = {it: f"{HOST}:{reserve_port(self._reserved)}" for it in range(1, SIZE + 1)}
        voters = "controller.quorum.voters=" + ",".join(f"{it}@{address}" for it, address in addresses.items())
        self.nodes = {
            it: LocalNode(it, folder / f"node{it}", address, (*settings, f"node.id={it}", voters), environment)
            for it, address in addresses.items()
        }

    def __getitem__(self, number: int) -> LocalNode:
        return self.nodes[number]

    def __enter__(self) -> Self:
        try:
            # All at once: one alone has no majority, and is not ready.
            self.repair()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process at once: nobody will ask for the data again."""
        for node in self.nodes.values():
            node.kill()
        self._reserved.close()

    def repair(self) -> None:
        """Whatever was done to nodes, it is over."""
        for node in self.nodes.values():
            node.resume()
            if not node.is_alive():
                node.begin()
        for node in self.nodes.values():
            node.await_ready()

    # Who they are

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(node.address for node in self.nodes.values())

    def living(self) -> list[int]:
        """The nodes whose processes run, paused or not."""
        return [number for number, node in self.nodes.items() if node.is_alive()]

    def asked_at(self, number: int) -> str:
        """Where a node is asked."""
        return self.nodes[number].address

    def others(self, number: int) -> list[int]:
        """All nodes but one."""
        return [it for it in self.nodes if it != number]

    # What they hold

    def create(self, topic: str, replicas: Sequence[Sequence[int]], **config: object) -> str:
        """Creates a topic whose replicas are said; waits until every node that is alive has heard of it."""
        named = {name.replace("_", "."): str(value).lower() for name, value in config.items()}
        with Client(self.bootstrap) as client:
            create_topics(client, [NewTopic(topic, configs=named, assignments=dict(enumerate(replicas)))])
        until(lambda: all(self.state(topic, at=it) for it in self.living()), f"all know {topic}")
        return topic

    def lead_as_preferred(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Gives each partition to its first replica; waits until all are in sync, and all nodes know the leader."""
        for partition, members in enumerate(replicas):
            self.await_isr(topic, *members, partition=partition)
        partitions = [TopicPartition(topic, it) for it in range(len(replicas))]
        until(lambda: self._is_elected(partitions), f"the preferred replicas of {topic} are elected")
        for partition, members in enumerate(replicas):
            until(
                lambda p=partition, first=members[0]: all(  # type: ignore[misc]
                    (state := self.state(topic, p, at=it)) and state.leader == first for it in self.living()
                ),
                f"node {members[0]} leads {topic}-{partition}",
            )

    def _is_elected(self, partitions: Sequence[TopicPartition]) -> bool:
        # Somebody may be taken for dead a moment longer than it is: then the next attempt succeeds.
        with contextlib.suppress(ClientError), Client(self.bootstrap) as client:
            elect_leaders(client, partitions)
            return True
        return False
