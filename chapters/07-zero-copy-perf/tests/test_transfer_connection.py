"""The fast connection without a socket: how bytes become frames, and when it stops reading."""

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from cases import case
from partitions_broker import MemoryBroker, batch, fetch_request, produce_request

from minibroker.log.batch import batches
from minibroker.log.clock import monotonic_ms
from minibroker.log.memory import MemoryFiles
from minibroker.partitions.errors import Held
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.partition import ACKS_ALL, Appended
from minibroker.partitions.registry import Session
from minibroker.partitions.server import Connect, Limits, Server
from minibroker.transfer.arrivals import Arrival, Arrivals
from minibroker.transfer.buffers import INBOX_BYTES
from minibroker.transfer.connection import FastConnection, fast_connection
from minibroker.transfer.line import LINE_MAX
from minibroker.transfer.sending import Transfer
from minibroker.transfer.usage import Usage
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request

_BREAKS_MAX = 30  # one after each frame of a test, at most
LIMITS = Limits(request_bytes_max=1024**2, queued_bytes_max=2 * 1024**2, connections_max=10, idle_ms_max=60_000)


class Socket(asyncio.Transport):
    """A transport that keeps what is sent, and whose protocol reads what the test gives it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sends: list[bytes] = []
        self.is_reading_now = True
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.sends.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def correlation_ids(self) -> list[int]:
        """The ids of all answers, in the order in which they were sent."""
        return correlation_ids(b"".join(self.sends))


def correlation_ids(data: bytes) -> list[int]:
    """The ids of all answers in the bytes that a client has received."""
    found = []
    while data:
        length, correlation_id = struct.unpack_from(">ii", data)
        assert len(data) >= 4 + length, "the last answer is not whole"
        found.append(correlation_id)
        data = data[4 + length :]
    return found


class Wire:
    """A connection and its socket."""

    def __init__(
        self,
        broker: MemoryBroker,
        limits: Limits = LIMITS,
        arrivals: Arrivals | None = None,
        connect: Connect | None = None,
    ) -> None:
        connect = connect or fast_connection(Transfer.COPY, arrivals)
        self.server = Server(broker.registry, broker.waiting, limits, connect)
        self.connection, self.socket = new_connection(self.server, connect), Socket()
        self.connection.connection_made(self.socket)

    async def give(self, data: bytes) -> None:
        """Let bytes arrive, as many at a time as the connection has room for."""
        while data:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            assert count, "asyncio closes a connection whose protocol has no room"
            room[:count] = data[:count]
            del room
            self.connection.buffer_updated(count)
            data = data[count:]
            # The connection may take breaks, so that other clients have their turn. It reads on after the last one.
            for _ in range(_BREAKS_MAX):
                await asyncio.sleep(0)


def new_connection(server: Server, connect: Connect) -> FastConnection:
    connection = connect(server, Session)
    assert isinstance(connection, FastConnection)
    return connection


@contextmanager
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    made.create("orders", 2)
    yield made


def framed(request: Request, correlation_id: int, version: int = 12) -> bytes:
    parts = frame_request(request, version=version, correlation_id=correlation_id, client_id="raw")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def produced(number: int, size: int = 10) -> bytes:
    return framed(produce_request("orders", batch(b"x" * size)), number)


def run(test: Any) -> None:
    async def main() -> None:
        with broker() as made:
            await test(made)

    asyncio.run(main())


def test_frames_are_found_at_every_split_of_the_bytes() -> None:
    async def test(made: MemoryBroker) -> None:
        data = produced(1) + produced(2)
        for split in range(1, len(data)):
            with case(f"split at {split}"):
                wire = Wire(made)
                await wire.give(data[:split])
                await wire.give(data[split:])
                assert wire.socket.correlation_ids() == [1, 2]
                assert wire.connection.is_idle
        with case("one byte at a time"):
            wire = Wire(made)
            for at in range(len(data)):
                await wire.give(data[at : at + 1])
            assert wire.socket.correlation_ids() == [1, 2]

    run(test)


def test_frames_longer_than_the_inbox_are_found_at_any_split() -> None:
    async def test(made: MemoryBroker) -> None:
        data = produced(1) + produced(2, 3 * INBOX_BYTES) + produced(3, INBOX_BYTES - 300) + produced(4)
        for piece in (1000, 4096, INBOX_BYTES - 1, INBOX_BYTES, len(data)):
            with case(f"pieces of {piece}"):
                wire = Wire(made)
                for start in range(0, len(data), piece):
                    await wire.give(data[start : start + piece])
                    assert wire.socket.is_reading_now
                assert wire.socket.correlation_ids() == [1, 2, 3, 4]
                assert wire.server.budget.bytes == 0

    run(test)


def test_a_long_frame_that_waits_for_the_budget_is_not_read_when_the_socket_takes_bytes_again() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, data = Wire(made), produced(1, 3 * INBOX_BYTES)
        budget = wire.server.budget
        other = budget.begin("192.0.2.1", LIMITS.queued_bytes_max, lambda: None)
        assert budget.take(other, LIMITS.queued_bytes_max, lambda: None)
        await wire.give(data[:INBOX_BYTES])
        assert not wire.socket.is_reading_now
        wire.connection.pause_writing()
        wire.connection.resume_writing()
        assert not wire.socket.is_reading_now
        budget.end(other)
        await until(lambda: wire.socket.is_reading_now)
        await wire.give(data[INBOX_BYTES:])
        assert wire.socket.correlation_ids() == [1]
        assert budget.bytes == 0

    run(test)


def test_a_long_request_whose_client_leaves_while_it_waits_for_the_budget_is_not_served() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, partition = Wire(made), made.store.partition("orders", 0)
        budget, taken = wire.server.budget, LIMITS.queued_bytes_max - INBOX_BYTES
        other = budget.begin("192.0.2.1", taken, lambda: None)
        assert budget.take(other, taken, lambda: None)
        await wire.give(produced(1, INBOX_BYTES))
        assert not wire.socket.is_reading_now
        # There is room for the whole request as soon as its client has gone.
        budget.end(other)
        wire.connection.connection_lost(None)
        for _ in range(_BREAKS_MAX):
            await asyncio.sleep(0)
        assert (partition.log_end_offset, budget.bytes) == (0, 0)

    run(test)


def test_the_answers_of_one_event_are_one_send() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        await wire.give(b"".join(map(produced, range(20))))
        # On a slow machine the connection takes a break in between.
        assert len(wire.socket.sends) < 20
        assert wire.socket.correlation_ids() == list(range(20))

    run(test)


def test_large_answers_of_one_event_are_sent_a_few_at_a_time() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        await wire.give(produced(0, 30_000))
        fetch = fetch_request("orders", partition_max_bytes=30_000)
        await wire.give(b"".join(framed(fetch, number) for number in range(1, 51)))
        await until(lambda: wire.connection.is_idle)
        assert wire.socket.correlation_ids() == list(range(51))
        assert max(map(len, wire.socket.sends)) < 300_000

    run(test)


def test_a_client_that_reads_no_answers_is_not_read_any_more() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        wire.connection.pause_writing()
        count = 0
        while wire.socket.is_reading_now:
            await wire.give(produced(count))
            count += 1
        assert count * len(produced(0)) <= INBOX_BYTES
        assert wire.socket.sends == []
        wire.connection.resume_writing()
        for _ in range(count):
            await asyncio.sleep(0)
        assert wire.socket.correlation_ids() == list(range(count))
        assert wire.socket.is_reading_now

    run(test)


def test_requests_behind_a_waiting_one_wait_too() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, other = Wire(made), Wire(made)
        await wire.give(produced(1) + framed(fetch_request("orders", partition=1, min_bytes=1, max_wait_ms=60_000), 2))
        await wire.give(produced(3))
        assert wire.connection.is_parked
        assert wire.socket.correlation_ids() == [1]
        await other.give(framed(produce_request("orders", batch(b"now"), partition=1), 9))
        for _ in range(3):
            await asyncio.sleep(0)
        assert wire.socket.correlation_ids() == [1, 2, 3]
        assert wire.connection.is_idle

    run(test)


def waiting_fetch(number: int, offset: int = 0) -> bytes:
    return framed(fetch_request("orders", offset, partition=1, min_bytes=1, max_wait_ms=60_000), number)


async def produce_elsewhere(made: MemoryBroker) -> None:
    """Append a batch to the partition of `waiting_fetch`."""
    made.produce("orders", batch(b"now"), partition=1)
    for _ in range(_BREAKS_MAX):
        await asyncio.sleep(0)


def test_a_client_whose_requests_wait_again_and_again_is_read_as_soon_as_there_is_room() -> None:
    async def test(_: MemoryBroker) -> None:
        long = produced(2, INBOX_BYTES // 2)
        for name, kept, counts in (
            ("the second wait is behind the long request", long + waiting_fetch(3, 1), (2, 3)),
            ("the second wait is before the long request", waiting_fetch(3, 1) + long, (1, 3)),
        ):
            with case(name), broker() as made:
                wire = Wire(made)
                await wire.give(waiting_fetch(1) + kept)
                for count in counts:
                    assert not wire.socket.is_reading_now
                    await produce_elsewhere(made)
                    assert len(wire.socket.correlation_ids()) == count
                assert wire.socket.is_reading_now

    run(test)


def test_an_answer_that_waited_does_not_make_room_in_a_full_socket() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        await wire.give(waiting_fetch(1))
        wire.connection.pause_writing()
        await produce_elsewhere(made)
        await wire.give(produced(2))
        # Another reason not to parse is gone, such as a pause.
        wire.connection.go_on()
        assert wire.socket.correlation_ids() == [1]
        wire.connection.resume_writing()
        assert wire.socket.correlation_ids() == [1, 2]

    run(test)


def test_the_bytes_of_a_request_that_waits_are_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held batch is appended when it is tried again, so its bytes must not be those of a later event."""

    async def test(made: MemoryBroker) -> None:
        partition = made.store.partition("orders", 0)
        append = partition.append
        for size in (10, 20_000):
            with case(f"a value of {size} bytes"):
                wire, offset = Wire(made), partition.log_end_offset
                monkeypatch.setattr(partition, "append", Mock(side_effect=Held("rule", ErrorCode.NONE, "held")))
                await wire.give(produced(1, size))
                # The rest of the inbox is filled by the same client, while its first request waits.
                await wire.give(framed(produce_request("orders", batch(b"y" * 30_000), partition=1), 2))
                monkeypatch.setattr(partition, "append", append)
                made.waiting.wake("rule")
                made.waiting.settle()
                (appended,) = batches(made.fetch("orders", offset).records)
                assert [record.value for record in appended.records()] == [b"x" * size]

    run(test)


