"""An unclean election chooses the longest log (KIP-966): the controller asks the live replicas where their logs end.

    operator ── ElectLeaders, unclean ──▶ controller ── GetReplicaLogInfo ──▶ every live replica
                                              ▲                                    │
                                              └── leader epoch, log end offset ────┘

The replica with the greatest leader epoch and then the greatest log end offset becomes the leader. A replica that does
not answer in time is chosen only if no replica answers.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from minibroker.client.errors import ClientError
from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call
from minibroker.replicas.later import Later
from minibroker.replicas.peers import Peers
from minibroker.replication.answering import Decisions, LogEnds
from minibroker.replication.authority import Election, LogEnd
from minibroker.replication.log_info import PARTITIONS_MAX, log_ends_of, log_info_request
from minibroker.replication.tables.elect_leaders import ElectLeadersRequest
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.schema import Response

log = logging.getLogger(__name__)

_ASK_MS = 2000


class Recovery:
    """Asks replicas where their logs end, before an unclean election. `live` returns the nodes that are alive."""

    def __init__(self, peers: Peers, image: Callable[[], Image], live: Callable[[], Collection[int]]) -> None:
        self._peers = peers
        self._image = image
        self._live = live

    async def log_ends(self, names: Iterable[TopicPartition]) -> LogEnds:
        """Where the logs of leaderless partitions end, on each live replica that answers."""
        image, live = self._image(), self._live()
        wanted: dict[int, list[TopicPartition]] = {}
        for name in names:
            partition = image.partition(name)
            if partition is not None and partition.leader not in live:
                for node_id in partition.replicas:
                    if node_id in live:
                        wanted.setdefault(node_id, []).append(name)
        answers = await asyncio.gather(*(self._ask(image, node_id, them) for node_id, them in wanted.items()))
        ends: dict[TopicPartition, dict[int, LogEnd]] = {}
        for node_id, found in zip(wanted, answers, strict=True):
            for name, end in found.items():
                ends.setdefault(name, {})[node_id] = end
        return ends

    async def _ask(self, image: Image, node_id: int, names: list[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        found: dict[TopicPartition, LogEnd] = {}
        for start in range(0, len(names), PARTITIONS_MAX):
            request = log_info_request(image, names[start : start + PARTITIONS_MAX])
            try:
                found |= log_ends_of(image, await self._peers.send(node_id, request, timeout_ms=_ASK_MS))
            except ClientError as error:
                log.warning("node %d does not say where its logs end: %s", node_id, error)
                break
        return found


class Elections:
    """The handler of ElectLeaders, which asks the replicas first if the election is unclean."""

    def __init__(self, decisions: Decisions, recovery: Recovery, later: Later) -> None:
        self._decisions = decisions
        self._recovery = recovery
        self._later = later

    def __call__(self, call: Call[ElectLeadersRequest]) -> Answer:
        """Answer with the results of the elections."""
        if call.request.election_type != Election.UNCLEAN:
            return self._decisions.elect_leaders(call)
        return self._later.answer(call.request, call.version, self._elect_uncleanly(call))

    async def _elect_uncleanly(self, call: Call[ElectLeadersRequest]) -> Response:
        ends = await self._recovery.log_ends(self._decisions.named(call.request))
        return await self._later.answered(self._decisions.elect_leaders(call, ends))
