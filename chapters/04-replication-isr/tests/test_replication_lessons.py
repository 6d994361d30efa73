"""The lessons of this chapter agree with the code: the diagram of a replica's roles shows what decisions do to them."""

import re
from collections.abc import Callable
from pathlib import Path

from replication_nodes import ReplicaNode

from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker.replication.replica import Replica

LESSON = Path(__file__).parents[1] / "lessons/06-a-deposed-leader.md"
THIS, OTHER = 1, 2


def elect(replica: Replica, leader: int) -> None:
    """The controller has elected a leader, in a newer epoch."""
    epoch = replica.partition_epoch + 1
    replica.on_partition(PartitionImage((THIS, OTHER), (THIS, OTHER), leader, epoch, epoch), {}, 0)


DECISIONS: dict[str, list[Callable[[Replica], None]]] = {
    "elected": [lambda it: elect(it, THIS)],
    "not elected": [lambda it: elect(it, OTHER), lambda it: elect(it, NO_LEADER)],
    "removed": [Replica.retire],
}
INTO: dict[str, Callable[[Replica], None]] = {
    "neither": lambda _replica: None,
    "leader": lambda it: elect(it, THIS),
    "follower": lambda it: elect(it, OTHER),
}


def role_of(replica: Replica) -> str:
    assert replica.leading is None or replica.following is None
    return "leader" if replica.leading is not None else "follower" if replica.following is not None else "neither"


def role_after(role: str, decision: Callable[[Replica], None]) -> str:
    replica = ReplicaNode(THIS, TopicConfig({})).replica
    INTO[role](replica)
    assert role_of(replica) == role
    decision(replica)
    return role_of(replica)


def test_the_lesson_draws_what_every_decision_does_in_every_role() -> None:
    """A replica that neither leads nor follows and is removed stays what it is; that arrow is left out."""
    arrows = [
        f"    {role} --> {role_after(role, decision)}: {name}"
        for role in INTO
        for name, decisions in DECISIONS.items()
        for decision in decisions
        if (role, name) != ("neither", "removed")
    ]
    (drawn,) = re.findall(r"^```mermaid\n(stateDiagram.*?)\n```$", LESSON.read_text(), re.MULTILINE | re.DOTALL)
    assert drawn.split("\n") == ["stateDiagram-v2", "    [*] --> neither", *dict.fromkeys(arrows)]
