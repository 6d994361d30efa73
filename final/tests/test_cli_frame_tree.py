"""The inspector shows every byte of a message, and agrees with the decoders."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire_messages import EVERY_MESSAGE, case, messages, plain, sample

from minibroker.cli.frame_tree import Node, explain, explain_request, explain_response, render
from minibroker.log.batch import BatchBuilder
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import MalformedMessage, UnsupportedApi
from minibroker.wire.headers import frame_request, frame_response
from minibroker.wire.schema import Part, Request, Response
from minibroker.wire.tables import fetch, metadata, produce
from minibroker.wire.tables.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

SCENARIOS = Path(__file__).parent / "scenarios"
TIME = 1_700_000_000_000
Transcript = Callable[[Path, str], None]
FIRST_AND_LAST = [
    (cls, version)
    for api in APIS.values()
    for cls in (api.request, api.response)
    for version in {api.min_version, api.max_version}
]


def frame_of(parts: list[Part]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts if isinstance(part, bytes | bytearray | memoryview)))[4:]


def request_frame(message: Request, version: int) -> memoryview:
    return frame_of(frame_request(message, version=version, correlation_id=4, client_id="demo"))


def response_frame(message: Response, version: int) -> memoryview:
    return frame_of(frame_response(message, version=version, correlation_id=4))


def batch(count: int) -> bytes:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(timestamp=TIME + index, key=b"k", value=b"value %d" % index)
    return bytes(builder.build())


def shown_request(message: Request, version: int) -> str:
    frame = request_frame(message, version)
    return "\n".join(render(explain_request(frame), frame)) + "\n"


def shown_response(message: Response, version: int) -> str:
    frame = response_frame(message, version)
    assert message.schema.key is not None
    return "\n".join(render(explain_response(message.schema.key, version, frame), frame)) + "\n"


# Transcripts


def test_a_produce_request_is_shown_down_to_its_batch(transcript: Transcript) -> None:
    partition = produce.PartitionProduceData(index=3, records=batch(2))
    request = produce.ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[produce.TopicProduceData(name="orders", partition_data=[partition])]
    )
    transcript(SCENARIOS / "tree-produce-request-v9.txt", shown_request(request, 9))
    transcript(SCENARIOS / "tree-produce-request-v7.txt", shown_request(request, 7))


def test_a_produce_response_is_shown_with_its_tagged_fields(transcript: Transcript) -> None:
    partition = produce.PartitionProduceResponse(
        index=3,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        base_offset=-1,
        current_leader=produce.LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )
    response = produce.ProduceResponse(
        responses=[produce.TopicProduceResponse(name="orders", partition_responses=[partition])],
        node_endpoints=[produce.NodeEndpoint(node_id=2, host="127.0.0.1", port=9093)],
    )
    transcript(SCENARIOS / "tree-produce-response-v10.txt", shown_response(response, 10))


def test_a_fetch_is_shown_with_a_batch_that_is_cut_off(transcript: Transcript) -> None:
    topic_id = bytes(range(16))
    request = fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            fetch.FetchTopic(
                topic_id=topic_id,
                partitions=[fetch.FetchPartition(partition=0, fetch_offset=7, partition_max_bytes=1_048_576)],
            )
        ],
    )
    transcript(SCENARIOS / "tree-fetch-request-v13.txt", shown_request(request, 13))
    partition = fetch.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=42,
        aborted_transactions=None,
        records=batch(3) + batch(2)[:70],
    )
    response = fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(topic_id=topic_id, partitions=[partition])])
    transcript(SCENARIOS / "tree-fetch-response-v13.txt", shown_response(response, 13))


def test_what_a_client_asks_first_is_shown(transcript: Transcript) -> None:
    versions = ApiVersionsRequest(client_software_name="demo", client_software_version="1.0")
    answer = ApiVersionsResponse(
        error_code=0,
        api_keys=[
            ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
            for key, api in sorted(APIS.items())
        ][:3],
    )
    described = metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)],
        cluster_id="abc",
        controller_id=1,
        topics=[
            metadata.MetadataResponseTopic(
                error_code=0,
                name="orders",
                topic_id=bytes(range(16)),
                partitions=[
                    metadata.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=0,
                        replica_nodes=[1],
                        isr_nodes=[1],
                    )
                    for index in range(25)
                ],
            )
        ],
    )
    shown = [
        shown_request(versions, 0),
        shown_request(versions, 3),
        shown_response(answer, 3),
        shown_request(metadata.MetadataRequest(topics=None), 12),
        shown_response(described, 12),
    ]
    transcript(SCENARIOS / "tree-first-requests.txt", "\n".join(shown))


# Compared with the decoders


def tree_plain(node: Node, cls: type, version: int) -> object:
    """The inspector's tree as nested lists of the values of a version."""
    tagged = {
        child.children[0].name: child.children[0]
        for tags in node.children
        if tags.name == "tags"
        for child in tags.children
    }
    seen = {child.name: child for child in node.children if child.name != "tags"} | tagged
    values = []
    for field in cls.schema.fields:  # type: ignore[attr-defined]
        if version not in field.versions:
            continue
        if field.name not in seen:
            values.append(plain([] if field.is_array and field.default == () else field.default, version))
            continue
        values.append(_tree_value(seen[field.name], field, version))
    return values


def _tree_value(node: Node, field: Any, version: int) -> object:
    if node.value is None and not node.children:
        return None
    if field.is_array:
        return [_tree_value(child, field._replace(is_array=False), version) for child in node.children]
    return node.value if field.struct is None else tree_plain(node, field.struct, version)


def test_the_inspector_sees_what_the_decoder_sees() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            for message in messages(cls, version):
                written = memoryview(message.encode(version))
                tree = explain(cls, written, 0, version)
                assert (tree.start, tree.end) == (0, len(written))
                assert tree_plain(tree, cls, version) == plain(message, version)


def own_bytes(node: Node) -> Iterator[int]:
    """The positions of the bytes in a node's own line, then those of its children."""
    yield from range(node.start, node.children[0].start if node.children else node.end)
    for child in node.children:
        yield from own_bytes(child)


def test_every_byte_belongs_to_exactly_one_line() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            written = memoryview(sample(cls, version).encode(version))
            tree = explain(cls, written, 0, version)
            assert list(own_bytes(tree)) == list(range(len(written)))
            assert len(render(tree, written)) >= 1


def test_the_inspector_refuses_every_truncation() -> None:
    # One walk serves all versions: the first has the old encoding of lengths, the last the new one and tagged fields.
    for cls, version in FIRST_AND_LAST:
        with case(cls, version):
            written = memoryview(sample(cls, version).encode(version))
            for size in range(len(written)):
                with pytest.raises(MalformedMessage):
                    explain(cls, written[:size], 0, version)


def test_trailing_bytes_are_shown() -> None:
    frame = memoryview(bytes(request_frame(metadata.MetadataRequest(topics=None), 1)) + b"more")
    assert explain_request(frame).children[-1].value == b"more"


def test_a_request_that_the_tables_lack_is_not_shown() -> None:
    with pytest.raises(UnsupportedApi):
        explain_request(memoryview(b"\0\x63" + bytes(6) + b"\xff\xff"))
