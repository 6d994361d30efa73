"""The asyncio client and the blocking client on real sockets. Each failure of a peer has a clear error."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from client_peer import Answer, Hangup, Peer, versions

from minibroker.client.aio import AsyncClient
from minibroker.client.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientClosed,
    ConnectionLost,
    RequestTimedOut,
    UnexpectedResponse,
)
from minibroker.clients.blocking import CONTROLLER, Client
from minibroker.clients.retries import RetryPolicy
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request
from minibroker.wire.tables.api_versions import ApiVersionsResponse
from minibroker.wire.tables.metadata import MetadataRequest

QUICK = RetryPolicy(backoff_ms=1, backoff_ms_max=5)


class AnyClient(Protocol):
    """The methods of both clients that these tests use."""

    def send(self, message: Request, **options: Any) -> Any: ...
    def close(self) -> None: ...


class Awaited:
    """An AsyncClient with blocking methods."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(*arguments, **options)

    def send(self, message: Request, **options: Any) -> Any:
        return self._loop.run_until_complete(self._client.send(message, **options))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        # The event loop closes the transports in its next iterations.
        self._loop.run_until_complete(asyncio.sleep(0.01))

    def __del__(self) -> None:
        self._loop.close()


MakeClient = Callable[..., AnyClient]


@pytest.fixture(params=[Client, Awaited], ids=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    made: list[AnyClient] = []

    def make(address: str, **options: Any) -> AnyClient:
        made.append(request.param(address, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_requests_share_one_connection_and_carry_the_clients_name(connect: MakeClient) -> None:
    with Peer() as peer:
        client = connect(peer.address, client_id="it-is-me")
        assert client.send(MetadataRequest(topics=None)).controller_id == 1
        assert client.send(MetadataRequest(topics=None)).cluster_id == "c"
        assert peer.accepted == 1, "one connection for one node"
        assert {header.client_id for header in peer.requests} == {"it-is-me"}


def test_a_request_is_answered_by_any_node_and_by_the_controller() -> None:
    with Peer() as peer, Client(peer.address) as client:
        assert client.send(MetadataRequest(topics=None)).controller_id == 1
        assert client.send(MetadataRequest(topics=None), node_id=CONTROLLER).cluster_id == "c"
        assert client.leader("t", 0) == 1
        assert peer.accepted == 1, "one connection for one node"


def test_a_refused_connection_says_where_why_and_what_to_do(connect: MakeClient) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnavailable) as raised:
        connect(address).send(MetadataRequest(topics=None))
    assert str(raised.value) == (
        f"no broker answers at {address} (connection refused):"
        " check the address, or start a broker with `minibroker serve`"
    )


def test_the_next_bootstrap_address_is_tried() -> None:
    with Peer() as peer, Client(f"127.0.0.1:{free_port()},{peer.address}") as client:
        assert client.send(MetadataRequest(topics=None)).cluster_id == "c"


def test_an_unknown_host_name_is_reported(connect: MakeClient) -> None:
    with pytest.raises(BrokerUnavailable, match=r"no-such-host\.invalid:9092 \(the name is not known\)"):
        connect("no-such-host.invalid:9092").send(MetadataRequest(topics=None))


def test_connecting_to_a_silent_peer_times_out(connect: MakeClient) -> None:
    silent = Peer({ApiKey.API_VERSIONS: lambda *_: None})
    with silent as peer, pytest.raises(BrokerUnavailable, match=r"does not answer|no answer"):
        connect(peer.address, connect_timeout_ms=50).send(MetadataRequest(topics=None))


def test_a_timed_out_request_is_named_and_the_next_one_works(connect: MakeClient) -> None:
    silent = threading.Event()
    silent.set()
    with Peer() as peer:
        peer.answers[ApiKey.METADATA] = lambda *_: None if silent.is_set() else peer.metadata()
        client = connect(peer.address)
        with pytest.raises(RequestTimedOut, match=f"{peer.address} did not answer Metadata within 50 ms"):
            client.send(MetadataRequest(topics=None), timeout_ms=50)
        silent.clear()
        assert client.send(MetadataRequest(topics=None)).cluster_id == "c"
        assert peer.accepted == 2, "a late answer must not be taken for another's"


def hang_up(_request: Request, _header: RequestHeader) -> Answer:
    raise Hangup


def test_a_lost_connection_reports_the_number_of_unanswered_requests() -> None:
    with (
        Peer({ApiKey.METADATA: hang_up}) as peer,
        Client(peer.address) as client,
        pytest.raises(ConnectionLost, match="with 1 request not answered: if its log names max"),
    ):
        client.send(MetadataRequest(topics=None))


def test_a_node_that_closes_at_once_may_be_waiting_for_its_cluster(connect: MakeClient) -> None:
    with Peer({ApiKey.API_VERSIONS: hang_up}) as peer, pytest.raises(BrokerUnavailable) as raised:
        connect(peer.address).send(MetadataRequest(topics=None))
    assert str(raised.value).startswith(
        f"{peer.address} closed the connection when it was asked for its versions: a node refuses clients until it "
        "has joined its cluster, and its log names the nodes that it waits for. Start the nodes that are down"
    )


def half(peer: Peer) -> Callable[[Any, RequestHeader], Answer]:
    """Send half of an answer, then close the connection."""

    def answer(_request: Any, header: RequestHeader) -> Answer:
        peer.answers[ApiKey.METADATA] = hang_up
        return (1000).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + bytes(100)

    return answer


def test_a_connection_that_ends_before_the_answer_is_lost(connect: MakeClient) -> None:
    with Peer({ApiKey.METADATA: hang_up}) as peer, pytest.raises(ConnectionLost, match=peer.address):
        connect(peer.address).send(MetadataRequest(topics=None))


def test_a_torn_answer_is_lost(connect: MakeClient) -> None:
    with Peer() as peer:
        peer.answers[ApiKey.METADATA] = half(peer)
        client = connect(peer.address)
        with pytest.raises((ConnectionLost, RequestTimedOut)):
            client.send(MetadataRequest(topics=None), timeout_ms=200)


def test_a_connection_that_was_closed_while_idle_is_reopened(connect: MakeClient) -> None:
    with Peer() as peer:
        client = connect(peer.address)
        client.send(MetadataRequest(topics=None))
        peer.cut()
        # The close may take a moment to arrive. After that, no request is lost.
        for _ in range(100):
            with contextlib.suppress(ConnectionLost):
                assert client.send(MetadataRequest(topics=None)).cluster_id == "c"
                break
        assert peer.accepted == 2


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50"])
def test_a_port_with_another_protocol_is_recognised(connect: MakeClient, text: bytes) -> None:
    stranger = Peer({ApiKey.API_VERSIONS: lambda *_: text})
    with stranger as peer, pytest.raises(UnexpectedResponse, match="does this port speak the Kafka protocol"):
        connect(peer.address).send(MetadataRequest(topics=None))


def test_an_old_broker_is_asked_for_its_versions_again(connect: MakeClient) -> None:
    def refuse_new(_request: Request, header: RequestHeader) -> Answer:
        if header.api_version == 0:
            return versions()
        body = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[]).encode(0)
        frame = header.correlation_id.to_bytes(4, "big") + body
        return len(frame).to_bytes(4, "big") + frame

    with Peer({ApiKey.API_VERSIONS: refuse_new}) as peer:
        assert connect(peer.address).send(MetadataRequest(topics=None)).cluster_id == "c"
        asked = [header.api_version for header in peer.requests if header.api_key == ApiKey.API_VERSIONS]
        assert asked == [4, 0]


def test_an_answer_of_many_megabytes_arrives_whole(connect: MakeClient) -> None:
    name = "x" * 30_000
    with Peer() as peer:
        many = peer.metadata()
        many.topics = [many.topics[0]] * 1
        many.brokers = many.brokers * 200
        for broker in many.brokers:
            broker.host = name
        peer.answers[ApiKey.METADATA] = lambda *_: many
        response = connect(peer.address).send(MetadataRequest(topics=None))
        assert len(response.brokers) == 200
        assert response.brokers[-1].host == name


def test_a_leader_is_waited_for_while_there_is_none() -> None:
    with Peer() as peer, Client(peer.address, retry=QUICK) as client:
        leaders = iter([-1, -1, 1, 1, 1])
        peer.answers[ApiKey.METADATA] = lambda *_: peer.metadata(leader=next(leaders))
        assert client.leader("t", 0) == 1


def test_a_missing_topic_fails_soon() -> None:
    with Peer() as peer, Client(peer.address, retry=QUICK, timeout_ms=200) as client:
        peer.answers[ApiKey.METADATA] = lambda *_: peer.metadata(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with pytest.raises(BrokerError, match="minibroker topics create t"):
            client.leader("t", 0)


def test_a_missing_partition_is_reported_with_the_existing_ones() -> None:
    with (
        Peer() as peer,
        Client(peer.address) as client,
        pytest.raises(BrokerError, match="no partition 7: the topic has 1, from 0 to 0"),
    ):
        client.leader("t", 7)


def test_a_closed_client_refuses_requests(connect: MakeClient) -> None:
    with Peer() as peer:
        client = connect(peer.address)
        client.close()
        with pytest.raises(ClientClosed):
            client.send(MetadataRequest(topics=None))


def test_requests_on_asyncio_share_one_connection_and_do_not_wait_for_each_other() -> None:
    async def ask(address: str) -> list[Any]:
        async with AsyncClient(address) as client:
            requests = [client.send(MetadataRequest(topics=None)) for _ in range(50)]
            return await asyncio.gather(*requests)

    with Peer() as peer:
        assert len(asyncio.run(ask(peer.address))) == 50
        assert peer.accepted == 1


def test_closing_on_asyncio_fails_waiting_callers() -> None:
    async def close_while_waiting(address: str) -> None:
        client = AsyncClient(address)
        waiting = asyncio.create_task(client.send(MetadataRequest(topics=None)))
        while not any(header.api_key == ApiKey.METADATA for header in peer.requests):
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(ClientClosed):
            await waiting

    with Peer({ApiKey.METADATA: lambda *_: None}) as peer:
        asyncio.run(close_while_waiting(peer.address))
