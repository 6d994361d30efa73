"""Encoders and decoders: round trips, values that a version cannot carry, and record sets without a copy."""

import subprocess
import sys
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_messages import EVERY_MESSAGE, case, default_of, every_struct, messages, sample

from minibroker.controller.tables.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.wire import compiling
from minibroker.wire.errors import UnsupportedVersion, WireError
from minibroker.wire.fields import REQUIRED, Field
from minibroker.wire.headers import part_bytes
from minibroker.wire.schema import Part, Struct, decode_whole
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.tables.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseBroker
from minibroker.wire.tables.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from minibroker.wire.uuids import NO_UUID, parse_uuid, uuid_text


def produce(*record_sets: bytes | bytearray | memoryview | FileSlice | None) -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=records) for index, records in enumerate(record_sets)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=partitions)]
    )


def joined(parts: list[Part]) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)


# Round trips


def test_every_message_is_decoded_as_it_was_encoded() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            message = sample(cls, version)
            written = message.encode(version)
            assert decode_whole(cls, memoryview(written), 0, version) == message
            assert joined(message.parts(version)) == written


def test_every_message_may_be_anywhere_in_a_buffer() -> None:
    for cls, version in EVERY_MESSAGE:
        with case(cls, version):
            for message in messages(cls, version):
                written = message.encode(version)
                for around in (b"", b"\0", bytes(range(9)), b"\xff" * 9):
                    read, end = cls.decode(memoryview(around + written + around), len(around), version)
                    assert read == message
                    assert end == len(around) + len(written)


def test_an_encoder_appends_to_the_header() -> None:
    out = bytearray(b"header")
    (part,) = ApiVersionsRequest().parts(0, out)
    assert part is out
    assert MetadataRequest(topics=None).parts(1, out) == [bytearray(b"header\xff\xff\xff\xff")]


# Versions


def test_a_version_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="ProduceRequest has versions 3-12, not 2"):
        produce().encode(2)
    with pytest.raises(UnsupportedVersion, match="not 99"):
        ProduceRequest.decode(memoryview(b""), 0, 99)


def other_than(field: Field) -> object:
    """A value that is not the field's default."""
    if field.is_array:
        return [{"int32": 5, "string": "x"}.get(field.kind, 5)] if field.struct is None else [None]
    values: dict[str, object] = {"bool": not field.default, "string": "other", "uuid": bytes(range(16))}
    if field.struct is not None:
        return field.struct(**{inner.name: 5 for inner in field.struct.schema.fields})
    return values.get(field.kind, 77)


def lacking() -> list[tuple[type[Struct], Field, int]]:
    """Each field of each struct, with each version that lacks the field."""
    found = []
    for cls, version in every_struct():
        if all(version in field.versions for field in cls.schema.fields if field.default is REQUIRED):
            found += [(cls, field, version) for field in cls.schema.fields if version not in field.versions]
    return found


def test_a_value_that_the_version_cannot_carry_is_dropped_only_if_it_is_ignorable() -> None:
    cases = lacking()
    assert len(cases) > 100
    for cls, field, version in cases:
        message = sample(cls, version)
        written = message.encode(version)
        setattr(message, field.name, other_than(field))
        with case(cls, version):
            if field.ignorable:
                assert message.encode(version) == written, field.name
            else:
                with pytest.raises(WireError, match=f"{cls.__name__} v{version} cannot carry {field.name}="):
                    message.encode(version)


def test_a_field_that_the_version_lacks_is_decoded_as_its_default() -> None:
    for cls, field, version in lacking():
        read, _end = cls.decode(memoryview(sample(cls, version).encode(version)), 0, version)
        assert getattr(read, field.name) == default_of(field), f"{cls.__name__} v{version} {field.name}"


def test_an_old_version_refuses_topics_to_delete_by_id() -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a", topic_id=NO_UUID)], timeout_ms=1)
    with pytest.raises(WireError, match="DeleteTopicsRequest v5 cannot carry topics"):
        request.encode(5)


# Null, tags, defaults


def test_null_means_all_topics_from_version_1_on_only() -> None:
    assert MetadataRequest(topics=None).encode(1) == b"\xff\xff\xff\xff"
    assert MetadataRequest(topics=[]).encode(1) == b"\0\0\0\0"
    with pytest.raises(WireError, match="MetadataRequest v0 cannot be written"):
        MetadataRequest(topics=None).encode(0)


