"""A node that is not the controller forwards administrative requests to it, and passes the answers back.

A client may send such a request to any node (KIP-590). Here a request is forwarded as it came; chapter 05 has a `wrap`
that puts it into an Envelope. If there is no controller to forward to, the client gets NOT_CONTROLLER. If a controller
has the request and does not answer, the client gets REQUEST_TIMED_OUT, because the outcome is unknown.
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
_NOT_THE_CONTROLLER = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})
_ALL_DEFAULTS: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}


@dataclass(eq=False)
class Forwarded:
    """A forwarded request. It is also the key under which the client waits for the answer."""

    asked: Request
    """The client's request."""
    version: int
    sent: Request
    """The request that is sent to the controller."""
    sent_version_max: int | None
    """The largest version in which `sent` may be sent; None allows any version."""
    read: Callable[[Any], Response]
    """Turns the controller's response into the client's; raises a `ClientError` if that is not possible."""
    is_read: bool = False
    """Whether the request changes nothing, so that it may be sent twice."""
    response: Response | None = None

    def refuse(self, code: ErrorCode, message: str) -> Response:
        """The response to the client if the controller has sent no response."""
        return refusal(self.asked, self.version, code, message)

    def expire(self) -> Response:
        """The response to the client if the controller does not answer in time."""
        return self.refuse(*_unknown_outcome(f"did not answer within {_TIMEOUT_MS} ms"))


Wrap = Callable[[Call[Request]], Forwarded]


def forward_unchanged(call: Call[Request]) -> Forwarded:
    """Forward the request and its answer unchanged, in the client's version."""
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
        wrap: Wrap = forward_unchanged,
    ) -> None:
        self._peers = peers
        self._waiting = waiting
        self._controller_id = controller_id
        self._wrap = wrap
        self._creating: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call[Request]) -> Answer:
        """Forward a client's request; the client waits for the controller's answer."""
        forwarded = self._wrap(call)
        self._begin(forwarded)
        return Wait(
            keys=(forwarded,),
            timeout_ms=_TIMEOUT_MS,
            attempt=lambda: forwarded.response,
            expire=forwarded.expire,
        )

    def create_on_demand(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Ask the controller to create topics that a client has named in Metadata; the client asks again later."""
        possible = [name for name in names if _is_possible(name)]
        topics = [CreatableTopic(name=name, **_ALL_DEFAULTS) for name in possible if name not in self._creating]
        if topics:
            # A client repeats its Metadata request until the topic exists. Meanwhile only one request is sent to the
            # controller.
            self._creating |= {topic.name for topic in topics}
            request = CreateTopicsRequest(topics=topics, timeout_ms=_CREATE_MS)
            task = self._begin(Forwarded(request, 0, request, None, _same))
            task.add_done_callback(lambda _task: self._creating.difference_update(it.name for it in topics))
        return dict.fromkeys(possible, ErrorCode.LEADER_NOT_AVAILABLE)

    def _begin(self, forwarded: Forwarded) -> asyncio.Task[None]:
        """Send the request; its answer wakes the waiting client."""
        task = asyncio.create_task(self._send(forwarded))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, forwarded: Forwarded) -> None:
        try:
            response = await self._ask(forwarded)
            deadline_ms = monotonic_ms() + _ELECTION_MS
            # The node that answered is not the controller any more, or not yet. Ask again, because a client would treat
            # this answer as a failure.
            while not _NOT_THE_CONTROLLER.isdisjoint(codes_in(response)) and monotonic_ms() < deadline_ms:
                await asyncio.sleep(_RETRY_S)
                response = await self._ask(forwarded)
            forwarded.response = response
        except ClientError as error:
            log.warning("%s could not be forwarded to the controller: %s", type(forwarded.asked).__name__, error)
            forwarded.response = forwarded.refuse(*self._why(error))
        self._waiting.wake(forwarded)
        self._waiting.settle()

    def _why(self, error: ClientError) -> tuple[ErrorCode, str]:
        """The error code and message for a request that could not be forwarded."""
        if isinstance(error, BrokerUnavailable):
            node_id = self._controller_id()
            last = f": node {node_id}, the last controller, cannot be reached" if node_id >= 0 else ""
            return ErrorCode.NOT_CONTROLLER, (
                f"there is no controller at the moment{last}: start the voters that are down, and try again. If a"
                " controller was deposed while it answered, the change may have been made all the same"
            )
        if isinstance(error, BrokerError):
            return error.code, str(error)
        return _unknown_outcome(f"did not answer ({error})")

    async def _ask(self, forwarded: Forwarded) -> Response:
        """Ask the controller. If it is unknown or unreachable, ask again: an election may be under way."""
        deadline_ms = monotonic_ms() + _TIMEOUT_MS
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
                # Repeat a request that was not sent, or that changes nothing. Any other request may have taken effect,
                # and only the client can decide whether to repeat it.
                may_repeat = isinstance(error, BrokerUnavailable) or forwarded.is_read
                # Allow `_ELECTION_MS` for an election, from the first failure on. The time before does not count: the
                # request may have spent it waiting for a dead controller that was not deposed yet.
                deadline_ms = min(deadline_ms, monotonic_ms() + _ELECTION_MS)
                if not may_repeat or monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(_RETRY_S)


def _unknown_outcome(what: str) -> tuple[ErrorCode, str]:
    message = f"the controller {what}: the request may or may not have taken effect. Check before you repeat it"
    return ErrorCode.REQUEST_TIMED_OUT, message


def _is_possible(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True
