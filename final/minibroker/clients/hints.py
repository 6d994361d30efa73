"""The new leader that a response of a former leader names (KIP-951). A pure module."""

from collections.abc import Iterable
from typing import Protocol

from minibroker.clients.routing import LeaderHint, Node


class Endpoint(Protocol):
    """A node in a Produce or a Fetch response. The two responses have different classes with these fields."""

    node_id: int
    host: str
    port: int
    rack: str | None


class CurrentLeader(Protocol):
    """A leader as Produce and Fetch responses name it."""

    leader_id: int
    leader_epoch: int


def nodes_of(endpoints: Iterable[Endpoint]) -> list[Node]:
    """The nodes that a response names, with their addresses."""
    return [Node(it.node_id, it.host, it.port, it.rack) for it in endpoints]


def hint_of(current: CurrentLeader | None) -> LeaderHint | None:
    """The leader that a response names, if it names one."""
    return LeaderHint(current.leader_id, current.leader_epoch) if current and current.leader_id >= 0 else None
