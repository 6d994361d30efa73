"""Places for connections: which ones are served if there are too many, and which ones must leave. A pure module.

Clients must not lock out other nodes, or the cluster loses them. So max.connections is the number of places for
clients. A connection that has logged in as a node takes none. Before a login the server cannot tell nodes from clients,
so a connection beyond the limit is *on trial*: it has three seconds to log in, and may do nothing else.

    new connection ── a place is free ──────────────────────────▶ served
             ├─────── another address has more connections ─────▶ served, and that address loses one
             ├─────── there is a login, and a place for a trial ▶ on trial ── login as a node ──▶ served
             └─────── otherwise ────────────────────────────────▶ closed

There are few places for trials. If all are taken, the address with the most trials loses its oldest one. So a client
that connects again and again does not keep nodes of other addresses from their login.

On a listener that demands a login, only LOGINS_MAX connections at a time may be without a login. Beyond that, the
address with the most such connections loses its oldest one.
"""

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from minibroker.partitions.registry import Session
from minibroker.wire.apis import ApiKey

LOGINS_MAX = 100
TRIALS_MAX = 16
TRIAL_MS = 3_000
LOGIN = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""The requests that a connection on trial may send."""


def is_node(session: Session) -> bool:
    """Whether the caller has proved to be a node."""
    return session.node_id is not None


class Guest(Protocol):
    """A connection."""

    @property
    def session(self) -> Session:
        """The caller."""

    @property
    def address(self) -> str:
        """The address of the client, without its port."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""

    since_ms: int
    """When the connection became idle, or when its request made progress."""


G = TypeVar("G", bound=Guest)


class Verdict(enum.Enum):
    """What becomes of a new connection."""

    SERVED = "served"
    ON_TRIAL = "on trial"
    CLOSED = "closed"


class Entry(NamedTuple, Generic[G]):
    """The verdict about a new connection, the reason if it has no place, and the connection that must leave for it."""

    verdict: Verdict
    reason: str = ""
    leaving: G | None = None


class Places(Generic[G]):
    """All connections of a server."""

    def __init__(self, has_login: Callable[[], bool]) -> None:
        """`has_login` says whether nodes can log in. If not, no connection is on trial."""
        self._has_login = has_login
        self._guests: dict[G, None] = {}
        self._trials: dict[G, int] = {}  # when each trial began, the oldest first

    def enter(self, guest: G, *, total_max: int, per_address_max: int, now_ms: int) -> Entry[G]:
        """Decide about a new connection. Unless the verdict is CLOSED, the connection counts until `leave`."""
        clients = Counter(it.address for it in self._guests if it not in self._trials and not is_node(it.session))
        own, total = clients[guest.address], clients.total()
        entry: Entry[G] = Entry(Verdict.SERVED)
        if own >= per_address_max:
            entry = self._trial(f"there are {own} connections from {guest.address} (max.connections.per.ip)")
        elif total >= total_max:
            reason = f"there are {total} connections (max.connections)"
            leaving = self._to_leave(clients, own)
            entry = self._trial(reason) if leaving is None else Entry(Verdict.SERVED, reason, leaving)
        elif guest.session.needs_login:
            entry = self._among_logins()
        if entry.verdict is Verdict.ON_TRIAL:
            self._trials[guest] = now_ms
        if entry.verdict is not Verdict.CLOSED:
            self._guests[guest] = None
        return entry

    def _among_logins(self) -> Entry[G]:
        """The entry of a connection that must log in. A stranger may open many, but holds only a few."""
        waiting = [it for it in self._guests if it.session.needs_login]
        if len(waiting) < LOGINS_MAX:
            return Entry(Verdict.SERVED)
        reason = f"there are {len(waiting)} connections without a login"
        return Entry(Verdict.SERVED, reason, _oldest_of_most(waiting))

    def _to_leave(self, clients: Counter[str], own: int) -> G | None:
        """The longest idle connection of the address with the most connections.

        None unless that address has more connections than the address of the new connection, which counts already.
        """
        if not clients:
            return None
        ((address, most),) = clients.most_common(1)
        if most <= own + 1:
            return None
        theirs = (it for it in self._guests if it.address == address and not is_node(it.session))
        return min((it for it in theirs if it not in self._trials), key=lambda it: (not it.is_idle, it.since_ms))

    def _trial(self, reason: str) -> Entry[G]:
        if not self._has_login():
            return Entry(Verdict.CLOSED, reason)
        on_trial = [it for it in list(self._trials) if self.is_on_trial(it)]
        return Entry(Verdict.ON_TRIAL, reason, _oldest_of_most(on_trial) if len(on_trial) >= TRIALS_MAX else None)

    def is_on_trial(self, guest: G) -> bool:
        """Whether a connection may only log in. A connection that has logged in as a node is not on trial any more."""
        if guest in self._trials and is_node(guest.session):
            del self._trials[guest]
        return guest in self._trials

    def overdue(self, now_ms: int) -> list[G]:
        """The connections whose trial has lasted too long."""
        trials = list(self._trials.items())
        return [it for it, since_ms in trials if now_ms - since_ms >= TRIAL_MS and self.is_on_trial(it)]

    def leave(self, guest: G) -> None:
        """A connection was closed."""
        self._guests.pop(guest, None)
        self._trials.pop(guest, None)


def _oldest_of_most(guests: Sequence[G]) -> G:
    """The oldest connection of the address that has the most of these connections."""
    ((address, _count),) = Counter(it.address for it in guests).most_common(1)
    return next(it for it in guests if it.address == address)
