"""Fetch sessions as a part of a node."""

from collections.abc import Mapping
from random import SystemRandom

from minibroker.log.clock import monotonic_ms
from minibroker.partitions.access import Access
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Handler, Registry
from minibroker.partitions.store import Store
from minibroker.transfer.keys import FETCH_SESSION_CACHE_SLOTS
from minibroker.transfer.session_fetch import Limit, SessionFetch
from minibroker.wire.apis import ApiKey

_ID_MAX = 2**31 - 1


class FetchSessions:
    """Puts the filter with sessions before Fetch."""

    rows: Mapping[ApiKey, Access] = {}

    def __init__(self, machine: Machine, limit: Limit) -> None:
        self._machine = machine
        self._limit = limit

    def open(self) -> None:
        """There is nothing to open."""

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Put the filter before the handler of Fetch, which was added before."""
        config, random = self._machine.config, SystemRandom()
        sessions = SessionFetch(
            self._machine.waiting,
            slots=FETCH_SESSION_CACHE_SLOTS.of(config),
            new_id=lambda: random.randint(1, _ID_MAX),
            clock=monotonic_ms,
            topic_name=store.topic_name,
            bytes_max=config.fetch_max_bytes,
            limit=self._limit,
        )

        def guard(key: ApiKey, handler: Handler) -> Handler:
            return (lambda call: sessions(call, handler)) if key is ApiKey.FETCH else handler

        registry.guard(guard)

    def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop."""
