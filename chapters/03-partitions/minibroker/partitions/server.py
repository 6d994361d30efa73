"""The server: it accepts connections, bounds what they may take, and passes their requests to the handlers.

A connection is a protocol of asyncio's that reads frames and sends answers. `streams` has the one of this chapter.
Chapter 07 replaces it by a faster one. Everything that connections share is here:

- `places` decides which connections are served if there are too many.
- All connections share a budget for large requests (`budget`). So the memory is bounded.
- Connections without progress are closed.
- A request that must wait is an entry in the table `Waiting`. One timer serves all of them.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.partitions.budget import Budget
from minibroker.partitions.errors import Disconnect, Overload
from minibroker.partitions.places import LOGIN, Guest, Places, Verdict
from minibroker.partitions.rare_warning import RareWarning
from minibroker.partitions.registry import Deferred, Registry, Reply, Session
from minibroker.partitions.waiting import Parked, Turn, Waiting
from minibroker.wire.apis import ApiKey
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.schema import Part, Response

log = logging.getLogger(__name__)

_API_KEY_BYTES = 2
_GRACE_S = 5.0
_SWEEP_MS = 500
_PAUSE_S = 0.005
_BETWEEN_SLICES_S = 0.001  # enough for the turns of the event loop that a request of another client needs
# A caller that must log in has not shown yet that it may use this node's memory (CVE-2022-34917).
_BEFORE_LOGIN_BYTES_MAX = 512 * 1024

NewSession = Callable[[str], Session]
"""Begins the session of a connection, given the address of the client."""


@dataclass(frozen=True)
class Limits:
    """The limits of the server, with Kafka's names."""

    request_bytes_max: int  # socket.request.max.bytes
    queued_bytes_max: int  # queued.max.request.bytes
    connections_max: int  # max.connections
    idle_ms_max: int  # connections.max.idle.ms
    connections_per_ip_max: int = 2**31 - 1  # max.connections.per.ip
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)  # max.connections.per.ip.overrides
    login_ms_max: int = 10_000  # after this time, a caller that must log in and has not done so is disconnected


class Tracer(Protocol):
    """Sees every frame. `minibroker serve --trace` prints them."""

    def on_request(self, peer: str, frame: memoryview) -> None:
        """A request has arrived. `frame` does not include the length."""

    def on_reply(self, peer: str, frame: memoryview, parts: list[Part]) -> None:
        """The answer to the request in `frame` is sent."""