def test_the_buffer_of_a_long_request_that_waits_is_not_given_to_another_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(made: MemoryBroker) -> None:
        connect, partition, size = fast_connection(Transfer.COPY), made.store.partition("orders", 0), 900_000
        wire, other = Wire(made, connect=connect), Wire(made, connect=connect)
        monkeypatch.setattr(partition, "append", Mock(side_effect=Held("rule", ErrorCode.NONE, "held")))
        await wire.give(produced(1, size))
        monkeypatch.undo()
        await other.give(framed(produce_request("orders", batch(b"y" * size), partition=1), 2))
        made.waiting.wake("rule")
        made.waiting.settle()
        (appended,) = batches(made.fetch("orders").records)
        assert [record.value for record in appended.records()] == [b"x" * size]

    run(test)


class Followers:
    """The followers of a partition, as far as its leader knows: they have all batches before `upto`."""

    def __init__(self, made: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made = made
        self._upto = 0
        self._partition = made.store.partition("orders", 0)
        monkeypatch.setattr(self._partition.replica, "verdict", self._verdict)

    def _verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        assert acks == ACKS_ALL
        return ErrorCode.NONE if appended.next_offset <= self._upto else None

    async def copy(self, upto: int) -> None:
        """Copy all batches before this offset."""
        self._upto = upto
        self._made.waiting.wake(self._partition.name)
        self._made.waiting.settle()
        for _ in range(_BREAKS_MAX):
            await asyncio.sleep(0)


def safely_produced(number: int, size: int = 10) -> bytes:
    return framed(produce_request("orders", batch(b"x" * size), acks=ACKS_ALL), number)


def test_batches_are_appended_while_earlier_ones_are_copied_by_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        # The third request is longer than the inbox, and the fourth would be answered at once.
        sizes = {0: 10, 1: 20_000, 2: 2 * INBOX_BYTES}
        await wire.give(
            b"".join(safely_produced(*it) for it in sizes.items())
            + framed(produce_request("orders", batch(b"now"), acks=1), 3)
        )
        assert made.store.partition("orders", 0).log_end_offset == 4
        assert wire.socket.correlation_ids() == []
        for upto in (1, 2):
            await followers.copy(upto)
            assert wire.socket.correlation_ids() == list(range(upto))
        await followers.copy(4)
        assert wire.socket.correlation_ids() == [0, 1, 2, 3]
        # The last answers have become ready together, so they were sent together.
        assert len(wire.socket.sends) == 3
        assert wire.connection.is_idle

    run(test)


def test_only_some_answers_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        count = 2 * LINE_MAX
        for number in range(count):
            await wire.give(safely_produced(number))
        appended = made.store.partition("orders", 0).log_end_offset
        assert 1 < appended < count
        while appended < count:
            await followers.copy(appended)
            assert wire.socket.correlation_ids() == list(range(appended))
            before, appended = appended, made.store.partition("orders", 0).log_end_offset
            assert appended > before
        await followers.copy(count)
        assert wire.socket.correlation_ids() == list(range(count))
        assert wire.socket.is_reading_now

    run(test)


def test_a_request_that_waited_leaves_nothing_to_the_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        await wire.give(safely_produced(0))
        await followers.copy(1)
        gc.collect()
        gc.disable()
        for number in range(1, 20):
            await wire.give(safely_produced(number))
            await followers.copy(number + 1)
        assert gc.collect() == 0
        gc.enable()

    run(test)


def test_records_that_are_truncated_while_their_answer_is_in_line_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_: MemoryBroker) -> None:
        made = MemoryBroker(BoundedFiles(MemoryFiles(), handles_max=20))  # type: ignore[arg-type]
        made.create("orders")
        wire, followers = Wire(made), Followers(made, monkeypatch)
        made.produce("orders", batch(b"old"), acks=1)
        await wire.give(safely_produced(1) + framed(fetch_request("orders"), 2))
        assert wire.socket.correlation_ids() == []
        made.store.partition("orders", 0).log.truncate(0)
        made.produce("orders", batch(b"new"), acks=1)
        await followers.copy(2)
        assert wire.socket.correlation_ids() == [1]
        assert wire.socket.is_closed

    run(test)


