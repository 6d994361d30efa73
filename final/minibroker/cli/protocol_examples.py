"""An example of each message of the protocol, made from its table, as lines of annotated bytes. A pure module.

The value of a field is chosen by its name; if there is none for the name, it is the field's default, or else a value
chosen by its type. So when a table changes, its example changes with it. An example shows how the fields are written. A
broker would not accept it as a request.
"""

from typing import Any, TypeVar

from minibroker.cli.frame_tree import explain_request, explain_response, render
from minibroker.log.batch import BatchBuilder
from minibroker.wire.apis import Api
from minibroker.wire.fields import REQUIRED, Field
from minibroker.wire.headers import frame_request, frame_response
from minibroker.wire.schema import Part, Struct

T = TypeVar("T", bound=Struct)

CORRELATION_ID = 7
CLIENT_ID = "demo"
TIMESTAMP_MS = 1_700_000_000_000

# Values of fields, by the name of the field, or by the names of the struct and the field.
_BY_NAME: dict[str, Any] = {
    "JoinGroupRequestProtocol.name": "range",
    "JoinGroupResponse.leader": "demo-1",
    "acks": -1,
    "broker_id": 1,
    "client_id": CLIENT_ID,
    "client_host_address": bytes([127, 0, 0, 1]),
    "cluster_id": "9QS_G_4qQw6KMngRN6sLjQ",
    "fetch_offset": 3,
    "generation_id": 1,
    "group_id": "readers",
    "host": "127.0.0.1",
    "key": "readers",
    "leader": 1,
    "leader_id": 1,
    "max_bytes": 1_048_576,
    "max_wait_ms": 500,
    "mechanism": "SCRAM-SHA-256",
    "member_id": "demo-1",
    "min_bytes": 1,
    "node_id": 1,
    "partition_max_bytes": 1_048_576,
    "port": 9092,
    "producer_id": 4000,
    "protocol_name": "range",
    "protocol_type": "consumer",
    "replica_id": -1,
    "name": "orders",
    "resource_name": "orders",
    "session_timeout_ms": 45_000,
    "timeout_ms": 30_000,
    "topic": "orders",
    "topic_name": "orders",
    "transaction_timeout_ms": 60_000,
    "transactional_id": "copier",
}
_BY_KIND: dict[str, Any] = {
    "bool": False,
    "bytes": b"\x00\x01",
    "float64": 0.5,
    "string": "text",
    "uuid": bytes(range(16)),
}


def example_request(api: Api) -> list[str]:
    """The lines of a request in the newest version."""
    version = api.max_version
    message = _struct(api.request, version)
    frame = _frame(frame_request(message, version=version, correlation_id=CORRELATION_ID, client_id=CLIENT_ID))
    return render(explain_request(frame), frame)


def example_response(api: Api) -> list[str]:
    """The lines of a response in the newest version."""
    version = api.max_version
    frame = _frame(frame_response(_struct(api.response, version), version=version, correlation_id=CORRELATION_ID))
    return render(explain_response(api.key, version, frame), frame)


def _frame(parts: list[Part]) -> memoryview:
    # The records of an example are bytes, never a slice of a file. The first four bytes are the length.
    return memoryview(b"".join(bytes(part) for part in parts if isinstance(part, bytes | bytearray | memoryview)))[4:]


def _struct(cls: type[T], version: int) -> T:
    fields = [field for field in cls.schema.fields if version in field.versions]
    return cls(**{field.name: _value(cls.__name__, field, version) for field in fields})


def _value(struct: str, field: Field, version: int) -> Any:
    named = _BY_NAME.get(f"{struct}.{field.name}", _BY_NAME.get(field.name))
    if field.default is None or (field.default is not REQUIRED and named is None):
        return [] if field.default == () else field.default
    value = _one(field, version, named)
    return [value] if field.is_array else value


def _one(field: Field, version: int, named: Any) -> Any:
    if field.struct is not None:
        return _struct(field.struct, version)
    if field.kind == "records":
        builder = BatchBuilder()
        builder.append(timestamp=TIMESTAMP_MS, key=b"kim", value=b"tea")
        return bytes(builder.build())
    # A field of the same name may have another type in another message; then the value by type is used.
    by_kind = _BY_KIND.get(field.kind, 0)
    return named if type(named) is type(by_kind) else by_kind