class Connection(Guest, Protocol):
    """One client, as the server sees it."""

    @property
    def peer(self) -> str:
        """The address of the client, with its port."""

    @property
    def begun_ms(self) -> int:
        """When the client connected."""

    trial: str
    """Why this connection may only log in as a node, or empty."""
    served_count: int
    """How many requests were answered."""

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport of the connection."""

    @property
    def is_parked(self) -> bool:
        """Whether a request waits for its answer."""

    def close_if_idle(self) -> None:
        """Close, unless a request is being read or answered."""

    def abort(self) -> None:
        """Close at once."""


Connect = Callable[["Server", NewSession], asyncio.BaseProtocol]
"""Makes the protocol of a new connection. The protocol calls `Server.enter` and `Server.leave`."""


class Server:
    """Accepts connections, and answers their requests."""

    def __init__(
        self,
        registry: Registry,
        waiting: Waiting[Response],
        limits: Limits,
        connect: Connect,
        *,
        tracer: Tracer | None = None,
    ) -> None:
        self._registry = registry
        self._waiting = waiting
        self._connect = connect
        self.limits = limits
        self._tracer = tracer
        self.budget = Budget(limits.queued_bytes_max)
        self.connections: set[Connection] = set()
        self.places: Places[Connection] = Places(lambda: registry.serves(ApiKey.SASL_HANDSHAKE, 1))
        self._all_left = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._listening: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.is_stopping = False
        waiting.on_turn = self._take_turns
        self._warning = RareWarning(log)

    async def start(self, bound: socket.socket, new_session: NewSession = Session, *, backlog: int = 50) -> None:
        """Accept connections on a bound socket. Called once for each listener."""
        loop, protocol = asyncio.get_running_loop(), partial(self._connect, self, new_session)
        self._listening.append(await loop.create_server(protocol, sock=bound, backlog=backlog))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop accepting connections and requests, finish the requests in progress, then close all connections.

        A client that does not read its answer is disconnected after a few seconds.
        """
        self.is_stopping = True
        self.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        # Waiting requests are answered now, and idle connections are closed.
        self._waiting.end()
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), _GRACE_S)
        for connection in list(self.connections):
            connection.abort()
        if self.connections:
            await self._all_left.wait()
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Stop accepting connections. Connections that are open stay so."""
        for listening in self._listening:
            listening.close()

    # Connections ------------------------------------------------------------------------------------------------------

    def enter(self, connection: Connection) -> bool:
        """Whether there is a place for a new connection. Another one may have to leave for it."""
        limits = self.limits
        entry = self.places.enter(
            connection,
            total_max=limits.connections_max,
            per_address_max=limits.per_ip_overrides.get(connection.address, limits.connections_per_ip_max),
            now_ms=monotonic_ms(),
        )
        if entry.leaving is not None:
            self.warn(f"{entry.leaving.peer}: closed to make room for {connection.peer}: {entry.reason}")
            entry.leaving.abort()
            self.places.leave(entry.leaving)
        if entry.verdict is Verdict.CLOSED:
            self.warn(f"{connection.peer}: refused: {entry.reason}")
            return False
        if entry.verdict is Verdict.ON_TRIAL:
            connection.trial = f"refused: {entry.reason}"
        self.connections.add(connection)
        self._all_left.clear()
        return True

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self.places.leave(connection)
        if not self.connections:
            self._all_left.set()

    async def _sweep(self) -> None:
        """Close connections without progress, again and again."""
        while True:
            shortest_ms = min(self.limits.idle_ms_max, self.limits.login_ms_max)
            await asyncio.sleep(min(max(shortest_ms / 4, 10), _SWEEP_MS) / 1000)
            now_ms = monotonic_ms()
            self._close_idle(now_ms)
            for connection in self.places.overdue(now_ms):
                self.warn(f"{connection.peer}: {connection.trial}")
                connection.abort()
            for share in self.budget.laggards(now_ms):
                share.close()

    def _close_idle(self, now_ms: int) -> None:
        """Close connections whose client does not complete a request, does not read its answer, or does not log in."""
        idle_ms_max, login_ms_max = self.limits.idle_ms_max, self.limits.login_ms_max
        for connection in list(self.connections):
            if now_ms - connection.since_ms > idle_ms_max and not connection.is_parked:
                log.info(
                    "%s: closed, because the client has neither completed a request nor read an answer for %d ms",
                    connection.peer,
                    idle_ms_max,
                )
                connection.abort()
            elif connection.session.needs_login and now_ms - connection.begun_ms > login_ms_max:
                log.info("%s: closed after %d ms without a login", connection.peer, login_ms_max)
                connection.abort()

    def report(self, peer: str, error: Exception) -> None:
        """Log why a connection is closed."""
        if isinstance(error, Overload):
            self.warn(f"{peer}: {error}")
        elif isinstance(error, MemoryError):
            self.warn(f"{peer}: closed: its request needs more memory than there is")
        elif isinstance(error, MalformedMessage | Disconnect):
            log.info("%s: closed: %s", peer, error)
        else:
            log.error("%s: closed because of a bug", peer, exc_info=error)

    def warn(self, line: str) -> None:
        """Log a warning that clients can cause. Most are left out if there are many."""
        self._warning.say(monotonic_ms(), line)

    # Requests ---------------------------------------------------------------------------------------------------------

    def frame_bytes_max(self, connection: Connection) -> int:
        """The longest request that a connection may send now."""
        bytes_max = self.limits.request_bytes_max
        return (
            min(bytes_max, _BEFORE_LOGIN_BYTES_MAX) if connection.session.needs_login or connection.trial else bytes_max
        )

    def dispatch(self, connection: Connection, frame: memoryview) -> Reply | Deferred:
        """Answer a request, now or later. It may wake waiting requests, so the caller calls `settle` afterwards.

        If this request must wait, the caller parks it before `settle`: a woken request may append and wake this one.
        For example, a fetch can complete a write to one partition while it waits for another.
        """
        if connection.trial:
            self._check_trial(connection, frame)
        session = connection.session
        if self._tracer is not None:
            return self._traced(self._tracer, session, frame)
        return self._registry.dispatch(frame, now_ms=wall_clock_ms(), session=session)

    def _check_trial(self, connection: Connection, frame: memoryview) -> None:
        if not self.places.is_on_trial(connection):
            connection.trial = ""
        elif int.from_bytes(frame[:_API_KEY_BYTES], "big") not in LOGIN:
            raise Overload(connection.trial)

    def _traced(self, tracer: Tracer, session: Session, frame: memoryview) -> Reply | Deferred:
        tracer.on_request(session.peer, frame)
        outcome = self._registry.dispatch(frame, now_ms=wall_clock_ms(), session=session)

        def traced(reply: Reply) -> Reply:
            tracer.on_reply(session.peer, frame, reply.parts)
            return reply

        if isinstance(outcome, Reply):
            return traced(outcome)
        return Deferred(outcome.wait, lambda response: traced(outcome.reply(response)))

    # Waiting requests -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Answer the waiting requests that were woken."""
        self._waiting.settle()

    def park(
        self, deferred: Deferred, complete: Callable[[Response], None], fail: Callable[[Exception], None]
    ) -> Parked[Response]:
        """Let a request wait for its answer, which goes to `complete`. The connection calls `forget` if it ends."""
        now_ms = monotonic_ms()
        parked = self._waiting.park(deferred.wait, complete, now_ms=now_ms, fail=fail)
        if self.is_stopping:
            self._waiting.end()
        # Most waits end long before their deadline, so the timer is rarely set for one of them.
        if self._timer_ms is None or now_ms + deferred.wait.timeout_ms < self._timer_ms:
            self._arm()
        return parked

    def forget(self, parked: Parked[Response]) -> None:
        """The client of a waiting request has disconnected."""
        self._waiting.forget(parked)

    def _take_turns(self, parked: Parked[Response], turn: Turn) -> None:
        """Wake a request in slices once in each turn, until it is done. Other clients are served in between."""
        delay_s = _PAUSE_S if turn.is_pausing else _BETWEEN_SLICES_S
        asyncio.get_running_loop().call_later(delay_s, self._take_turn, parked, turn)

    def _take_turn(self, parked: Parked[Response], turn: Turn) -> None:
        if not (parked.is_over or turn.is_over):
            turn.is_due = True
            self._waiting.wake(turn)
            self._waiting.settle()
            self._take_turns(parked, turn)

    def _arm(self) -> None:
        """Set the timer to the earliest deadline."""
        deadline_ms = self._waiting.next_deadline_ms
        if deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - monotonic_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer_ms = None
        self._waiting.expire(monotonic_ms())
        self._waiting.settle()
        self._arm()


def name_of(address: object) -> str:
    """The name of a client, from the address of its socket."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def host_of(peer: str) -> str:
    """The address of a client without its port."""
    return peer.rpartition(":")[0]
