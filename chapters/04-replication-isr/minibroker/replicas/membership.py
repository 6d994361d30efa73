"""The parts that every node of a cluster has: logins, connections to its peers, forwarding, its incarnation.

`OneController` and chapter 05's `QuorumMember` add the rest of chapter 03's `ClusterPort`; `Hosted` works with either.
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
from minibroker.partitions.registry import Handler
from minibroker.replicas.configuring import BrokerConfigs
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.forwarding import Forward, Wrap, forward_unchanged
from minibroker.replicas.login import Logins
from minibroker.replicas.peers import Line, Peers
from minibroker.replicas.secret import secret_of
from minibroker.replication.keys import INTER_BROKER_LISTENER_NAME
from minibroker.wire.codes import ErrorCode


class Membership(ClusterPort, ABC):
    """A node's membership in a cluster with a controller."""

    def __init__(self, machine: Machine, wrap: Wrap = forward_unchanged, *, is_alone: bool) -> None:
        """`is_alone` is True if this node starts a cluster of its own, with a secret that no other node has yet."""
        self._machine = machine
        self._node_id = machine.config.node_id
        self.me = Incarnation(self._node_id, -1)
        """This node in this incarnation. Its broker epoch is -1 until it is registered."""
        self.logins = Logins(self._node_id, lambda: secret_of(machine.config, is_alone=is_alone))
        self.peers = Peers(self._address_of, node_id=self._node_id, authenticator=self.logins.authenticator)
        self._forward = Forward(self.peers, machine.waiting, controller_id=lambda: self.controller_id, wrap=wrap)

    @property
    @abstractmethod
    def controller_id(self) -> int:
        """The controller, as far as this node knows; -1 if there is none."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether this node is the controller now."""

    def _address_of(self, node_id: int, line: Line) -> Address | None:
        """The current address of a node, if it is known. Fetches use `inter.broker.listener.name`, if it is set."""
        name = INTER_BROKER_LISTENER_NAME.of(self._machine.config)
        if name is None or line != "fetch":
            return self._controller_address_of(node_id)
        broker = self.authority.image.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(name.upper())
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    @abstractmethod
    def _controller_address_of(self, node_id: int) -> Address | None:
        """The address of a node, if it is known, for all requests except fetches on the inter-broker listener."""

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics here if this node is the controller; otherwise ask the controller to create them."""
        return administration.create_on_demand(names) if self.is_active else self._forward.create_on_demand(names)

    def _named_broker_filter(self, judge: Handler) -> Filter:
        """The filter that forwards requests about another broker's configuration to that broker."""
        return BrokerConfigs(
            self._node_id,
            self.peers,
            self._machine.waiting,
            brokers=lambda: self.authority.image.brokers,
            judge=judge,
        ).answer_or_ask_broker

    def _on_done(self, proposal: Proposal[Any]) -> None:
        self._machine.waiting.wake(proposal)
        self._machine.waiting.settle()

    async def stop(self) -> None:
        """Close the connections to the other nodes."""
        await self.peers.close()
