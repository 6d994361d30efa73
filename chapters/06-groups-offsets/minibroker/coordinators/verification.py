"""Questions of this node's partitions to the coordinators of transactions (KIP-890).

A partition asks before the first batch of a transaction. Questions that come in the same pass of the event loop, or
while a node has not answered yet, go to that node in one request. So verification costs one request for many producers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minibroker.client.errors import known_code
from minibroker.coordinators.node_calls import NodeCalls
from minibroker.coordinators.state_topics import StateTopic
from minibroker.groups.pending import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.records import by_topic
from minibroker.transactions.tables.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from minibroker.wire.codes import ErrorCode

_ANSWER_MS_MAX = 5000
_TRANSACTIONS_MAX = 1000  # in one request
_ATTEMPTS_MAX = 5

Codes = Mapping[TopicPartition, ErrorCode]


@dataclass(slots=True)
class _Question:
    """One question about a transaction, for several partitions that asked the same."""

    transactional_id: str
    producer: Producer
    is_add: bool
    asked: list[tuple[Sequence[TopicPartition], Callable[[Codes], None]]]
    attempts: int = 0

    def joins(self, other: "_Question") -> bool:
        """Whether two questions are about the same transaction in the same way."""
        return (self.producer, self.is_add) == (other.producer, other.is_add)

    @property
    def names(self) -> set[TopicPartition]:
        """All partitions."""
        return {name for names, _done in self.asked for name in names}

    def answer(self, codes: Codes) -> None:
        """Give each asker the codes of its partitions. A partition without a code got no answer."""
        for names, done in self.asked:
            done({name: codes.get(name, ErrorCode.NETWORK_EXCEPTION) for name in names})


class TransactionVerifier:
    """Asks the coordinators. It is the `Verifier` of the partitions of a node."""

    def __init__(self, calls: NodeCalls, topic: StateTopic, *, is_enabled: bool = True) -> None:
        """If `is_enabled` is False, a transaction counts as open without a question, but partitions are still added."""
        self._is_enabled = is_enabled
        self._calls = calls
        self._topic = topic
        self._waiting: dict[int, list[_Question]] = {}
        """The questions to each node that are not sent yet."""
        self._busy: set[int] = set()

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        names: Sequence[TopicPartition],
        *,
        is_add: bool,
        done: Callable[[Codes], None],
    ) -> None:
        """Ask whether partitions are in a transaction, or add them to it. `done` is called once."""
        if not is_add and not self._is_enabled:
            done(dict.fromkeys(names, ErrorCode.NONE))
            return
        self._ask(_Question(transactional_id, Producer(producer_id, producer_epoch), is_add, [(names, done)]))

    def _ask(self, question: _Question) -> None:
        name = self._topic.partition_of(question.transactional_id)
        broker = None if name is None else self._topic.leader_of(name)
        if broker is None:
            question.answer(dict.fromkeys(question.names, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        node_id = broker.node_id
        waiting = self._waiting.setdefault(node_id, [])
        waiting.append(question)
        if len(waiting) == 1 and node_id not in self._busy:
            asyncio.get_running_loop().call_soon(self._send, node_id)

    def _send(self, node_id: int) -> None:
        questions = self._waiting.pop(node_id, [])
        if not questions:
            return
        now, later = _one_for_each_id(questions)
        if later:
            self._waiting[node_id] = later
        self._busy.add(node_id)
        self._calls.ask(
            node_id,
            _request(now),
            lambda response: self._on_answer(node_id, now, response),
            line="verification",
            timeout_ms=_ANSWER_MS_MAX,
        )

    def _on_answer(self, node_id: int, questions: list[_Question], response: AddPartitionsToTxnResponse | None) -> None:
        self._busy.discard(node_id)
        results = {} if response is None else _results(response)
        for it in questions:
            codes = results.get(it.transactional_id, {})
            it.attempts += 1
            if ErrorCode.CONCURRENT_TRANSACTIONS in codes.values() and it.attempts < _ATTEMPTS_MAX:
                # The markers of the previous transaction are still being written, although the coordinator has waited.
                self._ask(it)
            else:
                it.answer(codes)
        self._send(node_id)


def _one_for_each_id(questions: list[_Question]) -> tuple[list[_Question], list[_Question]]:
    """The questions for one request, and the rest. A response names each transactional id only once."""
    now: dict[str, _Question] = {}
    later = []
    for it in questions:
        known = now.get(it.transactional_id)
        if known is not None and known.joins(it):
            known.asked += it.asked
        elif known is not None or len(now) == _TRANSACTIONS_MAX:
            later.append(it)
        else:
            now[it.transactional_id] = it
    return list(now.values()), later


def _request(questions: list[_Question]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=it.transactional_id,
                producer_id=it.producer.id,
                producer_epoch=it.producer.epoch,
                verify_only=not it.is_add,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=ids) for name, ids in by_topic(it.names)],
            )
            for it in questions
        ]
    )


def _results(response: AddPartitionsToTxnResponse) -> dict[str, Codes]:
    return {
        result.transactional_id: {
            TopicPartition(topic.name, it.partition_index): known_code(it.partition_error_code)
            for topic in result.topic_results
            for it in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
