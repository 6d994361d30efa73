"""One set of verbs for the transactional producers of confluent-kafka, kafka-python and aiokafka, and for ours.

A test writes `begin`, `send` and `commit` once, and runs with each library. Every verb waits until the library has its
answer.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import IllegalStateError as AioIllegalState
from aiokafka.errors import KafkaError as AioKafkaError
from clients_stock import READ_S_MAX, confluent_consumer
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata as PythonGroupMetadata
from kafka.structs import OffsetAndMetadata

from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, READ_UNCOMMITTED, Consumer
from minibroker.clients.transactional import TransactionalProducer
from minibroker.segments.checkpoint import TopicPartition

Offsets = Mapping[tuple[str, int], int]
FAILURES = (KafkaException, KafkaError, AioKafkaError, AioIllegalState, ClientError)
"""What the libraries raise."""


class Transacting(ABC):
    """A transactional producer. It is initialized when it is made, and so fences the one before it."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Queue a record."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until all queued records are written."""

    @abstractmethod
    def send_offsets(self, offsets: Offsets, group: str) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop. A transaction that is open stays open, or is aborted: libraries differ."""

    def __enter__(self) -> "Transacting":
        return self

    def __exit__(self, *_raised: object) -> None:
        with suppress(*FAILURES):
            self.close()


class ConfluentTransacting(Transacting):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "queue.buffering.max.messages": 200_000,
                "linger.ms": 5,
            }
        )
        self._bootstrap = bootstrap
        self._producer.init_transactions(READ_S_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(READ_S_MAX) == 0

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        # The metadata of a group is an object that only a consumer can make.
        consumer = confluent_consumer(self._bootstrap, **{"group.id": group})
        try:
            metadata = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        wanted = [ConfluentTopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._producer.send_offsets_to_transaction(wanted, metadata, READ_S_MAX)

    def commit(self) -> None:
        self._producer.commit_transaction(READ_S_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(READ_S_MAX)

    def close(self) -> None:
        # A producer of librdkafka ends when it is collected.
        self._producer.purge()
        del self._producer


class PythonTransacting(Transacting):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=5,
        )
        self._futures: list[Any] = []
        self._producer.init_transactions()

    def begin(self) -> None:
        self._futures.clear()
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._futures.append(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._producer.flush(READ_S_MAX)
        for future in self._futures:
            future.get(READ_S_MAX)

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        wanted = {PythonTopicPartition(*it): OffsetAndMetadata(offset, "", -1) for it, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(wanted, PythonGroupMetadata(group, -1, "", None))

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AioTransacting(Transacting):
    """aiokafka on an event loop of its own, which runs while a verb waits."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._futures: list[Any] = []
        self._producer = self._run(self._start(bootstrap, transactional_id, timeout_ms))

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await producer.start()
        return producer

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, READ_S_MAX))

    def begin(self) -> None:
        self._futures.clear()
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._futures.append(self._run(self._producer.send(topic, value, partition=partition)))

    def flush(self) -> None:
        self._run(asyncio.wait(self._futures) if self._futures else self._producer.flush())

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        wanted = {AioTopicPartition(*it): offset for it, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        finally:
            self._loop.close()


class OurTransacting(Transacting):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._client = Client(bootstrap)
        self.producer = TransactionalProducer(self._client, transactional_id, transaction_timeout_ms=timeout_ms)
        self.producer.init()

    def begin(self) -> None:
        self.producer.begin()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self.producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self.producer.flush()

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        self.producer.send_offsets({TopicPartition(*it): offset for it, offset in offsets.items()}, group)

    def commit(self) -> None:
        self.producer.commit()

    def abort(self) -> None:
        self.producer.abort()

    def close(self) -> None:
        self.producer.close(0)
        self._client.close()


TRANSACTING: dict[str, type[Any]] = {
    "confluent": ConfluentTransacting,
    "kafka-python": PythonTransacting,
    "aiokafka": AioTransacting,
    "ours": OurTransacting,
}


def read_all(client: Client, topic: str, *, is_committed: bool = True) -> list[bytes]:
    """The values of a whole topic in the order of its partitions, up to the end that this isolation shows now."""
    level = READ_COMMITTED if is_committed else READ_UNCOMMITTED
    with Consumer(client, isolation_level=level, max_wait_ms=50) as consumer:
        partitions = consumer.assign_topic(topic, EARLIEST)
        ends = consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[bytes]] = {it: [] for it in partitions}
        while any(consumer.position(it) < ends[it] for it in partitions):
            for fetched in consumer.poll(100):
                found[fetched.topic_partition] += [record.value or b"" for record in fetched]
    return [value for values in found.values() for value in values]


def stable_and_end(client: Client, topic: str) -> tuple[list[int], list[int]]:
    """The last stable offset and the high watermark of each partition."""
    offsets = []
    for level in (READ_COMMITTED, READ_UNCOMMITTED):
        with Consumer(client, isolation_level=level) as consumer:
            partitions = [TopicPartition(topic, it) for it in range(client.partition_count(topic))]
            ends = consumer.end_offsets(partitions)
            offsets.append([ends[it] for it in partitions])
    return offsets[0], offsets[1]
