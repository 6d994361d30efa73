"""Bad input for transactions: each kind gets a clear answer, and the transaction of another producer is not disturbed.

During each test a producer has an open transaction. Afterwards it commits, and its records are read once each.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from brokers import IS_OURS, Broker, eventually, unique
from cases import case
from clients_raw import NO_TAGS, Connection, header, i32, uvarint
from clients_stock import create_topic
from groups_crews import coordinator_of
from transactions_stock import read_all, stable_and_end

from minibroker.clients.blocking import Client
from minibroker.clients.transactional import TransactionalProducer
from minibroker.log.batch import BatchBuilder
from minibroker.log.control import ControlType, build_marker
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker.transactions.tables.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from minibroker.transactions.tables.end_txn import EndTxnRequest
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

pytest_plugins = ["clients_fixtures"]

MANY_PARTITIONS = 10_000
LONG_ID = b"x" * 40_000
NOBODY = 9_999_999  # a producer id that no broker has given


class Victim:
    """A producer with an open transaction of one record, and the requests of strangers about it."""

    def __init__(self, client: Client, address: str) -> None:
        self.client = client
        self.address = address
        self.topic = create_topic(address, unique("victim"), 2)
        self.node_id = client.leader(self.topic, 0)
        self.name = unique("victim")
        self.producer = TransactionalProducer(client, self.name)
        self.producer.init()
        self.producer.begin()
        self.producer.send(self.topic, b"first", partition=0)
        self.producer.flush()
        self.id, self.epoch = self.producer.producer_id, self.producer.producer_epoch

    def ask(self, message: Any, version: int | None = None) -> Any:
        return self.client.send(message, node_id=self.node_id, version_max=version)

    def produce(
        self, data: bytes | bytearray, *, name: str | None = None, version: int = 12, partition: int = 0
    ) -> ErrorCode:
        written = [PartitionProduceData(index=partition, records=data)]
        topic_data = [TopicProduceData(name=self.topic, partition_data=written)]
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=3000, topic_data=topic_data)
        return ErrorCode(self.ask(request, version).responses[0].partition_responses[0].error_code)

    def end(self, name: str, producer_id: int, epoch: int, version: int) -> ErrorCode:
        request = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
        return ErrorCode(self.ask(request, version).error_code)

    def add(self, name: str, producer_id: int, epoch: int, partitions: list[int]) -> Counter[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=partitions)],
        )
        topics = self.ask(request, 3).results_by_topic_v3_and_below
        return Counter(ErrorCode(it.partition_error_code) for topic in topics for it in topic.results_by_partition)

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool, partition: int = 0) -> ErrorCode:
        topics = [WritableTxnMarkerTopic(name=self.topic, partition_indexes=[partition])]
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=is_commit,
            topics=topics,
            coordinator_epoch=0,
        )
        answer = self.ask(WriteTxnMarkersRequest(markers=[marker]))
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as it:
        yield it


@pytest.fixture(autouse=True)
def victim(broker: Broker, client: Client) -> Iterator[Victim]:
    it = Victim(client, broker.address)
    yield it
    assert read_all(client, it.topic) == [], "the transaction was ended by somebody else"
    it.producer.send(it.topic, b"last", partition=0)
    it.producer.commit()
    it.producer.close()
    eventually(lambda: read_all(client, it.topic) == [b"first", b"last"], "the transaction is committed")
    eventually(lambda: len({tuple(one) for one in stable_and_end(client, it.topic)}) == 1, "nothing else is open")
    assert broker.is_alive(), broker.log()[-4000:]
    assert not broker.complaints(), broker.complaints()


def batch(producer_id: int, epoch: int, *, sequence: int = 0, is_transactional: bool = True) -> bytearray:
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
    )
    builder.append(timestamp=int(time.time() * 1000), key=None, value=b"bad")
    return builder.build()


def test_a_batch_of_a_stranger_is_refused(victim: Victim, client: Client) -> None:
    with TransactionalProducer(client, unique("other")) as other:
        other.init()
        refused = {
            "a foreign producer id": (batch(other.producer_id, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            "an unknown producer id": (batch(NOBODY, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            "an epoch in the future": (batch(victim.id, victim.epoch + 5), ErrorCode.INVALID_PRODUCER_EPOCH),
        }
    for version in (12, 11, 10):
        # A partition of its own, so that the leader does not know the producer yet.
        for name, (data, code) in refused.items():
            with case(version, name):
                assert victim.produce(data, name=victim.name, version=version, partition=1) is code


def test_a_batch_that_does_not_fit_its_request_is_refused(victim: Victim) -> None:
    marker = build_marker(
        ControlType.COMMIT, producer_id=victim.id, producer_epoch=victim.epoch, coordinator_epoch=0, timestamp=1
    )
    plain = batch(victim.id, victim.epoch, sequence=1, is_transactional=False)
    for version in (12, 11, 10):
        with case(version, "a transactional batch without a transactional id"):
            data = batch(victim.id, victim.epoch, sequence=1)
            assert victim.produce(data, version=version) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        with case(version, "a control batch"):
            assert victim.produce(marker, name=victim.name, version=version) is ErrorCode.INVALID_RECORD
        with case(version, "a plain batch inside of the transaction"):
            assert victim.produce(plain, version=version) is ErrorCode.INVALID_TXN_STATE


def test_a_stranger_cannot_end_a_transaction(victim: Victim) -> None:
    for version in (5, 3, 1, 0):
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        with case(version):
            assert victim.end(unique("nobody"), victim.id, 0, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert victim.end(victim.name, NOBODY, 0, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert victim.end(victim.name, victim.id, victim.epoch + 7, version) is fenced


def test_a_stranger_cannot_add_to_a_transaction(victim: Victim) -> None:
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert victim.add(unique("nobody"), victim.id, 0, [0]) == {mapping: 1}
    assert victim.add(victim.name, NOBODY, 0, [0]) == {mapping: 1}
    assert victim.add(victim.name, victim.id, victim.epoch + 9, [0]) == {ErrorCode.PRODUCER_FENCED: 1}
    group = unique("group")
    eventually(lambda: coordinator_of(victim.address, group), "the group has a coordinator")
    offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [TxnOffsetCommitRequestTopic(name=victim.topic, partitions=[offset])]

    def committed(who: dict[str, Any], version: int) -> ErrorCode:
        # The partition of the group may have no leader yet, just after its topic was created.
        def answered() -> ErrorCode | None:
            answer = victim.ask(TxnOffsetCommitRequest(topics=topics, **who), version)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            return None if code is ErrorCode.NOT_COORDINATOR else code

        return eventually(answered, "the coordinator answers") or ErrorCode.NONE

    for name, producer_id, epoch, code in (
        (unique("nobody"), victim.id, victim.epoch, mapping),
        (victim.name, NOBODY, victim.epoch, mapping),
        (victim.name, victim.id, victim.epoch + 5, ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        who: dict[str, Any] = {
            "transactional_id": name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "group_id": group,
        }
        with case(name, producer_id, epoch):
            added = ErrorCode(victim.ask(AddOffsetsToTxnRequest(**who)).error_code)
            assert added in (code, ErrorCode.PRODUCER_FENCED)
            for version in (5, 4, 3):
                assert committed(who, version) is code


def test_a_transaction_of_10000_partitions_that_do_not_exist_is_refused_as_a_whole(victim: Victim) -> None:
    answered = victim.add(victim.name, victim.id, victim.epoch, list(range(MANY_PARTITIONS)))
    assert answered == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY_PARTITIONS - 2, ErrorCode.OPERATION_NOT_ATTEMPTED: 2}


@pytest.mark.skipif(not IS_OURS, reason="Kafka takes markers from every client that its ACLs allow")
def test_a_client_cannot_mark_a_transaction_that_its_coordinator_knows(victim: Victim) -> None:
    for name, producer_id, epoch, is_commit in (
        ("commit", victim.id, victim.epoch, True),
        ("abort", victim.id, victim.epoch, False),
        ("abort with another epoch", victim.id, victim.epoch + 1, False),
        ("commit of nothing", NOBODY, 0, True),
        ("abort of nothing", NOBODY, 0, False),
    ):
        with case(name):
            assert victim.mark(producer_id, epoch, is_commit=is_commit) is not ErrorCode.NONE


def test_a_marker_for_a_partition_that_does_not_exist_is_refused(victim: Victim) -> None:
    assert victim.mark(NOBODY, 0, is_commit=False, partition=7) is not ErrorCode.NONE


def test_a_transactional_id_of_40_kb_is_refused(broker: Broker) -> None:
    """A string has at most 32,767 bytes in Kafka's records, though a flexible request could hold a longer one."""
    compact = uvarint(len(LONG_ID) + 1) + LONG_ID
    requests = {
        "FindCoordinator": header(ApiKey.FIND_COORDINATOR, 3) + NO_TAGS + compact + b"\x01" + NO_TAGS,
        "InitProducerId": header(ApiKey.INIT_PRODUCER_ID, 2) + NO_TAGS + compact + i32(1000) + NO_TAGS,
    }
    for name, frame in requests.items():
        with case(name), Connection(broker) as connection:
            connection.send(frame)
            answer = connection.receive()
            # Kafka ends the connection, as it does with every request that it cannot read.
            assert answer is None or ErrorCode.NONE.to_bytes(2) not in answer[4:11]
        with Connection(broker) as connection:
            assert connection.is_answered()


def test_a_transaction_timeout_must_be_possible_and_an_id_not_empty(victim: Victim) -> None:
    for timeout_ms in (0, -1, 900_001):
        request = InitProducerIdRequest(transactional_id=unique("t"), transaction_timeout_ms=timeout_ms)
        with case(timeout_ms):
            assert victim.ask(request).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
    assert victim.ask(request).error_code == ErrorCode.INVALID_REQUEST
