"""Administrative requests at a node that does not decide: they are passed on to the one that does, and so is the
answer.

So a client may send such a request to any node (KIP-590). Chapter 05 wraps them in an Envelope that names the client.
"""

import asyncio
import logging
from collections.abc import Callable

from minibroker.client.errors import ClientError
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.replicas.peers import Peers
from minibroker.wire.schema import Request, Response

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000


class _Passed:
    """A request that was passed on; it is the key by which its answer is waited for."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self.error: ClientError | None = None

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
        """Pass it on in the version in which it came."""
        passed = _Passed()
        self.begin(call.request, passed, version_max=call.version)
        return Wait(keys=(passed,), timeout_ms=_TIMEOUT_MS, attempt=passed.attempt, expire=lambda: _too_late())

    def begin(
        self, request: Request, passed: _Passed | None = None, *, version_max: int | None = None
    ) -> asyncio.Task[None]:
        """Send a request and do not wait; whoever waits for it is woken when its answer has come."""
        task = asyncio.create_task(self._send(request, passed or _Passed(), version_max))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, request: Request, passed: _Passed, version_max: int | None) -> None:
        try:
            passed.response = await self._peers.send(
                self._authority_id(), request, timeout_ms=_TIMEOUT_MS, version_max=version_max
            )
        except ClientError as error:
            log.warning("%s could not be passed on: %s", type(request).__name__, error)
            passed.error = error
        self._waiting.wake(passed)
        self._waiting.settle()


def _too_late() -> Response:
    raise Disconnect(f"the node that decides did not answer within {_TIMEOUT_MS} ms")
