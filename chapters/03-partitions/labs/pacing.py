"""Owns producers whose every record is timed, and the two ways to drive them: at a steady rate, or at full speed.

The labs `linger` and `acks` measure with this. A record is sent with confluent-kafka where that is installed, else with
our own client.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minibroker.bench.sending import is_there
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
    paced_records: int  # at a steady rate, for the latency
    rushed_records: int  # as fast as it goes, for the throughput


@dataclass(frozen=True)
class Setting:
    """What a producer is told."""

    linger_ms: int
    codec: str
    acks: str = "all"


class Sender(Protocol):
    """A producer that notes how long each record took from the call to the acknowledgement."""

    latencies_ms: list[float]

    def send(self, topic: str, value: bytes) -> None:
        """Give it a record."""

    def serve(self, seconds: float) -> None:
        """Let it hear acknowledgements for so long."""

    def flush(self) -> None:
        """Wait until everything is acknowledged."""

    def close(self) -> None:
        """Give everything back."""


# Driving them ---------------------------------------------------------------------------------------------------------


def warm_up(sender: Sender, topic: str) -> None:
    """Send the first record, which finds the leader: it is no part of any figure."""
    sender.send(topic, order_values()[0])
    sender.flush()
    sender.latencies_ms.clear()


def send_paced(sender: Sender, topic: str, values: Sequence[bytes], records: int, *, per_second: int) -> None:
    """One record after the other, at a steady rate."""
    started = time.perf_counter()
    for number in range(records):
        while (early_s := started + number / per_second - time.perf_counter()) > 0:
            sender.serve(early_s)
        sender.send(topic, values[number % len(values)])
    sender.flush()


def rushed_mb_per_s(sender: Sender, topic: str, values: Sequence[bytes], records: int) -> float:
    """As fast as the sender takes them; return the speed until all are acknowledged."""
    started = time.perf_counter()
    for number in range(records):
        sender.send(topic, values[number % len(values)])
    sender.flush()
    took_s = time.perf_counter() - started
    whole, rest = divmod(records, len(values))
    return (whole * sum(map(len, values)) + sum(map(len, values[:rest]))) / MB / took_s


def order_values() -> list[bytes]:
    """A thousand orders that look alike, as orders do: about 200 bytes each."""
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
    """The stock client where it is installed, else ours."""
    if is_there():
        return ConfluentSender(address, setting)
    return OwnSender(address, setting)


class ConfluentSender:
    """confluent-kafka."""

    def __init__(self, address: str, setting: Setting) -> None:
        # It is not installed everywhere, and slow to import.
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
        """Give it a record; wait where its queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(0.01)
            else:
                break
        self._producer.poll(0)

    def serve(self, seconds: float) -> None:
        """Let it hear acknowledgements."""
        self._producer.poll(seconds)

    def flush(self) -> None:
        """Wait for all of them."""
        if self._producer.flush(DEADLINE_S):
            raise OSError(f"records were not acknowledged within {DEADLINE_S} s")

    def close(self) -> None:
        """Let go of it: its threads end when nothing refers to it any more."""
        del self._producer


class OwnSender:
    """Our own client; its thread hears the acknowledgements."""

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
        """Give it a record."""
        started = time.perf_counter()

        def on_delivery(delivery: Delivery) -> None:
            self.latencies_ms.append((time.perf_counter() - started) * 1000)
            if delivery.error is not None:
                self._errors.append(delivery.error)

        self._producer.send(topic, value, on_delivery=on_delivery)

    def serve(self, seconds: float) -> None:
        """Let the thread have the processor."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Wait for all of them."""
        self._producer.flush(DEADLINE_S * 1000)
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End the thread."""
        self._producer.close()
        self._client.close()
