"""A program that copies a topic in transactions, for `chaos_transactions`: killed, paused, cut off, and started again.

    python tests/chaos_copier.py LIBRARY BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID

It reads as a member of a group, and writes each record to the same partition of the target. The records and the
group's position are in one transaction. If a transaction cannot be committed, it is aborted, and the copier reads again
from the committed position. After any other error the process ends, and whoever watches it starts it again.
"""

import faulthandler
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, OffsetReset
from minibroker.clients.errors import CommitRefused, TransactionFailed
from minibroker.clients.group_consumer import GroupConsumer
from minibroker.clients.membership import MemberConfig
from minibroker.clients.transactional import TransactionalProducer
from minibroker.segments.checkpoint import TopicPartition

RECORDS = 750
"""The most records of a transaction."""
# A copier that is killed comes back and aborts its transaction itself. The timeout is for copiers that do not.
TRANSACTION_MS = 30_000
SESSION_MS = 3000
_ANSWER_MS = 5000
_WAIT_S = 60.0
_STUCK_S = 45.0


def copy_with_ours(bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
    config = MemberConfig(group, [source], session_timeout_ms=SESSION_MS, heartbeat_interval_ms=300)
    settings = {"offset_reset": OffsetReset.EARLIEST, "isolation_level": READ_COMMITTED, "max_wait_ms": 50}
    with (
        Client(bootstrap, timeout_ms=_ANSWER_MS) as client,
        TransactionalProducer(client, transactional_id, transaction_timeout_ms=TRANSACTION_MS) as producer,
        GroupConsumer(client, config, enable_auto_commit=False, **settings) as consumer,  # type: ignore[arg-type]
    ):
        producer.init()
        while True:
            _must_finish_soon()
            fetched = consumer.poll(200)
            try:
                for it in fetched:
                    for records, offset in _pieces(list(it), it.next_offset):
                        _must_finish_soon()
                        _copy(producer, target, it.partition, records)
                        producer.send_offsets({it.topic_partition: offset}, group, consumer.signature)
                        producer.commit()
            except (TransactionFailed, CommitRefused) as error:
                print(error, file=sys.stderr, flush=True)
                producer.abort()
                _rewind(consumer)


def _pieces(records: Sequence[Any], next_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
    """The records of each transaction, and the offset after them."""
    for start in range(0, len(records), RECORDS):
        piece = records[start : start + RECORDS]
        is_last = start + RECORDS >= len(records)
        yield piece, next_offset if is_last else piece[-1].offset + 1


def _copy(producer: TransactionalProducer, target: str, partition: int, records: Sequence[Any]) -> None:
    producer.begin()
    for record in records:
        producer.send(target, record.value, partition=partition)


def _rewind(consumer: GroupConsumer) -> None:
    """Read again from the committed position."""
    partitions = consumer.assignment
    committed = consumer.committed(partitions)
    for it in partitions:
        consumer.seek(TopicPartition(*it), committed.get(it, EARLIEST))


def copy_with_confluent(bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
    common = {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": _ANSWER_MS}
    consumer = Consumer(
        common
        | {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
        }
    )
    producer = Producer(
        common
        | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(_WAIT_S)
    consumer.subscribe([source])
    while True:
        _must_finish_soon()
        messages: list[Any] = consumer.consume(RECORDS, timeout=0.2)
        for message in messages:
            if message.error() and not message.error().retriable():
                raise KafkaException(message.error())
        records = [it for it in messages if not it.error()]
        if not records:
            continue
        try:
            producer.begin_transaction()
            for it in records:
                producer.produce(target, it.value(), partition=it.partition())
            _send_positions(producer, source, records, consumer)
            _until_done(lambda: producer.commit_transaction(_WAIT_S))
        except KafkaException as error:
            print(error, file=sys.stderr, flush=True)
            if not error.args[0].txn_requires_abort():
                raise
            _until_done(lambda: producer.abort_transaction(_WAIT_S))
            assigned = consumer.assignment()
            for where in consumer.committed(assigned, _WAIT_S):
                consumer.seek(ConfluentTopicPartition(where.topic, where.partition, max(where.offset, 0)))


def _send_positions(producer: Producer, source: str, records: Sequence[Any], consumer: Consumer) -> None:
    positions = {it.partition(): it.offset() + 1 for it in records}
    offsets = [ConfluentTopicPartition(source, *it) for it in positions.items()]
    member = consumer.consumer_group_metadata()
    _until_done(lambda: producer.send_offsets_to_transaction(offsets, member, _WAIT_S))


def _until_done(end: Any) -> None:
    """Try again as long as the library says that the same call may succeed."""
    while True:
        try:
            end()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def _must_finish_soon() -> None:
    """End the process if it does not come here again in time, as a supervisor would.

    A send_offsets_to_transaction of librdkafka 2.16 never returns if the coordinator of the group leaves the metadata
    meanwhile: the library removes the node, and the call waits for that node.
    """
    faulthandler.dump_traceback_later(_STUCK_S, exit=True)


COPIERS = {"ours": copy_with_ours, "confluent": copy_with_confluent}


if __name__ == "__main__":
    COPIERS[sys.argv[1]](*sys.argv[2:])
