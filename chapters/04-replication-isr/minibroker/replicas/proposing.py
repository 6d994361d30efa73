"""What leaders want of the authority: all proposals that are waiting go in one AlterPartition."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from minibroker.client.errors import ClientError
from minibroker.replicas.fetching import Self
from minibroker.replicas.peers import Peers
from minibroker.replication.leader import Altered
from minibroker.replication.replica import AlterIsr, Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionAlteration,
    PartitionAltered,
    TopicAlteration,
)

log = logging.getLogger(__name__)

_TIMEOUT_MS = 5000


class Outbox(list[AlterIsr]):
    """The orders of all replicas of a node. Whoever sends them waits until there are some."""

    def __init__(self) -> None:
        super().__init__()
        self.is_filled = asyncio.Event()

    def append(self, order: AlterIsr) -> None:
        """Take an order."""
        super().append(order)
        self.is_filled.set()

    def take(self) -> list[AlterIsr]:
        """All orders, of each partition the last one; the box is empty afterwards."""
        orders = list({order.name: order for order in self}.values())
        self.clear()
        self.is_filled.clear()
        return orders


class Proposer:
    """Sends what is in the outbox and brings back the answers. What gets lost is proposed again by its leader."""

    def __init__(
        self,
        me: Self,
        peers: Peers,
        outbox: Outbox,
        *,
        authority_id: int,
        topic_id_of: Callable[[str], bytes | None],
        replica_of: Callable[[TopicPartition], Replica | None],
        settle: Callable[[], None],
    ) -> None:
        self._me = me
        self._peers = peers
        self._outbox = outbox
        self._authority_id = authority_id
        self._topic_id_of = topic_id_of
        self._replica_of = replica_of
        self._settle = settle

    async def run(self) -> None:
        """Send whatever comes, one request at a time."""
        while True:
            await self._outbox.is_filled.wait()
            orders = [(order, self._topic_id_of(order.name.topic)) for order in self._outbox.take()]
            known = [(order, topic_id) for order, topic_id in orders if topic_id is not None]
            try:
                await self._propose(known)
            except ClientError as error:
                log.warning("in-sync sets could not be changed, it is tried again: %s", error)

    async def _propose(self, orders: Sequence[tuple[AlterIsr, bytes]]) -> None:
        response: AlterPartitionResponse = await self._peers.send(
            self._authority_id, self._request(orders), timeout_ms=_TIMEOUT_MS
        )
        if response.error_code:
            log.warning("in-sync sets could not be changed: %s", ErrorCode(response.error_code).name)
            return
        found = {
            (bytes(topic.topic_id), it.partition_index): it for topic in response.topics for it in topic.partitions
        }
        for order, topic_id in orders:
            replica, it = self._replica_of(order.name), found.get((topic_id, order.name.partition))
            if replica is not None and it is not None:
                self._hear(replica, order, it)
        self._settle()

    def _request(self, orders: Iterable[tuple[AlterIsr, bytes]]) -> AlterPartitionRequest:
        topics: dict[bytes, list[PartitionAlteration]] = {}
        for (name, proposal), topic_id in orders:
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

    def _hear(self, replica: Replica, order: AlterIsr, it: PartitionAltered) -> None:
        code = ErrorCode(it.error_code)
        if code is ErrorCode.NONE:
            log.info("%s: in sync are %s", replica.name.directory, list(it.isr))
        replica.on_altered(order.proposal, Altered(code, tuple(it.isr), it.partition_epoch))
