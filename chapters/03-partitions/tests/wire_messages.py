"""Messages of every API and version, generated from the tables, for all tests of the wire format."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from minibroker.broker.apis import declare_every_api
from minibroker.wire.apis import APIS, Api
from minibroker.wire.codes import ErrorCode
from minibroker.wire.fields import Field
from minibroker.wire.schema import Message, Request, Response, Struct

declare_every_api()

EXAMPLES = 4

NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
VALUES: dict[str, st.SearchStrategy[object]] = {
    **NUMBERS,
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    # Some strings have a length that takes two bytes as a varint.
    "string": st.text(st.characters(codec="utf-8"), max_size=12) | st.integers(120, 300).map("x".__mul__),
    "bytes": st.binary(max_size=20),
    "records": st.binary(max_size=20) | st.integers(120, 300).map(bytes),
}
# kio decodes these fields as a time or as a member of an enum, so only valid values are drawn.
CAREFUL: dict[str, st.SearchStrategy[object]] = {
    "error_code": st.sampled_from([int(code) for code in ErrorCode]),
    "topic_config_error_code": st.sampled_from([int(code) for code in ErrorCode]),
    "partition_error_code": st.sampled_from([int(code) for code in ErrorCode]),
    "log_append_time_ms": st.just(-1) | st.integers(0, 2**42),
    "retention_time_ms": st.integers(-1, 2**42),
    "session_lifetime_ms": st.integers(-1, 2**42),
    "transaction_start_time_ms": st.integers(0, 2**42),
}


def _bare(field: Field, version: int) -> st.SearchStrategy[object]:
    if field.struct is not None:
        return structs(field.struct, version)
    return CAREFUL[field.name] if field.name in CAREFUL else VALUES[field.kind]


def _value(field: Field, version: int) -> st.SearchStrategy[object]:
    if version not in field.versions:
        return st.builds(lambda: default_of(field))
    value: st.SearchStrategy[object] = _bare(field, version)
    if field.is_array:
        value = st.lists(value, max_size=3)
    if version in field.nullable:
        value = st.none() | value
    if version in field.tagged:
        value = st.builds(lambda: default_of(field)) | value
    return value


def default_of(field: Field) -> object:
    return [] if field.is_array and field.default == () else field.default


@cache
def structs(cls: type[Struct], version: int) -> st.SearchStrategy[Struct]:
    """Structs that a version can carry."""
    return st.builds(cls, **{field.name: _value(field, version) for field in cls.schema.fields})


@cache
def messages(cls: type[Message], version: int) -> list[Message]:
    """Random messages that a version can carry. All tests of a run look at the same ones, because looking is quick and
    drawing is slow. They are not shrunk, because shrinking a large message takes minutes.
    """
    drawn: list[Message] = []

    @settings(max_examples=EXAMPLES, phases=[Phase.generate], database=None)
    @given(structs(cls, version))
    def draw(message: Message) -> None:
        drawn.append(message)

    draw()
    assert drawn, f"no {cls.__name__} v{version} was drawn"
    return drawn


def every_message() -> Iterator[tuple[type[Message], int]]:
    """Each request and response in each version."""
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            yield api.request, version
            yield api.response, version


EVERY_MESSAGE = list(every_message())


def nested_structs(cls: type[Struct]) -> Iterator[type[Struct]]:
    """A struct and all structs inside it."""
    yield cls
    for field in cls.schema.fields:
        if field.struct is not None:
            yield from nested_structs(field.struct)


def every_struct() -> Iterator[tuple[type[Struct], int]]:
    """Each message, and each struct inside one, in each version."""
    for message, version in EVERY_MESSAGE:
        for cls in dict.fromkeys(nested_structs(message)):
            yield cls, version


@contextmanager
def case(cls: type[Struct], version: int) -> Iterator[None]:
    """Name the message and the version in a failure, for tests that loop over all of them."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"failed for {cls.__name__} v{version}")
        raise


def api_of(cls: type[Struct]) -> Api:
    assert issubclass(cls, Request | Response)
    assert cls.schema.key is not None
    return APIS[cls.schema.key]


def plain(value: object, version: int) -> object:
    """A message as nested lists of the values of a version, to compare it with another codec's."""
    if isinstance(value, Struct):
        fields = [field for field in value.schema.fields if version in field.versions]
        return [plain(getattr(value, field.name), version) for field in fields]
    if isinstance(value, list):
        return [plain(element, version) for element in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def sample(cls: type[Struct], version: int) -> Struct:
    """A message with a value in every field."""
    values: dict[str, object] = {}
    for field in cls.schema.fields:
        if version not in field.versions:
            values[field.name] = default_of(field)
            continue
        one: object
        if field.struct is not None:
            one = sample(field.struct, version)
        else:
            one = {"bool": True, "uuid": bytes(range(16)), "string": "näme", "float64": 1.5}.get(field.kind, 7)
            if field.kind in ("bytes", "records"):
                one = b"abc"
        values[field.name] = [one, one] if field.is_array else one
    return cls(**values)
