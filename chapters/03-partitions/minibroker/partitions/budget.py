"""The memory of large requests: which connection may read more, and which one is closed. A pure module.

Bytes count when they have arrived, not when a client announces them. A request that wants to read more than there is
room for waits in a queue. Three rules keep clients from blocking each other:

- All requests of one address may together take half of the budget.
- If every request in progress waits, the oldest one may exceed the limit. Otherwise all would wait for ever. In
  the same way, if every request of one address waits, the oldest of them may exceed the half of that address.
- If requests wait, those that take room but do not arrive are closed: a request without a new byte in two seconds, or
  else the slowest one, if its remaining bytes would take longer than ten seconds.
"""

from collections import defaultdict
from collections.abc import Callable

PATIENCE_MS = 2_000
REMAINING_MS_MAX = 10_000


def _nothing() -> None:
    return


class _Address:
    """The requests of one address."""

    __slots__ = ("bytes", "shares", "waiting")

    def __init__(self) -> None:
        self.bytes = 0
        self.shares: dict[Share, None] = {}  # the oldest first
        self.waiting = 0


class Share:
    """The part of the budget that one request has taken."""

    __slots__ = ("address", "bytes", "close", "length", "resume", "wanted")

    def __init__(self, address: _Address, length: int, close: Callable[[], None]) -> None:
        self.address = address
        self.length = length
        """The bytes of the whole request, as announced."""
        self.close = close
        """Closes the connection."""
        self.bytes = 0
        self.wanted = 0
        """The bytes for which the request waits, or 0."""
        self.resume: Callable[[], None] = _nothing
        """Called when the wait is over."""


class Budget:
    """The bytes of all large requests that are being read."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._addresses: defaultdict[str, _Address] = defaultdict(_Address)
        self._shares: dict[Share, str] = {}  # the oldest first
        self._queue: dict[Share, None] = {}
        self._seen: dict[Share, int] = {}
        self._seen_ms = 0

    def begin(self, address: str, length: int, close: Callable[[], None]) -> Share:
        """A request of this many bytes begins to arrive."""
        share = Share(self._addresses[address], length, close)
        share.address.shares[share] = None
        self._shares[share] = address
        return share

    def end(self, share: Share) -> None:
        """Free the memory of a request. It was answered or dropped, or it is complete and waits for its answer."""
        self._add(share, -share.bytes)
        self._leave_queue(share)
        del share.address.shares[share]
        # These functions may refer to the request. Its bytes must be freed now, not at the next garbage collection.
        share.resume = share.close = _nothing
        name = self._shares.pop(share)
        if not share.address.shares:
            del self._addresses[name]
        self._hand_out()

    def take(self, share: Share, count: int, resume: Callable[[], None]) -> bool:
        """Take room for `count` more bytes. If there is no room, return False, and call `resume` once there is."""
        share.wanted, share.resume = count, _nothing
        share.address.waiting += 1
        self._queue[share] = None
        self._hand_out()
        share.resume = resume
        return share.wanted == 0

    def _hand_out(self) -> None:
        """Let the requests in the queue continue, as far as there is room."""
        for share in list(self._queue):
            if self.bytes + share.wanted > self._bytes_max:
                break
            # One address may take half of the budget. A request over that limit is skipped, so that the requests of
            # other addresses need not wait for it.
            if self._is_within_half(share):
                self._grant(share)
        if self._queue and len(self._queue) == len(self._shares):
            self._grant(next(iter(self._shares)))

    def _is_within_half(self, share: Share) -> bool:
        of = share.address
        if of.bytes + share.wanted <= self._bytes_max // 2:
            return True
        return of.waiting == len(of.shares) and share is next(iter(of.shares))

    def _grant(self, share: Share) -> None:
        self._add(share, share.wanted)
        self._leave_queue(share)
        share.resume()

    def _add(self, share: Share, count: int) -> None:
        self.bytes += count
        share.bytes += count
        share.address.bytes += count

    def _leave_queue(self, share: Share) -> None:
        if share.wanted:
            del self._queue[share]
            share.wanted = 0
            share.address.waiting -= 1

    # Requests that do not arrive --------------------------------------------------------------------------------------

    def laggards(self, now_ms: int) -> list[Share]:
        """The requests to close, because others wait for the room that they take. Called several times a second."""
        if not self._queue:
            self._seen = {}
            return []
        elapsed_ms = now_ms - self._seen_ms
        if self._seen and elapsed_ms < PATIENCE_MS:
            return []
        # Compare the bytes of each request with those of two seconds ago. A request that waits for room is not late.
        seen, self._seen, self._seen_ms = self._seen, {share: share.bytes for share in self._shares}, now_ms
        arrived = {it: it.bytes - seen[it] for it in self._shares if it in seen and not it.wanted}
        stalled = [it for it, count in arrived.items() if count == 0]
        slow = {it: (it.length - it.bytes) * elapsed_ms / count for it, count in arrived.items() if count}
        slowest = max(slow, key=lambda it: slow[it], default=None)
        if stalled or slowest is None or slow[slowest] <= REMAINING_MS_MAX:
            return stalled
        return [slowest]
