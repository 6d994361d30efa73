"""The heartbeats of a broker: when it may be fenced without knowing it, and when the controller fences it."""

import asyncio

import pytest
from cases import case

from minibroker.controller.lifecycle import FenceBroker
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.authority import Proposal
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import BrokerImage, Image
from minibroker.partitions.errors import Disconnect
from minibroker.quorum.duties import Duties
from minibroker.quorum.heartbeats import Heartbeats
from minibroker.replicas.fetching import Incarnation
from minibroker.wire.codes import ErrorCode


class Broker:
    """A broker that was cut off until now. The controller accepts its next heartbeat, after some other answers."""

    def __init__(self, *others: BrokerHeartbeatResponse) -> None:
        self.informed_ms = 0
        self.may_be_fenced: list[bool] = []
        """What the broker knew before each heartbeat."""
        self._others = list(others)
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
        self.may_be_fenced.append(self.heartbeats.may_be_fenced())
        if self._others:
            return self._others.pop(0)
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


def test_a_refused_heartbeat_and_that_of_a_fenced_broker_are_not_enough() -> None:
    async def play() -> None:
        refused = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, is_fenced=False, is_caught_up=True)
        fenced = BrokerHeartbeatResponse(error_code=0, is_fenced=True, is_caught_up=True)
        broker = Broker(refused, fenced)
        broker.informed_ms = monotonic_ms()
        await broker.beat()
        assert broker.may_be_fenced == [True, True, True]
        assert not broker.heartbeats.may_be_fenced()

    asyncio.run(play())


class FakeAuthority:
    """An active controller with live brokers, each with the epoch 5."""

    def __init__(self, *brokers: int) -> None:
        registered = {it: BrokerImage(it, "", 0, None, False, b"", 5) for it in brokers}
        self.image = Image(brokers=registered)
        self.fenced: list[int] = []

    def propose(self, command: FenceBroker) -> Proposal[bool]:
        self.fenced.append(command.broker_id)
        return Proposal()


def test_a_busy_controller_does_not_fence_the_broker_of_its_own_process() -> None:
    for epoch, fenced in ((5, [2]), (-1, [1, 2])):
        with case(f"this process has registered with the broker epoch {epoch}"):
            authority = FakeAuthority(1, 2)
            Duties(NodeConfig({}), Incarnation(1, epoch)).fence_silent(authority, 10**6)  # type: ignore[arg-type]
            assert authority.fenced == fenced
