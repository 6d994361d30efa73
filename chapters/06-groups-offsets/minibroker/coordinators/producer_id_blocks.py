"""Producer ids for transactional producers, from blocks that are fetched before they are needed.

A shard cannot wait for the controller in the middle of a decision. So a block is asked for when the last one runs low.
If there is no id, the request is refused, and the producer tries again.
"""

from collections import deque

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.authority import Authority, Proposal
from minibroker.metadata.broker_commands import AllocateProducerIds, ProducerIds
from minibroker.transactions.errors import TransactionRefused
from minibroker.wire.codes import ErrorCode

_LOW = 100
_ANSWER_MS_MAX = 5000


class ProducerIdBlocks:
    """The unused producer ids of one node."""

    def __init__(self, authority: Authority, node_id: int) -> None:
        self._authority = authority
        self._node_id = node_id
        self._ids: deque[int] = deque()
        self._proposal: Proposal[ProducerIds] | None = None
        self._asked_ms = 0

    def prefetch(self) -> None:
        """Ask for a block if few ids are left."""
        self._collect()
        is_late = self._proposal is not None and monotonic_ms() - self._asked_ms > _ANSWER_MS_MAX
        if len(self._ids) < _LOW and (self._proposal is None or is_late):
            self._asked_ms = monotonic_ms()
            self._proposal = self._authority.propose(AllocateProducerIds(broker_id=self._node_id))
            self._collect()

    def _collect(self) -> None:
        """Take the ids of a block that has arrived."""
        if self._proposal is not None and self._proposal.is_done:
            block, self._proposal = self._proposal.result, None
            if block.code is ErrorCode.NONE:
                self._ids.extend(range(block.first, block.first + block.count))

    def take(self) -> int:
        """The next id. Raises `TransactionRefused` if no block has arrived yet."""
        self.prefetch()
        if not self._ids:
            raise TransactionRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._ids.popleft()
