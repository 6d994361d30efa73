"""The server on a real socket, inside the test's own loop: order, waiting, limits, and stopping."""

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from partitions_broker import MemoryBroker, batch, fetch_request, produce_request

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.listeners import Listener
from minibroker.partitions import budget, server
from minibroker.partitions.cluster import Alone
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.machine import Machine, bind
from minibroker.partitions.node import Node
from minibroker.partitions.places import Places
from minibroker.partitions.registry import Call, Handler, Session
from minibroker.partitions.server import Connect, Limits, NewSession, Server
from minibroker.partitions.serving import Partitions
from minibroker.partitions.streams import stream_connection
from minibroker.partitions.waiting import Wait
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Request, decode_whole
from minibroker.wire.tables.api_versions import ApiVersionsRequest
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic
from minibroker.wire.tables.produce import ProduceRequest, TopicProduceData

LIMITS = Limits(request_bytes_max=1024**2, queued_bytes_max=2 * 1024**2, connections_max=10, idle_ms_max=60_000)
SOON_S = 10
CONNECT: Connect = stream_connection  # chapter 07 repeats these tests with another connection


class Client:
    """A raw connection that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, request: Request, version: int = 12, correlation_id: int = 1, client_id: str = "raw") -> None:
        parts = frame_request(request, version=version, correlation_id=correlation_id, client_id=client_id)
        self.writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]

    async def receive(self, request: Request, version: int = 12) -> tuple[int, Any]:
        """The next answer: its correlation id and the message."""
        (length,) = struct.unpack(">i", await self.exactly(4))
        frame = memoryview(await self.exactly(length))
        api = APIS[request.schema.key or 0]
        correlation_id, position = read_response_header(api.key, version, frame)
        return correlation_id, decode_whole(api.response, frame, position, version)

    async def exactly(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), SOON_S)

    async def is_closed(self) -> bool:
        """Whether the server ends the connection in time, after what it still sends."""
        try:
            await asyncio.wait_for(self.reader.read(), SOON_S)
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


class ServedBroker:
    """A broker in memory, with a server."""

    def __init__(self, broker: MemoryBroker, server: Server, port: int) -> None:
        self.broker = broker
        self.server = server
        self.port = port
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def opened(limits: Limits = LIMITS, new_session: NewSession = Session) -> Any:
    broker = MemoryBroker()
    broker.create("orders", 2)
    server = Server(broker.registry, broker.waiting, limits, CONNECT)
    listener = bind(Listener("PLAINTEXT", "127.0.0.1", 0))
    await server.start(listener, new_session)
    served = ServedBroker(broker, server, listener.getsockname()[1])
    try:
        yield served
    finally:
        for client in served.clients:
            client.writer.close()
        await server.stop()


def run(
    test: Callable[[ServedBroker], Awaitable[None]], limits: Limits = LIMITS, new_session: NewSession = Session
) -> None:
    async def main() -> None:
        async with opened(limits, new_session) as served:
            await test(served)

    asyncio.run(asyncio.wait_for(main(), 60))


async def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic_ms() + SOON_S * 1000
    while not condition():
        assert monotonic_ms() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def test(served: ServedBroker) -> None:
        client = await served.connect()
        for number in range(50):
            client.send(produce_request("orders", batch(b"%d" % number)), correlation_id=number)
        answers = [await client.receive(produce_request("orders", None)) for _ in range(50)]
        assert [correlation_id for correlation_id, _ in answers] == list(range(50))
        offsets = [response.responses[0].partition_responses[0].base_offset for _, response in answers]
        assert offsets == list(range(50))

    run(test)


def test_a_connection_reads_nothing_for_the_time_that_a_handler_has_set() -> None:
    async def test(served: ServedBroker) -> None:
        pauses = iter((200, 0, 0, 3_600_000))

        def guard(_key: ApiKey, handler: Handler) -> Handler:
            def answer(call: Call[Any]) -> Any:
                call.session.pause_ms = next(pauses)
                return handler(call)

            return answer

        served.broker.registry.guard(guard)
        client, other = await served.connect(), await served.connect()
        request, began_ms = produce_request("orders", batch(b"x")), monotonic_ms()
        client.send(request, correlation_id=1)
        client.send(request, correlation_id=2)
        assert (await client.receive(request))[0] == 1
        other.send(request, correlation_id=3)
        assert (await other.receive(request))[0] == 3
        assert (await client.receive(request))[0] == 2
        assert monotonic_ms() - began_ms >= 200
        # A server that stops does not wait for the end of a long pause.
        client.send(request, correlation_id=4)
        assert (await client.receive(request))[0] == 4

    run(test)


def test_a_waiting_request_blocks_its_own_connection_and_no_other() -> None:
    async def test(served: ServedBroker) -> None:
        reader, writer = await served.connect(), await served.connect()
        fetch = fetch_request("orders", min_bytes=1, max_wait_ms=60_000)
        reader.send(fetch, correlation_id=1)
        reader.send(MetadataRequest(topics=[]), correlation_id=2)
        await until(lambda: len(served.broker.waiting) == 1)
        writer.send(produce_request("orders", batch(b"now")))
        await writer.receive(produce_request("orders", None))
        correlation_id, response = await reader.receive(fetch)
        assert correlation_id == 1
        assert len(response.responses[0].partitions[0].records) > 0
        assert (await reader.receive(MetadataRequest(topics=[])))[0] == 2

    run(test)


def test_a_request_that_is_about_to_wait_is_woken_by_what_it_sets_in_motion() -> None:
    """A fetch completes one write, which lets another one append, to a partition that the fetch asks for as well."""

    async def test(served: ServedBroker) -> None:
        broker = served.broker
        append = Wait(
            ("held",), 60_000, attempt=lambda: broker.ask(produce_request("orders", batch(b"now"))), expire=list
        )
        broker.waiting.park(append, lambda _answer: None, now_ms=monotonic_ms())
        # The next request that is dispatched settles this.
        broker.waiting.wake("held")
        reader = await served.connect()
        fetch = fetch_request("orders", min_bytes=1, max_wait_ms=60_000)
        reader.send(fetch)
        _, response = await reader.receive(fetch)
        assert len(response.responses[0].partitions[0].records) > 0

    run(test)


def test_a_wait_ends_at_its_time() -> None:
    async def test(served: ServedBroker) -> None:
        client = await served.connect()
        fetch = fetch_request("orders", min_bytes=1, max_wait_ms=20)
        for _ in range(3):
            client.send(fetch)
            _, response = await client.receive(fetch)
            assert len(response.responses[0].partitions[0].records) == 0

    run(test)


def test_the_waiting_request_of_a_client_that_disconnects_is_dropped() -> None:
    async def test(served: ServedBroker) -> None:
        for _ in range(3):
            client = await served.connect()
            client.send(fetch_request("orders", min_bytes=1, max_wait_ms=2**31 - 1))
            await until(lambda: len(served.broker.waiting) == 1)
            client.writer.close()
            await until(lambda: len(served.broker.waiting) == 0)

    run(test)


def test_an_impossible_length_closes_the_connection_and_no_other() -> None:
    async def test(served: ServedBroker) -> None:
        good = await served.connect()
        for length in (-1, 0, 1024**2 + 1, 2**31 - 1):
            bad = await served.connect()
            bad.writer.write(struct.pack(">i", length) + b"whatever")
            assert await bad.is_closed(), f"length {length}"
            good.send(MetadataRequest(topics=[]))
            assert (await good.receive(MetadataRequest(topics=[])))[1].brokers, f"length {length}"

    run(test)


def test_nonsense_closes_the_connection() -> None:
    async def test(served: ServedBroker) -> None:
        for frame in (b"\0", b"\0\0\0\0", bytes(100), b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n"):
            client = await served.connect()
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await client.is_closed()

    run(test)


def test_connections_above_the_limit_are_refused_until_another_one_is_closed() -> None:
    async def test(served: ServedBroker) -> None:
        clients = [await served.connect() for _ in range(2)]
        for client in clients:
            client.send(MetadataRequest(topics=[]))
            await client.receive(MetadataRequest(topics=[]))
        refused = await served.connect()
        assert await refused.is_closed()
        clients[0].writer.close()
        await until(lambda: len(served.server.connections) == 1)
        again = await served.connect()
        again.send(MetadataRequest(topics=[]))
        await again.receive(MetadataRequest(topics=[]))

    run(test, replace(LIMITS, connections_max=2))


def test_a_node_is_served_beyond_the_limit_and_a_client_is_refused_at_its_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The test's login: a session whose request has the client id node-2 has proved to be node 2."""

    async def test(served: ServedBroker) -> None:
        def logged_in(handler: Handler) -> Handler:
            def answer(call: Call[Any]) -> Any:
                if call.header.client_id == "node-2":
                    call.session.node_id = 2
                return handler(call)

            return answer

        served.server.places = Places(lambda: True)
        served.broker.registry.guard(lambda _key, handler: logged_in(handler))
        for _ in range(2):
            await asks_for_metadata(await served.connect())
        node, client, silent = [await served.connect() for _ in range(3)]
        hello = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        for it, name in ((node, "node-2"), (client, "client")):
            it.send(hello, 3, client_id=name)
            await it.receive(hello, 3)
        await asks_for_metadata(node)
        client.send(MetadataRequest(topics=[]))
        assert await client.is_closed()
        assert await silent.is_closed()
        await asks_for_metadata(node)

    run(test, replace(LIMITS, connections_max=2))
    assert "refused: there are 2 connections (max.connections)" in caplog.text