def test_answers_in_line_are_forgotten_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        await wire.give(b"".join(map(safely_produced, range(5))))
        assert len(made.waiting) == 5
        wire.connection.connection_lost(None)
        assert len(made.waiting) == 0
        await followers.copy(5)
        assert wire.socket.sends == []

    run(test)


def test_a_server_that_stops_answers_all_that_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, _followers = Wire(made), Followers(made, monkeypatch)
        await wire.give(b"".join(map(safely_produced, range(5))))
        wire.server.is_stopping = True
        made.waiting.end()
        for _ in range(_BREAKS_MAX):
            await asyncio.sleep(0)
        assert wire.socket.correlation_ids() == list(range(5))
        assert wire.socket.is_closed

    run(test)


def test_a_server_that_stops_answers_a_request_that_has_begun() -> None:
    async def test(made: MemoryBroker) -> None:
        for size in (1000, 3 * INBOX_BYTES):
            with case(f"a value of {size} bytes"):
                wire, data = Wire(made), produced(1, size)
                await wire.give(data[:500])
                wire.server.is_stopping = True
                wire.connection.close_if_idle()
                assert not wire.socket.is_closed
                await wire.give(data[500:])
                assert wire.socket.correlation_ids() == [1]
                assert wire.socket.is_closed

    run(test)


