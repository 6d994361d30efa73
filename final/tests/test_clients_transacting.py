"""Claims about the requests of a transactional producer, and about its batches, without a broker."""

from typing import Any

import pytest

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerError, ClientError, ConnectionLost
from minibroker.clients.accumulator import Accumulator, Answer, ProducerConfig
from minibroker.clients.batching import Identity
from minibroker.clients.coordination import TRANSACTION, Coordinator, GroupCoordinator, Signature
from minibroker.clients.core import Ask, ClientConfig, Core, Dialogue, Pause
from minibroker.clients.errors import CommitRefused, Fenced, InvalidSetting
from minibroker.clients.routing import Node
from minibroker.clients.transacting import Session
from minibroker.log.batch import Batch
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnResponse
from minibroker.transactions.tables.end_txn import EndTxnRequest, EndTxnResponse
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.wire.tables.init_producer_id import InitProducerIdResponse

FIRST, SECOND = (Identity(producer_id=7, producer_epoch=epoch) for epoch in (0, 1))
LOST = ConnectionLost("gone")


class Talk:
    """A session with given answers. FindCoordinator is answered by itself, each time with another node."""

    def __init__(self, version: int) -> None:
        self.now_ms = 0.0
        self.asked: list[Ask] = []
        self.found = 0
        core = Core([Address("h", 1)], ClientConfig(), clock=lambda: self.now_ms, chance=lambda: 0.5)
        core.routes.nodes = {number: Node(number, "h", number) for number in range(1, 9)}
        self.coordinator = Coordinator(core, "tx", TRANSACTION)
        self.group = GroupCoordinator(core, "group")
        self.session = Session("tx", 60_000)
        self.session.version, self.session.identity = version, FIRST

    def run(self, dialogue: Dialogue[None], *answers: object) -> None:
        left = list(answers)
        try:
            order = next(dialogue)
            while True:
                order = self._obey(dialogue, order, left)
        except StopIteration:
            assert not left, f"{left} were not asked for"

    def _obey(self, dialogue: Dialogue[None], order: Any, left: list[object]) -> Any:
        if isinstance(order, Pause):
            self.now_ms += order.ms
            return dialogue.send(None)
        if isinstance(order.message, FindCoordinatorRequest):
            self.found += 1
            return dialogue.send(FindCoordinatorResponse(node_id=self.found))
        self.asked.append(order)
        answer = left.pop(0)
        return dialogue.throw(answer) if isinstance(answer, ClientError) else dialogue.send(answer)

    def end(self, *answers: object, is_commit: bool = True) -> None:
        self.run(self.session.end(self.coordinator, is_commit=is_commit, timeout_ms=60_000), *answers)


def test_the_end_of_a_transaction_is_repeated_until_its_coordinator_answers() -> None:
    talk = Talk(version=2)
    talk.end(
        EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR),
        LOST,
        EndTxnResponse(producer_id=7, producer_epoch=1),
    )
    # The same request each time, and the coordinator was looked for again after two of the answers.
    assert [it.message for it in talk.asked] == [
        EndTxnRequest(transactional_id="tx", producer_id=7, producer_epoch=0, committed=True)
    ] * 5
    assert [it.node_id for it in talk.asked] == [1, 1, 1, 2, 3]


def test_each_transaction_has_its_own_epoch_with_version_2_only() -> None:
    talk = Talk(version=2)
    talk.end(EndTxnResponse(producer_id=7, producer_epoch=1))
    assert (talk.session.identity.producer_epoch, talk.asked[0].version_max) == (1, None)
    old = Talk(version=1)
    old.end(EndTxnResponse(producer_id=-1, producer_epoch=-1))
    assert (old.session.identity, old.asked[0].version_max) == (FIRST, 4)


def test_offsets_are_added_before_they_are_sent_with_version_1_only() -> None:
    partition = TxnOffsetCommitResponsePartition(partition_index=0)
    sent = TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[partition])])
    offsets = {TopicPartition("t", 0): 5}
    for version, answers in ((1, [AddOffsetsToTxnResponse(), sent]), (2, [sent])):
        talk = Talk(version)
        dialogue = talk.session.send_offsets(
            talk.coordinator, talk.group, offsets, Signature(3, "member"), timeout_ms=1000
        )
        talk.run(dialogue, *answers)
        commit = talk.asked[-1].message
        assert (commit.generation_id, commit.member_id, talk.asked[-1].version_max) == (  # type: ignore[attr-defined]
            3,
            "member",
            {1: 4, 2: None}[version],
        )


