"""InitProducerId: an id for each idempotent producer, never given twice. A pure module.

The authority allocates blocks of a thousand ids, each written to the metadata log before it is used. The broker counts
within its block. A restart loses the unused ids of a block. This does not matter, because there are 2^63 ids.
"""

from collections.abc import Iterator
from itertools import chain

from minibroker.metadata.authority import Authority
from minibroker.metadata.broker_commands import AllocateProducerIds, ProducerIds
from minibroker.partitions.registry import Answer, Call, propose
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_ALLOCATION_MS_MAX = 10_000


class InitProducerId:
    """The handler of InitProducerId for producers without transactions: every request gets a new id."""

    def __init__(self, authority: Authority, node_id: int) -> None:
        self._authority = authority
        self._node_id = node_id
        self._block: Iterator[int] = iter(())

    def __call__(self, call: Call[InitProducerIdRequest]) -> Answer:
        """Answer with the next id and epoch 0."""
        if call.request.transactional_id == "":
            return _refusal(ErrorCode.INVALID_REQUEST)
        if call.request.transactional_id is not None:
            # Transactions need a coordinator, which chapter 06 adds. This code tells the client not to try again.
            return _refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        producer_id = next(self._block, None)
        if producer_id is not None:
            return _given(producer_id)
        # The controller may be another node, so the answer may have to wait for the block.
        return propose(
            self._authority,
            AllocateProducerIds(broker_id=self._node_id),
            self._take,
            timeout_ms=_ALLOCATION_MS_MAX,
            expire=lambda: _refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        )

    def _take(self, block: ProducerIds) -> Response:
        if block.code is not ErrorCode.NONE:
            # The controller's codes mean nothing to a client. With this code the client asks again.
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # Several requests may have waited at the same time, and each got a block. So add this block to the ids that are
        # left.
        self._block = chain(self._block, range(block.first, block.first + block.count))
        return _given(next(self._block))


def _given(producer_id: int) -> Response:
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)


def _refusal(code: ErrorCode) -> Response:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
