"""Administrative requests at a node that does not decide: they are passed on to the one that does, and so is the
answer.

So a client may send such a request to any node (KIP-590). Here they go as they came; chapter 05 overrides
`Forward.wrap` and puts each in an Envelope that names the client.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from minibroker.client.errors import BrokerUnavailable, ClientError
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.server import monotonic_ms
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.replicas.peers import Peers
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response, codes_in

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
# How long an election of who decides may take.
_ELECTION_MS = 5000
_RETRY_S = 0.05
_ANOTHER_DECIDES = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})


class Passed:
    """A request that is passed on; it is the key by which its answer is waited for."""

    def __init__(self, request: Request, *, version_max: int | None = None) -> None:
        self.request = request
        self.version_max = version_max
        self.response: Response | None = None
        self.error: ClientError | None = None

    def open(self, response: Any) -> Response:
        """The answer for the client in what the other node answered: here the very same."""
        assert isinstance(response, Response)
        return response

    def attempt(self) -> Response | None:
        """The answer, if it has come. One that will never come ends the connection, so that the client asks again."""
        if self.error is not None:
            raise Disconnect(f"the node that decides did not answer: {self.error}")
        return self.response


class Forward:
    """A handler for any request that only the authority can answer."""

    def __init__(self, peers: Peers, waiting: Waiting[Response], *, authority_id: Callable[[], int]) -> None:
        self._peers = peers
        self._waiting = waiting
        self._authority_id = authority_id
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call[Request]) -> Answer:
        """Pass on what a client asks; the answer waits for the other node's."""
        passed = self.wrap(call)
        self._begin(passed)
        return Wait(keys=(passed,), timeout_ms=_TIMEOUT_MS, attempt=passed.attempt, expire=lambda: _too_late())

    def wrap(self, call: Call[Request]) -> Passed:
        """What is sent: the request itself, in the version in which it came."""
        return Passed(call.request, version_max=call.version)

    def begin(self, request: Request) -> asyncio.Task[None]:
        """Send a request of this node's own, and do not wait."""
        return self._begin(Passed(request))

    def _begin(self, passed: Passed) -> asyncio.Task[None]:
        """Send it; whoever waits for it is woken when its answer has come."""
        task = asyncio.create_task(self._send(passed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, passed: Passed) -> None:
        deadline_ms = monotonic_ms() + _ELECTION_MS
        try:
            response = await self._ask(passed)
            # Nothing was done: another node decides by now, or will in a moment. A client would take it for a failure.
            while not _ANOTHER_DECIDES.isdisjoint(codes_in(response)) and monotonic_ms() < deadline_ms:
                await asyncio.sleep(_RETRY_S)
                response = await self._ask(passed)
            passed.response = response
        except ClientError as error:
            log.warning("%s could not be passed on: %s", type(passed.request).__name__, error)
            passed.error = error
        self._waiting.wake(passed)
        self._waiting.settle()

    async def _ask(self, passed: Passed) -> Response:
        """Ask who decides; if it is not known or not there, ask again in a moment: an election may be under way."""
        deadline_ms = monotonic_ms() + _ELECTION_MS
        while True:
            try:
                response = await self._peers.send(
                    self._authority_id(),
                    passed.request,
                    line="clients",
                    timeout_ms=_TIMEOUT_MS,
                    version_max=passed.version_max,
                )
                return passed.open(response)
            except BrokerUnavailable:
                # It was not sent. Whatever else goes wrong, it may have been done, and only the client can tell.
                if monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(_RETRY_S)


def _too_late() -> Response:
    raise Disconnect(f"the node that decides did not answer within {_TIMEOUT_MS} ms")
