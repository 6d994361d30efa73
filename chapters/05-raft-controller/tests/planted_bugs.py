"""Bugs that a quorum or a controller could have, each as a patch of the code, and what finds it.

    PYTHONPATH=chapters/04-replication-isr/tests:chapters/05-raft-controller/tests python -m planted_bugs [NAME…]

looks for every bug anew, in 500 seeds at most, and prints the table. The cores carry no switch: what is wrong is wrong
only here.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import controller_world
import raft_world
from raft_cluster import QuorumNode
from raft_stage import Stage

from minibroker.controller import lifecycle, moving
from minibroker.metadata.image import NO_LEADER
from minibroker.raft.election import NOBODY, Ballot, Election
from minibroker.raft.messages import Send, SnapshotId
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.replication import authority
from minibroker.replication.leader import Leadership
from minibroker.simulation.world import Outcome

SEEDS_MAX = 500
Patch = tuple[Any, str, Any]


# What is wrong --------------------------------------------------------------------------------------------------------


def _write_in_memory(self: Ballot, election: Election) -> None:
    self.election = election


def _same_directory(self: QuorumNode) -> None:
    key = getattr(self, "key", None)
    _NEW_DISK(self)
    self.key = key or self.key


_NEW_DISK = QuorumNode._new_disk


def _advance_without_epoch(self: Raft) -> None:
    _advance(self, self.log.flushed_offset, 0)


def _advance_before_flush(self: Raft) -> None:
    _advance(self, self.log.log_end_offset, self.epoch_start_offset)


def _advance(raft: Raft, own_end: int, epoch_start_offset: int) -> None:
    ends = [raft._progress(raft.voters.key_of(it)).end_offset for it in raft._others()]
    ends += [own_end] if raft.is_voter else []
    agreed = sorted(ends, reverse=True)[raft.voters.majority - 1]
    if agreed > epoch_start_offset and agreed > raft.high_watermark:
        raft.high_watermark = agreed


def _write_without_flush(self: Raft, batch: bytearray) -> int:
    return self.log.append(batch, leader_epoch=self.epoch)


def _stand_at_once(self: Raft, now_ms: int) -> list[Send]:
    _CANVASS(self, now_ms)
    return self._stand(now_ms)


_CANVASS = Raft._canvass


def _lead_on_alone(self: Raft, now_ms: int) -> list[Send]:
    self._announce_ms = now_ms + self.settings.election_timeout_ms
    return []


def _forget_all(self: Raft, snapshot: SnapshotId) -> None:
    self.log.roll()
    self.log.delete_before(self.log.log_end_offset)


def _is_leader(raft: Raft) -> bool:
    return raft.is_leader


def _target_among_voters(self: Raft) -> int:
    leader_id = self._ballot.election.leader_id
    if self.role is Role.FOLLOWER and (self.is_voter or self._asked == 0):
        return leader_id
    others = self._others()
    return others[self._asked % len(others)] if others else NOBODY


def _change_as_if_whole(self: lifecycle.RegisterFenced, *arguments: Any, has_all: bool) -> Any:
    return _CHANGE(self, *arguments, has_all=True)


_CHANGE = lifecycle.RegisterFenced._change


def _nothing(*_arguments: object) -> None:
    pass


def _without_but_the_last(topic: Any, number: int, partition: Any, *, gone: int, live: Any) -> Any:
    change = _WITHOUT(topic, number, partition, gone=gone, live=live)
    if change is not None and change.leader == NO_LEADER:
        change.leader = gone
    return change


_WITHOUT = lifecycle.without


def _as_it_is(change: Any, _partition: Any) -> Any:
    return change


def _never(*_arguments: object, **_named: object) -> bool:
    return False


def _always(*_arguments: object, **_named: object) -> bool:
    return True


# The bugs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """A bug: what it patches, and the world and a seed in which it is found; or the scenario that shows it."""

    name: str
    patches: tuple[Patch, ...]
    world: Any = None
    seed: int = 0
    scenario: str = ""

    def planted(self) -> ExitStack:
        """The code with the bug in it."""
        stack = ExitStack()
        for target, attribute, value in self.patches:
            stack.enter_context(patch.object(target, attribute, value))
        return stack

    def run(self, seed: int) -> Outcome:
        """A seed, with the bug."""
        with self.planted():
            outcome: Outcome = self.world(seed).run()
            return outcome

    def play(self) -> tuple[str, str]:
        """The scenario without the bug, and with it."""
        text = (Path(__file__).parent / "scenarios" / f"{self.scenario}.txt").read_text()
        with self.planted():
            try:
                return text, Stage().play(text)
            except AssertionError as error:
                return text, str(error)


BUGS = (
    Bug("a vote is not on the disk", ((Ballot, "write", _write_in_memory),), raft_world.World, 3),
    Bug("a lost disk keeps its voter's key", ((QuorumNode, "_new_disk", _same_directory),), raft_world.World, 6),
    Bug("old epochs are decided by counting", ((Raft, "_advance", _advance_without_epoch),), scenario="raft-figure-8"),
    Bug(
        "a leader counts itself before its flush",
        ((Raft, "_advance", _advance_before_flush), (Raft, "_write", _write_without_flush)),
        raft_world.World,
        4,
    ),
    Bug("no pre-vote", ((Raft, "_canvass", _stand_at_once),), scenario="raft-disruptive-node"),
    Bug("a vote for who has less of the log", ((Raft, "_is_up_to_date", _always),), raft_world.World, 1),
    Bug("a leader that is left alone leads on", ((Raft, "_lead_on", _lead_on_alone),), raft_world.World, 1),
    Bug(
        "two changes of voters at once",
        ((Raft, "_is_settled", property(_is_leader)),),
        scenario="raft-one-change-at-a-time",
    ),
    Bug("the log forgets what is not decided", ((Raft, "forget_before", _forget_all),), raft_world.World, 2),
    Bug("only voters are taken for the leader", ((Raft, "target", _target_among_voters),), raft_world.World, 189),
    Bug("a stale leader's order is accepted", ((authority, "_check_epochs", _nothing),), controller_world.World, 96),
    Bug(
        "an old incarnation is heard",
        ((Leadership, "is_stale", _never), (lifecycle.RegisterFenced, "_change", _change_as_if_whole)),
        controller_world.World,
        19,
    ),
    Bug("a replica that went is believed", ((moving, "_led_anew", _as_it_is),), controller_world.World, 72),
    Bug("a fenced broker is elected", ((lifecycle, "without", _without_but_the_last),), controller_world.World, 10),
)


def search(bug: Bug) -> tuple[int, str]:
    """The first seed that finds a bug, and how."""
    for seed in range(1, SEEDS_MAX + 1):
        violation = bug.run(seed).violation
        if violation is not None:
            return seed, violation
    return 0, "not found"


def main(names: list[str]) -> None:
    for bug in BUGS:
        if names and not any(name in bug.name for name in names):
            continue
        if bug.scenario:
            found, how = bug.scenario, "the transcript differs" if len(set(bug.play())) > 1 else "not found"
        else:
            seed, how = search(bug)
            found = f"{bug.world.__module__} {seed}"
        print(f"{bug.name:<48} {found:<24} {how[:150]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
