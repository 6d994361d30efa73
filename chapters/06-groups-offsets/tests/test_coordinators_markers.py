"""Claims about the sending of markers, and about the questions to transaction coordinators."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from coordinators_bench import run
from test_groups_offsets import EVENTS_ID, ORDERS_ID, image_of

from minibroker.coordinators.marker_sending import MarkerSender
from minibroker.coordinators.verification import TransactionVerifier
from minibroker.groups.pending import Producer
from minibroker.metadata.image import BrokerImage, Image
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.outcomes import Markers
from minibroker.transactions.tables.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.wire.codes import ErrorCode

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("events", 0)
NO_LEADER = -1


def cluster(leaders: dict[TopicPartition, int], *, orders_id: bytes | None = ORDERS_ID) -> Image:
    """An image with two topics on two brokers. Without an id there is no topic `orders`."""
    topics = {"events": (EVENTS_ID, 1)} | ({"orders": (orders_id, 2)} if orders_id else {})
    image = image_of(topics)
    for name, leader in leaders.items():
        if name.topic in image.topics:
            topic: Any = image.topics[name.topic]
            topic.partitions[name.partition] = replace(topic.partitions[name.partition], leader=leader)
    brokers = {node_id: BrokerImage(node_id, "host", 9092, None, False, b"i" * 16, 1) for node_id in (1, 2)}
    return replace(image, brokers=brokers)


class Nodes:
    """Notes the requests to other nodes. A test answers them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any, Callable[[Any], None]]] = []

    def ask(self, node_id: int, request: Any, done: Callable[[Any], None], *, line: str, timeout_ms: int) -> None:
        del line, timeout_ms
        self.sent.append((node_id, request, done))

    def take(self) -> list[tuple[int, Any, Callable[[Any], None]]]:
        """The requests since the last call, by node."""
        sent, self.sent = self.sent, []
        return sorted(sent, key=lambda it: it[0])


# Markers --------------------------------------------------------------------------------------------------------------


class Leader:
    """A coordinator."""

    leader_epoch = 5


