"""The metadata of a node that is not the controller: it follows the controller's metadata log.

The controller serves its metadata log like any partition, but only to nodes. Each other node fetches it, appends it to
a log of its own, and folds it into an image. Its log is always a prefix of the controller's, so after a restart
the node continues at the end of its log.

A controller that runs on an older copy of its data directory would break that rule. So after every lost connection a
node first fetches the last batch that it has, and continues only if the controller has the same batch at that
offset.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from minibroker.client.errors import ClientError, known_code
from minibroker.log.batch import read_header
from minibroker.log.errors import LogError, LogOffline
from minibroker.metadata.authority import Listener, Listeners, Proposal, removed_topics, replay
from minibroker.metadata.broker_commands import AllocateProducerIds, ProducerIds
from minibroker.metadata.decision import Command
from minibroker.metadata.errors import MetadataError
from minibroker.metadata.image import Image
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.partitions.errors import BrokerFailure
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.peers import Peers
from minibroker.replicas.producer_ids import ProducerIdCalls
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

_WAIT_MS = 500
_ANSWER_MS_MAX = 2000
_BACKOFF_S = 0.2
_BYTES_MAX = 1024**2
_NO_SESSION_EPOCH = -1


class Observer:
    """Chapter 03's `Authority` port on a node that is not the controller."""

    def __init__(
        self,
        log: SegmentedLog,
        peers: Peers,
        *,
        me: Incarnation,
        controller_id: int,
        cluster_id: str,
        on_done: Callable[[Proposal[ProducerIds]], None],
    ) -> None:
        """`on_done` is called when a proposal that was sent to the controller is done."""
        self._producer_ids = ProducerIdCalls(peers, me, controller_id=lambda: controller_id, on_done=on_done)
        self._log = log
        self._peers = peers
        self._me = me
        self._controller_id = controller_id
        self._listeners = Listeners()
        self._changed = asyncio.Event()
        self._is_agreed = False
        self._is_complaining = False
        self._failure: Exception | None = None
        self.image = replay(log, Image(cluster_id=cluster_id))

    # The port ---------------------------------------------------------------------------------------------------------

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Ask the controller for producer ids. All other commands are refused: only the controller runs them."""
        proposal: Proposal[R] = Proposal()
        if isinstance(command, AllocateProducerIds):
            self._producer_ids.begin(proposal)  # type: ignore[arg-type]
        else:
            message = f"this node is not the controller, node {self._controller_id} is"
            proposal.complete(command.refuse(ErrorCode.NOT_CONTROLLER, message))
        return proposal

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.add(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The topics that a record of the log has deleted. A topic that was never in the log is not among them."""
        return removed_topics(self._log)

    # Following the log ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch the metadata log as long as the node runs. If the log cannot be followed, the node fails."""
        try:
            while True:
                await self._follow()
        except Exception as error:
            self._failure = error
            self._changed.set()
            raise

    async def _follow(self) -> None:
        try:
            await self._fetch()
        except (LogOffline, MetadataError) as error:
            message = f"the metadata log of node {self._controller_id}, the controller, cannot be followed: {error}"
            raise BrokerFailure(message) from error
        except (ClientError, LogError) as error:
            # Only the first failure is logged, because the controller may be down for long.
            if not self._is_complaining:
                log.warning("cannot fetch metadata from node %d, the controller: %s", self._controller_id, error)
            self._is_agreed, self._is_complaining = False, True
            await asyncio.sleep(_BACKOFF_S)

    async def reach(self, offset: int) -> None:
        """Return once the image has everything up to `offset`."""
        while self.image.offset < offset:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def _fetch(self) -> None:
        own = b"" if self._is_agreed else self._last_batch()
        data = await self._ask(read_header(own).base_offset if own else self._log.log_end_offset)
        code = known_code(data.error_code)
        records = data.records if isinstance(data.records, memoryview) else memoryview(b"")
        if code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            raise ClientError(f"{code.name}: {code.message}")
        # After a lost connection the controller must have our last batch. At other times its log must reach the end of
        # ours.
        if code is ErrorCode.OFFSET_OUT_OF_RANGE or (own and bytes(records[: len(own)]) != own):
            raise self._contradiction()
        if self._is_complaining:
            log.info("node %d, the controller, sends metadata again", self._controller_id)
        self._is_agreed, self._is_complaining = True, False
        if len(records) > len(own):
            self._take(records[len(own) :])

    def _last_batch(self) -> bytes:
        end = self._log.log_end_offset
        return self._log.read(end - 1, bytes_max=1).read() if end > self._log.log_start_offset else b""

    def _contradiction(self) -> BrokerFailure:
        return BrokerFailure(
            f"this node has the metadata log up to offset {self._log.log_end_offset}, and the log of node"
            f" {self._controller_id}, the controller, contradicts it: that node may run on an older copy of its data."
            " Restore its newer data, or start this node with an empty data directory"
        )

    async def _ask(self, offset: int) -> PartitionData:
        partition = FetchPartition(
            partition=0,
            fetch_offset=offset,
            log_start_offset=self._log.log_start_offset,
            partition_max_bytes=_BYTES_MAX,
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._me.node_id, replica_epoch=self._me.broker_epoch),
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[partition])],
        )
        response: FetchResponse = await self._peers.send(
            self._controller_id, request, line="metadata", timeout_ms=_WAIT_MS + _ANSWER_MS_MAX
        )
        for topic in response.responses:
            for data in topic.partitions:
                return data
        raise ClientError(f"its answer has no partition: {known_code(response.error_code).name}")

    def _take(self, records: memoryview) -> None:
        try:
            self._log.append_as_follower(records)
        finally:
            # The appended batches stay valid, even if a later batch was damaged on its way.
            self._tell(replay(self._log, self.image))

    def _tell(self, new: Image) -> None:
        old, self.image = self.image, new
        if new is old:
            return
        self._listeners.tell(old, new)
        self._changed.set()