def test_requests_before_a_malformed_one_are_answered() -> None:
    async def test(made: MemoryBroker) -> None:
        for name, more in (("a negative length", struct.pack(">i", -5) + b"more"), ("too long", produced(2, 5000))):
            with case(name):
                wire = Wire(made, replace(LIMITS, request_bytes_max=5000))
                await wire.give(produced(1) + more)
                assert wire.socket.correlation_ids() == [1]
                assert wire.socket.is_closed

    run(test)


def test_requests_that_came_before_the_end_of_the_stream_are_answered() -> None:
    async def test(made: MemoryBroker) -> None:
        for reason, pause_ms in (("the socket is full", 0), ("a quota makes the client wait", 20)):
            with case(reason):
                wire = Wire(made)
                wire.connection.session.pause_ms = pause_ms
                if not pause_ms:
                    wire.connection.pause_writing()
                await wire.give(produced(1) + produced(2))
                assert wire.connection.eof_received()
                wire.connection.resume_writing()
                await until(lambda it=wire.socket: it.is_closed)  # type: ignore[misc]
                assert wire.socket.correlation_ids() == [1, 2]

    run(test)


def test_a_request_before_the_login_may_not_be_long() -> None:
    async def test(made: MemoryBroker) -> None:
        for needs_login in (False, True):
            with case(f"needs_login={needs_login}"):
                wire = Wire(made)
                wire.connection.session.needs_login = needs_login
                await wire.give(produced(1, 600_000)[:1000])
                assert wire.socket.is_closed == needs_login

    run(test)


