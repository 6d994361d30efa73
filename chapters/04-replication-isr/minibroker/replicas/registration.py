"""The registration of a node as a broker: its broker epoch, and whether its logs still have all records.

A node leads nothing before it has seen its own registration in the metadata: until then it knows only what an earlier
incarnation knew. This module owns the file with the broker epoch in the data directory (`epoch_file`).
"""

import logging
from collections.abc import Awaitable, Callable

from minibroker.client.errors import known_code
from minibroker.metadata.image import BrokerImage, Image, PartitionImage
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity, new_id_bytes
from minibroker.partitions.machine import Machine
from minibroker.replicas import epoch_file
from minibroker.replicas.fetching import Incarnation
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.replication.tables.broker_registration import Listener as RegisteredListener
from minibroker.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

Ask = Callable[[BrokerRegistrationRequest], Awaitable[BrokerRegistrationResponse]]
"""Asks the controller to register this broker, and repeats the request until the controller answers."""


class Registration:
    """Registers a node, again if necessary, and ends it if another process has its node.id."""

    def __init__(self, machine: Machine, me: Incarnation, ask: Ask, image: Callable[[], Image]) -> None:
        self._machine = machine
        self._me = me
        self._ask = ask
        self._image = image
        self._request: BrokerRegistrationRequest | None = None
        self._is_registering = False

    # Are the logs complete? -------------------------------------------------------------------------------------------

    def previous_broker_epoch(self, image: Image) -> int:
        """The broker epoch up to which this node certainly has all records, or -1."""
        if self.is_something_lost(image):
            return NO_BROKER_EPOCH
        machine, boot = self._machine, epoch_file.boot_id()
        return epoch_file.previous_broker_epoch(machine.files, machine.path, boot=boot, is_clean=machine.data.is_clean)

    def is_something_lost(self, image: Image) -> bool:
        """Whether logs were removed from the data directory. Only logs that this node should have count."""
        lost = [name.directory for name in self._machine.data.missing if self._is_here(image.partition(name))]
        if lost:
            log.error("missing logs: %d, the first is %s; this node leaves all in-sync sets", len(lost), lost[0])
        return bool(lost)

    def _is_here(self, partition: PartitionImage | None) -> bool:
        return partition is not None and self._me.node_id in partition.replicas

    # Registering ------------------------------------------------------------------------------------------------------

    async def register(self, identity: Identity, previous_broker_epoch: int) -> None:
        """Register this incarnation; `me` has its broker epoch afterwards."""
        config = self._machine.config
        self._request = BrokerRegistrationRequest(
            broker_id=config.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=self._incarnation_id(previous_broker_epoch),
            listeners=[RegisteredListener(**it._asdict()) for it in self._machine.endpoints],
            rack=config.broker_rack,
            # A data directory of an older version has no id.
            log_dirs=[parse_uuid(identity.directory_id)] if identity.directory_id else [],
        )
        await self._register(previous_broker_epoch)

    def _incarnation_id(self, previous_broker_epoch: int) -> bytes:
        """The id of this incarnation, or of the last one if it died before it heard of its registration."""
        # A node that may have lost records must not finish the registration of an incarnation that had them.
        if previous_broker_epoch == NO_BROKER_EPOCH:
            return new_id_bytes()
        machine = self._machine
        begun = epoch_file.begun_registration(machine.files, machine.path) or new_id_bytes()
        epoch_file.remember_broker_epoch(
            machine.files, machine.path, previous_broker_epoch, epoch_file.boot_id(), begun=begun
        )
        return begun

    async def _register(self, previous_broker_epoch: int) -> None:
        assert self._request is not None
        self._is_registering = True
        try:
            self._request.previous_broker_epoch = previous_broker_epoch
            response = await self._ask(self._request)
            if response.error_code:
                code = known_code(response.error_code)
                node_id = self._me.node_id
                raise BrokerFailure(f"node {node_id} could not be registered: {code.message} ({code.name})")
            # The epoch is written before the node acts in it. A node that dies before this write registers again as
            # the same incarnation, or must assume that it lost records.
            machine = self._machine
            epoch_file.remember_broker_epoch(machine.files, machine.path, response.broker_epoch, epoch_file.boot_id())
            self._me.broker_epoch = response.broker_epoch
        finally:
            self._is_registering = False

    # Two processes with one node.id -----------------------------------------------------------------------------------

    def on_image(self, old: Image, new: Image) -> None:
        """End this process if another has registered with its node.id, because both would lead its partitions.

        No other process can have this node's address: a registration with that address is from an earlier incarnation.
        """
        if new.brokers is old.brokers or self._me.broker_epoch < 0:
            return
        known = new.brokers.get(self._me.node_id)
        if known is None or known.epoch <= self._me.broker_epoch or self._is_registering:
            return
        if self._is_our_address(known):
            log.warning(
                "a late registration of node %d's earlier incarnation arrived: registering again", self._me.node_id
            )
            self._is_registering = True
            self._machine.begin(self._register_again(known.epoch))
        else:
            self._machine.fail(
                BrokerFailure(
                    f"another process, at {known.host}:{known.port}, has registered as node {self._me.node_id}, so this"
                    " process ends. Give one of the two another node.id"
                )
            )

    async def _register_again(self, late_epoch: int) -> None:
        """A request of an earlier incarnation arrived after ours, and replaced our registration: register again.

        This process was running when the late registration arrived, so it has all records up to that epoch.
        """
        await self._register(late_epoch)
        # Yet another registration may have arrived in the meantime, so check again.
        self.on_image(Image(), self._image())

    def _is_our_address(self, known: BrokerImage) -> bool:
        ours = self._request.listeners if self._request is not None else []
        return any((it.host, it.port) == (known.host, known.port) for it in ours)
