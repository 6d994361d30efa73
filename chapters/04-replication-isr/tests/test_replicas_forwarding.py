"""A request that the controller does not answer is sent again if that is safe, for as long as an election may take."""

import asyncio
from typing import Any

import pytest

from minibroker.client.errors import BrokerUnavailable, ClientError, ConnectionLost, RequestTimedOut
from minibroker.partitions.waiting import Waiting
from minibroker.replicas import forwarding
from minibroker.replicas.forwarding import Forward, Forwarded
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

TOPIC: dict[str, Any] = {"resource_type": 2, "resource_name": "a"}
ASKED = DescribeConfigsRequest(resources=[DescribeConfigsResource(**TOPIC, configuration_keys=None)])
HUNG_UP, UNKNOWN, SILENT = ConnectionLost("hung up"), BrokerUnavailable("no controller"), RequestTimedOut("silent")


def answer(code: ErrorCode) -> Response:
    result = DescribeConfigsResult(**TOPIC, error_code=code, error_message=None, configs=[])
    return DescribeConfigsResponse(results=[result])


class Controllers:
    """Takes the place of the other nodes. Each request takes some time and has an outcome; the last one is repeated."""

    def __init__(self, *outcomes: tuple[int, Response | ClientError]) -> None:
        self.outcomes = list(outcomes)
        self.now_ms = 0
        self.asked_at_ms: list[int] = []

    async def send(self, _node_id: int, _request: object, **_settings: object) -> Response:
        self.asked_at_ms.append(self.now_ms)
        took_ms, outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        self.now_ms += took_ms
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "_RETRY_S", 0)


def code_of(monkeypatch: pytest.MonkeyPatch, controllers: Controllers, *, is_read: bool = True) -> ErrorCode:
    """Forward a request to these controllers, and return the error code that the client gets."""
    monkeypatch.setattr(forwarding, "monotonic_ms", lambda: controllers.now_ms)
    forwarded = Forwarded(ASKED, 0, ASKED, 0, lambda it: it, is_read=is_read)
    waiting: Waiting[Response] = Waiting()
    peers: Any = controllers
    call: Any = None

    async def forward() -> Any:
        wait: Any = Forward(peers, waiting, controller_id=lambda: 1, wrap=lambda _call: forwarded)(call)
        while (response := wait.attempt()) is None:
            await asyncio.sleep(0)
        return response

    return ErrorCode(asyncio.run(forward()).results[0].error_code)


def test_a_read_is_sent_again_however_late_the_controller_is_deposed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = answer(ErrorCode.NONE)
    late = Controllers((10_000, HUNG_UP), (1000, UNKNOWN), (1000, answer(ErrorCode.NOT_CONTROLLER)), (0, done))
    assert code_of(monkeypatch, late) == ErrorCode.NONE
    assert late.asked_at_ms == [0, 10_000, 11_000, 12_000]


def test_a_change_that_may_have_been_made_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Controllers((0, UNKNOWN), (10, HUNG_UP), (0, answer(ErrorCode.NONE)))
    assert code_of(monkeypatch, lost, is_read=False) == ErrorCode.REQUEST_TIMED_OUT
    assert lost.asked_at_ms == [0, 0]


def test_no_request_is_sent_again_for_longer_than_an_election(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Controllers((1000, UNKNOWN))
    assert code_of(monkeypatch, nobody, is_read=False) == ErrorCode.NOT_CONTROLLER
    assert nobody.asked_at_ms == [0, 1000, 2000, 3000, 4000, 5000]
    # The client has got an answer after 30 seconds, so nothing is sent for it after that.
    paused = Controllers((30_000, SILENT))
    assert code_of(monkeypatch, paused) == ErrorCode.REQUEST_TIMED_OUT
    assert paused.asked_at_ms == [0]
