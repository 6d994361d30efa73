"""A peer on a real socket that answers as a test needs: like a small broker, or like another server."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from proxy import connections

from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.headers import RequestHeader, frame_response, read_request_header
from minibroker.wire.schema import Response
from minibroker.wire.tables.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.wire.tables.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Answer = Response | bytes | None
"""A message, raw bytes, or None for no answer. An exception closes the connection."""


class Hangup(Exception):
    """Close the connection."""


class Peer:
    """Listens on a free port. `answers[key](request, header)` returns the answer to each request."""

    def __init__(self, answers: dict[int, Callable[[Any, RequestHeader], Answer]] | None = None) -> None:
        self.answers: dict[int, Callable[[Any, RequestHeader], Answer]] = {
            ApiKey.API_VERSIONS: lambda *_: versions(),
            ApiKey.METADATA: lambda *_: self.metadata(),
        }
        self.answers |= answers or {}
        self.requests: list[RequestHeader] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Close every connection."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def metadata(self, leader: int = 1, code: int = 0) -> MetadataResponse:
        """Metadata with one node, which is the controller, and the topic `t` with one partition."""
        partition = MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=leader,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        topic = MetadataResponseTopic(
            error_code=code, name="t", topic_id=bytes(15) + b"\1", is_internal=False, partitions=[partition]
        )
        node = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port, rack=None)
        return MetadataResponse(brokers=[node], cluster_id="c", controller_id=1, topics=[topic])

    def _accept(self) -> None:
        for client in connections(self._listener):
            self.accepted += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, Hangup):
            while (frame := _frame(client)) is not None:
                self._answer(client, memoryview(frame))
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, frame: memoryview) -> None:
        header, position = read_request_header(frame)
        self.requests.append(header)
        request, _end = APIS[header.api_key].request.decode(frame, position, header.api_version)
        answer = self.answers[header.api_key](request, header)
        if isinstance(answer, Response):
            parts = frame_response(answer, version=header.api_version, correlation_id=header.correlation_id)
            answer = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
        if answer is not None:
            client.sendall(answer)


def versions(code: int = 0) -> ApiVersionsResponse:
    """An answer with all APIs and versions of the tables."""
    offered = [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS.values()
    ]
    return ApiVersionsResponse(error_code=code, api_keys=offered)


def _frame(source: socket.socket) -> bytes | None:
    prefix = source.recv(4, socket.MSG_WAITALL)
    return source.recv(int.from_bytes(prefix, "big"), socket.MSG_WAITALL) if len(prefix) == 4 else None
