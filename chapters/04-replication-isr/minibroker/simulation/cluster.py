"""A world of several nodes: faults of machines and links, healing, and the wait until the cluster has recovered.

A pure module. A chapter's world adds the nodes and the clients in `build`, and checks in `wait_for_recovery` and
`finish` that the cluster has recovered and lost nothing. A method `on_lose_disk` causes the fault of kind "lose disk".

    class World(ClusterWorld):
        STATES = ("truncation", DEATH)
        KINDS = (KILL, PAUSE, CUT, Kind("lose disk", any_node, (50, 3000)))
        def hosts(self) -> …
        def build(self) -> None: …
        def on_lose_disk(self, fault) -> …
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.host import Host
from minibroker.simulation.scheduler import Action
from minibroker.simulation.world import World

ANY = 1_000_000
"""A fault has a random number below this instead of a node. The number, modulo the count of nodes, selects the node."""


# Kinds of faults of any cluster ---------------------------------------------------------------------------------------


def any_node(chance: Random) -> tuple[int]:
    """Draw a node."""
    return (chance.randrange(ANY),)


def any_link(chance: Random) -> tuple[int, int, int]:
    """Draw two nodes, and whether both directions are hit."""
    return (chance.randrange(ANY), chance.randrange(ANY), chance.randrange(2))


def die_in_mid_write(*, changes_max: int, weight: float) -> Kind:
    """The fault that a process is killed, or its machine loses power, after a few more changes of its disk."""
    return Kind(
        "die in mid-write",
        lambda chance: (*any_node(chance), chance.randrange(changes_max), chance.randrange(2)),
        (50, 3000),
        weight,
    )


KILL = Kind("kill", any_node, (50, 4000), 2)
POWER_CUT = Kind("power cut", any_node, (50, 4000), 2)
RESTART = Kind("restart", any_node, (20, 1000))
PAUSE = Kind("pause", any_node, (100, 5000), 2)
CUT = Kind("cut", any_link, (100, 5000), 2)
ISOLATE = Kind("isolate", any_node, (500, 5000), 2)
SLOW = Kind("slow", lambda chance: (*any_link(chance), chance.choice((50, 300, 1500))), (500, 5000))


class ClusterWorld(World):
    """Several nodes: first faults, then healing, then a wait until the cluster has recovered, then the last checks."""

    def play(self) -> None:
        """Play all phases."""
        self.build()
        storm = self.storm()
        self.scheduler.run(self.STORM_MS)
        storm.heal()
        self.heal()
        self.wait_for_recovery()
        self.finish()

    # What a chapter implements ----------------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> None:
        """Set up nodes and clients."""

    @abstractmethod
    def hosts(self) -> Mapping[int, Host]:
        """The machines by the ids of their nodes, which count from 1."""

    @abstractmethod
    def wait_for_recovery(self) -> None:
        """Run until the cluster has recovered, with `run_until`."""

    @abstractmethod
    def finish(self) -> None:
        """Check everything once more at the end."""

    def parties(self) -> list[str]:
        """The names of all processes that send messages to each other, without the clients."""
        return [host.name for host in self.hosts().values()]

    def host_hit(self, fault: Fault) -> Host:
        """The machine that a fault hits."""
        hosts = self.hosts()
        return hosts[1 + int(fault.arguments[0]) % len(hosts)]

    def may_cut_power(self, _host: Host) -> bool:
        """Whether this machine may lose power now without losing acknowledged records."""
        return True

    # Faults -----------------------------------------------------------------------------------------------------------

    def causes(self) -> Mapping[str, Cause]:
        """The method of each kind: `on_power_cut` for "power cut"."""
        return {it.name: getattr(self, "on_" + it.name.replace(" ", "_").replace("-", "_")) for it in self.KINDS}

    def on_kill(self, fault: Fault) -> Action:
        """A process is killed."""
        host = self.host_hit(fault)
        host.kill()
        return host.start

    def on_power_cut(self, fault: Fault) -> Action | None:
        """A machine loses power."""
        host = self.host_hit(fault)
        if not self.may_cut_power(host):
            return None
        host.cut_power()
        return host.start

    def on_die_in_mid_write(self, fault: Fault) -> Action:
        """A process dies between two changes of its disk."""
        host = self.host_hit(fault)
        _node, changes, is_power_cut = map(int, fault.arguments)
        host.dies_by_power_cut = bool(is_power_cut)
        host.restart_ms = fault.duration_ms
        host.disk.die_after(changes)
        return partial(host.disk.die_after, None)

    def on_restart(self, fault: Fault) -> Action:
        """A node is shut down cleanly and started again."""
        host = self.host_hit(fault)
        host.stop()
        return host.start

    def on_pause(self, fault: Fault) -> Action:
        """A process is paused."""
        process = self.host_hit(fault).process
        process.pause()
        return process.resume

    def _ends(self, fault: Fault) -> list[tuple[str, str]]:
        """The directions of a link that a fault hits: one or both."""
        first, second, is_both = map(int, fault.arguments[:3])
        names = self.parties()
        source = names.pop(first % len(names))
        target = names[second % len(names)]
        return [(source, target), (target, source)] if is_both else [(source, target)]

    def on_cut(self, fault: Fault) -> Action:
        """A link loses all messages."""
        return partial(_do_all, [self.network.cut(*ends) for ends in self._ends(fault)])

    def on_isolate(self, fault: Fault) -> Action:
        """A machine is cut off from all others."""
        name = self.host_hit(fault).name
        pairs = [pair for it in self.parties() if it != name for pair in ((name, it), (it, name))]
        return partial(_do_all, [self.network.cut(*pair) for pair in pairs])

    def on_slow(self, fault: Fault) -> Action:
        """A link delays its messages."""
        delay_ms = int(fault.arguments[3])
        return partial(_do_all, [self.network.slow(*ends, delay_ms) for ends in self._ends(fault)])

    # The end ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Start every node, and end all faults."""
        self.network.become_calm()
        for host in self.hosts().values():
            host.process.resume()
            host.disk.die_after(None)
            host.start()

    def run_until(self, missing: Callable[[], str], *, limit_ms: int, step_ms: int = 250) -> None:
        """Let time pass until `missing` returns an empty text. Until then it says what has not recovered yet."""
        while what := missing():
            if self.scheduler.now_ms > limit_ms:
                raise Violation(LIVENESS, what)
            self.scheduler.run(self.scheduler.now_ms + step_ms)


def _do_all(actions: Sequence[Action]) -> None:
    for action in actions:
        action()
