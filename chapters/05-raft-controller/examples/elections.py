"""Two elections that go wrong, and how nodes of this chapter prevent it: real nodes in memory, with their own clock.

    python chapters/05-raft-controller/examples/elections.py forgotten-vote
    python chapters/05-raft-controller/examples/elections.py cut-off

Each is played twice, first without the rule that prevents it: a vote is written to the disk, or a node asks for
pre-votes before it begins an epoch.
"""

import sys
from collections.abc import Callable

from minibroker.log.memory import MemoryFiles
from minibroker.raft.election import Ballot, Election
from minibroker.raft.messages import BeginQuorumEpoch, Send, Vote
from minibroker.raft.node import Raft
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.segments.segmented import SegmentedLog

VOTERS = VoterSet.of(Voter(VoterKey(it, bytes([it] * 16))) for it in (1, 2, 3))
LOG = "__cluster_metadata-0"


class Forgetful(Ballot):
    """A vote that is kept in memory."""

    def write(self, election: Election) -> None:
        """Remember the vote until the process ends."""
        self.election = election


class Hasty(Raft):
    """A node that begins an epoch whenever its timeout passes."""

    def _start_pre_vote(self, now_ms: int) -> list[Send]:
        super()._start_pre_vote(now_ms)
        return self._start_election(now_ms)


def start(number: int, files: MemoryFiles, *, ballot: type[Ballot] = Ballot, kind: type[Raft] = Raft) -> Raft:
    """Start a node, or start it again, with what its disk has."""
    epochs = EpochCache(files, LOG)
    log = SegmentedLog.open(files, LOG, companions=[epochs])
    key = VOTERS.key_of(number)
    return kind(key, log, epochs, ballot(files, LOG), VOTERS, chance=lambda below: below // 2, now_ms=0)


def asked(sends: list[Send], number: int) -> Vote:
    """The question for one voter."""
    return next(it.message for it in sends if it.node_id == number and isinstance(it.message, Vote))


def stand(raft: Raft, helper: Raft) -> Vote:
    """Let a node win its pre-votes with the help of another one. Return its question for node 2's vote."""
    sends = raft.tick(raft.next_deadline_ms)
    question = asked(sends, helper.me.node_id)
    return asked(raft.on_voted(helper.me.node_id, question, helper.on_vote(question, 0), 1), 2)


def forgotten_vote(ballot: type[Ballot]) -> None:
    """Node 2 votes for node 1, loses its power, and is asked by node 3 in the same epoch."""
    disk = MemoryFiles()
    one, two, three = (start(it, disk if it == 2 else MemoryFiles(), ballot=ballot) for it in (1, 2, 3))
    # Both candidates have their pre-votes, and begin the same epoch.
    first, second = stand(one, two), stand(three, two)
    late = two.on_vote(first, 0)
    print(f"  node 1 asks node 2 in epoch {first.epoch}: {yes(late.is_granted)}; the answer is late")
    disk.crash()
    two = start(2, disk, ballot=ballot)
    print("  node 2 loses its power, and is started again")
    voted = two.on_vote(second, 0)
    print(f"  node 3 asks node 2 in epoch {second.epoch}: {yes(voted.is_granted)}")
    one.on_voted(2, first, late, 2)
    three.on_voted(2, second, voted, 2)
    leaders = [it.me.node_id for it in (one, three) if it.is_leader]
    print(f"  the late answer arrives: epoch {first.epoch} is led by {' and '.join(f'node {it}' for it in leaders)}")


def cut_off(kind: type[Raft]) -> None:
    """Node 3 is cut off for a minute, and comes back."""
    one, two, three = (start(it, MemoryFiles(), kind=kind) for it in (1, 2, 3))
    others = {2: two, 3: three}
    deliver(one, one.tick(one.next_deadline_ms), others)
    now_ms, attempts = 1000, 0
    while now_ms < 61_000:
        now_ms = max(now_ms, three.next_deadline_ms)
        attempts += bool(three.tick(now_ms))
        now_ms += 1
    follow(two, one, now_ms)
    did = "asked for pre-votes" if kind is Raft else "stood for election"
    print(f"  node 3 {did} {attempts} times in a minute, and comes back in epoch {three.epoch}")
    answer = one.on_vote(Vote(three.epoch, three.me, one.me, three.last_epoch, 0, is_pre_vote=kind is Raft), now_ms)
    print(f"  it asks node 1, which has led all the time: {yes(answer.is_granted)}")
    print(f"  node 1 {'still leads' if one.is_leader else 'leads no more'}, in epoch {one.epoch}")


def deliver(raft: Raft, sends: list[Send], others: dict[int, Raft]) -> None:
    """Carry the messages of an election until none is left."""
    for number, message in sends:
        if isinstance(message, Vote):
            deliver(raft, raft.on_voted(number, message, others[number].on_vote(message, 600), 600), others)
        elif isinstance(message, BeginQuorumEpoch):
            others[number].on_begin(message, 600)


def follow(follower: Raft, leader: Raft, now_ms: int) -> None:
    """Let a follower fetch once."""
    position = follower.position()
    assert position is not None
    follower.on_fetched(position, leader.on_fetch(position, now_ms), now_ms)


def yes(is_granted: bool) -> str:
    """An answer in words."""
    return "yes" if is_granted else "no"


def main(which: str) -> None:
    """Show one of the two, without the rule and with it."""
    plays: dict[str, list[tuple[str, Callable[[], None]]]] = {
        "forgotten-vote": [
            ("a vote in memory:", lambda: forgotten_vote(Forgetful)),
            ("a vote on the disk:", lambda: forgotten_vote(Ballot)),
        ],
        "cut-off": [("without pre-votes:", lambda: cut_off(Hasty)), ("with pre-votes:", lambda: cut_off(Raft))],
    }
    for title, play in plays[which]:
        print(title)
        play()


if __name__ == "__main__":
    main(sys.argv[1])
