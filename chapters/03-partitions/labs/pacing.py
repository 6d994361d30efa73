"""Producers that time every record, and two ways to send: at a steady rate, or at full speed.

The labs `linger` and `acks` use this. Records are sent with confluent-kafka if that is installed, else with our own
client.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minibroker.bench.sending import is_installed
from minibroker.bench.units import MB
from minibroker.client.errors import ClientError
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.log.compression import Compression

DEADLINE_S = 60
ACKS = {"0": 0, "1": 1, "all": -1}


@dataclass(frozen=True)
class Effort:
    """How much is sent in each round."""

    rounds: int
    paced_records: int  # at a steady rate, to measure the latency
    rushed_records: int  # at full speed, to measure the throughput


@dataclass(frozen=True)
class Setting:
    """The settings of a producer."""

    linger_ms: int
    codec: str
    acks: str = "all"


class Sender(Protocol):
    """A producer that records the time from each send to its acknowledgement."""

    latencies_ms: list[float]

    def send(self, topic: str, value: bytes) -> None:
        """Send a record."""

    def serve(self, seconds: float) -> None:
        """Process acknowledgements for this time."""

    def flush(self) -> None:
        """Wait until all records are acknowledged."""

    def close(self) -> None:
        """Release its resources."""


# Sending --------------------------------------------------------------------------------------------------------------


def warm_up(sender: Sender, topic: str) -> None:
    """Send a first record, which finds the leader. It is not measured."""
    sender.send(topic, order_values()[0])
    sender.flush()
    sender.latencies_ms.clear()


def send_paced(sender: Sender, topic: str, values: Sequence[bytes], records: int, *, per_second: int) -> None:
    """Send records at a steady rate."""
    started = time.perf_counter()
    for number in range(records):
        while (early_s := started + number / per_second - time.perf_counter()) > 0:
            sender.serve(early_s)
        sender.send(topic, values[number % len(values)])
    sender.flush()


def rushed_mb_per_s(sender: Sender, topic: str, values: Sequence[bytes], records: int) -> float:
    """Send records at full speed, and return the throughput until all are acknowledged."""
    started = time.perf_counter()
    for number in range(records):
        sender.send(topic, values[number % len(values)])
    sender.flush()
    took_s = time.perf_counter() - started
    whole, rest = divmod(records, len(values))
    return (whole * sum(map(len, values)) + sum(map(len, values[:rest]))) / MB / took_s


def order_values() -> list[bytes]:
    """A thousand similar orders of about 200 bytes each."""
    chance = random.Random(0)
    return [
        b'{"order_id": %d, "customer": "customer-%d", "status": "%b", "currency": "EUR", "amount": %d.%02d, "items": '
        b'[{"sku": "sku-%d", "count": %d}], "note": "deliver to the front door"}'
        % (
            number,
            chance.randrange(1000),
            chance.choice([b"paid", b"sent", b"open"]),
            chance.randrange(500),
            chance.randrange(100),
            chance.randrange(10_000),
            chance.randrange(1, 9),
        )
        for number in range(1000)
    ]


# The producers --------------------------------------------------------------------------------------------------------


def sender_of(address: str, setting: Setting) -> Sender:
    """confluent-kafka if it is installed, else our own client."""
    if is_installed():
        return ConfluentSender(address, setting)
    return OwnSender(address, setting)


class ConfluentSender:
    """confluent-kafka."""

    def __init__(self, address: str, setting: Setting) -> None:
        # It may not be installed, and is slow to import.
        from confluent_kafka import Producer  # noqa: PLC0415

        self.latencies_ms: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": setting.linger_ms,
                "compression.type": setting.codec,
                "acks": setting.acks,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            raise OSError(f"a record was not written: {error}")
        self.latencies_ms.append(message.latency() * 1000)

    def send(self, topic: str, value: bytes) -> None:
        """Send a record, and wait while the queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(0.01)
            else:
                break
        self._producer.poll(0)

    def serve(self, seconds: float) -> None:
        """Process acknowledgements."""
        self._producer.poll(seconds)

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        if self._producer.flush(DEADLINE_S):
            raise OSError(f"records were not acknowledged within {DEADLINE_S} s")

    def close(self) -> None:
        """Drop the last reference to the producer, which ends its threads."""
        del self._producer


class OwnSender:
    """Our own client. Its thread processes acknowledgements."""

    def __init__(self, address: str, setting: Setting) -> None:
        self.latencies_ms: list[float] = []
        self._errors: list[ClientError] = []
        self._client = Client(address)
        self._producer = Producer(
            self._client,
            linger_ms=setting.linger_ms,
            compression=Compression[setting.codec.upper()],
            acks=ACKS[setting.acks],
        )

    def send(self, topic: str, value: bytes) -> None:
        """Send a record."""
        started = time.perf_counter()

        def on_delivery(delivery: Delivery) -> None:
            self.latencies_ms.append((time.perf_counter() - started) * 1000)
            if delivery.error is not None:
                self._errors.append(delivery.error)

        self._producer.send(topic, value, on_delivery=on_delivery)

    def serve(self, seconds: float) -> None:
        """Sleep, while the thread processes acknowledgements."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush(DEADLINE_S * 1000)
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """Close the producer, which ends its thread."""
        self._producer.close()
        self._client.close()
