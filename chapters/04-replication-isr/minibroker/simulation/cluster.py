"""A world of several nodes: faults of machines and links, healing, and the wait until the cluster has recovered.

A pure module. A chapter's world adds the nodes and the clients in `build`, and checks in `wait_for_recovery` and
`finish` that the cluster has recovered and lost nothing. A method `on_lose_disk` causes the fault of kind "lose disk".
Faults hit single nodes and links (`KINDS`), or the whole cluster (`DISASTERS`). A fault of `TRIALS` hits the cluster
after it has healed: nothing else happens then, so the cluster must work again without an operator, and soon.

    class World(ClusterWorld):
        STATES = ("truncation", DEATH)
        KINDS = (KILL, PAUSE, CUT, Kind("lose disk", any_node, (50, 3000)))
        DISASTERS = (STOP_ALL, FULL_DISK)
        def hosts(self) -> …
        def build(self) -> None: …
        def on_lose_disk(self, fault) -> …
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import ClassVar

from minibroker.simulation.checker import LIVENESS, Violation
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.host import DISK_FAILED, DISK_FULL, DISK_UNREADABLE, Host
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

# Kinds of faults that hit the whole cluster.
STOP_ALL = Kind("stop all", lambda chance: (chance.randrange(2), *any_node(chance)), weight=2)
FULL_DISK = Kind(
    "full disk",
    lambda chance: (*any_node(chance), chance.choice((0, 300, 3000)), chance.randrange(2)),
    (300, 4000),
    2,
)
FAILING_DISK = Kind("failing disk", any_node, (0, 1500), 2)
LOSE_RACK = Kind("lose rack", lambda chance: (*any_node(chance), chance.randrange(2)), (300, 4000))
FORGE = Kind("forge", lambda chance: (*any_node(chance), *any_node(chance)), (100, 1500), 3)
COMEBACK = Kind("comeback", lambda chance: (chance.randrange(3), *any_node(chance)))

ALL_STOPPED = "all nodes stopped"
RACK_LOST = "rack lost"
COME_BACK = "cluster came back by itself"
DISASTER_STATES = (ALL_STOPPED, DISK_FULL, DISK_FAILED, DISK_UNREADABLE, RACK_LOST, COME_BACK)

COMEBACK_MS_MAX = 15_000
CALM_MS_MAX = 60_000
FULL_MS = 3_000


class ClusterWorld(World):
    """Several nodes: first faults, then healing, then a wait until the cluster has recovered, then the last checks."""

    TRIALS: ClassVar[tuple[Kind, ...]] = ()
    """Faults that hit the cluster after it has healed. One seed in four draws one, from a stream of its own."""
    is_operated = True
    """Whether the world's operator helps the cluster."""

    def draw_faults(self) -> list[Fault]:
        """Draw the faults of the storm, and perhaps a trial after it."""
        chance = self.chance("trial")
        trials = [chance.choice(self.TRIALS)] if self.TRIALS and chance.random() < 0.25 else []
        return [*super().draw_faults(), *(Fault(self.STORM_MS, it.name, it.draw(chance)) for it in trials)]

    def play(self) -> None:
        """Play all phases."""
        self.build()
        storm = self.storm()
        self.scheduler.run(self.STORM_MS)
        storm.heal()
        self.heal()
        for trial in (it for it in self.faults if it.at_ms >= self.STORM_MS):
            self.causes()[trial.kind](trial)
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
    def degraded(self) -> str:
        """What must still recover before a node may fail without harm; empty if nothing. Records may be under way."""

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

    def may_stay_away(self, _host: Host) -> bool:
        """Whether the cluster must work without this machine."""
        return True

    def shut_down(self, host: Host, then: Callable[[], object]) -> None:
        """Stop a node cleanly, as SIGTERM does; `then` runs when it has stopped."""
        host.stop()
        then()

    def doom(self, host: Host, is_doomed: bool) -> None:
        """Let the next flush of a machine's disk fail, or let flushes work again."""
        host.disk.fail_flushes(is_doomed)

    def rack(self, node_id: int) -> str:
        """The rack of a node. There are two or three racks."""
        return f"rack-{node_id % self.chance('racks').choice((2, 3))}"

    # Faults -----------------------------------------------------------------------------------------------------------

    def causes(self) -> Mapping[str, Cause]:
        """The method of each kind: `on_power_cut` for "power cut"."""
        names = [it.name for it in (*self.KINDS, *self.DISASTERS, *self.TRIALS)]
        return {name: getattr(self, "on_" + name.replace(" ", "_").replace("-", "_")) for name in names}

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
        return self._cut_off([self.host_hit(fault).name])

    def _cut_off(self, names: Sequence[str]) -> Action:
        others = [it for it in self.parties() if it not in names]
        pairs = [pair for name in names for it in others for pair in ((name, it), (it, name))]
        return partial(_do_all, [self.network.cut(*pair) for pair in pairs])

    def on_slow(self, fault: Fault) -> Action:
        """A link delays its messages."""
        delay_ms = int(fault.arguments[3])
        return partial(_do_all, [self.network.slow(*ends, delay_ms) for ends in self._ends(fault)])

    # Disasters --------------------------------------------------------------------------------------------------------

    def on_stop_all(self, fault: Fault) -> None:
        """All nodes stop at once, by SIGTERM or by kill -9. Each returns after a while, some much later."""
        is_clean, number = map(int, fault.arguments)
        chance = Random(number)
        self.states.reach(ALL_STOPPED)
        for host in self.hosts().values():
            start = partial(self.scheduler.after, chance.choice((50, 300, 1000, 6000)), host.start)
            self._stop(host, start, is_clean=bool(is_clean))

    def _stop(self, host: Host, then: Callable[[], object], *, is_clean: bool) -> None:
        if is_clean:
            self.shut_down(host, then)
        else:
            host.kill()
            then()

    def on_full_disk(self, fault: Fault) -> Action:
        """The disk of one node, or of all nodes, has little room left, until space is freed."""
        _node, room_bytes, is_all = map(int, fault.arguments)
        hosts = list(self.hosts().values()) if is_all else [self.host_hit(fault)]
        for host in hosts:
            host.disk.limit(room_bytes)
        return partial(_do_all, [it for host in hosts for it in (partial(host.disk.limit, None), host.start)])

    def on_failing_disk(self, fault: Fault) -> Action | None:
        """The next flush of a disk fails, or its next read; the node ends, and the machine gets a working disk."""
        host = self.host_hit(fault)
        if not self.may_cut_power(host) or not host.process.is_alive:
            return None
        # The low digits of the random number select the node, so this choice uses a higher digit.
        is_unreadable = int(fault.arguments[0]) // 1000 % 2 == 1
        host.disk.fail_reads(is_unreadable)
        self.doom(host, True)
        ends: list[Callable[[], None]] = [
            host.flush,
            partial(self.doom, host, False),
            partial(host.disk.fail_reads, False),
            host.start,
        ]
        return partial(_do_all, ends)

    def on_lose_rack(self, fault: Fault) -> Action:
        """All nodes of a rack are killed, or cut off from the others."""
        rack = self.rack(self.host_hit(fault).node_id)
        inside = [host for node_id, host in self.hosts().items() if self.rack(node_id) == rack]
        self.states.reach(RACK_LOST)
        if fault.arguments[1]:
            for host in inside:
                host.kill()
            return partial(_do_all, [host.start for host in inside])
        return self._cut_off([host.name for host in inside])

    def on_comeback(self, fault: Fault) -> None:
        """All nodes of a healthy cluster stop, and all but one return: the cluster must work without an operator.

        The nodes stop by SIGTERM, by kill -9, or because all disks are full. When they return, the disks have room.
        """
        how, number = map(int, fault.arguments)
        hosts = list(self.hosts().values())
        away = hosts[number % len(hosts)]
        self.run_until(self.degraded, limit_ms=self.scheduler.now_ms + CALM_MS_MAX)
        self.is_operated, away.is_off = False, self.may_stay_away(away)
        returning = [host for host in hosts if not host.is_off]
        for host in hosts:
            if how == 2:
                host.disk.limit(number % 1000)
            else:
                # A fault of the storm may start this node later. Until the return it must stay down.
                host.is_off = True
                self._stop(host, lambda: None, is_clean=how == 0)
        self.run_until(self._running if how == 0 else str, limit_ms=self.scheduler.now_ms + CALM_MS_MAX)
        self.scheduler.run(self.scheduler.now_ms + (FULL_MS if how == 2 else 500))
        acks = self.history.acks
        for host in hosts:
            host.kill()
            host.disk.limit(None)
            host.is_off = host not in returning
            host.start()
        self._wait_for_acks(acks)
        self.states.reach(COME_BACK)
        self.is_operated, away.is_off = True, False
        away.start()

    def _running(self) -> str:
        names = [host.name for host in self.hosts().values() if host.process.is_alive]
        return f"{names} do not stop" if names else ""

    def _wait_for_acks(self, acks: int) -> None:
        def unavailable() -> str:
            is_available = self.history.acks > acks
            return "" if is_available else f"nothing is acked {COMEBACK_MS_MAX} ms after the return: {self.degraded()}"

        self.run_until(unavailable, limit_ms=self.scheduler.now_ms + COMEBACK_MS_MAX)

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
