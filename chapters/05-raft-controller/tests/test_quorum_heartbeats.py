"""Claims about the heartbeats of a broker, which tell it whether it may still lead, and about missing ones."""

import asyncio
import contextlib

import pytest
from cases import case

from minibroker.controller.fencing import FenceBroker
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.metadata.authority import Proposal
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import BrokerImage, Image
from minibroker.partitions.errors import Disconnect
from minibroker.quorum import heartbeats
from minibroker.quorum.duties import Duties
from minibroker.quorum.heartbeats import Heartbeats
from minibroker.replicas.fetching import Incarnation
from minibroker.wire.codes import ErrorCode


def answer(code: ErrorCode = ErrorCode.NONE, *, is_fenced: bool) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=code, is_caught_up=True, is_fenced=is_fenced, should_shut_down=False)


def test_a_broker_that_the_controller_has_fenced_does_not_count_as_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "monotonic_ms", lambda: 10**6)
    answers = [
        answer(ErrorCode.STALE_BROKER_EPOCH, is_fenced=False),
        answer(is_fenced=True),
        answer(is_fenced=False),
    ]
    before: list[bool] = []

    async def ask(_request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        before.append(beating.may_be_fenced())
        return answers.pop(0)

    async def run() -> None:
        task = asyncio.create_task(beating.run())
        await asyncio.wait_for(beating.unfenced.wait(), 30)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    beating = Heartbeats(NodeConfig(), Incarnation(1, 5), ask, Image, lambda: False)
    with pytest.raises(Disconnect):
        beating.check_heard()
    asyncio.run(run())
    assert before == [True, True, True]
    beating.check_heard()


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
            Duties(NodeConfig(), Incarnation(1, epoch)).fence_silent(authority, 10**6)  # type: ignore[arg-type]
            assert authority.fenced == fenced