def test_requests_that_were_kept_end_with_their_connection() -> None:
    async def test(made: MemoryBroker) -> None:
        for name in ("aborted", "lost"):
            with case(name):
                wire = Wire(made)
                wire.connection.pause_writing()
                await wire.give(produced(1))
                wire.connection.abort() if name == "aborted" else wire.connection.connection_lost(None)
                wire.connection.resume_writing()
                assert made.store.partition("orders", 0).log_end_offset == 0

    run(test)


async def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic_ms() + 10_000
    while not condition():
        assert monotonic_ms() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def test_a_client_over_its_quota_is_answered_and_then_not_served_for_that_time() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, began_ms = Wire(made), monotonic_ms()
        wire.connection.session.pause_ms = 100
        await wire.give(produced(1) + produced(2))
        await wire.give(produced(3))
        assert wire.socket.correlation_ids() == [1]
        assert not wire.connection.is_idle
        await until(lambda: wire.socket.correlation_ids() == [1, 2, 3])
        assert monotonic_ms() - began_ms >= 100
        assert wire.connection.is_idle

    run(test)


def test_a_client_that_goes_on_sending_while_it_must_wait_fills_its_own_socket() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, count = Wire(made), 0
        wire.connection.session.pause_ms = 3_600_000
        while wire.socket.is_reading_now:
            await wire.give(produced(count))
            count += 1
        assert count * len(produced(0)) <= INBOX_BYTES
        # A node that stops does not wait for the end of the pause.
        wire.connection.close_if_idle()
        assert wire.socket.is_closed
        wire.connection.connection_lost(None)

    run(test)


def test_the_longer_of_two_pauses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_: MemoryBroker) -> None:
        for pauses_ms in ((200, 20), (20, 200)):
            with case(f"{pauses_ms}"), broker() as made:
                wire, followers, began_ms = Wire(made), Followers(made, monkeypatch), monotonic_ms()
                await wire.give(safely_produced(1) + safely_produced(2))
                for upto, wire.connection.session.pause_ms in enumerate(pauses_ms, 1):
                    await followers.copy(upto)
                await wire.give(framed(produce_request("orders", batch(b"x"), acks=1), 3))
                await until(lambda it=wire.socket: it.correlation_ids() == [1, 2, 3])  # type: ignore[misc]
                assert monotonic_ms() - began_ms >= 200

    run(test)


