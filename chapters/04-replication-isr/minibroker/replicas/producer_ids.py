"""Blocks of producer ids for a node that is not the controller."""

import asyncio
from collections.abc import Callable

from minibroker.client.errors import ClientError, known_code
from minibroker.metadata.authority import Proposal
from minibroker.metadata.broker_commands import ProducerIds
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.peers import Peers
from minibroker.replication.tables.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker.wire.codes import ErrorCode

_ANSWER_MS_MAX = 2000


class ProducerIdCalls:
    """Asks the current controller for blocks. `on_done` is called when a proposal is done."""

    def __init__(
        self,
        peers: Peers,
        me: Incarnation,
        *,
        controller_id: Callable[[], int],
        on_done: Callable[[Proposal[ProducerIds]], None],
    ) -> None:
        self._peers = peers
        self._me = me
        self._controller_id = controller_id
        self._on_done = on_done
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, proposal: Proposal[ProducerIds]) -> None:
        """Ask for a block; its arrival completes the proposal."""
        task = asyncio.create_task(self._ask(proposal))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, proposal: Proposal[ProducerIds]) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._me.node_id, broker_epoch=self._me.broker_epoch)
        try:
            response: AllocateProducerIdsResponse = await self._peers.send(
                self._controller_id(), request, timeout_ms=_ANSWER_MS_MAX
            )
        except ClientError as error:
            proposal.complete(ProducerIds(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
        else:
            code = known_code(response.error_code)
            proposal.complete(ProducerIds(code, None, response.producer_id_start, response.producer_id_len))
        self._on_done(proposal)
