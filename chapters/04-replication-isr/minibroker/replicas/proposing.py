"""Sends the proposals of leaders to the controller. One AlterPartition carries all proposals that are waiting."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from minibroker.client.errors import ClientError, known_code
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.lasting import LastingFailure
from minibroker.replicas.peers import Peers
from minibroker.replication.leader import Altered
from minibroker.replication.replica import AlterIsr, Replica
from minibroker.replication.tables.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionAlteration,
    PartitionAltered,
    TopicAlteration,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

_TIMEOUT_MS = 5000


class Outbox(list[AlterIsr]):
    """The orders of all replicas of a node. The `Proposer` waits for `is_filled`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_filled = asyncio.Event()

    def append(self, order: AlterIsr) -> None:
        """Add an order."""
        super().append(order)
        self.is_filled.set()

    def forget(self, name: TopicPartition) -> None:
        """Drop the orders of a partition that is gone: a new partition of the same name must not inherit them."""
        self[:] = [order for order in self if order.name != name]

    def take(self) -> list[AlterIsr]:
        """Remove all orders, and return the last one of each partition."""
        orders = list({order.name: order for order in self}.values())
        self.clear()
        self.is_filled.clear()
        return orders


class _Addressed(NamedTuple):
    """An order that was sent, and its replica: when the answer comes, another replica may have the same name."""

    order: AlterIsr
    topic_id: bytes
    replica: Replica


class Proposer:
    """Sends the orders in the outbox and passes the answers to the replicas. A leader repeats a lost proposal."""

    def __init__(
        self,
        me: Incarnation,
        peers: Peers,
        outbox: Outbox,
        *,
        controller_id: Callable[[], int],
        topic_id_of: Callable[[TopicPartition], bytes | None],
        replica_of: Callable[[TopicPartition], Replica | None],
        settle: Callable[[], None],
    ) -> None:
        self._me = me
        self._peers = peers
        self._outbox = outbox
        self._controller_id = controller_id
        self._topic_id_of = topic_id_of
        self._replica_of = replica_of
        self._settle = settle
        self._trouble = LastingFailure(log)

    async def run(self) -> None:
        """Send the orders as they come, one request at a time."""
        while True:
            await self._outbox.is_filled.wait()
            asked = [it for order in self._outbox.take() if (it := self._addressed(order)) is not None]
            if not asked:
                continue
            try:
                await self._propose(asked)
            except ClientError as error:
                # Leaders propose again every second.
                self._trouble.note(
                    "in-sync sets cannot be changed until node %d answers: %s", self._controller_id(), error
                )

    def _addressed(self, order: AlterIsr) -> _Addressed | None:
        topic_id, replica = self._topic_id_of(order.name), self._replica_of(order.name)
        return None if topic_id is None or replica is None else _Addressed(order, topic_id, replica)

    async def _propose(self, asked: Sequence[_Addressed]) -> None:
        response: AlterPartitionResponse = await self._peers.send(
            self._controller_id(), self._request(asked), timeout_ms=_TIMEOUT_MS
        )
        if response.error_code:
            # Another controller may have been elected, or this node is about to register again.
            self._trouble.note("in-sync sets could not be changed: %s", known_code(response.error_code).name)
            return
        self._trouble.end()
        found = {
            (bytes(topic.topic_id), it.partition_index): it for topic in response.topics for it in topic.partitions
        }
        for order, topic_id, replica in asked:
            it = found.get((topic_id, order.name.partition))
            if it is not None:
                self._on_answer(replica, order, it)
        self._settle()

    def _request(self, asked: Iterable[_Addressed]) -> AlterPartitionRequest:
        topics: dict[bytes, list[PartitionAlteration]] = {}
        for (name, proposal), topic_id, _replica in asked:
            topics.setdefault(topic_id, []).append(
                PartitionAlteration(
                    partition_index=name.partition,
                    leader_epoch=proposal.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=node_id, broker_epoch=epoch) for node_id, epoch in proposal.isr
                    ],
                )
            )
        return AlterPartitionRequest(
            broker_id=self._me.node_id,
            broker_epoch=self._me.broker_epoch,
            topics=[TopicAlteration(topic_id=topic_id, partitions=it) for topic_id, it in topics.items()],
        )

    def _on_answer(self, replica: Replica, order: AlterIsr, it: PartitionAltered) -> None:
        code = known_code(it.error_code)
        if code is ErrorCode.NONE:
            log.info("%s: the in-sync replicas are %s", replica.name.directory, list(it.isr))
        replica.on_altered(order.proposal, Altered(code, tuple(it.isr), it.partition_epoch))