def test_a_client_that_must_wait_is_not_idle_whatever_it_does_meanwhile() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        wire.connection.session.pause_ms = 3_600_000
        await wire.give(produced(1))
        happenings: dict[str, Callable[[], None]] = {
            "nothing": lambda: None,
            "it reads answers": wire.connection.resume_writing,
            "it sends a request": lambda: wire.connection.buffer_updated(10),
        }
        for name, happen in happenings.items():
            with case(name):
                happen()
                assert wire.connection.since_ms > monotonic_ms() + 3_000_000

    run(test)


def test_no_request_of_a_refused_client_is_served() -> None:
    """Its connection is closed after the time that it would have to wait."""

    async def test(made: MemoryBroker) -> None:
        wire = Wire(made, arrivals=Judging(Arrival(20, is_refused=True)))
        await wire.give(produced(1))
        await until(lambda: wire.socket.is_closed)
        assert wire.socket.sends == []
        assert made.store.partition("orders", 0).log_end_offset == 0

    run(test)


class Judging(Arrivals):
    """Decides the same about every client."""

    def __init__(self, arrival: Arrival) -> None:
        super().__init__(Usage(), rate_max=1)
        self._arrival = arrival

    def judge(self, address: str, now_ms: int) -> Arrival:
        return self._arrival


def test_a_client_that_must_wait_after_it_has_connected_is_served_later() -> None:
    async def test(made: MemoryBroker) -> None:
        wire, began_ms = Wire(made, arrivals=Judging(Arrival(100))), monotonic_ms()
        await wire.give(produced(1))
        await until(lambda: wire.socket.correlation_ids() == [1])
        assert monotonic_ms() - began_ms >= 100
        assert wire.connection.is_idle

    run(test)


def test_a_connection_whose_session_is_over_is_closed_after_the_answer() -> None:
    """For example after a failed login."""

    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        wire.connection.session.is_over = True
        await wire.give(produced(1) + produced(2))
        assert wire.socket.correlation_ids() == [1]
        assert wire.socket.is_closed

    run(test)


def test_a_connection_whose_session_is_over_answers_the_requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        await wire.give(safely_produced(1))
        wire.connection.session.is_over = True
        await wire.give(produced(2))
        for upto in (1, 2):
            assert not wire.socket.is_closed
            await followers.copy(upto)
            assert wire.socket.correlation_ids() == [1, 2][:upto]
        assert wire.socket.is_closed

    run(test)


def test_a_client_that_leaves_while_it_must_wait_is_forgotten() -> None:
    async def test(made: MemoryBroker) -> None:
        wire = Wire(made)
        wire.connection.session.pause_ms = 3_600_000
        await wire.give(produced(1))
        assert not wire.connection.eof_received(), "the transport must close itself"

    run(test)


def test_only_progress_puts_off_the_end_of_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        wire, followers = Wire(made), Followers(made, monkeypatch)
        connection, data = wire.connection, safely_produced(1)

        async def read_answers() -> None:
            connection.pause_writing()
            connection.resume_writing()

        happenings: list[tuple[str, Callable[[], Awaitable[None]], bool]] = [
            ("a request begins", lambda: wire.give(data[:10]), True),
            ("more of it arrives", lambda: wire.give(data[10:20]), False),
            ("the rest arrives", lambda: wire.give(data[20:]), False),
            ("its answer is sent", lambda: followers.copy(1), True),
            ("the client reads answers", read_answers, True),
        ]
        for name, happen, is_progress in happenings:
            with case(name):
                connection.since_ms = 0
                await happen()
                assert (connection.since_ms > 0) == is_progress

    run(test)


