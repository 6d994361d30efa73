"""Bugs that transactions could have, each as a patch; and the seed of `transactions_world` that finds it.

    python -m transactions_bugs [PART OF A NAME…]

looks for every bug anew, in 500 seeds at most, and prints the table. PYTHONPATH must name the tests of chapters 04 and
06.
"""

import sys
from functools import partial
from random import Random
from typing import Any

from simulation_planted import Bug, Patch, print_table
from transactions_clients import VERSION_1
from transactions_world import World

from minibroker.coordinators import txn_commits
from minibroker.coordinators.marker_sending import MarkerSender
from minibroker.groups.offsets import CommittedOffsets
from minibroker.groups.pending import Place, Producer
from minibroker.groups.shard import GroupShard
from minibroker.metadata.names import TRANSACTION_STATE_TOPIC
from minibroker.partitions.producers import ProducerState
from minibroker.transactions import markers
from minibroker.transactions.guards import Guards
from minibroker.transactions.markers import Marker
from minibroker.transactions.state import TransactionLog


def _moves_always(self: GroupShard, producer: Producer, *, is_commit: bool) -> None:
    """The offsets of an aborted transaction count."""
    del is_commit
    _APPLY_MARKER(self, producer, is_commit=True)


_APPLY_MARKER = GroupShard.apply_marker


def _puts_always(self: CommittedOffsets, place: Place, stored: bytes) -> None:
    """A pending offset replaces one that a later record has committed."""
    self._put(*place, stored)


def _ignores_decided(self: TransactionLog, high_watermark: int) -> int:
    """A transaction counts as decided as soon as its marker is in the leader's log."""
    self._decided.clear()
    return _LAST_STABLE_OFFSET(self, high_watermark)


_LAST_STABLE_OFFSET = TransactionLog.last_stable_offset


def _drops_leaderless(self: MarkerSender, due: Any) -> int | None:
    """The marker of a partition without a leader counts as written, as in Kafka 4.3 (KAFKA-20734)."""
    node_id = _LEADER_OF(self, due)
    if node_id is None:
        self._on_marked(due.coordinator, due.order.transactional_id, [due.name])
        return -1
    return node_id


_LEADER_OF = MarkerSender._leader_of


def _any_coordinator(marker: Marker, state: ProducerState) -> None:
    """A marker of a coordinator that was replaced is accepted."""
    _CHECK_MARKER(marker._replace(coordinator_epoch=max(marker.coordinator_epoch, state.coordinator_epoch)), state)


_CHECK_MARKER = markers.check_marker


class MovingCoordinators(World):
    """Only transaction coordinators move, again and again, while their markers are late: a window that is rare."""

    KINDS = ()
    DISASTERS = ()
    VERSIONS = (VERSION_1,)
    DELAYS_S = ((0, 0, 0.3, 0.7),)

    def build(self) -> None:
        super().build()
        self.pauses_s = (0.01, 0.1)
        self.scheduler.after(500, self._move)

    def _move(self) -> None:
        chance = self.chance(f"move at {self.scheduler.now_ms}")
        if self.scheduler.now_ms < self.STORM_MS:
            self.scheduler.after(chance.choice((200, 500)), self._move)
        for name in [it for it in self.names if it.topic == TRANSACTION_STATE_TOPIC]:
            self.authority.process.run(partial(self.authority.elect_for, [name], [chance.choice((1, 2, 3))]))


def _ends_nothing(self: Guards, producer_id: int, epoch: int) -> None:
    """A guard outlives the marker of its transaction."""


class LateAnswers(World):
    """Coordinators confirm a transaction late, and hasty producers have aborted it by then: a window that is rare."""

    KINDS = ()
    DISASTERS = ()
    VERSIONS = (VERSION_1,)

    def draw_delay(self, line: str, chance: Random) -> tuple[float, bool]:
        return (chance.choice((0.3, 0.6)), True) if line == "verification" else (0, False)


def _bug(name: str, *patches: Patch, seed: int, invariant: int, world: type[World] = World) -> Bug:
    return Bug.in_world(world, name, *patches, seed=seed, invariant=invariant)


BUGS = (
    _bug("offsets of aborted transactions count", (GroupShard, "apply_marker", _moves_always), seed=1, invariant=8),
    _bug(
        "an older record wins over a later offset",
        (CommittedOffsets, "apply_pending", _puts_always),
        seed=1,
        invariant=8,
    ),
    _bug(
        "the stable offset passes a marker that is not replicated",
        (TransactionLog, "last_stable_offset", _ignores_decided),
        seed=1,
        invariant=26,
    ),
    _bug(
        "the marker of a partition without a leader is dropped",
        (MarkerSender, "_leader_of", _drops_leaderless),
        seed=5,
        invariant=25,
    ),
    _bug(
        "the epoch of the coordinator is not checked",
        (markers, "check_marker", _any_coordinator),
        (txn_commits, "check_marker", _any_coordinator),
        seed=1,
        invariant=25,
        world=MovingCoordinators,
    ),
    _bug("a guard outlives an abort", (Guards, "on_marker", _ends_nothing), seed=1, invariant=25, world=LateAnswers),
)


if __name__ == "__main__":
    print_table(BUGS, sys.argv[1:])