async def asks_for_metadata(client: Client) -> None:
    client.send(MetadataRequest(topics=[]))
    await client.receive(MetadataRequest(topics=[]))


def test_a_flood_of_refused_connections_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: ServedBroker) -> None:
        for _ in range(30):
            assert await (await served.connect()).is_closed()

    run(test, replace(LIMITS, connections_max=0))
    assert len(caplog.records) == 1


def test_one_address_has_a_limit_of_its_own() -> None:
    async def test(served: ServedBroker) -> None:
        first = await served.connect()
        first.send(MetadataRequest(topics=[]))
        await first.receive(MetadataRequest(topics=[]))
        assert await (await served.connect()).is_closed()

    run(test, replace(LIMITS, connections_per_ip_max=1))


def test_a_connection_that_sends_no_whole_request_in_time_is_closed() -> None:
    async def test(served: ServedBroker) -> None:
        silent, slow = await served.connect(), await served.connect()
        slow.writer.write(struct.pack(">i", 100) + b"x")
        assert await silent.is_closed()
        assert await slow.is_closed()

    run(test, replace(LIMITS, idle_ms_max=100))


def test_a_connection_whose_request_waits_is_not_idle() -> None:
    async def test(served: ServedBroker) -> None:
        client = await served.connect()
        fetch = fetch_request("orders", min_bytes=1, max_wait_ms=500)
        client.send(fetch)
        await client.receive(fetch)

    run(test, replace(LIMITS, idle_ms_max=100))


