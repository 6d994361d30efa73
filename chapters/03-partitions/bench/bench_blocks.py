"""How long one request stops the broker for everybody else, and how much memory it takes, for each API with arrays.

Two requests for each array of each API: one with as many elements as the broker accepts, and a huge one, which it must
refuse. The broker runs in `watched.py`, which measures the longest step of its event loop. While a step runs, no other
client is served. Only the finished broker has all APIs, so this benchmark belongs to no chapter's program.
"""

import contextlib
import mmap
import socket
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.exchange import Exchange
from bench.watched import LONGEST_NS

from minibroker.bench import Benchmark, Case, Context, Fact, children, scaled
from minibroker.bench.launcher import Server, forget_peak, peak_resident_bytes, resident_bytes, serve_command
from minibroker.broker.apis import declare_every_api
from minibroker.wire.apis import APIS, Api, ApiKey
from minibroker.wire.fields import NEVER, Field
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request, Struct
from minibroker.wire.tables.metadata import MetadataRequest

ALLOWED = 19_990  # the elements around an array count, too
BLOCK_MS_MAX = 100
MEMORY_RATIO_MAX = 3

FieldPath = tuple[str, ...]


def benchmark(context: Context) -> Benchmark:
    declare_every_api()
    watched = Watched(context)
    other, small = watched.other, watched.small
    answer_bytes = len(other.ask(small))
    count = scaled(full=2_000, quick=20)
    arrays = list(every_array())[: scaled(full=None, quick=3)]
    return Benchmark(
        "The longest block of the event loop for one request",
        [Case("a small request", lambda: other.repeat(small, answer_bytes, count=count), operations_count=count)],
        facts=[fact for api, path in arrays for fact in facts_of(watched, api, path)],
        note="The CPU time of the longest step. A request may have 20,000 elements; the huge one has a million.",
    )


def facts_of(watched: "Watched", api: Api, path: FieldPath) -> list[Fact]:
    name = f"{api.name} {'.'.join(path)}"
    huge_count = scaled(full=1_000_000, quick=30_000)
    allowed = cache(partial(watched.measure, api, path, scaled(full=ALLOWED, quick=500)))
    huge = cache(partial(watched.measure, api, path, huge_count))
    return [
        Fact(f"{name}: longest block", "ms", lambda: allowed()[0], at_most=BLOCK_MS_MAX),
        Fact(f"{name}, huge: longest block", "ms", lambda: huge()[0], at_most=BLOCK_MS_MAX),
        Fact(f"{name}, huge: memory / frame", "times", lambda: huge()[1], at_most=MEMORY_RATIO_MAX),
    ]


class Watched:
    """A broker whose longest block is known."""

    def __init__(self, context: Context) -> None:
        shared = context.directory / "longest"
        shared.write_bytes(bytes(LONGEST_NS.size))
        script = str(Path(__file__).with_name("watched.py"))

        def command(listen: str) -> list[str]:
            _python, _module, _cli, *arguments = serve_command(data=context.directory / "data", listen=listen)
            return [sys.executable, script, str(shared), *arguments]

        self.server: Server = children.start(context, command)
        file = shared.open("r+b")
        context.on_close(file.close)
        self._longest = mmap.mmap(file.fileno(), LONGEST_NS.size)
        self.small = framed(MetadataRequest(topics=[]), 12)
        self.other = Exchange(context, self.server.host, self.server.port)

    def measure(self, api: Api, path: FieldPath, count: int) -> tuple[float, float]:
        """The longest block in milliseconds, and the memory that a request has taken, as a multiple of its size."""
        frame, pid = framed(filled(api, path, count), api.max_version), self.server.pid
        LONGEST_NS.pack_into(self._longest, 0, 0)
        forget_peak(pid)
        before = resident_bytes(pid)
        self._exchange(frame)
        # The step that has sent the answer is over when another client is answered.
        self.other.ask(self.small)
        memory = peak_resident_bytes(pid) - before
        return LONGEST_NS.unpack(self._longest)[0] / 1e6, memory / len(frame)

    def _exchange(self, frame: bytes) -> None:
        """Send a request, and read until it is answered or the connection is closed."""
        address = (self.server.host, self.server.port)
        with socket.create_connection(address, timeout=60) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(frame)
            left = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            while left > 0 and (piece := connection.recv(min(left, 1 << 20))):
                left -= len(piece)


# Requests -------------------------------------------------------------------------------------------------------------


def every_array() -> Iterator[tuple[Api, FieldPath]]:
    """Each array of each request, as the names of the fields that lead to it."""
    for key in sorted(APIS):
        for path in arrays_of(APIS[ApiKey(key)].request, APIS[ApiKey(key)].max_version):
            yield APIS[ApiKey(key)], path


def arrays_of(cls: type[Struct], version: int) -> Iterator[FieldPath]:
    for field in cls.schema.fields:
        if field.is_array and version in field.versions:
            yield (field.name,)
            if field.struct is not None:
                yield from ((field.name, *path) for path in arrays_of(field.struct, version))


def filled(api: Api, path: FieldPath, count: int) -> Request:
    """A request whose array has `count` elements, and all other arrays as few as possible."""
    request: Any = minimal(api.request, api.max_version)
    at = request
    for name in path[:-1]:
        field = field_named(at, name)
        assert field.struct is not None
        setattr(at, name, [minimal(field.struct, api.max_version)])
        at = getattr(at, name)[0]
    element = field_named(at, path[-1])._replace(is_array=False, nullable=NEVER)
    # Different names, because some handlers answer a name only once. In a huge request it makes no difference.
    different = [value_of(element, api.max_version, n) for n in range(min(count, ALLOWED))]
    setattr(at, path[-1], (different * (count // len(different) + 1))[:count])
    assert isinstance(request, Request)
    return request


def field_named(struct: Struct, name: str) -> Field:
    return next(it for it in struct.schema.fields if it.name == name)


def minimal(cls: type[Struct], version: int, number: int = 0) -> Struct:
    fields = [it for it in cls.schema.fields if version in it.versions and version not in it.tagged]
    return cls(**{it.name: value_of(it, version, number) for it in fields})


def value_of(field: Field, version: int, number: int = 0) -> object:
    if field.is_array:
        return []
    if field.struct is not None:
        return None if version in field.nullable else minimal(field.struct, version, number)
    if field.name == "acks":
        return 1  # with 0 there would be no answer
    values: dict[str, object] = {
        "string": f"n{number}",
        "uuid": number.to_bytes(16),
        "bytes": b"",
        "records": b"",
        "bool": False,
    }
    return values.get(field.kind, 0)


def framed(request: Request, version: int) -> bytes:
    parts = frame_request(request, version=version, correlation_id=1, client_id="bench")
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))