class Sending:
    """A sender for one coordinator."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.nodes = Nodes()
        self.is_running = True
        self.marked: list[tuple[str, list[TopicPartition]]] = []
        self.coordinator: Any = Leader()
        calls: Any = self.nodes
        self.sender = MarkerSender(
            calls,
            lambda: self.image,
            is_running=lambda _coordinator: self.is_running,
            on_marked=lambda _coordinator, name, names: self.marked.append((name, names)),
        )

    async def order(self, *names: TopicPartition, transactional_id: str = "copier", producer_id: int = 7) -> None:
        order = Markers(transactional_id, Producer(producer_id, 1), True, 2, frozenset(names))
        self.sender.order(self.coordinator, [order])
        await self.turn()

    async def turn(self) -> None:
        for _turn in range(3):
            await asyncio.sleep(0)

    async def change(self, image: Image) -> None:
        old, self.image = self.image, image
        self.sender.on_image(old, image)
        await self.turn()


def names_of(request: WriteTxnMarkersRequest) -> list[tuple[int, str, list[int]]]:
    return [(it.producer_id, topic.name, topic.partition_indexes) for it in request.markers for topic in it.topics]


def written(request: WriteTxnMarkersRequest, code: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=it.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in it.topics
                ],
            )
            for it in request.markers
        ]
    )


def test_each_node_gets_one_request_for_a_round_with_the_markers_of_all_transactions() -> None:
    async def work() -> None:
        it = Sending(cluster({A: 1, B: 1, C: 2}))
        await it.order(A, B, C)
        (first, request, done), (second, other, _done) = it.nodes.take()
        assert (first, names_of(request)) == (1, [(7, "orders", [0, 1])])
        assert (second, names_of(other)) == (2, [(7, "events", [0])])
        marker = request.markers[0]
        assert (marker.producer_epoch, marker.transaction_result) == (1, True)
        assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
        # While the node is busy, markers gather.
        await it.order(A, transactional_id="second", producer_id=8)
        await it.order(B, transactional_id="third", producer_id=9)
        assert it.nodes.take() == []
        done(written(request))
        await it.turn()
        assert it.marked == [("copier", [A, B])]
        ((_node, request, _done),) = it.nodes.take()
        assert names_of(request) == [(8, "orders", [0]), (9, "orders", [1])]

    run(work)


def test_a_partition_without_a_leader_keeps_its_marker_waiting() -> None:
    """Trap 36 (KAFKA-20734): a dropped marker would leave the transaction open for ever."""

    async def work() -> None:
        it = Sending(cluster({A: NO_LEADER, B: 2}))
        await it.order(A, B)
        ((_node, request, done),) = it.nodes.take()
        assert names_of(request) == [(7, "orders", [1])]
        done(written(request))
        await it.turn()
        assert (it.marked, it.nodes.take()) == ([("copier", [B])], [])
        await it.change(cluster({A: 1, B: 2}))
        ((node_id, request, _done),) = it.nodes.take()
        assert (node_id, names_of(request)) == (1, [(7, "orders", [0])])

    run(work)


def test_only_the_markers_of_deleted_partitions_are_dropped() -> None:
    """Trap 23: a new topic of the same name gets no marker of the old one."""

    async def work() -> None:
        for image in (cluster({}, orders_id=None), cluster({A: 1}, orders_id=b"n" * 16)):
            it = Sending(cluster({A: NO_LEADER}))
            await it.order(A)
            await it.change(image)
            assert (it.marked, it.nodes.take()) == ([("copier", [A])], [])
        it = Sending(cluster({}, orders_id=None))
        await it.order(A)
        assert it.marked == [("copier", [A])]

    run(work)


def test_a_marker_is_sent_until_it_is_written() -> None:
    async def work() -> None:
        it = Sending(cluster({A: 1}))
        await it.order(A)
        for code in (None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            ((_node, request, done),) = it.nodes.take()
            done(None if code is None else written(request, code))
            while not it.nodes.sent:
                await asyncio.sleep(0.01)
        assert it.marked == []
        ((_node, request, done),) = it.nodes.take()
        # A newer epoch in the partition has ended the transaction there.
        done(written(request, ErrorCode.INVALID_PRODUCER_EPOCH))
        assert it.marked == [("copier", [A])]

    run(work)


def test_a_refused_marker_waits_even_while_another_one_has_no_leader() -> None:
    """A node that refuses its own marker would otherwise do nothing else any more."""

    async def work() -> None:
        it = Sending(cluster({A: 1, B: NO_LEADER}))
        await it.order(A, B)
        ((_node, request, done),) = it.nodes.take()
        done(written(request, ErrorCode.NOT_COORDINATOR))
        await it.turn()
        assert it.nodes.take() == [], "it was sent again at once"
        while not it.nodes.sent:
            await asyncio.sleep(0.01)
        ((_node, request, _done),) = it.nodes.take()
        assert names_of(request) == [(7, "orders", [0])]

    run(work)


def test_a_coordinator_that_was_replaced_sends_and_completes_nothing() -> None:
    async def work() -> None:
        it = Sending(cluster({A: 1, B: NO_LEADER}))
        await it.order(A, B)
        ((_node, request, done),) = it.nodes.take()
        done(written(request, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
        it.is_running = False
        await it.change(cluster({A: 1, B: 1}))
        assert (it.marked, it.nodes.take()) == ([], [])

    run(work)


# Questions ------------------------------------------------------------------------------------------------------------


class Asking:
    """A verifier whose coordinators are all on node 1, or nowhere."""

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.nodes = Nodes()
        self.node: Any = SimpleNamespace(node_id=1)
        self.found: list[dict[TopicPartition, ErrorCode]] = []
        topic: Any = SimpleNamespace(partition_of=lambda key: key, leader_of=lambda _name: self.node)
        calls: Any = self.nodes
        self.verifier = TransactionVerifier(calls, topic, is_enabled=is_enabled)

    def ask(self, name: TopicPartition, owner: str = "copier", *, epoch: int = 0, is_add: bool = True) -> None:
        """Ask about a partition."""
        done: Any = self.found.append
        self.verifier.verify(owner, 7, epoch, [name], is_add=is_add, done=done)


def added(request: AddPartitionsToTxnRequest, code: ErrorCode = ErrorCode.NONE) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=it.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                            for index in topic.partitions
                        ],
                    )
                    for topic in it.topics
                ],
            )
            for it in request.transactions
        ]
    )


def test_the_questions_of_many_partitions_and_producers_are_one_request() -> None:
    async def work() -> None:
        it = Asking()
        it.ask(A)
        it.ask(B)
        it.ask(C, "other", is_add=False)
        it.ask(A, epoch=1)
        await asyncio.sleep(0)
        ((node_id, request, done),) = it.nodes.take()
        assert node_id == 1
        asked = [(one.transactional_id, one.verify_only, len(one.topics[0].partitions)) for one in request.transactions]
        assert asked == [("copier", False, 2), ("other", True, 1)]
        done(added(request))
        assert it.found == [{A: ErrorCode.NONE}, {B: ErrorCode.NONE}, {C: ErrorCode.NONE}]
        # A response names each transactional id once. Another epoch is another question.
        ((_node, request, done),) = it.nodes.take()
        assert [one.producer_epoch for one in request.transactions] == [1]
        done(None)
        assert it.found[-1] == {A: ErrorCode.NETWORK_EXCEPTION}

    run(work)


def test_a_question_is_repeated_while_the_transaction_before_ends() -> None:
    async def work() -> None:
        it = Asking()
        it.ask(A)
        for attempt in range(5):
            assert it.found == [], attempt
            await asyncio.sleep(0)
            ((_node, request, done),) = it.nodes.take()
            done(added(request, ErrorCode.CONCURRENT_TRANSACTIONS))
        assert it.found == [{A: ErrorCode.CONCURRENT_TRANSACTIONS}]

    run(work)


def test_without_a_coordinator_or_with_verification_disabled_no_node_is_asked() -> None:
    async def work() -> None:
        it = Asking()
        it.node = None
        it.ask(A)
        assert it.found == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
        disabled = Asking(is_enabled=False)
        disabled.ask(A, is_add=False)
        assert disabled.found == [{A: ErrorCode.NONE}]
        # A producer that relies on the broker to add partitions needs the coordinator nevertheless.
        disabled.ask(A)
        await asyncio.sleep(0)
        assert (len(it.nodes.take()), len(disabled.nodes.take())) == (0, 1)

    run(work)
