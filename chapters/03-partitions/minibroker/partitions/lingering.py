"""Owns the lab `linger` of chapter 03: what waiting for a fuller batch gives, and what it takes.

It starts a broker in another process and sends records to it, at a steady rate for the latency, and as fast as it goes
for the throughput. It sends with confluent-kafka where that is installed, else with the client of this chapter.
"""

import importlib.util
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minibroker.bench import Context, Findings, Line, LineChart, Point, Table, scaled
from minibroker.bench.context import QUICK_NOTE, is_quick
from minibroker.bench.units import number_text
from minibroker.client.errors import ClientError
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.log.compression import Compression

LINGERS_MS = (0, 5, 100)
CODECS = ("none", "lz4", "zstd", "gzip")
PACED_PER_SECOND = 2_000
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

    @property
    def topic(self) -> str:
        """Each has a topic of its own."""
        return f"linger-{self.linger_ms}-{self.codec}"


@dataclass(frozen=True)
class Lingered:
    """What came of it."""

    setting: Setting
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    stored_bytes: float  # of a record on the broker's disk, at the steady rate


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


def run_linger(context: Context) -> Findings:
    """Start a broker; send the same records with each setting, in turn, several times."""
    effort = scaled(Effort(3, paced_records=2_000, rushed_records=100_000), Effort(1, 40, 500))
    address = start_broker(context)
    settings = [Setting(linger_ms, codec) for codec in CODECS for linger_ms in LINGERS_MS]
    with Client(address) as client:
        create_topics(client, [NewTopic(setting.topic) for setting in settings])
    rounds: dict[Setting, list[Lingered]] = {setting: [] for setting in settings}
    for number in range(effort.rounds):
        for setting in settings:
            context.progress(number, effort.rounds, f"{setting.codec}, {setting.linger_ms} ms")
            rounds[setting].append(linger(address, context.directory / "data", setting, effort))
    found = [median(each) for each in rounds.values()]
    return Findings(table(found), reading(found), figure(found), {})


