"""The heartbeats of a broker: when it may be fenced without knowing it."""

import asyncio

import pytest

from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.errors import Disconnect
from minibroker.quorum.heartbeats import Heartbeats
from minibroker.replicas.fetching import Incarnation


class Broker:
    """A broker that was cut off until now. The controller accepts its next heartbeat."""

    def __init__(self) -> None:
        self.informed_ms = 0
        self._answered = asyncio.Event()
        self.heartbeats = Heartbeats(
            NodeConfig({}),
            Incarnation(1, 7),
            self._accept,
            Image,
            is_active=lambda: False,
            informed_ms=lambda: self.informed_ms,
        )

    async def _accept(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        if self._answered.is_set():
            await asyncio.Event().wait()
        self._answered.set()
        return BrokerHeartbeatResponse(error_code=0, is_fenced=False, is_caught_up=True)

    async def beat(self) -> None:
        task = asyncio.create_task(self.heartbeats.run())
        await self.heartbeats.unfenced.wait()
        task.cancel()


def test_an_accepted_heartbeat_is_not_enough_before_the_metadata_are_read() -> None:
    """A node was cut off, and the controller fenced it. It is heard again before it has read that record."""

    async def play() -> None:
        broker = Broker()
        assert broker.heartbeats.may_be_fenced()
        await broker.beat()
        assert broker.heartbeats.may_be_fenced()
        with pytest.raises(Disconnect, match="another may lead"):
            broker.heartbeats.check_heard()
        broker.informed_ms = monotonic_ms()
        assert not broker.heartbeats.may_be_fenced()
        broker.heartbeats.check_heard()

    asyncio.run(play())


def test_metadata_are_not_enough_before_a_heartbeat_is_accepted() -> None:
    async def play() -> None:
        broker = Broker()
        broker.informed_ms = monotonic_ms()
        assert broker.heartbeats.may_be_fenced()

    asyncio.run(play())
