"""The lab `linger` of chapter 03: how much throughput lingering gains, and how much latency it costs.

It starts a broker in another process and sends records to it: at a steady rate to measure the latency, and at full
speed to measure the throughput. It sends with confluent-kafka if that is installed, else with our own client.
"""

import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from labs.pacing import Effort, Setting, order_values, rushed_mb_per_s, send_paced, sender_of, warm_up

from minibroker.bench import Context, Findings, Lab, Line, LineChart, Point, Table, children, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.measure import percentile
from minibroker.bench.units import number_text
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client

LINGERS_MS = (0, 5, 100)
CODECS = ("none", "lz4", "zstd", "gzip")
PACED_PER_SECOND = 2_000


@dataclass(frozen=True)
class Lingered:
    """The figures for one setting."""

    setting: Setting
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    stored_bytes: float  # per record on the broker's disk, at the steady rate


def run_linger(context: Context) -> Findings:
    """Start a broker, and send the same records with each setting in turn, several times."""
    effort = scaled(Effort(3, paced_records=2_000, rushed_records=100_000), Effort(1, 40, 500))
    data = context.directory / "data"
    broker = children.start(context, lambda listen: [sys.executable, "-m", "minibroker.partitions", str(data), listen])
    settings = [Setting(linger_ms, codec) for codec in CODECS for linger_ms in LINGERS_MS]
    with Client(broker.address) as client:
        create_topics(client, [NewTopic(topic_of(setting)) for setting in settings])
    rounds: dict[Setting, list[Lingered]] = {setting: [] for setting in settings}
    for number in range(effort.rounds):
        for setting in settings:
            context.progress(number, effort.rounds, f"{setting.codec}, {setting.linger_ms} ms")
            rounds[setting].append(linger(broker.address, data, setting, effort))
    found = [median(each) for each in rounds.values()]
    return Findings(table(found), reading(found), figure(found), {})


def linger(address: str, data: Path, setting: Setting, effort: Effort) -> Lingered:
    """Send at a steady rate and time each record. Then send at full speed and time all of them together."""
    values, topic = order_values(), topic_of(setting)
    with closing(sender_of(address, setting)) as sender:
        warm_up(sender, topic)
        before = stored_bytes(data, topic)
        send_paced(sender, topic, values, effort.paced_records, per_second=PACED_PER_SECOND)
        stored = (stored_bytes(data, topic) - before) / effort.paced_records
        latencies = sorted(sender.latencies_ms)
        mb_per_s = rushed_mb_per_s(sender, topic, values, effort.rushed_records)
    return Lingered(setting, mb_per_s, percentile(latencies, 50), percentile(latencies, 99), stored)


def topic_of(setting: Setting) -> str:
    """The topic for a setting."""
    return f"linger-{setting.linger_ms}-{setting.codec}"


def stored_bytes(data: Path, topic: str) -> int:
    """The bytes of a topic on the broker's disk."""
    return sum(path.stat().st_size for path in data.glob(f"{topic}-*/*.log"))


def median(rounds: Sequence[Lingered]) -> Lingered:
    """The median of each figure over the rounds."""
    return Lingered(
        rounds[0].setting,
        mb_per_s=statistics.median(each.mb_per_s for each in rounds),
        p50_ms=statistics.median(each.p50_ms for each in rounds),
        p99_ms=statistics.median(each.p99_ms for each in rounds),
        stored_bytes=statistics.median(each.stored_bytes for each in rounds),
    )


def table(found: Sequence[Lingered]) -> Table:
    """A table of the figures of each setting."""
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
    """A chart of throughput over latency, with a curve for each codec."""
    return LineChart(
        "What a batch gains by waiting",
        f"p99 at {PACED_PER_SECOND:,} records/s, ms; on each curve linger {', '.join(map(str, LINGERS_MS))} ms",
        "MB/s at full speed",
        [
            Line(codec, [Point(each.p99_ms, each.mb_per_s) for each in found if each.setting.codec == codec])
            for codec in CODECS
        ],
        log_x=True,
        note=quick_note(),
    )


def reading(found: Sequence[Lingered]) -> list[str]:
    """The figures in sentences."""
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


LABS = [Lab("linger", "03", "linger 0, 5, 100 ms and codecs: throughput against p99", run_linger)]
