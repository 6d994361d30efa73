"""Whoever decides, as the handlers of one node see it: this node while it leads the quorum, another one otherwise."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from minibroker.controller.deciding import Controller
from minibroker.metadata.authority import Listener, Proposal
from minibroker.metadata.broker_commands import AllocateProducerIds
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image
from minibroker.replicas.fetching import Self
from minibroker.replicas.peers import Peers
from minibroker.replicas.producer_ids import ProducerIdCalls

R = TypeVar("R")


class ClusterAuthority:
    """Chapter 03's port. What must be asked of another node is: blocks of producer ids; the rest is forwarded whole."""

    def __init__(self, controller: Controller, peers: Peers, me: Self, done: Callable[[Proposal[Any]], None]) -> None:
        self._controller = controller
        self._producer_ids = ProducerIdCalls(peers, me, controller_id=lambda: controller.raft.leader_id, on_done=done)

    @property
    def image(self) -> Image:
        """The newest image of which this node knows that it is decided."""
        return self._controller.image

    @property
    def is_active(self) -> bool:
        """Whether this node decides."""
        return self._controller.is_active

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Decide here, or ask whoever decides."""
        if isinstance(command, AllocateProducerIds) and not self.is_active:
            proposal: Proposal[R] = Proposal()
            self._producer_ids.begin(proposal)  # type: ignore[arg-type]
            return proposal
        return self._controller.propose(command)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._controller.subscribe(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The topics of which the metadata say that they were deleted. To be asked once, at the start."""
        return self._controller.removed_topics()
