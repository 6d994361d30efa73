"""Our bytes against two codecs that we did not write, kio's and kafka-python's: every API, every version, both ways."""

import dataclasses
import datetime
import enum
import importlib
import io
import pkgutil
import uuid
from typing import Any

import kafka.protocol
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from wire_messages import EVERY_MESSAGE, api_of, default_of, message_id, plain, structs

from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.fields import Schema
from minibroker.wire.schema import Message, Request, Struct, decode_whole

EXAMPLES = 10

for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
    if ".old" not in module.name and not module.name.endswith("generate_stubs"):
        importlib.import_module(module.name)
KAFKA_PYTHON = {cls.__name__: cls for cls in ApiMessage.__subclasses__()}
# What only brokers say to each other, and what only operators ask: a client has no tables for it.
BETWEEN_BROKERS = {
    "AddRaftVoter",
    "AllocateProducerIds",
    "AlterPartition",
    "BeginQuorumEpoch",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "EndQuorumEpoch",
    "Envelope",
    "FetchSnapshot",
    "RemoveRaftVoter",
    "UnregisterBroker",
    "Vote",
}
CLIENTS_MESSAGES = [(cls, version) for cls, version in EVERY_MESSAGE if api_of(cls).name not in BETWEEN_BROKERS]


# kio


def kio_class(cls: type[Message], version: int) -> Any:
    load = load_request_schema if issubclass(cls, Request) else load_response_schema
    return load(api_of(cls).key, version)


def kio_plain(value: Any) -> object:
    if dataclasses.is_dataclass(value):
        return [kio_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [kio_plain(element) for element in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, enum.Enum):
        return value.value[0] if isinstance(value.value, tuple) else value.value
    return value.bytes if isinstance(value, uuid.UUID) else value


# kio writes a tagged struct that holds its defaults; Kafka and we leave it out.
WRITES_DEFAULTS = {"FetchSnapshotResponse"}

NONES: tuple[object, ...] = (bytes(16), -1, -(2**31), [-1, -1])


def same(ours: object, theirs: object) -> bool:
    """Whether two values mean the same; a peer may say None for a zero id, for a timestamp of -1 and for defaults."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs or (theirs is None and ours in NONES)


@pytest.mark.parametrize(("cls", "version"), EVERY_MESSAGE, ids=message_id)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_kio_reads_what_we_write_and_writes_what_we_read(cls: type[Message], version: int, data: st.DataObject) -> None:
    theirs = kio_class(cls, version)
    message = data.draw(structs(cls, version))
    written = message.encode(version)
    read, size = entity_reader(theirs)(written, 0)
    assert size == len(written)
    assert same(plain(message, version), kio_plain(read)), read
    with io.BytesIO() as buffer:
        entity_writer(theirs)(buffer, read)
        if cls.__name__ not in WRITES_DEFAULTS:
            assert buffer.getvalue() == written
        assert plain(decode_whole(cls, memoryview(buffer.getvalue()), 0, version), version) == plain(message, version)
    assert plain(decode_whole(cls, memoryview(written), 0, version), version) == plain(message, version)


def test_kio_has_every_version_of_our_tables() -> None:
    missing = []
    for cls, version in EVERY_MESSAGE:
        try:
            kio_class(cls, version)
        except UnknownEntity:
            missing.append((cls.__name__, version))
    assert missing == []


def test_error_codes_are_those_of_kio() -> None:
    theirs = {code.name.upper(): (int(code.value), code.retriable) for code in KioErrorCode}
    assert {code.name: (int(code), code.is_retriable) for code in ErrorCode} == theirs
    assert all(code.message for code in ErrorCode)


# kafka-python


BITS = "authorized_operations"


def their_name(theirs: Any, name: str) -> str:
    """Two of their tables have a shorter name for what a client may do, and a set of bits instead of a number."""
    return name if name in theirs._struct.fields else BITS


def their_value(name: str, kind: str, value: Any) -> Any:
    if name == BITS:
        return None if value == -(2**31) else {bit for bit in range(32) if value >> bit & 1}
    return uuid.UUID(bytes=value) if kind == "uuid" else value


def kafka_python_object(theirs: Any, message: Struct, version: int) -> Any:
    """Build their object from ours, name by name."""
    values: dict[str, Any] = {}
    for field in message.schema.fields:
        value: Any = getattr(message, field.name)
        if version not in field.versions or (version in field.tagged and value == default_of(field)):
            continue
        if field.struct is not None and value is not None:
            inner = theirs._struct.fields[field.name].data_class
            many = [kafka_python_object(inner, one, version) for one in (value if field.is_array else [value])]
            values[field.name] = many if field.is_array else many[0]
        else:
            name = their_name(theirs, field.name)
            values[name] = their_value(name, field.kind, value)
    return theirs(version=version, **values)


def kafka_python_plain(value: Any, schema: Schema | None, version: int) -> object:
    if isinstance(value, DataContainer):
        assert schema is not None
        return [
            kafka_python_plain(
                getattr(value, their_name(value, field.name)), field.struct.schema if field.struct else None, version
            )
            for field in schema.fields
            if version in field.versions
        ]
    if isinstance(value, list | tuple):
        return [kafka_python_plain(element, schema, version) for element in value]
    if isinstance(value, set):
        return int.from_bytes(sum(1 << bit for bit in value).to_bytes(4), signed=True)
    if isinstance(value, memoryview):
        return bytes(value)
    return value.bytes if isinstance(value, uuid.UUID) else value


@pytest.mark.parametrize(("cls", "version"), CLIENTS_MESSAGES, ids=message_id)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_kafka_python_writes_the_same_bytes_and_reads_ours(
    cls: type[Message], version: int, data: st.DataObject
) -> None:
    theirs = KAFKA_PYTHON[cls.__name__]
    message = data.draw(structs(cls, version))
    written = message.encode(version)
    assert bytes(kafka_python_object(theirs, message, version).encode(version=version)) == written
    # Not their ApiVersionsResponse.decode, which takes version 0 for granted if there is an error code.
    read = ApiMessage.decode.__func__(theirs, written, version=version)
    assert same(plain(message, version), kafka_python_plain(read, cls.schema, version)), read


def test_kafka_python_has_every_api_of_our_tables_that_clients_use() -> None:
    assert not any(f"{name}Request" in KAFKA_PYTHON for name in BETWEEN_BROKERS)
    for api in (api for api in APIS.values() if api.name not in BETWEEN_BROKERS):
        for cls in (api.request, api.response):
            theirs = KAFKA_PYTHON[cls.__name__]
            assert api.key == theirs.API_KEY
            assert theirs.max_version >= api.max_version
