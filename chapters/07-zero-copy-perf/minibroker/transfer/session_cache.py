"""The fetch sessions of a broker, at most `slots` of them. A pure module.

By Kafka's rules, a new session may take the place of

1. the session that was not used for the longest time, if that is more than two minutes;
2. a client's session, if the new one is a follower's;
3. a session with fewer partitions that began more than two minutes ago. A client's session never takes the place of a
   follower's.

Without a free place there is no session: the answer has the id 0, and the client names all partitions again. The same
holds if all sessions together would have too many partitions, because a client may name partitions that do not exist.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from minibroker.transfer.sessions import FetchSession

EVICTION_MS = 120_000
PARTITIONS_MAX = 250_000


class _Value(NamedTuple):
    """How valuable a session is. The lowest one is evicted first."""

    is_privileged: bool
    size: int
    session_id: int = 0


class SessionCache:
    """All sessions of a broker, by their ids."""

    def __init__(self, slots: int, new_id: Callable[[], int], *, on_closed: Callable[[FetchSession], None]) -> None:
        """`new_id` chooses a random id above 0. `on_closed` is called for every session that ends."""
        self.slots = slots
        self._new_id = new_id
        self._on_closed = on_closed
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first
        self._values: dict[int, _Value] = {}
        # The candidates for an eviction, the lowest value first, by whether the new session is a follower's.
        self._evictable: dict[bool, list[_Value]] = {True: [], False: []}
        self.evictions = 0
        self.partitions = 0
        """How many partitions all sessions have together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        """The session with this id."""
        return self._sessions.get(session_id)

    def begin(self, make: Callable[[int], FetchSession], *, is_privileged: bool, size: int, now_ms: int) -> int:
        """Add the session that `make` makes for an id. Return the id, or 0 if there is no place for this session."""
        if self.partitions + size > PARTITIONS_MAX:
            return 0
        is_full = len(self._sessions) >= self.slots
        if is_full and not self._evict(_Value(is_privileged, size), now_ms):
            return 0
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        self._sessions[session_id] = session = make(session_id)
        self.touch(session, now_ms)
        return session_id

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """A session is used. Its number of partitions may have changed. With too many in all, the session ends."""
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        old, value = self._values.get(session.id), _Value(session.is_privileged, len(session), session.id)
        self.partitions += value.size - (0 if old is None else old.size)
        is_old_enough = now_ms - session.created_ms > EVICTION_MS
        for by_follower, values in self._evictable.items():
            is_listed = _index(values, old) is not None
            is_evictable = is_old_enough or (by_follower and not session.is_privileged)
            if is_listed and (value != old or not is_evictable):
                _drop(values, old)
                is_listed = False
            if is_evictable and not is_listed:
                insort(values, value)
        self._values[session.id] = value
        if self.partitions > PARTITIONS_MAX:
            self.remove(session.id)

    def remove(self, session_id: int) -> None:
        """End a session, if there is one with this id."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        value = self._values.pop(session_id)
        self.partitions -= value.size
        for values in self._evictable.values():
            _drop(values, value)
        session.is_closed = True
        self._on_closed(session)

    def _evict(self, newcomer: _Value, now_ms: int) -> bool:
        """Make room for a new session. Return whether there is room."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        values = self._evictable[newcomer.is_privileged]
        if now_ms - oldest.used_ms > EVICTION_MS:
            self.remove(oldest.id)
        elif values and values[0] <= newcomer:
            self.remove(values[0].session_id)
        else:
            return False
        self.evictions += 1
        return True


def _index(values: list[_Value], value: _Value | None) -> int | None:
    if value is None:
        return None
    at = bisect_left(values, value)
    return at if at < len(values) and values[at] == value else None


def _drop(values: list[_Value], value: _Value | None) -> None:
    at = _index(values, value)
    if at is not None:
        del values[at]