def test_a_struct_may_be_null() -> None:
    without = DescribeTopicPartitionsRequest(topics=[])
    assert without.encode(0) == b"\x01" + (2000).to_bytes(4) + b"\xff" + b"\0"
    at = DescribeTopicPartitionsRequest(topics=[], cursor=Cursor(topic_name="t", partition_index=2))
    assert at.encode(0) == b"\x01" + (2000).to_bytes(4) + b"\x01" + b"\x02t" + (2).to_bytes(4) + b"\0" + b"\0"


def test_tagged_fields_with_their_default_are_left_out() -> None:
    for version in (3, 4):
        assert ApiVersionsResponse(error_code=0, api_keys=[]).encode(version) == b"\0\0\x01\0\0\0\0" + b"\0"
    spelled_out = PartitionProduceResponse(
        index=0, error_code=0, base_offset=0, current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    )
    assert spelled_out.encode(10) == PartitionProduceResponse(index=0, error_code=0, base_offset=0).encode(10)


def test_tagged_fields_are_encoded_in_the_order_of_their_tags() -> None:
    response = ApiVersionsResponse(error_code=0, api_keys=[], zk_migration_ready=True, finalized_features_epoch=1)
    assert response.encode(3)[7:] == b"\x02" + b"\x01\x08" + (1).to_bytes(8) + b"\x03\x01\x01"


def test_the_default_of_a_struct_is_shared_and_cannot_be_changed() -> None:
    request = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[])
    assert request.replica_state.replica_id == -1
    with pytest.raises(AttributeError, match="make a new one"):
        request.replica_state.replica_id = 3


def test_messages_do_not_share_default_lists() -> None:
    one, other = DeleteTopicsRequest(timeout_ms=1), DeleteTopicsRequest(timeout_ms=1)
    one.topic_names.append("a")
    assert other.topic_names == []


def test_objects_compare_by_value_and_show_their_fields() -> None:
    one = MetadataResponseBroker(node_id=1, host="a", port=2)
    assert one == MetadataResponseBroker(node_id=1, host="a", port=2)
    assert one != MetadataResponseBroker(node_id=1, host="a", port=3)
    assert one != "a"
    assert repr(one) == "MetadataResponseBroker(node_id=1, host='a', port=2, rack=None)"
    with pytest.raises(TypeError, match="port"):
        MetadataResponseBroker(node_id=1, host="a")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        one.hots = "b"  # type: ignore[attr-defined]


# Values that cannot be encoded


def test_a_value_that_does_not_fit_is_a_wire_error() -> None:
    for broken, version in (
        (MetadataResponseBroker(node_id=2**31, host="a", port=1), 9),
        (MetadataResponseBroker(node_id=1, host="a", port=-(2**31) - 1), 1),
        (MetadataResponseBroker(node_id=1, host="x" * 32_768, port=1), 1),
        (MetadataResponseBroker(node_id=1, host="x" * 32_768, port=1), 9),
        (MetadataResponseBroker(node_id=1, host="\ud800", port=1), 9),
        (MetadataRequestTopic(name="a", topic_id=b"short"), 12),
        (MetadataRequestTopic(name=None), 9),
        (MetadataRequestTopic(name=7), 9),  # type: ignore[arg-type]
    ):
        refusal = pytest.raises(WireError, match=f"{type(broken).__name__} v{version} cannot be written")
        with case(type(broken), version), refusal:
            broken.encode(version)


def test_the_refusal_names_the_field_and_its_value() -> None:
    broken = produce(b"batch", None)
    broken.topic_data[0].partition_data[1].index = 2**40
    place = r"ProduceRequest\.topic_data\[0\]\.partition_data\[1\]\.index = 1099511627776"
    with pytest.raises(WireError, match=f"ProduceRequest v9 cannot be written: {place}: .i. format requires"):
        broken.encode(9)


def test_the_longest_string_fits() -> None:
    broker = MetadataResponseBroker(node_id=1, host="x" * 32_767, port=1)
    for version in (1, 9):
        assert MetadataResponseBroker.decode(memoryview(broker.encode(version)), 0, version)[0] == broker


# Record sets


