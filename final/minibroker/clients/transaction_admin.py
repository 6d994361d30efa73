"""Administration of transactions: listing, describing, and ending those that hang.

A transaction hangs in a partition if the partition's leader counts it as open, but its coordinator does not: nothing
will ever end it, and readers of committed records wait for it for ever. A client that wrote after its transaction had
ended could cause this before KIP-890.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.clients.blocking import Client
from minibroker.clients.coordination import TRANSACTION, Coordinator, ask_while_loading, by_topic
from minibroker.clients.core import Ask, Core, Dialogue
from minibroker.clients.dialogues import by_leader, raise_errors
from minibroker.clients.transacting import Session
from minibroker.replication.tables.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.tables.describe_transactions import DescribedTransaction, DescribeTransactionsRequest
from minibroker.transactions.tables.list_transactions import ListTransactionsRequest
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from minibroker.wire.codes import ErrorCode

_FENCE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, its producer id, its state, such as Ongoing, and its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction. `start_ms` is -1 if no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    coordinator: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition: its producer, its first offset, and the time of its last record."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_ms: int
    coordinator_epoch: int


# Listing and describing ---------------------------------------------------------------------------------------------


def list_transactions(client: Client, producer_ids: Iterable[int] = ()) -> list[TransactionListing]:
    """All transactional ids, or those of some producers, sorted. Each broker lists those that it coordinates."""
    client.metadata([])
    request = ListTransactionsRequest(producer_id_filters=list(producer_ids))
    found: dict[str, TransactionListing] = {}
    for node_id in sorted(client.core.routes.nodes):
        about = f"listing the transactions of node {node_id}"
        for it in client.run(ask_while_loading(client.core, request, node_id, about=about)).transaction_states:
            found[it.transactional_id] = TransactionListing(
                it.transactional_id, it.producer_id, it.transaction_state, node_id
            )
    return [found[transactional_id] for transactional_id in sorted(found)]


def describe_all(client: Client, producer_ids: Iterable[int] = ()) -> list[TransactionDescription]:
    """All transactional ids, or those of some producers, sorted. Each coordinator is asked once."""
    listed = list_transactions(client, producer_ids)
    together: dict[int, list[str]] = {}
    for it in listed:
        together.setdefault(it.coordinator, []).append(it.transactional_id)
    found: dict[str, TransactionDescription] = {}
    for node_id, transactional_ids in together.items():
        found |= client.run(_describe_together(node_id, transactional_ids))
    for it in listed:
        # The id may have moved to another coordinator, or have expired, since it was listed.
        if it.transactional_id not in found and (description := describe_if_there(client, it.transactional_id)):
            found[it.transactional_id] = description
    return [found[transactional_id] for transactional_id in sorted(found)]


def _describe_together(node_id: int, transactional_ids: list[str]) -> Dialogue[dict[str, TransactionDescription]]:
    response = yield Ask(DescribeTransactionsRequest(transactional_ids=transactional_ids), node_id)
    known = [it for it in response.transaction_states if not it.error_code]
    return {it.transactional_id: _described(it, node_id) for it in known}


def describe_if_there(client: Client, transactional_id: str) -> TransactionDescription | None:
    """The transaction of one transactional id; None if there is no such id."""
    coordinator = Coordinator(client.core, transactional_id, TRANSACTION)
    return client.run(_describe(coordinator))


def _describe(coordinator: Coordinator) -> Dialogue[TransactionDescription | None]:
    request = DescribeTransactionsRequest(transactional_ids=[coordinator.key])
    response = yield from coordinator.ask_until_answered(request, lambda it: [it.transaction_states[0].error_code])
    found = response.transaction_states[0]
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    raise_errors({coordinator.about: (found.error_code, None)})
    return _described(found, coordinator.node_id or 0)


def _described(it: DescribedTransaction, node_id: int) -> TransactionDescription:
    partitions = sorted(TopicPartition(topic.topic, number) for topic in it.topics for number in topic.partitions)
    return TransactionDescription(
        it.transactional_id,
        it.transaction_state,
        it.producer_id,
        it.producer_epoch,
        it.transaction_timeout_ms,
        it.transaction_start_time_ms,
        node_id,
        partitions,
    )


# Partitions ---------------------------------------------------------------------------------------------------------


def open_transactions(client: Client, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """The transactions that the leaders of these partitions count as open."""
    states = client.run(_producers(client.core, partitions))
    return [
        OpenTransaction(
            partition,
            it.producer_id,
            it.producer_epoch,
            it.current_txn_start_offset,
            it.last_timestamp,
            it.coordinator_epoch,
        )
        for partition, producers in sorted(states.items())
        for it in producers
        if it.current_txn_start_offset >= 0
    ]


def _producers(core: Core, partitions: Iterable[TopicPartition]) -> Dialogue[dict[TopicPartition, list[ProducerState]]]:
    wanted = dict.fromkeys(partitions, 0)
    yield from core.learn_routes({it.topic for it in wanted})
    found: dict[TopicPartition, list[ProducerState]] = {}
    for node_id, group in (yield from by_leader(core, wanted)).items():
        topics = [
            TopicRequest(name=topic, partition_indexes=[it.partition for it in them])
            for topic, them in by_topic(group).items()
        ]
        response = yield Ask(DescribeProducersRequest(topics=topics), node_id)
        for topic in response.topics:
            for it in topic.partitions:
                name = TopicPartition(topic.name, it.partition_index)
                raise_errors({str(name): (it.error_code, it.error_message)})
                found[name] = it.active_producers
    return found


def hanging_transactions(
    client: Client, partitions: Iterable[TopicPartition], *, before_ms: float
) -> list[OpenTransaction]:
    """The open transactions without a record since a time, which no coordinator knows as ongoing in their partition."""
    old = [it for it in open_transactions(client, partitions) if it.last_ms < before_ms]
    known = _ongoing(client, {it.producer_id for it in old}) if old else {}
    return [it for it in old if it.partition not in known.get(it.producer_id, ())]


def _ongoing(client: Client, producer_ids: Iterable[int]) -> Mapping[int, Sequence[TopicPartition]]:
    """For each producer id, the partitions of its transaction, as its coordinator knows them."""
    return {it.producer_id: it.partitions for it in describe_all(client, producer_ids)}


# Ending -------------------------------------------------------------------------------------------------------------


def abort_hanging(client: Client, transaction: OpenTransaction) -> None:
    """Write an abort marker for a hanging transaction into its partition."""
    topic, partition = transaction.partition
    marker = WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        # A partition in which the producer never ended a transaction knows no coordinator epoch.
        coordinator_epoch=max(0, transaction.coordinator_epoch),
    )
    response = client.run(_write_marker(client.core, transaction.partition, marker))
    raise_errors(
        {
            str(transaction.partition): (it.error_code, None)
            for one in response.markers
            for topic in one.topics
            for it in topic.partitions
        }
    )


def _write_marker(core: Core, partition: TopicPartition, marker: WritableTxnMarker) -> Dialogue[Any]:
    leader = yield from core.leader(*partition)
    return (yield Ask(WriteTxnMarkersRequest(markers=[marker]), leader))


def fence(client: Client, transactional_id: str) -> None:
    """Fence the producer of a transactional id. Its coordinator aborts the open transaction."""
    session = Session(transactional_id, _FENCE_TIMEOUT_MS)
    coordinator = Coordinator(client.core, transactional_id, TRANSACTION)
    client.run(session.init(coordinator, is_first=True, timeout_ms=client.config.timeout_ms))
