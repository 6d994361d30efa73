"""Claims about the heartbeats of a broker, which tell it whether it may still lead."""

import asyncio
import contextlib

import pytest

from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.errors import Disconnect
from minibroker.quorum import heartbeats
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
