"""Members of groups of aiokafka and kafka-python, each in a thread of its own."""

import asyncio
import gc
import threading
from abc import ABC, abstractmethod
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from brokers import eventually
from groups_crews import History
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRange

GROUP_SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "fetch_max_wait_ms": 100,
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 200,
}


def python_subscriber(topic: str, **settings: Any) -> KafkaConsumer:
    """A consumer that knows the partitions before it joins: kafka-python 3.0 may stop if it learns of them later."""
    consumer = KafkaConsumer(**settings)
    eventually(lambda: consumer.partitions_for_topic(topic), "kafka-python knows the topic")
    consumer.subscribe([topic])
    return consumer


class Reader(ABC):
    """A member in a thread of its own, which reads, commits, and says what it owns."""

    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self.group = group
        self.owned = 0
        self.read: list[tuple[int, int]] = []
        self.history = History()
        self._settings: dict[str, Any] = GROUP_SETTINGS | {"bootstrap_servers": bootstrap, "group_id": group} | settings
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.history.errors.append(repr(error))
            raise

    @abstractmethod
    def run(self) -> None:
        """Read and commit until the end, and leave."""

    def on_read(self, polled: dict[Any, list[Any]], owned: int) -> bool:
        """Note what was read; return whether it has to be committed."""
        self.owned = owned
        for record in (it for records in polled.values() for it in records):
            self.read.append((record.partition, record.offset))
            self.history.on_read("", (record.topic, record.partition), record.offset, record.value)
        return bool(polled)

    def on_committed(self, polled: dict[Any, list[Any]]) -> None:
        """Note that all that was read is committed."""
        for records in polled.values():
            last = records[-1]
            self.history.on_committed("", (last.topic, last.partition), last.offset + 1)

    def text(self) -> str:
        """What the member owns and has done."""
        return f"{self.group}: {self.owned} {self.history.text()}"

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


class PythonReader(Reader):
    """A member of kafka-python."""

    def run(self) -> None:
        consumer = python_subscriber(self._topic, partition_assignment_strategy=[PythonRange], **self._settings)
        while not self._is_over.is_set():
            polled = consumer.poll(timeout_ms=50)
            if self.on_read(polled, len(consumer.assignment())):
                consumer.commit()
                self.on_committed(polled)
        consumer.close()
        gc.collect()


class AioReader(Reader):
    """A member of aiokafka."""

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(self._topic, partition_assignment_strategy=[AioRange], **self._settings)
        await consumer.start()
        while not self._is_over.is_set():
            polled = await consumer.getmany(timeout_ms=50)
            if self.on_read(polled, len(consumer.assignment())):
                await consumer.commit()
                self.on_committed(polled)
        await consumer.stop()
