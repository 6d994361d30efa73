"""The registration of a node as a broker: under which epoch it is known, and whether its logs are still whole.

A node leads nothing before it has seen its own registration in the metadata: what it knows of an earlier incarnation
may be over. It owns the note of the broker epoch in the data directory (`life`).
"""

import logging
from collections.abc import Awaitable, Callable

from minibroker.client.errors import known_code
from minibroker.metadata.image import BrokerImage, Image
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity, new_id_bytes
from minibroker.partitions.machine import Machine
from minibroker.replicas import life
from minibroker.replicas.fetching import Self
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.replication.tables.broker_registration import Listener as RegisteredListener
from minibroker.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

Ask = Callable[[BrokerRegistrationRequest], Awaitable[BrokerRegistrationResponse]]
"""Asks the controller to register this broker, for as long as it takes."""


class Registration:
    """Registers a node, again if it must, and notices that another process has its node.id."""

    def __init__(self, machine: Machine, me: Self, ask: Ask, image: Callable[[], Image]) -> None:
        self._machine = machine
        self._me = me
        self._ask = ask
        self._image = image
        self._request: BrokerRegistrationRequest | None = None
        self._is_registering = False

    # Are the logs whole? ----------------------------------------------------------------------------------------------

    def previous_broker_epoch(self, image: Image) -> int:
        """The epoch that the logs of this node are certain to be of, or -1."""
        if self.is_something_lost(image):
            return NO_BROKER_EPOCH
        machine, boot = self._machine, life.boot_id()
        return life.previous_broker_epoch(machine.files, machine.path, boot=boot, is_clean=machine.data.is_clean)

    def is_something_lost(self, image: Image) -> bool:
        """Whether logs that counted were removed. Those of deleted topics do not count."""
        lost = [name.directory for name in self._machine.data.missing if image.partition(name) is not None]
        if lost:
            log.error(
                "%s, and %d more, were here and are gone: this node is in sync with nothing", lost[0], len(lost) - 1
            )
        return bool(lost)

    # Being registered -------------------------------------------------------------------------------------------------

    async def register(self, identity: Identity, previous_broker_epoch: int) -> None:
        """Be registered in this incarnation; `me` has its epoch afterwards."""
        endpoint, config = self._machine.endpoint, self._machine.config
        self._request = BrokerRegistrationRequest(
            broker_id=config.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=new_id_bytes(),
            listeners=[RegisteredListener(**endpoint._asdict())],
            rack=config.broker_rack,
            # A directory from before there were such ids has none.
            log_dirs=[parse_uuid(identity.directory_id)] if identity.directory_id else [],
        )
        await self._register(previous_broker_epoch)

    async def _register(self, previous_broker_epoch: int) -> None:
        assert self._request is not None
        self._is_registering = True
        try:
            self._request.previous_broker_epoch = previous_broker_epoch
            response = await self._ask(self._request)
            if response.error_code:
                code = known_code(response.error_code)
                node_id = self._me.node_id
                raise BrokerFailure(f"node {node_id} could not be registered: {code.name}: {code.message}")
            # The note comes at once: a node that dies before that is taken for one that has lost something.
            machine = self._machine
            life.remember_broker_epoch(machine.files, machine.path, response.broker_epoch, life.boot_id())
            self._me.broker_epoch = response.broker_epoch
        finally:
            self._is_registering = False

    # Being the only one -----------------------------------------------------------------------------------------------

    def on_image(self, old: Image, new: Image) -> None:
        """Two processes with one node.id would both lead its partitions, so the older one ends.

        No other process can be where this node listens: a broker that is registered there is an earlier incarnation.
        """
        if new.brokers is old.brokers or self._me.broker_epoch < 0:
            return
        known = new.brokers.get(self._me.node_id)
        if known is None or known.epoch <= self._me.broker_epoch or self._is_registering:
            return
        if self._is_our_address(known):
            log.warning("an earlier life of node %d was heard late: it registers again", self._me.node_id)
            self._is_registering = True
            self._machine.begin(self._register_again(known.epoch))
        else:
            self._machine.fail(
                BrokerFailure(
                    f"another process was registered as node {self._me.node_id}, at {known.host}:{known.port}: this one"
                    " ends. Give one of them another node.id"
                )
            )

    async def _register_again(self, late_epoch: int) -> None:
        """A request of an earlier incarnation was heard after our own, so our registration does not count any more.

        Nothing was counted in the name of that registration but what this node has: its logs are of that epoch.
        """
        await self._register(late_epoch)
        # Another one may have come in between.
        self.on_image(Image(), self._image())

    def _is_our_address(self, known: BrokerImage) -> bool:
        ours = self._request.listeners if self._request is not None else []
        return any((it.host, it.port) == (known.host, known.port) for it in ours)