def test_a_connection_that_must_log_in_and_does_not_is_closed() -> None:
    sessions: list[Session] = []

    def demanding(peer: str) -> Session:
        sessions.append(Session(peer, needs_login=True))
        return sessions[-1]

    async def test(served: ServedBroker) -> None:
        stranger, known = await served.connect(), await served.connect()
        await until(lambda: len(sessions) == 2)
        ports = {session.peer.rpartition(":")[2]: session for session in sessions}
        ports[str(known.writer.get_extra_info("sockname")[1])].needs_login = False
        assert await stranger.is_closed()
        fetch = fetch_request("orders")
        known.send(fetch)
        await known.receive(fetch)

    run(test, replace(LIMITS, login_ms_max=100), demanding)


def test_large_requests_share_a_budget_and_all_are_served() -> None:
    async def test(served: ServedBroker) -> None:
        clients = [await served.connect() for _ in range(8)]
        for client in clients:
            client.send(produce_request("orders", batch(b"x" * 500_000)))
        for client in clients:
            _, response = await client.receive(produce_request("orders", None))
            assert response.responses[0].partition_responses[0].error_code == 0
        assert served.server.budget.bytes == 0

    run(test, replace(LIMITS, queued_bytes_max=600_000))


def test_a_client_that_disconnects_within_a_large_request_returns_its_budget() -> None:
    async def test(served: ServedBroker) -> None:
        bad = await served.connect()
        bad.writer.write(struct.pack(">i", 500_000) + bytes(1000))
        await until(lambda: served.server.budget.bytes > 0)
        good = await served.connect()
        good.send(produce_request("orders", batch(b"x" * 400_000)))
        bad.writer.close()
        await good.receive(produce_request("orders", None))
        assert served.server.budget.bytes == 0

    run(test, replace(LIMITS, queued_bytes_max=600_000))


