"""A machine with one process and one disk. It is killed, loses power, and is started again. A pure module.

A node of a world is a `Host`. `open` runs when its process starts, `close` at a clean shutdown, and `after_run` after
each of its actions. The faults of `cluster` act on hosts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from minibroker.simulation.disk import Disk
from minibroker.simulation.links import Link
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action, Timer
from minibroker.simulation.trace import BAND

if TYPE_CHECKING:
    from minibroker.simulation.cluster import ClusterWorld

DEATH = "death in mid-write"
"""The state of a run in which a process died between two changes of its disk."""
DISK_FULL = "node ended by a full disk"
DISK_FAILED = "node ended by a failed disk"
DISK_UNREADABLE = "node ended by an unreadable disk"


class _Waiting(NamedTuple):
    """A request that waits: `attempt` tries to answer it and returns whether it did."""

    attempt: Callable[[], bool]
    timer: Timer


class Host(ABC):
    """A machine of a world. Its node runs in the machine's process, and keeps its data on the machine's disk."""

    disk: Disk

    def __init__(self, world: "ClusterWorld", node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.chance = world.chance(self.name)
        self.process = Process(world.scheduler, world.trace, self.name, on_died=self.on_died)
        self.process.after_run = self.after_run
        self.links: list[Link] = []
        """The connections of clients."""
        self.dies_by_power_cut = False
        """Whether a death in the middle of a write is a power cut of the machine, or only a kill of the process."""
        self.restart_ms = 500
        """How long the process is down after a death in the middle of a write."""
        self.is_off = False
        """Whether the machine is switched off, so that nothing can start its process."""
        self._waiting: list[_Waiting] = []
        self.new_disk()

    def new_disk(self) -> None:
        """Get an empty disk."""
        self.disk = Disk(self.world.chance(f"disk {self.node_id}"))

    # What a node implements -------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> None:
        """Read the disk, and start the node."""

    @abstractmethod
    def close(self) -> None:
        """Write the data that a clean shutdown leaves on the disk."""

    @abstractmethod
    def after_run(self) -> None:
        """Send messages, and check the node's new state. This runs after each action of the node."""

    @abstractmethod
    def forget_epoch(self) -> None:
        """Forget the broker epoch that is kept for the next start: it would prove that the disk has lost nothing."""

    @abstractmethod
    def flush(self) -> None:
        """Flush the disk, unless the process is dead. A disk that fails is noticed now at the latest."""

    # Starts and ends --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, unless it is running."""
        if not self.process.is_alive and not self.is_off:
            self.process.start()
            self.process.run(self.open)

    def stop(self) -> None:
        """A clean shutdown."""
        if self.process.is_alive and not self.process.is_paused:
            self.process.run(self.close)
            if self.process.is_alive:
                self.end("clean shutdown")
                self.leave_pages()

    def kill(self) -> None:
        """Kill the process, as kill -9 does: written data stays in the page cache."""
        if self.process.is_alive:
            self.end("")
            self.leave_pages()

    def leave_pages(self) -> None:
        """The process has ended, and its pages stay in the page cache."""
        self.disk.kill()

    def cut_power(self) -> None:
        """The machine loses power: unflushed data may be lost."""
        if self.process.is_alive:
            self.end("power cut")
        self.disk.cut_power()

    def on_died(self) -> None:
        """The process died in the middle of a write; it is started again later."""
        self.world.states.reach(DEATH)
        if self.dies_by_power_cut and self.world.may_cut_power(self):
            self.cut_power()
        else:
            self.kill()
        self.world.scheduler.after(self.restart_ms, self.start)

    def end(self, how: str) -> None:
        """End the process; only the disk remains."""
        self.process.kill(how)
        self.hang_up()
        self.world.trace.happened(self.name, BAND, "")

    def hang_up(self) -> None:
        """Clients lose their connections, and waiting requests are never answered."""
        for link in self.links:
            link.break_off()
        self.links.clear()
        for waiting in self._waiting:
            waiting.timer.cancel()
        self._waiting = []

    # Time -------------------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, action: Action) -> None:
        """Run an action after about `delay_ms`, unless the process dies before that."""
        self.process.after(delay_ms // 2 + int(self.chance.random() * delay_ms), action)

    def wait(self, attempt: Callable[[], bool], timeout_ms: int, expire: Callable[[], object]) -> None:
        """Let a request wait until `attempt` has answered it, or until its timeout."""

        def on_timeout() -> None:
            # After a pause the timers of a process run late: the request may have been answered already.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                expire()

        waiting = _Waiting(attempt, self.process.after(timeout_ms, on_timeout))
        self._waiting.append(waiting)

    def try_waiting(self) -> None:
        """Try once to answer every request that waits."""
        waiting, self._waiting = self._waiting, []
        for it in waiting:
            if it.attempt():
                it.timer.cancel()
            else:
                self._waiting.append(it)
