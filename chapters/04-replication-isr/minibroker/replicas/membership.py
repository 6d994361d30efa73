"""What any place in a cluster of several nodes has: peers, a way to the controller, and its own incarnation.

`OneController` and chapter 05's `QuorumMember` complete it to chapter 03's `ClusterPort`; `Hosted` works with either.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from minibroker.client.addresses import Address
from minibroker.metadata.authority import Proposal
from minibroker.partitions.access import Filter
from minibroker.partitions.administration import Administration
from minibroker.partitions.cluster import ClusterPort
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Call, Handler
from minibroker.replicas.configuring import BrokerConfigs
from minibroker.replicas.fetching import Self
from minibroker.replicas.forwarding import Forward, Wrap, as_it_came
from minibroker.replicas.peers import Peers, client_id_of, node_of
from minibroker.wire.codes import ErrorCode


class Membership(ClusterPort, ABC):
    """A node of several: it has peers, and one of the nodes is the controller."""

    def __init__(self, machine: Machine, wrap: Wrap = as_it_came) -> None:
        self._machine = machine
        self._node_id = machine.config.node_id
        self.me = Self(self._node_id, -1)
        """This node in this incarnation. Its broker epoch is -1 until it is registered."""
        self.peers = Peers(self._address_of, client_id=client_id_of(self._node_id))
        self._forward = Forward(self.peers, machine.waiting, controller_id=lambda: self.controller_id, wrap=wrap)

    @property
    @abstractmethod
    def controller_id(self) -> int:
        """The node that decides at the moment, as far as this one knows; -1 if there is none."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether this node is the controller now."""

    @abstractmethod
    def _address_of(self, node_id: int) -> Address | None:
        """Where a node is at this moment, if that is known."""

    def is_node(self, call: Call[Any]) -> bool:
        """Nodes are known by the client id that they give themselves."""
        return node_of(call.header.client_id) is not None

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics here if this node is the controller, or ask the controller to."""
        return administration.create_on_demand(names) if self.is_active else self._forward.create_on_demand(names)

    def _at_the_named_broker(self, judge: Handler) -> Filter:
        """Other brokers tell of their own configuration."""
        return BrokerConfigs(
            self._node_id,
            self.peers,
            self._machine.waiting,
            brokers=lambda: self.authority.image.brokers,
            judge=judge,
        ).at_the_named

    def _on_done(self, proposal: Proposal[Any]) -> None:
        self._machine.waiting.wake(proposal)
        self._machine.waiting.settle()

    async def stop(self) -> None:
        """Close the connections to the other nodes."""
        await self.peers.close()