def test_the_record_set_of_a_produce_request_is_a_view_of_the_frame() -> None:
    for version in range(3, 13):
        with case(ProduceRequest, version):
            frame = bytearray(produce(b"first batch", None, b"second").encode(version))
            request = decode_whole(ProduceRequest, memoryview(frame), 0, version)
            first, null, second = [partition.records for partition in request.topic_data[0].partition_data]
            assert null is None
            assert isinstance(first, memoryview)
            assert isinstance(second, memoryview)
            assert first.obj is frame
            assert (bytes(first), bytes(second)) == (b"first batch", b"second")
            first[:5] = b"FIRST"
            assert b"FIRST batch" in frame


def test_a_file_slice_becomes_a_separate_part() -> None:
    file = MemoryFiles().open("log")
    file.pwrite(b"0123456789" * 20, 0)
    slices = [FileSlice(file, 3, 150), FileSlice(file, 0, 0), FileSlice(file, 7, 4)]

    def response(records: list[typing.Any]) -> FetchResponse:
        partitions = [
            PartitionData(partition_index=index, error_code=0, high_watermark=9, records=one)
            for index, one in enumerate(records)
        ]
        return FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])

    for version in range(4, 17):
        with case(FetchResponse, version):
            parts = response(slices).parts(version)
            assert [part for part in parts if isinstance(part, FileSlice)] == [slices[0], slices[2]]
            in_memory = response([one.read() for one in slices]).encode(version)
            assert joined(parts) == in_memory == response(slices).encode(version)
            assert part_bytes(parts) == len(in_memory)


def test_a_record_set_in_memory_is_not_copied() -> None:
    for kind in (bytes, bytearray, memoryview):
        records: bytes | bytearray | memoryview = kind(b"x" * 1000)
        parts = produce(records, b"").parts(9)
        assert parts[1] is records, kind
        assert len(parts) == 3, kind


# The compiler and the tables


def test_importing_the_tables_compiles_nothing() -> None:
    program = (
        "from minibroker.wire.apis import APIS\n"
        "for api in APIS.values():\n"
        "    for cls in (api.request, api.response):\n"
        "        assert not cls._decoders and not cls._encoders and '__init__' not in vars(cls)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_unknown_message_or_version_is_one_line_of_error() -> None:
    for arguments in ([], ["Nonsense", "1"], ["ProduceRequest", "99"]):
        command = [sys.executable, "-m", "minibroker.wire.compiling", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, arguments
        assert done.stderr.count("\n") == 1, done.stderr


def test_the_generated_source_can_be_read() -> None:
    command = [sys.executable, "-m", "minibroker.wire.compiling", "ProduceRequest", "9"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert shown == compiling.source_text(ProduceRequest, 9)
    assert "o0.acks, o0.timeout_ms, n = unpack_hiB(buffer, p)" in shown
    assert "out += pack_hiB(o0.acks, o0.timeout_ms, n)" in shown


TYPES = {"bool": bool, "float64": float, "uuid": bytes, "string": str, "bytes": bytes}


def annotation(field: Field) -> object:
    """The expected annotation of a field."""
    of: object = field.struct if field.struct is not None else TYPES.get(field.kind, int)
    if field.kind == "records":
        of = bytes | bytearray | memoryview | FileSlice
    if field.is_array:
        of = list[of]  # type: ignore[valid-type]
    return of | None if field.nullable.last >= 0 else of  # type: ignore[operator]


def test_the_annotations_agree_with_the_tables() -> None:
    for cls, _version in every_struct():
        hints = typing.get_type_hints(cls)
        for field in cls.schema.fields:
            assert hints[field.name] == annotation(field), f"{cls.__name__}.{field.name}"


def test_every_line_of_the_tables_is_explained() -> None:
    for cls, _version in every_struct():
        assert cls.__doc__
        for field in cls.schema.fields:
            assert field.about, f"{cls.__name__}.{field.name}"
            assert "|" not in field.about


# Ids


@given(st.binary(min_size=16, max_size=16))
def test_an_id_is_shown_as_kafka_shows_it(uuid: bytes) -> None:
    text = uuid_text(uuid)
    assert len(text) == 22
    assert parse_uuid(text) == uuid


def test_the_zero_id_is_kafkas_and_invalid_ids_are_refused() -> None:
    assert uuid_text(NO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    for text in ("", "AAAA", "A" * 23, "AAAAAAAAAAAAAAAAAAAAA+", "ä" * 22):
        with pytest.raises(WireError, match="is not an id"):
            parse_uuid(text)
