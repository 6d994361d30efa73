"""The authority that the handlers of one node use: its own controller, or the active controller on another node."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from minibroker.controller.deciding import Controller
from minibroker.metadata.authority import Listener, Proposal
from minibroker.metadata.broker_commands import AllocateProducerIds
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.peers import Peers
from minibroker.replicas.producer_ids import ProducerIdCalls

R = TypeVar("R")


class ClusterAuthority:
    """Chapter 03's `Authority`. It gets blocks of producer ids from the active controller, on whichever node that is.

    Every other request for the controller is forwarded as a whole, before it gets here.
    """

    def __init__(
        self, controller: Controller, peers: Peers, me: Incarnation, done: Callable[[Proposal[Any]], None]
    ) -> None:
        self._controller = controller
        self._producer_ids = ProducerIdCalls(peers, me, controller_id=lambda: controller.raft.leader_id, on_done=done)

    @property
    def image(self) -> Image:
        """The newest committed image that this node knows."""
        return self._controller.image

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._controller.is_active

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Run a command on this node. A request for producer ids goes to the active controller."""
        if isinstance(command, AllocateProducerIds) and not self.is_active:
            proposal: Proposal[R] = Proposal()
            self._producer_ids.begin(proposal)  # type: ignore[arg-type]
            return proposal
        return self._controller.propose(command)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._controller.subscribe(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The ids of topics whose deletion is in the log. A second call returns none."""
        return self._controller.removed_topics()
