"""Whoever decides, as the handlers of one node see it: this node while it leads the quorum, another one otherwise."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from minibroker.client.errors import ClientError
from minibroker.controller.deciding import Controller
from minibroker.metadata.authority import Listener, Proposal
from minibroker.metadata.broker_commands import AllocateProducerIds, ProducerIds
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image
from minibroker.replicas.fetching import Self
from minibroker.replicas.peers import Peers
from minibroker.replication.tables.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

R = TypeVar("R")

_PATIENCE_MS = 2000


class ClusterAuthority:
    """Chapter 03's port. What must be asked of another node is: blocks of producer ids; the rest is forwarded whole."""

    def __init__(self, controller: Controller, peers: Peers, me: Self, done: Callable[[Proposal[Any]], None]) -> None:
        self._controller = controller
        self._peers = peers
        self._me = me
        self._done = done
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def image(self) -> Image:
        """The newest image of which this node knows that it is decided."""
        return self._controller.image

    @property
    def is_active(self) -> bool:
        """Whether this node decides."""
        return self._controller.is_active

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Decide here, or ask whoever decides."""
        if isinstance(command, AllocateProducerIds) and not self.is_active:
            proposal: Proposal[R] = Proposal()
            task = asyncio.create_task(self._allocate(proposal))  # type: ignore[arg-type]
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            return proposal
        return self._controller.propose(command)

    async def _allocate(self, proposal: Proposal[ProducerIds]) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._me.node_id, broker_epoch=self._me.broker_epoch)
        try:
            response: AllocateProducerIdsResponse = await self._peers.send(
                self._controller.raft.leader_id, request, timeout_ms=_PATIENCE_MS
            )
        except ClientError as error:
            proposal.complete(ProducerIds(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
        else:
            code = ErrorCode(response.error_code)
            proposal.complete(ProducerIds(code, None, response.producer_id_start, response.producer_id_len))
        self._done(proposal)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._controller.subscribe(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The topics of which the metadata say that they were deleted. To be asked once, at the start."""
        return self._controller.removed_topics()
