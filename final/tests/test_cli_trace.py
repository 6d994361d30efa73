"""Claims about `serve --trace`: what it prints of requests and responses, also of those it cannot decode."""

import io

import pytest
from partitions_broker import NOW_MS, MemoryBroker, batch, fetch_request, produce_request

from minibroker.cli.trace import Trace
from minibroker.partitions.registry import Reply, Session
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request


def traced(broker: MemoryBroker, request: Request, version: int = 12) -> str:
    parts = frame_request(request, version=version, correlation_id=7, client_id="test")
    frame = memoryview(bytearray(b"".join(bytes(part) for part in parts)))[4:]  # type: ignore[arg-type]
    return traced_frame(broker, frame)


def traced_frame(broker: MemoryBroker, frame: memoryview) -> str:
    out = io.StringIO()
    trace = Trace(out)
    trace.on_request("client:1", frame)
    outcome = broker.registry.dispatch(frame, now_ms=NOW_MS, session=Session("client:1"))
    assert isinstance(outcome, Reply)
    trace.on_reply("client:1", frame, outcome.parts)
    return out.getvalue()


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("orders")
    return broker


def test_a_request_and_its_response_are_shown_field_by_field(broker: MemoryBroker) -> None:
    shown = traced(broker, produce_request("orders", batch(b"a")))
    assert "client:1 ──▶ request" in shown
    assert "client:1 ◀── response" in shown
    assert 'client_id: string = "test"' in shown
    assert "acks: int16 = -1" in shown
    assert "base_offset: int64 = 0" in shown


def test_the_records_of_a_fetch_are_shown_with_the_fields_of_their_batch(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"))
    shown = traced(broker, fetch_request("orders"))
    assert "base_offset" in shown
    assert "last_offset_delta" in shown


def test_a_request_without_a_response_is_marked(broker: MemoryBroker) -> None:
    assert "no response (acks=0)" in traced(broker, produce_request("orders", batch(b"a"), acks=0))


def test_an_api_versions_request_of_an_unknown_version_is_shown_as_bytes(broker: MemoryBroker) -> None:
    header = (18).to_bytes(2, "big") + (99).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\0\1x" + b"future"
    shown = traced_frame(broker, memoryview(bytearray(header)))
    assert shown.count("cannot be decoded") == 2
    assert "00 12 00 63" in shown