def start_broker(context: Context) -> str:
    """A broker of ours in another process, on a free port; it ends with the lab."""
    command = [sys.executable, "-m", "minibroker.partitions", str(context.directory / "data"), "127.0.0.1:0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    context.on_close(stop_broker, process)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    if not line.startswith("ready: "):
        raise OSError(f"the broker ended before it was ready: `{' '.join(command)}` says why")
    return line.removeprefix("ready: ").strip()


def stop_broker(process: "subprocess.Popen[bytes]") -> None:
    """A controlled shutdown."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def linger(address: str, data: Path, setting: Setting, effort: Effort) -> Lingered:
    """Send at a steady rate and look at the clock of each record; then as fast as it goes, and look at the whole."""
    values = order_values()
    with closing(sender_of(address, setting)) as sender:
        # The first record finds the leader: it is no part of any figure.
        sender.send(setting.topic, values[0])
        sender.flush()
        sender.latencies_ms.clear()
        before = stored_bytes(data, setting.topic)
        send_paced(sender, setting.topic, values, effort.paced_records)
        stored = (stored_bytes(data, setting.topic) - before) / effort.paced_records
        latencies = sorted(sender.latencies_ms)
        started = time.perf_counter()
        sent_bytes = send_rushed(sender, setting.topic, values, effort.rushed_records)
        mb_per_s = sent_bytes / 1e6 / (time.perf_counter() - started)
    return Lingered(setting, mb_per_s, percentile(latencies, 50), percentile(latencies, 99), stored)


def send_paced(
    sender: Sender, topic: str, values: Sequence[bytes], records: int, *, per_second: int = PACED_PER_SECOND
) -> None:
    """One record after the other, at a steady rate."""
    started = time.perf_counter()
    for number in range(records):
        while (early_s := started + number / per_second - time.perf_counter()) > 0:
            sender.serve(early_s)
        sender.send(topic, values[number % len(values)])
    sender.flush()


def send_rushed(sender: Sender, topic: str, values: Sequence[bytes], records: int) -> int:
    """As fast as the sender takes them; return how many bytes of values they were."""
    for number in range(records):
        sender.send(topic, values[number % len(values)])
    sender.flush()
    whole, rest = divmod(records, len(values))
    return whole * sum(map(len, values)) + sum(map(len, values[:rest]))


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


def stored_bytes(data: Path, topic: str) -> int:
    """What the broker has on its disk of a topic."""
    return sum(path.stat().st_size for path in data.glob(f"{topic}-*/*.log"))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value below which so many per cent of the others are."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def median(rounds: Sequence[Lingered]) -> Lingered:
    """Figure by figure, over the rounds."""
    return Lingered(
        rounds[0].setting,
        mb_per_s=statistics.median(each.mb_per_s for each in rounds),
        p50_ms=statistics.median(each.p50_ms for each in rounds),
        p99_ms=statistics.median(each.p99_ms for each in rounds),
        stored_bytes=statistics.median(each.stored_bytes for each in rounds),
    )


def sender_of(address: str, setting: Setting) -> Sender:
    """The stock client where it is installed, else ours."""
    if importlib.util.find_spec("confluent_kafka") is not None:
        return StockSender(address, setting)
    return OwnSender(address, setting)


class StockSender:
    """confluent-kafka."""

    def __init__(self, address: str, setting: Setting) -> None:
        # It is not there for everybody, and slow to import.
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
        """Its threads end when nothing refers to it any more."""
        del self._producer


class OwnSender:
    """The client of this chapter; its thread hears the acknowledgements."""

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


def table(found: Sequence[Lingered]) -> Table:
    """Set out what each setting gives and takes."""
    columns = ["codec", "linger, ms", "MB/s", "p50, ms", "p99, ms", "bytes of a record on disk"]
    rows = [
        [
            each.setting.codec,
            str(each.setting.linger_ms),
            number_text(each.mb_per_s),
            number_text(each.p50_ms),
            number_text(each.p99_ms),
            number_text(each.stored_bytes),
        ]
        for each in found
    ]
    return Table(columns, rows)


def figure(found: Sequence[Lingered]) -> LineChart:
    """Draw throughput over latency, a curve for each codec."""
    return LineChart(
        "What a batch gains by waiting",
        f"p99 at {PACED_PER_SECOND:,} records/s, ms; on each curve linger {', '.join(map(str, LINGERS_MS))} ms",
        "MB/s at full speed",
        [
            Line(codec, [Point(each.p99_ms, each.mb_per_s) for each in found if each.setting.codec == codec])
            for codec in CODECS
        ],
        log_x=True,
        note=QUICK_NOTE if is_quick() else "",
    )


def reading(found: Sequence[Lingered]) -> list[str]:
    """Say what the figures mean."""
    by = {(each.setting.codec, each.setting.linger_ms): each for each in found}
    least, middle, most = LINGERS_MS
    plain = [by["none", linger_ms] for linger_ms in LINGERS_MS]
    packed = [by["zstd", linger_ms] for linger_ms in LINGERS_MS]
    fastest = max(found, key=lambda each: each.mb_per_s)
    return [
        f"Latency: at {PACED_PER_SECOND:,} records/s half of the records are acknowledged within "
        f"{number_text(plain[0].p50_ms)} ms without lingering, {number_text(plain[1].p50_ms)} ms with {middle} and "
        f"{number_text(plain[2].p50_ms)} ms with {most}; 99 % within {number_text(plain[0].p99_ms)}, "
        f"{number_text(plain[1].p99_ms)} and {number_text(plain[2].p99_ms)} ms. Lingering is paid by every record.",
        f"Throughput: at full speed, without compression, {number_text(plain[0].mb_per_s)} MB/s without lingering, "
        f"{number_text(plain[1].mb_per_s)} with {middle} ms and {number_text(plain[2].mb_per_s)} with {most}. A batch "
        f"that fills by itself waits for nothing, so {most} instead of {middle} ms is a factor of "
        f"{number_text(plain[2].mb_per_s / plain[1].mb_per_s)}. The fastest here was {fastest.setting.codec} with "
        f"{fastest.setting.linger_ms} ms: {number_text(fastest.mb_per_s)} MB/s.",
        f"Size: at the steady rate it is the batches that lingering fills, and full ones compress: with zstd a record "
        f"takes {number_text(packed[0].stored_bytes)} bytes on disk with linger {least}, "
        f"{number_text(packed[1].stored_bytes)} with {middle}, {number_text(packed[2].stored_bytes)} with {most}; "
        f"without compression {number_text(plain[0].stored_bytes)}, {number_text(plain[1].stored_bytes)} and "
        f"{number_text(plain[2].stored_bytes)}. Kafka's producer lingers {middle} ms since version 4.",
    ]
