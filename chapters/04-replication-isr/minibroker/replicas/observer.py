"""The metadata of a node that does not decide: it follows the log of the one that does.

The authority serves its metadata log like any partition, to nodes alone. Each other node fetches it, appends it to a
log of its own, and folds it into an image: what this node has is a prefix of what is decided, never anything else. At
the next start it goes on from there.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from minibroker.client.errors import ClientError
from minibroker.log.errors import LogError
from minibroker.log.interfaces import FileSlice
from minibroker.metadata.authority import Listener, Proposal, read_records, replay
from minibroker.metadata.commands import AllocateProducerIds, ProducerIds
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image, fold_all
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.metadata.records import RemoveTopicRecord
from minibroker.partitions.partition import CONSUMER, LocalPartition, Reader
from minibroker.replicas.fetching import Self
from minibroker.replicas.peers import Peers
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState

log = logging.getLogger(__name__)

R = TypeVar("R")

_WAIT_MS = 500
_PATIENCE_MS = 2000
_BACKOFF_S = 0.1
_BYTES_MAX = 1024**2
_NO_SESSION_EPOCH = -1


class MetadataPartition(LocalPartition):
    """The metadata log of the node that decides, as the others read it; what is in it is decided and flushed."""

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`; handlers let only nodes come this far."""
        return super().read(offset, bytes_max=bytes_max, reader=CONSUMER if reader.is_replica else reader)


class Observer:
    """Chapter 03's port of an authority, for a node that has to ask another one."""

    def __init__(self, log: SegmentedLog, peers: Peers, *, node_id: int, authority_id: int, cluster_id: str) -> None:
        self._log = log
        self._peers = peers
        self._authority_id = authority_id
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self.me = Self(node_id, -1)
        self.image = replay(log, Image(cluster_id=cluster_id))
        self.on_done: Callable[[Proposal[ProducerIds]], None] = lambda _proposal: None
        """Called when a proposal that had to be asked for is done."""

    # The port ---------------------------------------------------------------------------------------------------------

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Ask the node that decides for producer ids; whatever else must be decided is to be sent there."""
        proposal: Proposal[R] = Proposal()
        if isinstance(command, AllocateProducerIds):
            task = asyncio.create_task(self._allocate(proposal))  # type: ignore[arg-type]
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        else:
            message = f"this node does not decide, node {self._authority_id} does"
            proposal.complete(command.refuse(ErrorCode.NOT_CONTROLLER, message))
        return proposal

    async def _allocate(self, proposal: Proposal[ProducerIds]) -> None:
        request = AllocateProducerIdsRequest(broker_id=self.me.node_id, broker_epoch=self.me.broker_epoch)
        try:
            response: AllocateProducerIdsResponse = await self._peers.send(
                self._authority_id, request, timeout_ms=_PATIENCE_MS
            )
        except ClientError as error:
            proposal.complete(ProducerIds(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
        else:
            code = ErrorCode(response.error_code)
            proposal.complete(ProducerIds(code, None, response.producer_id_start, response.producer_id_len))
        self.on_done(proposal)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.append(listener)

    def is_removed(self, topic_id: bytes) -> bool:
        """Whether the log says that a topic was deleted: what it does not know of may be news that has not come yet."""
        records = read_records(self._log, self._log.log_start_offset)
        return any(isinstance(it, RemoveTopicRecord) and it.topic_id == topic_id for _offset, it in records)

    # Following the log ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch the metadata log for ever."""
        while True:
            try:
                await self._fetch()
            except (ClientError, LogError) as error:
                log.info("metadata: %s", error)
                await asyncio.sleep(_BACKOFF_S)

    async def reach(self, offset: int) -> None:
        """Return once the image has everything up to `offset`."""
        while self.image.offset < offset:
            self._changed.clear()
            await self._changed.wait()

    async def _fetch(self) -> None:
        partition = FetchPartition(
            partition=0,
            fetch_offset=self._log.log_end_offset,
            log_start_offset=self._log.log_start_offset,
            partition_max_bytes=_BYTES_MAX,
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.me.node_id, replica_epoch=self.me.broker_epoch),
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[partition])],
        )
        timeout_ms = _WAIT_MS + _PATIENCE_MS
        response = await self._peers.send(self._authority_id, request, line="metadata", timeout_ms=timeout_ms)
        (data,) = (it for topic in response.responses for it in topic.partitions)
        if data.error_code:
            log.warning("metadata: %s", ErrorCode(data.error_code).name)
            await asyncio.sleep(_BACKOFF_S)
        elif data.records:
            self._take(memoryview(data.records))

    def _take(self, records: memoryview) -> None:
        first, old = self._log.log_end_offset, self.image
        self._log.append_as_follower(records)
        self.image = fold_all(old, read_records(self._log, first))
        for listener in self._listeners:
            listener(old, self.image)
        self._changed.set()
