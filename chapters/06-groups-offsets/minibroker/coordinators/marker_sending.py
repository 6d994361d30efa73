"""Markers to the leaders of partitions: one WriteTxnMarkers for each node and round, until every marker is written.

    Markers ──▶ waiting ── the partition has a leader ──▶ one request for each node ── written ──▶ on_marked
                  ▲  └──── the topic is deleted ─────────────────────────────────────────────────▶ on_marked
                  └───────────────────────── refused, or no answer ───────┘

A partition without a leader keeps its marker waiting. Its transaction would hang for ever if the marker were dropped,
because no other node would send it. Only the marker of a deleted partition is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from minibroker.coordinators.coordinator import Coordinator
from minibroker.coordinators.node_calls import NodeCalls
from minibroker.metadata.image import Image
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.outcomes import Markers
from minibroker.transactions.records import by_topic
from minibroker.transactions.shard import TransactionShard
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

_ANSWER_MS_MAX = 32_000  # longer than a leader waits for its followers
_RETRY_S = 0.05
_MARKERS_MAX = 2000  # in one request


class _Due(NamedTuple):
    """One marker for one partition."""

    coordinator: Coordinator[TransactionShard]
    order: Markers
    name: TopicPartition
    topic_id: bytes
    """The id of the topic at the time of the order. A new topic of the same name must not get the marker."""


class MarkerSender:
    """Sends the markers of all transaction coordinators of a node."""

    def __init__(
        self,
        calls: NodeCalls,
        image: Callable[[], Image],
        *,
        is_running: Callable[[Coordinator[TransactionShard]], bool],
        on_marked: Callable[[Coordinator[TransactionShard], str, list[TopicPartition]], None],
        run: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        """`is_running` says whether this node still runs a coordinator. `on_marked` tells it of written markers.

        `run` calls a function outside of a request, and ends the node if it fails.
        """
        self._run = run
        self._calls = calls
        self._image = image
        self._is_running = is_running
        self._on_marked = on_marked
        self._due: list[_Due] = []
        self._busy: set[int] = set()
        """The nodes that have not answered the last request yet."""
        self._next: asyncio.Handle | None = None
        self._refused: list[_Due] = []
        """The markers that wait a while before they are sent again."""
        self._retry: asyncio.Handle | None = None

    def order(self, coordinator: Coordinator[TransactionShard], orders: Iterable[Markers]) -> None:
        """Send markers."""
        topics = self._image().topics
        for order in orders:
            known = {name for name in order.partitions if name.topic in topics}
            gone = order.partitions - known
            self._due += [_Due(coordinator, order, name, topics[name.topic].topic_id) for name in sorted(known)]
            if gone or not known:
                self._on_marked(coordinator, order.transactional_id, list(gone))
        self._soon()

    def on_image(self, old: Image, new: Image) -> None:
        """The metadata have changed: a partition may have a leader again, or may be deleted."""
        if self._due and (new.topics is not old.topics or new.brokers is not old.brokers):
            self._soon()

    def stop(self) -> None:
        """Send nothing more."""
        self._due.clear()
        self._refused.clear()
        for handle in (self._next, self._retry):
            if handle is not None:
                handle.cancel()

    def _soon(self) -> None:
        """Begin a round in the next pass of the event loop."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._run, self._round)

    def _refuse(self, dues: list[_Due]) -> None:
        """Send markers again after a pause. Without one, a node that refuses its own markers would loop for ever."""
        self._refused += dues
        if self._refused and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._run, self._send_again)

    def _send_again(self) -> None:
        self._retry = None
        dues, self._refused = self._refused, []
        self._due += dues
        self._soon()

    def _round(self) -> None:
        self._next = None
        by_node: dict[int, list[_Due]] = {}
        waiting: list[_Due] = []
        for due in self._due:
            node_id = self._leader_of(due)
            if node_id is None or node_id in self._busy or len(by_node.get(node_id, ())) >= _MARKERS_MAX:
                waiting.append(due)
            elif node_id >= 0:
                by_node.setdefault(node_id, []).append(due)
        self._due = waiting
        for node_id, dues in by_node.items():
            self._send(node_id, dues)

    def _leader_of(self, due: _Due) -> int | None:
        """The node to send a marker to; None if there is no leader, -1 if the marker is not to be sent."""
        if not self._is_running(due.coordinator):
            return -1
        image = self._image()
        topic = image.topics.get(due.name.topic)
        if topic is None or topic.topic_id != due.topic_id:
            self._on_marked(due.coordinator, due.order.transactional_id, [due.name])
            return -1
        partition = topic.partitions.get(due.name.partition)
        leader = None if partition is None else image.brokers.get(partition.leader)
        return None if leader is None or leader.is_fenced else leader.node_id

    def _send(self, node_id: int, dues: list[_Due]) -> None:
        self._busy.add(node_id)
        request = _request(dues)
        self._calls.ask(
            node_id,
            request,
            lambda response: self._on_answer(node_id, dues, response),
            line="markers",
            timeout_ms=_ANSWER_MS_MAX,
        )

    def _on_answer(self, node_id: int, dues: list[_Due], response: WriteTxnMarkersResponse | None) -> None:
        self._busy.discard(node_id)
        codes = {} if response is None else _codes(dues, response)
        written: dict[tuple[Coordinator[TransactionShard], str], list[TopicPartition]] = {}
        again = []
        for due in dues:
            code = codes.get((due.order, due.name), ErrorCode.NETWORK_EXCEPTION)
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                # Another node coordinates this transaction now. It sends the markers.
                log.info("%s: a newer coordinator ends %r", due.name.directory, due.order.transactional_id)
            elif code is ErrorCode.NONE or code is ErrorCode.INVALID_PRODUCER_EPOCH:
                # With a newer epoch in the partition, this transaction has already ended there.
                written.setdefault((due.coordinator, due.order.transactional_id), []).append(due.name)
            else:
                again.append(due)
        self._refuse(again)
        for (coordinator, transactional_id), names in written.items():
            if self._is_running(coordinator):
                self._on_marked(coordinator, transactional_id, names)
        # Markers that came while the node was busy go out at once.
        if self._due:
            self._soon()


def _by_order(dues: list[_Due]) -> dict[tuple[Coordinator[TransactionShard], Markers], list[TopicPartition]]:
    found: dict[tuple[Coordinator[TransactionShard], Markers], list[TopicPartition]] = {}
    for due in dues:
        found.setdefault((due.coordinator, due.order), []).append(due.name)
    return found


def _request(dues: list[_Due]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=order.producer.id,
                producer_epoch=order.producer.epoch,
                transaction_result=order.is_commit,
                topics=[WritableTxnMarkerTopic(name=name, partition_indexes=ids) for name, ids in by_topic(names)],
                coordinator_epoch=coordinator.leader_epoch,
                transaction_version=order.client_version,
            )
            for (coordinator, order), names in _by_order(dues).items()
        ]
    )


def _codes(dues: list[_Due], response: WriteTxnMarkersResponse) -> dict[tuple[Markers, TopicPartition], ErrorCode]:
    """The code of each marker. The results are in the order of the request."""
    found = {}
    for (_coordinator, order), result in zip(_by_order(dues), response.markers, strict=False):
        for topic in result.topics:
            for it in topic.partitions:
                found[order, TopicPartition(topic.name, it.partition_index)] = ErrorCode(it.error_code)
    return found