def test_a_large_request_that_stops_arriving_is_closed_when_others_need_its_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(budget, "PATIENCE_MS", 100)
    monkeypatch.setattr(server, "_SWEEP_MS", 20)

    async def test(served: ServedBroker) -> None:
        for _ in range(3):
            stalled = await served.connect()
            stalled.writer.write(struct.pack(">i", 1024**2) + bytes(300_000))
        await until(lambda: served.server.budget.bytes >= 300_000)
        good = await served.connect()
        good.send(produce_request("orders", batch(b"x" * 400_000)))
        _, response = await good.receive(produce_request("orders", None))
        assert response.responses[0].partition_responses[0].error_code == 0

    run(test, replace(LIMITS, queued_bytes_max=600_000))
    assert "of the 1048576 bytes of a request have arrived" in caplog.text


def test_a_length_that_is_only_announced_takes_nothing_from_the_budget() -> None:
    async def test(served: ServedBroker) -> None:
        for _ in range(5):
            liar = await served.connect()
            liar.writer.write(struct.pack(">i", 1024**2))
        await until(lambda: len(served.server.connections) == 5)
        good = await served.connect()
        good.send(produce_request("orders", batch(b"x" * 400_000)))
        await good.receive(produce_request("orders", None))

    run(test, replace(LIMITS, queued_bytes_max=2 * 1024**2))


def test_a_stop_does_not_wait_for_a_client_that_reads_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GRACE_S", 0.1)

    async def test(served: ServedBroker) -> None:
        writer, reader = await served.connect(), await served.connect()
        for _ in range(40):
            writer.send(produce_request("orders", batch(b"x" * 900_000)))
            await writer.receive(produce_request("orders", None))
        reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
        reader.send(fetch_request("orders", partition_max_bytes=2**30))
        await until(lambda: any(not it.is_idle for it in served.server.connections))
        await asyncio.wait_for(served.server.stop(), SOON_S)

    run(test)


def test_a_client_that_pipelines_does_not_starve_the_others() -> None:
    async def test(served: ServedBroker) -> None:
        greedy, other = await served.connect(), await served.connect()
        for number in range(2000):
            greedy.send(MetadataRequest(topics=[]), correlation_id=number)
        other.send(MetadataRequest(topics=[]))
        await other.receive(MetadataRequest(topics=[]))
        assert max(connection.served_count for connection in served.server.connections) < 2000

    run(test)


def test_answers_are_sent_without_nagles_delay() -> None:
    async def test(served: ServedBroker) -> None:
        client = await served.connect()
        client.send(MetadataRequest(topics=[]))
        await client.receive(MetadataRequest(topics=[]))
        (connection,) = served.server.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(test)


def test_a_stop_answers_waiting_requests_and_closes_idle_connections() -> None:
    async def test(served: ServedBroker) -> None:
        waiting, idle = await served.connect(), await served.connect()
        fetch = fetch_request("orders", min_bytes=1, max_wait_ms=60_000)
        waiting.send(fetch)
        await until(lambda: len(served.broker.waiting) == 1)
        await served.server.stop()
        _, response = await waiting.receive(fetch)
        assert response.responses[0].partitions[0].error_code == 0
        assert await waiting.is_closed()
        assert await idle.is_closed()
        with pytest.raises(ConnectionError):
            await served.connect()

    run(test)


def test_a_bug_in_a_handler_closes_one_connection_and_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: ServedBroker) -> None:
        def broken(call: Any) -> Any:
            raise ZeroDivisionError("a bug")

        served.broker.registry.guard(lambda key, handler: broken if key == ApiKey.METADATA else handler)
        client, other = await served.connect(), await served.connect()
        client.send(MetadataRequest(topics=[]))
        assert await client.is_closed()
        other.send(produce_request("orders", batch(b"x")))
        await other.receive(produce_request("orders", None))

    run(test)
    assert "ZeroDivisionError: a bug" in caplog.text


def test_a_request_with_too_many_elements_closes_the_connection_and_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: ServedBroker) -> None:
        served.broker.registry.elements_max = 100
        client, other = await served.connect(), await served.connect()
        client.send(metadata_of(100))
        assert len((await client.receive(metadata_of(0)))[1].topics) == 100
        client.send(metadata_of(101))
        assert await client.is_closed()
        other.send(metadata_of(0))
        await other.receive(metadata_of(0))

    run(test)
    (line,) = [it.getMessage() for it in caplog.records]
    assert "MetadataRequest v12" in line
    assert line.endswith("has 101 elements, 1 too many (minibroker.request.elements.max=100)")


