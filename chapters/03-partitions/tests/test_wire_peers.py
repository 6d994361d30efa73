"""Our codec compared with those of kio and kafka-python, for every API and version, in both directions."""

import dataclasses
import datetime
import enum
import importlib
import io
import pkgutil
import uuid
from typing import Any

import kafka.protocol
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from wire_messages import EVERY_MESSAGE, api_of, case, default_of, messages, plain

from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.fields import Schema
from minibroker.wire.schema import Message, Request, Struct, decode_whole

for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
    if ".old" not in module.name and not module.name.endswith("generate_stubs"):
        importlib.import_module(module.name)
KAFKA_PYTHON = {cls.__name__: cls for cls in ApiMessage.__subclasses__()}
# APIs of brokers, of operators and of the new group protocol, for which kafka-python has no tables.
NOT_IN_KAFKA_PYTHON = {
    "AddRaftVoter",
    "AllocateProducerIds",
    "AlterPartition",
    "BeginQuorumEpoch",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat",
    "EndQuorumEpoch",
    "Envelope",
    "FetchSnapshot",
    "GetReplicaLogInfo",
    "RemoveRaftVoter",
    "UnregisterBroker",
    "Vote",
}
# APIs that are newer than kio.
NOT_IN_KIO = {"GetReplicaLogInfo"}
KIO_MESSAGES = [(cls, version) for cls, version in EVERY_MESSAGE if api_of(cls).name not in NOT_IN_KIO]
CLIENTS_MESSAGES = [(cls, version) for cls, version in EVERY_MESSAGE if api_of(cls).name not in NOT_IN_KAFKA_PYTHON]


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


# kio encodes a tagged struct of defaults. Kafka and our codec leave it out.
WRITES_DEFAULTS = {"FetchSnapshotResponse"}

NONES: tuple[object, ...] = (bytes(16), -1, -(2**31), [-1, -1])


def same(ours: object, theirs: object) -> bool:
    """Whether two values are the same. A peer may have None for a zero id, a timestamp of -1 or a default."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs or (theirs is None and ours in NONES)


def kio_agrees(message: Message, version: int) -> None:
    cls = type(message)
    theirs = kio_class(cls, version)
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


def test_kio_decodes_what_we_encode_and_encodes_what_we_decode() -> None:
    for cls, version in KIO_MESSAGES:
        with case(cls, version):
            for message in messages(cls, version):
                kio_agrees(message, version)


def test_kio_has_every_version_of_our_tables() -> None:
    missing = []
    for cls, version in KIO_MESSAGES:
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
    """The name of a field in kafka-python, where two tables have a shorter name for authorized operations."""
    return name if name in theirs._struct.fields else BITS


def their_value(name: str, kind: str, value: Any) -> Any:
    if name == BITS:
        return None if value == -(2**31) else {bit for bit in range(32) if value >> bit & 1}
    return uuid.UUID(bytes=value) if kind == "uuid" else value


def kafka_python_object(theirs: Any, message: Struct, version: int) -> Any:
    """Build kafka-python's object from ours, field by field."""
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


def kafka_python_agrees(message: Message, version: int) -> None:
    cls = type(message)
    theirs = KAFKA_PYTHON[cls.__name__]
    written = message.encode(version)
    assert bytes(kafka_python_object(theirs, message, version).encode(version=version)) == written
    # ApiVersionsResponse.decode assumes version 0 if there is an error code, so call the general method.
    read = ApiMessage.decode.__func__(theirs, written, version=version)
    assert same(plain(message, version), kafka_python_plain(read, cls.schema, version)), read


def test_kafka_python_encodes_the_same_bytes_and_decodes_ours() -> None:
    for cls, version in CLIENTS_MESSAGES:
        with case(cls, version):
            for message in messages(cls, version):
                kafka_python_agrees(message, version)


def test_kafka_python_has_every_api_of_our_tables_that_clients_use() -> None:
    assert not any(f"{name}Request" in KAFKA_PYTHON for name in NOT_IN_KAFKA_PYTHON)
    for api in (api for api in APIS.values() if api.name not in NOT_IN_KAFKA_PYTHON):
        for cls in (api.request, api.response):
            theirs = KAFKA_PYTHON[cls.__name__]
            assert api.key == theirs.API_KEY
            assert theirs.max_version >= api.max_version