# On a real socket -----------------------------------------------------------------------------------------------------


async def connected(made: MemoryBroker) -> tuple[FastConnection, socket.socket]:
    """A connection whose socket holds little, and the client's socket."""
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    there.setblocking(False)
    connect = fast_connection(Transfer.COPY)
    connection = new_connection(Server(made.registry, made.waiting, LIMITS, connect), connect)
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=here)
    return connection, there


async def rest_of(client: socket.socket) -> bytes:
    """What a client still receives that sends nothing more."""
    client.shutdown(socket.SHUT_WR)
    found = bytearray()
    while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 64 * 1024), 10):
        found += piece
    client.close()
    return bytes(found)


def test_a_large_answer_that_waits_for_a_smaller_one_follows_it() -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 50_000))
        connection, client = await connected(made)
        fetch = fetch_request("orders", partition=1, min_bytes=1, max_wait_ms=60_000)
        client.send(framed(fetch_request("orders"), 1) + framed(fetch, 2))
        await until(lambda: len(made.waiting) == 1)
        assert connection.transport.get_write_buffer_size() > 0, "the socket must not take the first answer at once"
        # There is room in the socket now, but it is for the rest of the first answer.
        first = client.recv(64 * 1024)
        made.produce("orders", batch(b"x" * 500_000), partition=1)
        assert correlation_ids(first + await rest_of(client)) == [1, 2]

    run(test)


def test_a_client_that_reads_a_part_of_a_large_answer_is_not_idle() -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 500_000))
        connection, client = await connected(made)
        client.send(framed(fetch_request("orders"), 1))
        await until(lambda: connection.served_count == 1)
        connection.since_ms = 0
        first = client.recv(64 * 1024)
        await until(lambda: connection.since_ms > 0)
        assert not connection.is_idle
        assert correlation_ids(first + await rest_of(client)) == [1]

    run(test)


def test_an_answer_that_is_sent_during_a_pause_is_sent_to_its_end() -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 500_000))
        for is_stopping in (False, True):
            with case(f"is_stopping={is_stopping}"):
                connection, client = await connected(made)
                connection.session.pause_ms = 200
                client.send(framed(fetch_request("orders"), 1))
                await until(lambda it=connection: it.served_count == 1)  # type: ignore[misc]
                if is_stopping:
                    connection.close_if_idle()
                assert correlation_ids(await rest_of(client)) == [1]

    run(test)


def test_large_answers_that_are_ready_together_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 500_000), partition=1)
        (connection, client), followers = await connected(made), Followers(made, monkeypatch)
        large = [framed(fetch_request("orders", partition=1), number) for number in (2, 3)]
        small = framed(produce_request("orders", batch(b"x"), acks=1), 4)
        client.send(b"".join((safely_produced(1), *large, small)))
        await until(lambda: connection.served_count == 4)
        await followers.copy(1)
        found = bytearray()
        while len(found) < 2 * 500_000:
            found += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 64 * 1024), 10)
        await until(lambda: connection.is_idle)
        assert correlation_ids(bytes(found) + await rest_of(client)) == [1, 2, 3, 4]

    run(test)


def test_small_answers_keep_their_places_before_and_behind_a_large_one() -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 500_000), partition=1)
        _connection, client = await connected(made)
        large = fetch_request("orders")
        # Without records, the answer for the first partition is empty.
        large.topics[0].partitions += fetch_request("orders", partition=1).topics[0].partitions
        client.send(framed(fetch_request("orders"), 1) + framed(large, 2) + produced(3))
        assert correlation_ids(await rest_of(client)) == [1, 2, 3]

    run(test)


def test_nothing_is_sent_after_an_abort() -> None:
    async def test(made: MemoryBroker) -> None:
        made.produce("orders", batch(b"x" * 500_000))
        connection, client = await connected(made)
        client.send(framed(fetch_request("orders"), 1))
        await until(lambda: connection.served_count == 1)
        connection.abort()
        assert len(await rest_of(client)) < 500_000

    run(test)
