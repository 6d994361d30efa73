"""The transaction coordinators of a node: one for each partition of `__transaction_state` that the node leads."""

from collections.abc import Callable

from minibroker.coordinators import access
from minibroker.coordinators.coordinator import Coordinator
from minibroker.coordinators.hosting import Coordinators
from minibroker.coordinators.internal_topics import replication_factor_of, transactions_topic
from minibroker.coordinators.marker_sending import MarkerSender
from minibroker.coordinators.node_calls import NodeCalls
from minibroker.coordinators.producer_id_blocks import ProducerIdBlocks
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.transaction_answering import TransactionHandlers
from minibroker.metadata.image import Image
from minibroker.metadata.names import TRANSACTION_STATE_TOPIC
from minibroker.partitions.machine import Machine
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Registry
from minibroker.partitions.store import Store
from minibroker.replicas.membership import Membership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.keys import STATE_LOG_REPLICATION_FACTOR, TransactionSettings
from minibroker.transactions.shard import TransactionShard
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableTopic


def transactions_state_topic(machine: Machine, cluster: Membership) -> StateTopic:
    """The topic `__transaction_state`."""

    def creation() -> CreatableTopic:
        image = cluster.authority.image
        config = machine.config.with_dynamic(image.configs)
        factor = replication_factor_of(machine.config, image, STATE_LOG_REPLICATION_FACTOR)
        return transactions_topic(TransactionSettings.of(config), machine.config, factor)

    return StateTopic(TRANSACTION_STATE_TOPIC, cluster, creation)


class TransactionCoordinators(Coordinators[TransactionShard]):
    """All transaction coordinators of one node."""

    rows = access.TRANSACTION_ROWS

    def __init__(
        self,
        machine: Machine,
        cluster: Membership,
        *,
        topic: StateTopic,
        offsets: StateTopic,
        calls: NodeCalls,
        may_be_fenced: Callable[[], bool],
    ) -> None:
        """`offsets` is the topic of the group coordinators, which take part in transactions."""
        super().__init__(machine, cluster, may_be_fenced=may_be_fenced)
        self.topic = topic
        self._offsets = offsets
        self._calls = calls
        self._values: TransactionSettings | None = None
        self._sender = MarkerSender(
            calls, lambda: self._image, is_running=self._is_running, on_marked=self._on_marked, run=self._run
        )

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Register the handlers of the transaction APIs."""
        self._store = store
        authority, node_id = self._cluster.authority, self._machine.config.node_id
        self._ids = ProducerIdBlocks(authority, node_id)
        TransactionHandlers(
            self.pass_on,
            self.coordinators,
            image=lambda: self._image,
            offsets=self._offsets,
            without_id=InitProducerId(authority, node_id),
        ).add_handlers(registry)

    async def stop(self) -> None:
        """Stop all coordinators and their requests."""
        self._sender.stop()
        await super().stop()
        await self._calls.stop()

    # The surroundings of a coordinator --------------------------------------------------------------------------------

    def settings(self) -> TransactionSettings:
        """The settings of the broker."""
        if self._values is None:
            self._values = TransactionSettings.of(self._machine.config.with_dynamic(self._image.configs))
        return self._values

    def new_shard(self) -> TransactionShard:
        """An empty shard with the current metadata."""
        return TransactionShard(settings=self.settings, new_producer_id=self._ids.take, image=self._image)

    def _on_image(self, old: Image, new: Image) -> None:
        if new.configs is not old.configs:
            self._values = None
        super()._on_image(old, new)
        self._sender.on_image(old, new)

    # Markers ----------------------------------------------------------------------------------------------------------

    def _new_coordinator(self, partition: TopicPartition) -> Coordinator[TransactionShard]:
        # The first producer will need an id soon. A listener of the metadata calls this function, and must not
        # ask the controller. So a later pass of the event loop asks for a block of ids.
        self.soon(self._ids.prefetch)
        return Coordinator(self._store.partition(*partition), self, self._on_replicated)

    def _is_running(self, coordinator: Coordinator[TransactionShard]) -> bool:
        return self._coordinators.get(coordinator.name) is coordinator

    def _on_replicated(self, coordinator: Coordinator[TransactionShard], high_watermark: int) -> None:
        """Send the markers of the outcomes that cannot be lost any more."""
        orders = coordinator.shard.transactions.on_replicated(high_watermark)
        if orders:
            self._sender.order(coordinator, orders)

    def _on_marked(
        self, coordinator: Coordinator[TransactionShard], transactional_id: str, names: list[TopicPartition]
    ) -> None:
        def work() -> None:
            # If the coordinator loads its state again, it orders the markers again, too.
            if self._is_running(coordinator) and coordinator.code is ErrorCode.NONE:
                coordinator.perform(coordinator.shard.on_marked(transactional_id, names, self.now_ms()))
                self.on_deadline(coordinator.deadline_ms())
                self.waiting.settle()

        self.soon(work)
