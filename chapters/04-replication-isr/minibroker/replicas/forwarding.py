"""Administrative requests at a node that does not decide: they are passed on to the one that does, and so is the
answer.

So a client may send such a request to any node (KIP-590). Here they go as they came; chapter 05 overrides
`Forward.wrap` and puts each in an Envelope that names the client. Where a request cannot be passed on, the client is
told: NOT_CONTROLLER if nothing was done, REQUEST_TIMED_OUT if nobody knows.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError
from minibroker.controller.tables.list_partition_reassignments import ListPartitionReassignmentsRequest
from minibroker.log.clock import monotonic_ms
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.raft.tables.describe_quorum import DescribeQuorumRequest
from minibroker.replicas.peers import Peers
from minibroker.replicas.refusing import refusal
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response, codes_in

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
# How long an election of who decides may take.
_ELECTION_MS = 5000
_RETRY_S = 0.05
_ANOTHER_DECIDES = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})
# What changes nothing may be asked twice.
_READS = (DescribeQuorumRequest, ListPartitionReassignmentsRequest)


class Passed:
    """A request that is passed on; it is the key by which its answer is waited for."""

    def __init__(self, asked: Request, version: int | None = None) -> None:
        self.asked = asked
        self.version = version
        self.response: Response | None = None

    @property
    def request(self) -> Request:
        """What is sent: here the very same, in the version in which it came."""
        return self.asked

    @property
    def version_max(self) -> int | None:
        """The version in which it is sent, if that is given."""
        return self.version

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return isinstance(self.asked, _READS)

    def open(self, response: Any) -> Response:
        """The answer for the client in what the other node answered: here the very same."""
        assert isinstance(response, Response)
        return response

    def attempt(self) -> Response | None:
        """The answer, if it has come."""
        return self.response

    def refuse(self, code: ErrorCode, message: str) -> Response:
        """What the client is told if none comes."""
        return refusal(self.asked, self.version or 0, code, message)

    def expire(self) -> Response:
        """The time is over."""
        return self.refuse(*_in_doubt(f"did not answer within {_TIMEOUT_MS} ms"))


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
        return Wait(keys=(passed,), timeout_ms=_TIMEOUT_MS, attempt=passed.attempt, expire=passed.expire)

    def wrap(self, call: Call[Request]) -> Passed:
        """What is sent, and how its answer is read."""
        return Passed(call.request, call.version)

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
            log.warning("%s could not be passed on: %s", type(passed.asked).__name__, error)
            passed.response = passed.refuse(*self._why(error))
        self._waiting.wake(passed)
        self._waiting.settle()

    def _why(self, error: ClientError) -> tuple[ErrorCode, str]:
        """What a request comes to that could not be passed on."""
        if isinstance(error, BrokerUnavailable):
            node_id = self._authority_id()
            whom = f": node {node_id}, which did, cannot be reached" if node_id >= 0 else ""
            return ErrorCode.NOT_CONTROLLER, (
                f"nobody decides at the moment{whom}. Nothing was done: start the voters that are down, and ask again"
            )
        if isinstance(error, BrokerError):
            return error.code, str(error)
        return _in_doubt(f"did not answer ({error})")

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
            except ClientError as error:
                # Either it was not sent, or nothing comes of it. Whatever else goes wrong, it may have been done, and
                # only the client can tell.
                may_repeat = isinstance(error, BrokerUnavailable) or passed.is_read
                if not may_repeat or monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(_RETRY_S)


def _in_doubt(what: str) -> tuple[ErrorCode, str]:
    message = f"the node that decides {what}: it may have been done or not. Look before you ask again"
    return ErrorCode.REQUEST_TIMED_OUT, message
