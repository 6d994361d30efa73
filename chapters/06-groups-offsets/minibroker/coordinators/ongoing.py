"""Asks all coordinators of the cluster whether a transaction is ongoing.

A client may abort a transaction that is open in a partition although no coordinator knows of it. The partition knows
the producer id, but not the transactional id, so every node is asked.
"""

from collections.abc import Callable
from typing import Any

from minibroker.coordinators.node_calls import NodeCalls
from minibroker.metadata.image import Image
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.tables.describe_transactions import DescribeTransactionsRequest
from minibroker.transactions.tables.list_transactions import ListTransactionsRequest
from minibroker.transactions.transitions import PREPARED, TransactionState
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request

_OPEN = [state.label for state in (TransactionState.ONGOING, *sorted(PREPARED))]
_ANSWER_MS_MAX = 5000

Done = Callable[[bool | None], None]


class OngoingTransactions:
    """Implements `Ongoing` for the partitions of a node."""

    def __init__(self, calls: NodeCalls, image: Callable[[], Image]) -> None:
        self._calls = calls
        self._image = image

    def is_ongoing(self, name: TopicPartition, producer_id: int, done: Done) -> None:
        """Ask whether a coordinator has an ongoing transaction of this producer that includes the partition."""
        nodes = [it.node_id for it in self._image().brokers.values() if not it.is_fenced]
        found: list[bool | None] = []

        def on_node(is_ongoing: bool | None) -> None:
            found.append(is_ongoing)
            if len(found) == len(nodes):
                done(True if True in found else None if None in found else False)

        if not nodes:
            done(None)
        for node_id in nodes:
            self._ask_node(node_id, name, producer_id, on_node)

    def _ask_node(self, node_id: int, name: TopicPartition, producer_id: int, done: Done) -> None:
        def on_described(response: Any) -> None:
            if response is None or any(it.error_code for it in response.transaction_states):
                done(None)
            else:
                topics = [topic for it in response.transaction_states for topic in it.topics]
                done(any(topic.topic == name.topic and name.partition in topic.partitions for topic in topics))

        def on_listed(response: Any) -> None:
            if response is None or response.error_code != ErrorCode.NONE:
                done(None)
            elif not response.transaction_states:
                done(False)
            else:
                ids = [it.transactional_id for it in response.transaction_states]
                self._send(node_id, DescribeTransactionsRequest(transactional_ids=ids), on_described)

        request = ListTransactionsRequest(state_filters=_OPEN, producer_id_filters=[producer_id])
        self._send(node_id, request, on_listed)

    def _send(self, node_id: int, request: Request, done: Callable[[Any], None]) -> None:
        self._calls.ask(node_id, request, done, line="verification", timeout_ms=_ANSWER_MS_MAX)
