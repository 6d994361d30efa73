"""Fetch a log from its start, from a warm page cache, with a client that only counts bytes.

The limit to compare with reads blocks of a file and sends them. The difference is the cost of the request, of the index
and of a server on asyncio's streams. Chapter 07 has other ways to send a part of a file.
"""

from functools import partial

from bench.exchange import Exchange

from minibroker.bench import (
    KIB,
    MIB,
    Bar,
    Benchmark,
    Case,
    Context,
    Fact,
    bytes_text,
    children,
    limits,
    network,
    scaled,
)
from minibroker.bench.launcher import Server
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

VERSIONS = {ProduceRequest: 9, FetchRequest: 12}  # these name topics by name, not by id
BLOCKS = (64 * KIB, MIB)
IN_FLIGHT = 4


def benchmark(context: Context) -> Benchmark:
    broker = children.serve(context)
    exchange = Exchange(context, broker.host, broker.port)
    cases = [case for block in BLOCKS for case in cases_of(context, broker, exchange, block)]
    return Benchmark(
        "Fetch from the start of a log",
        cases,
        bars=[
            Bar(f"fetch {bytes_text(MIB)}, {IN_FLIGHT} in flight", "ratio", at_least=0.3),
            Bar(f"fetch {bytes_text(MIB)}, {IN_FLIGHT} in flight", "cpu_ratio", at_most=3),
        ],
        columns=["cpu_us_per_op", "cpu_ratio"],
        facts=[Fact("resident memory of the broker", "MB", broker.resident_mb, at_most=200)],
        note="An operation is one request, answered with one batch. CPU is the broker's, or the bare sender's.",
    )


def cases_of(context: Context, broker: Server, exchange: Exchange, block: int) -> list[Case]:
    """The cases for batches of about `block` bytes, one per fetch, and for the same bytes in a plain file."""
    name, topic = bytes_text(block), f"blocks-of-{block}"
    batch, count = batch_of(block), scaled(full=128 * MIB, quick=4 * MIB) // block
    fill(broker.address, exchange, topic, batch, count)
    # Every batch has one record, so offsets count batches. All answers are as long as the first one.
    requests = [framed(fetch(topic, offset, len(batch))) for offset in range(count)]
    answer_bytes = len(exchange.ask(requests[0]))
    assert len(batch) < answer_bytes < len(batch) + 200, f"{answer_bytes} bytes answered for a batch of {len(batch)}"
    file = limits.scratch_file(context, topic, count * len(batch))
    bare = network.read_send(context, file, count * len(batch), len(batch), f"bare read + send, {name}")
    return [
        bare,
        *(
            Case(
                f"fetch {name}, {in_flight} in flight",
                partial(exchange.each, requests, answer_bytes, in_flight=in_flight),
                bytes_count=count * len(batch),
                operations_count=count,
                limit=bare.name,
                group=name,
                cpu_s=broker.cpu_s,
            )
            for in_flight in (1, IN_FLIGHT)
        ),
    ]


def batch_of(bytes_count: int) -> bytes:
    """A batch of one record and a little less than `bytes_count` bytes, below the broker's limit of about 1 MiB."""
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"x" * (bytes_count - 100))
    return bytes(builder.build())


def fill(address: str, exchange: Exchange, topic: str, batch: bytes, count: int) -> None:
    with Client(address) as client:
        create_topics(client, [NewTopic(topic, 1)])
    data = PartitionProduceData(index=0, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = framed(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
    exchange.repeat(request, len(exchange.ask(request)), count=count - 1)


def fetch(topic: str, offset: int, bytes_max: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])])


def framed(request: Request) -> bytes:
    parts = frame_request(request, version=VERSIONS[type(request)], correlation_id=1, client_id="bench")
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))
