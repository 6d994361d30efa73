"""Administrative requests at a node that is not the controller: they are forwarded, and so is the answer.

A client may send such a request to any node (KIP-590). Here a request is forwarded as it came; chapter 05 gives a
`wrap` that puts it into an Envelope. Where a request cannot be forwarded, the client is told: NOT_CONTROLLER if nothing
was done, REQUEST_TIMED_OUT if that is unknown.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.names import check_topic_name
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.replicas.peers import Peers
from minibroker.replicas.refusing import refusal
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response, codes_in
from minibroker.wire.tables.create_topics import CreatableTopic, CreateTopicsRequest

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_CREATE_MS = 5000
# How long the election of a controller may take.
_ELECTION_MS = 5000
_RETRY_S = 0.05
_ANOTHER_DECIDES = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})
_ALL_DEFAULTS: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}


@dataclass(eq=False)
class Forwarded:
    """A request that is forwarded; it is the key by which its answer is waited for."""

    asked: Request
    """What the client asks."""
    version: int
    sent: Request
    """What is sent to the controller."""
    sent_version_max: int | None
    """The version in which it is sent, if that is given."""
    read: Callable[[Any], Response]
    """Reads the answer for the client out of what the controller answers; raises a `ClientError` if there is none."""
    is_read: bool = False
    """Whether the request changes nothing, so that it may be sent twice."""
    response: Response | None = None

    def refuse(self, code: ErrorCode, message: str) -> Response:
        """What the client is told if no answer comes."""
        return refusal(self.asked, self.version, code, message)

    def expire(self) -> Response:
        """The time is over."""
        return self.refuse(*_in_doubt(f"did not answer within {_TIMEOUT_MS} ms"))


Wrap = Callable[[Call[Request]], Forwarded]


def as_it_came(call: Call[Request]) -> Forwarded:
    """Forward the very same request, in the version in which it came, and the very same answer."""
    return Forwarded(call.request, call.version, call.request, call.version, _same)


def _same(response: Any) -> Response:
    assert isinstance(response, Response)
    return response


class Forward:
    """A handler for any request that only the controller can answer."""

    def __init__(
        self,
        peers: Peers,
        waiting: Waiting[Response],
        *,
        controller_id: Callable[[], int],
        wrap: Wrap = as_it_came,
    ) -> None:
        self._peers = peers
        self._waiting = waiting
        self._controller_id = controller_id
        self._wrap = wrap
        self._creating: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call[Request]) -> Answer:
        """Forward a client's request; the answer waits for the controller's."""
        forwarded = self._wrap(call)
        self._begin(forwarded)
        return Wait(
            keys=(forwarded,),
            timeout_ms=_TIMEOUT_MS,
            attempt=lambda: forwarded.response,
            expire=forwarded.expire,
        )

    def create_on_demand(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Ask the controller for topics that a client has only mentioned; the client asks for them again."""
        possible = [name for name in names if _is_possible(name)]
        topics = [CreatableTopic(name=name, **_ALL_DEFAULTS) for name in possible if name not in self._creating]
        if topics:
            # A client asks again and again until the topic is there.
            self._creating |= {topic.name for topic in topics}
            request = CreateTopicsRequest(topics=topics, timeout_ms=_CREATE_MS)
            task = self._begin(Forwarded(request, 0, request, None, _same))
            task.add_done_callback(lambda _task: self._creating.difference_update(it.name for it in topics))
        return dict.fromkeys(possible, ErrorCode.LEADER_NOT_AVAILABLE)

    def _begin(self, forwarded: Forwarded) -> asyncio.Task[None]:
        """Send it; what waits for it is woken when its answer has come."""
        task = asyncio.create_task(self._send(forwarded))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, forwarded: Forwarded) -> None:
        deadline_ms = monotonic_ms() + _ELECTION_MS
        try:
            response = await self._ask(forwarded)
            # Nothing was done: another node is the controller by now, or will be in a moment. A client would take it
            # for a failure.
            while not _ANOTHER_DECIDES.isdisjoint(codes_in(response)) and monotonic_ms() < deadline_ms:
                await asyncio.sleep(_RETRY_S)
                response = await self._ask(forwarded)
            forwarded.response = response
        except ClientError as error:
            log.warning("%s could not be passed on: %s", type(forwarded.asked).__name__, error)
            forwarded.response = forwarded.refuse(*self._why(error))
        self._waiting.wake(forwarded)
        self._waiting.settle()

    def _why(self, error: ClientError) -> tuple[ErrorCode, str]:
        """What becomes of a request that could not be forwarded."""
        if isinstance(error, BrokerUnavailable):
            node_id = self._controller_id()
            whom = f": node {node_id}, which did, cannot be reached" if node_id >= 0 else ""
            return ErrorCode.NOT_CONTROLLER, (
                f"nobody decides at the moment{whom}. Nothing was done: start the voters that are down, and ask again"
            )
        if isinstance(error, BrokerError):
            return error.code, str(error)
        return _in_doubt(f"did not answer ({error})")

    async def _ask(self, forwarded: Forwarded) -> Response:
        """Ask the controller; if it is not known or not there, ask again in a moment: an election may be under way."""
        deadline_ms = monotonic_ms() + _ELECTION_MS
        while True:
            try:
                response = await self._peers.send(
                    self._controller_id(),
                    forwarded.sent,
                    line="clients",
                    timeout_ms=_TIMEOUT_MS,
                    version_max=forwarded.sent_version_max,
                )
                return forwarded.read(response)
            except ClientError as error:
                # Either it was not sent, or nothing comes of it. Whatever else goes wrong, it may have been done, and
                # only the client can tell.
                may_repeat = isinstance(error, BrokerUnavailable) or forwarded.is_read
                if not may_repeat or monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(_RETRY_S)


def _in_doubt(what: str) -> tuple[ErrorCode, str]:
    message = f"the node that decides {what}: it may have been done or not. Look before you ask again"
    return ErrorCode.REQUEST_TIMED_OUT, message


def _is_possible(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True