def metadata_of(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{n}") for n in range(count)])


def test_a_request_that_needs_too_much_memory_closes_its_connection_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: ServedBroker) -> None:
        def exhausting(call: Any) -> Any:
            raise MemoryError

        served.broker.registry.guard(lambda key, handler: exhausting if key == ApiKey.METADATA else handler)
        client, other = await served.connect(), await served.connect()
        client.send(metadata_of(0))
        assert await client.is_closed()
        other.send(produce_request("orders", batch(b"x")))
        await other.receive(produce_request("orders", None))

    run(test)
    (record,) = caplog.records
    assert record.getMessage().endswith("closed: its request needs more memory than there is")
    assert record.exc_info is None


def test_other_clients_are_answered_between_the_slices_of_a_long_request() -> None:
    """The other client asks as often as it can. Its answers come while the long request is still in progress."""

    async def test(served: ServedBroker) -> None:
        served.broker.registry.elements_max = 100_000
        topics = [TopicProduceData(name=f"t{n}", partition_data=[]) for n in range(20_000)]
        for long, version in ((metadata_of(20_000), 12), (ProduceRequest(acks=1, timeout_ms=0, topic_data=topics), 9)):
            client, other = await served.connect(), await served.connect()
            client.send(long, version)
            await until(lambda: len(served.broker.waiting) == 1)
            answered = 0
            while len(served.broker.waiting) == 1:
                other.send(metadata_of(0))
                await other.receive(metadata_of(0))
                answered += 1
            assert answered > 1, type(long).__name__
            _, response = await client.receive(long, version)
            assert len(response.topics if version == 12 else response.responses) == 20_000

    run(test)


def test_a_request_in_slices_is_freed_without_the_garbage_collector() -> None:
    """A cycle of references would keep thousands of objects until a full collection, which stops the broker."""

    async def test(served: ServedBroker) -> None:
        served.broker.registry.elements_max = 100_000
        long = metadata_of(20_000)
        client = await served.connect()
        gc.collect()
        gc.disable()
        try:
            client.send(long)
            await client.receive(long)
            await until(lambda: len(served.broker.waiting) == 0)
            client.send(metadata_of(0))
            await client.receive(metadata_of(0))
            assert gc.collect() < 1000
        finally:
            gc.enable()

    run(test)


def test_a_fetch_of_very_many_partitions_is_answered_in_slices_now_or_when_there_are_records() -> None:
    async def test(served: ServedBroker) -> None:
        served.broker.create("many", 1200)
        client, other = await served.connect(), await served.connect()
        wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1000) for n in range(1200)]
        for wait_ms, is_produced in ((0, False), (60_000, True), (60_000, False)):
            fetch = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="many", partitions=wanted)])
            client.send(fetch)
            if is_produced:
                await until(lambda: len(served.broker.waiting) == 1)
                other.send(produce_request("many", batch(b"now"), partition=1100))
                await other.receive(produce_request("many", None))
            _, response = await client.receive(fetch)
            found = [it for topic in response.responses for it in topic.partitions]
            assert [it.partition_index for it in found] == list(range(1200)), wait_ms
            full = [it.partition_index for it in found if it.records]
            assert full == ([1100] if wait_ms == 60_000 else []), wait_ms

    run(test)


def test_the_work_of_a_client_that_disconnects_ends() -> None:
    async def test(served: ServedBroker) -> None:
        client = await served.connect()
        client.send(metadata_of(20_000))
        await until(lambda: len(served.broker.waiting) == 1)
        client.writer.transport.abort()
        await until(lambda: len(served.broker.waiting) == 0)

    run(test)


class Unjoinable(Alone):
    """A cluster that a node cannot join. A client connects at the very end of the attempt."""

    client: socket.socket

    async def join(self) -> None:
        raise BrokerFailure("this node cannot join")

    async def stop(self) -> None:
        self.client = socket.create_connection(("127.0.0.1", self._machine.port_of("PLAINTEXT")))
        # The node goes on after the event loop has seen the client and before it accepts the connection.
        await asyncio.sleep(0)


def test_a_client_that_connects_while_a_start_fails_causes_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        machine = Machine(NodeConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        cluster = Unjoinable(machine)
        with pytest.raises(BrokerFailure, match="cannot join"):
            await Node(machine, cluster, Partitions(machine, cluster)).start()
        cluster.client.close()
        await asyncio.sleep(0)
        machine.data.close()

    asyncio.run(test())
    assert caplog.messages == []