def test_a_fenced_producer_gets_one_error_whatever_the_code() -> None:
    for code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        with pytest.raises(Fenced, match="another producer has taken over"):
            Talk(version=2).end(EndTxnResponse(error_code=code))
    with pytest.raises(BrokerError) as refused:
        Talk(version=2).end(EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    talk = Talk(version=2)
    partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.ILLEGAL_GENERATION)
    stale = TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[partition])])
    with pytest.raises(CommitRefused):
        talk.run(
            talk.session.send_offsets(
                talk.coordinator, talk.group, {TopicPartition("t", 0): 5}, Signature(), timeout_ms=1000
            ),
            stale,
        )


def test_a_producer_keeps_its_id_when_it_asks_for_its_next_epoch() -> None:
    talk = Talk(version=1)
    answer = InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=1)
    talk.run(talk.session.init(talk.coordinator, is_first=False, timeout_ms=1000), answer)
    talk.run(talk.session.init(talk.coordinator, is_first=True, timeout_ms=1000), answer)
    sent = [(it.message.producer_id, it.message.producer_epoch) for it in talk.asked]  # type: ignore[attr-defined]
    assert sent == [(7, 0), (-1, -1)]


# Batches --------------------------------------------------------------------------------------------------------------


def transactional(*, is_gated: bool = False) -> Accumulator:
    accumulator = Accumulator(ProducerConfig(transactional_id="tx", linger_ms=0))
    accumulator.begin_transaction(FIRST, is_gated=is_gated)
    return accumulator


def append(accumulator: Accumulator, partition: int = 0) -> Any:
    return accumulator.append("t", partition, key=None, value=b"v", timestamp=1, now_ms=0)


def drain(accumulator: Accumulator) -> list[Any]:
    return accumulator.drain(0, lambda _topic, _partition: 1).sends


def test_a_batch_waits_until_its_partition_is_in_the_transaction() -> None:
    accumulator = transactional(is_gated=True)
    append(accumulator, 0)
    append(accumulator, 1)
    assert (drain(accumulator), accumulator.unadmitted) == ([], [("t", 0), ("t", 1)])
    accumulator.admit([("t", 1)])
    [send] = drain(accumulator)
    assert [it.partition for it in send.batches] == [1]
    assert Batch(send.batches[0].encode(0b1_0000)).header.is_transactional


def test_one_failed_record_fails_its_whole_transaction_and_the_next_begins_with_sequence_0() -> None:
    accumulator = transactional()
    first, second = append(accumulator, 0), append(accumulator, 1)
    [send] = drain(accumulator)
    later = append(accumulator, 2)
    accumulator.on_answers(
        send,
        lambda it: Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if it.partition else ErrorCode.NONE, 0),
        now_ms=0,
    )
    assert (first.error, isinstance(second.error, BrokerError), later.error) == (None, True, second.error)
    assert accumulator.failure is second.error
    assert accumulator.is_settled
    accumulator.begin_transaction(SECOND, is_gated=False)
    again = append(accumulator, 0)
    [send] = drain(accumulator)
    assert (send.batches[0].sequence, send.batches[0].identity.producer_epoch) == (0, 1)
    assert (again.is_done, accumulator.failure) == (False, None)


def test_sequences_go_on_in_the_next_transaction_of_the_same_epoch() -> None:
    accumulator = transactional()
    for expected in (0, 1):
        accumulator.begin_transaction(FIRST, is_gated=False)
        append(accumulator)
        [send] = drain(accumulator)
        assert send.batches[0].sequence == expected
        accumulator.on_answers(send, lambda _it: Answer(ErrorCode.NONE, 0), now_ms=0)


def test_a_transaction_needs_idempotence() -> None:
    with pytest.raises(InvalidSetting):
        ProducerConfig(transactional_id="tx", idempotence=False, acks=1)
