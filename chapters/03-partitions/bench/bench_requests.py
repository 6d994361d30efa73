"""The broker's CPU time for a small request, compared with a server that only sends each frame back.

Both use asyncio's streams and run in separate processes. The client sends frames that were built before and only counts
the bytes of the answers. So the CPU time is the server's, and the difference to the bare server is the cost of the
codec, the handlers and the log.
"""

from functools import partial

from bench.exchange import Exchange, Latencies, start_echo

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, children, scaled
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Request, decode_whole
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

TOPIC, EMPTY_TOPIC = "small", "empty"
VALUE = b"x" * 100
IN_FLIGHT = 32
BARE = "bare server"
PRODUCE = "Produce, 100 B"
# Versions in which these requests name topics by name, not by id.
VERSIONS = {ProduceRequest: 9, MetadataRequest: 9, FetchRequest: 12}


def benchmark(context: Context) -> Benchmark:
    broker, bare = children.serve(context), start_echo(context)
    with Client(broker.address) as client:
        create_topics(client, [NewTopic(TOPIC, 1), NewTopic(EMPTY_TOPIC, 1)])
    exchanges = {child: Exchange(context, child.host, child.port) for child in (broker, bare)}
    latencies = {BARE: Latencies(), PRODUCE: Latencies()}

    def case(name: str, request: Request, in_flight: int) -> Case:
        child = bare if name == BARE else broker
        kept = latencies.get(name) if in_flight == 1 else None
        count = scaled(full=4_000 if in_flight == 1 else 8_000, quick=64)
        sent = framed(request)
        received = exchanges[child].ask(sent)
        if child is broker:
            check(request, received)
        return Case(
            f"{name}, {in_flight} in flight",
            lambda: exchanges[child].repeat(sent, len(received), count=count, in_flight=in_flight, latencies=kept),
            operations_count=count,
            limit="" if child is bare else f"{BARE}, {in_flight} in flight",
            group=f"{in_flight} in flight",
            cpu_s=child.cpu_s,
        )

    cases = [
        case(name, request, in_flight)
        for in_flight in (1, IN_FLIGHT)
        for name, request in {
            BARE: produce(),
            PRODUCE: produce(),
            "Metadata, one topic": metadata(),
            "Fetch, nothing new": fetch(),
        }.items()
    ]
    return Benchmark(
        "Server CPU for a small request",
        cases,
        # A prototype took 33 and 10.6 µs, on a faster interpreter and without rules, producers and configurations. The
        # bars include the cost of those, compared with a server that has none of them.
        bars=[
            Bar(f"{PRODUCE}, 1 in flight", "cpu_ratio", at_most=4),
            Bar(f"{PRODUCE}, {IN_FLIGHT} in flight", "cpu_ratio", at_most=8),
        ],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op", "cpu_ratio"],
        facts=[
            Fact(f"{name}, 1 in flight: p{percent}", "µs", partial(kept.percentile_us, percent))
            for name, kept in latencies.items()
            for percent in (50, 99)
        ],
        note="An operation is one request, the CPU time the server's. The bare server sends each frame back.",
    )


def produce(topic: str = TOPIC, partition: int = 0) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=None, value=VALUE)
    data = PartitionProduceData(index=partition, records=builder.build())
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def metadata() -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])


def fetch() -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=EMPTY_TOPIC, partitions=[wanted])])


def framed(request: Request) -> bytes:
    parts = frame_request(request, version=VERSIONS[type(request)], correlation_id=1, client_id="bench")
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))


def check(request: Request, received: bytes) -> None:
    """Check that the answer has no error. Refusals would look fast."""
    frame, version = memoryview(received)[4:], VERSIONS[type(request)]
    api = APIS[request.schema.key or 0]
    _correlation_id, position = read_response_header(api.key, version, frame)
    response = decode_whole(api.response, frame, position, version)
    if isinstance(response, ProduceResponse):
        codes = [it.error_code for topic in response.responses for it in topic.partition_responses]
    elif isinstance(response, FetchResponse):
        codes = [it.error_code for topic in response.responses for it in topic.partitions]
    else:
        assert isinstance(response, MetadataResponse)
        codes = [topic.error_code for topic in response.topics]
    assert codes == [ErrorCode.NONE], response
