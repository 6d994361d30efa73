"""The wire codec: the requests of the hot path, and Metadata of 100 topics, compared with kafka-python and kio."""

import io
from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import MetadataResponse as TheirMetadataResponse
from kafka.protocol.producer import ProduceRequest as TheirProduceRequest
from kio.schema.metadata.v12.response import MetadataResponse as KioMetadataResponse
from kio.schema.produce.v9.request import ProduceRequest as KioProduceRequest
from kio.serial import entity_reader, entity_writer

from minibroker.bench import Bar, Benchmark, Case, Context, scaled
from minibroker.wire.headers import frame_request, frame_response, read_request_header
from minibroker.wire.tables.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from minibroker.wire.tables.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker.wire.tables.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PRODUCE, FETCH, METADATA = 9, 12, 12  # versions, all flexible
TOPICS = 100
PRODUCE_DECODE = "Produce request decode"
OURS, KIO, KAFKA_PYTHON = "minibroker", "kio (Rust)", "kafka-python"


def benchmark(_context: Context) -> Benchmark:
    small, large = scaled(full=20_000, quick=50), scaled(full=100, quick=2)

    def case(name: str, run: Callable[[], object], series: str, *, limit: str = "", count: int = small) -> Case:
        def many() -> None:
            for _ in range(count):
                run()

        return Case(f"{name}, {series}", many, operations_count=count, series=series, limit=limit)

    cases = []
    for series, run in produce_peers().items():
        cases.append(case(PRODUCE_DECODE, run, series))
    for name, run in hot_path().items():
        cases.append(case(name, run, OURS, limit=f"{name}, {KAFKA_PYTHON}" if name == PRODUCE_DECODE else ""))
    for name, runs in metadata().items():
        for series, run in runs.items():
            limit = f"{name}, {KAFKA_PYTHON}" if series == OURS else ""
            cases.append(case(name, run, series, limit=limit, count=large))
    return Benchmark(
        "Encode and decode messages",
        cases,
        bars=[
            Bar(f"{PRODUCE_DECODE}, {OURS}", "ratio", at_least=1),
            Bar(f"Metadata of {TOPICS} topics decode, {OURS}", "ratio", at_least=1),
            Bar(f"Metadata of {TOPICS} topics encode, {OURS}", "ratio", at_least=1),
        ],
        metric="us_per_op",
        log=True,
        note="An operation is one message. Produce and Fetch carry one partition and a batch of 100 bytes.",
    )


# The hot path -------------------------------------------------------------------------------------------------------


def produce_request() -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=bytes(100))
    topic = TopicProduceData(name="orders", partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(index=3, error_code=0, base_offset=1234, log_start_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[partition])])


def fetch_request() -> FetchRequest:
    partition = FetchPartition(partition=3, fetch_offset=1234, partition_max_bytes=1_048_576)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[partition])])


def fetch_response() -> FetchResponse:
    partition = PartitionData(partition_index=3, error_code=0, high_watermark=2000, records=bytes(100))
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[partition])])


def hot_path() -> dict[str, Callable[[], object]]:
    produce = memoryview(bytearray(produce_request().encode(PRODUCE)))
    fetch = memoryview(bytearray(fetch_request().encode(FETCH)))
    framed = frame_request(produce_request(), version=PRODUCE, correlation_id=1, client_id="rdkafka")
    frame = memoryview(b"".join(bytes(part) for part in framed if not hasattr(part, "read")))[4:]
    produced, fetched = produce_response(), fetch_response()
    return {
        "request header decode": lambda: read_request_header(frame),
        PRODUCE_DECODE: lambda: ProduceRequest.decode(produce, 0, PRODUCE),
        "Produce response encode": lambda: produced.parts(PRODUCE),
        "Produce response build and frame": lambda: frame_response(
            produce_response(), version=PRODUCE, correlation_id=1
        ),
        "Fetch request decode": lambda: FetchRequest.decode(fetch, 0, FETCH),
        "Fetch response encode": lambda: fetched.parts(FETCH),
    }


def produce_peers() -> dict[str, Callable[[], object]]:
    written = produce_request().encode(PRODUCE)
    read = entity_reader(KioProduceRequest)
    return {
        KIO: lambda: read(written, 0),
        KAFKA_PYTHON: lambda: TheirProduceRequest.decode(written, version=PRODUCE),
    }


# Metadata -----------------------------------------------------------------------------------------------------------


def metadata_response() -> MetadataResponse:
    partition = MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=1, leader_epoch=5, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
    )
    brokers = [MetadataResponseBroker(node_id=node, host="127.0.0.1", port=9092 + node) for node in (1, 2, 3)]
    topics = [
        MetadataResponseTopic(error_code=0, name=f"topic-{index}", topic_id=bytes(15) + b"\1", partitions=[partition])
        for index in range(TOPICS)
    ]
    return MetadataResponse(brokers=brokers, cluster_id="a-cluster", controller_id=1, topics=topics)


def metadata() -> dict[str, dict[str, Callable[[], object]]]:
    response = metadata_response()
    written = response.encode(METADATA)
    view = memoryview(written)
    theirs = TheirMetadataResponse.decode(written, version=METADATA)
    theirs._header = None  # its encoder needs the attribute
    kio_read, kio_write = entity_reader(KioMetadataResponse), entity_writer(KioMetadataResponse)
    kio, _size = kio_read(written, 0)

    def kio_encode() -> Any:
        with io.BytesIO() as buffer:
            kio_write(buffer, kio)
            return buffer.getvalue()

    assert kio_encode() == written == bytes(theirs.encode(version=METADATA))
    return {
        f"Metadata of {TOPICS} topics decode": {
            KAFKA_PYTHON: lambda: TheirMetadataResponse.decode(written, version=METADATA),
            KIO: lambda: kio_read(written, 0),
            OURS: lambda: MetadataResponse.decode(view, 0, METADATA),
        },
        f"Metadata of {TOPICS} topics encode": {
            KAFKA_PYTHON: lambda: theirs.encode(version=METADATA),
            KIO: kio_encode,
            OURS: lambda: response.encode(METADATA),
        },
    }
