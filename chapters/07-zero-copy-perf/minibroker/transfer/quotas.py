"""Quotas: what a user or a client id may use of this node (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612).

    producer_byte_rate         bytes of Produce requests in a second
    consumer_byte_rate         bytes of answers to Fetch in a second; an answer that exceeds it is sent empty
    request_percentage         the share of the event loop's time that handlers take
    controller_mutation_rate   partitions that are created or deleted in a second, counted at the controller
    connection_creation_rate   new connections of an address in a second

A client that exceeds a quota gets its answer at once, with the time that it must wait. Then its connection reads no
request for that time. So a client that ignores the time is slowed down as well, and its requests fill its own memory.

`Metering` is the filter before all handlers. Without any quota it costs one look at a flag. Requests of other nodes are
not limited.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from minibroker.log.clock import monotonic_ms
from minibroker.metadata.authority import Authority
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.access import Access, Place
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.store import Store
from minibroker.partitions.waiting import Wait
from minibroker.transfer.arrivals import Arrivals
from minibroker.transfer.keys import (
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    MAX_CONNECTION_CREATION_RATE,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
)
from minibroker.transfer.mutations import KINDS, Mutations
from minibroker.transfer.quota_answering import QuotaHandlers
from minibroker.transfer.rates import Windows
from minibroker.transfer.usage import Allowance, Usage
from minibroker.wire.apis import ApiKey
from minibroker.wire.headers import frame_response, part_bytes
from minibroker.wire.schema import Response
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse

ROWS: Mapping[ApiKey, Access] = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Access(),
    ApiKey.ALTER_CLIENT_QUOTAS: Access((Place.CONTROLLER,)),
}
"""The rows of the APIs that chapter 07 serves."""

T = TypeVar("T", bound=Response | None)

_REQUEST_DELAY_MS_MAX = 1000
_PERCENT = 100
_FREE = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""A login is not limited, because the user is not known before."""


def usage_of(config: NodeConfig) -> Usage:
    """What clients use of the quotas, measured over the configured windows."""
    return Usage(
        Windows(QUOTA_WINDOW_NUM.of(config), QUOTA_WINDOW_SIZE_SECONDS.of(config) * 1000),
        Windows(CONTROLLER_QUOTA_WINDOW_NUM.of(config), CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS.of(config) * 1000),
    )


class Metering:
    """Counts what clients use, and makes those wait that use too much."""

    def __init__(self, usage: Usage, *, clock: Callable[[], int] = monotonic_ms) -> None:
        self.usage = usage
        self._clock = clock

    def allowance(self, call: Call[Any]) -> Allowance:
        """The quotas of the client that makes a call."""
        return self.usage.of(call.session.principal.name, call.header.client_id or "", self._clock())

    def guard(self, key: ApiKey, handler: Handler) -> Handler:
        """Put the filter before a handler."""
        usage = self.usage
        if key in _FREE:
            return handler

        def answer(call: Call[Any]) -> Answer:
            if not usage.is_set or call.session.node_id is not None:
                return handler(call)
            return _Metered(self, key, call, handler).answer()

        return answer

    # Fetch: `Limit` of session_fetch ----------------------------------------------------------------------------------

    @property
    def is_set(self) -> bool:
        """Whether any client is limited."""
        return self.usage.is_set

    def bytes_max(self, call: Call[FetchRequest]) -> int | None:
        """The bytes that the quota allows in all samples together. A larger answer would be refused again and again."""
        limited = self.allowance(call).consume if self.usage.is_set else None
        return None if limited is None else max(int(limited.quota * self.usage.full_s), 1)

    def delay_ms(self, call: Call[FetchRequest], response: FetchResponse) -> int:
        """Count the bytes of an answer. If they exceed the quota, do not count them, and return how long to wait."""
        limited = self.allowance(call).consume if self.usage.is_set else None
        if limited is None:
            return 0
        size = part_bytes(frame_response(response, version=call.version, correlation_id=0))
        delay_ms = limited.delay_ms(size, self._clock())
        if delay_ms:
            limited.rate.record(-size, self._clock())
        return delay_ms

    @property
    def now_ms(self) -> int:
        """The time of the clock that counts."""
        return self._clock()


class _Metered:
    """One request of a client that may have a quota."""

    def __init__(self, metering: Metering, key: ApiKey, call: Call[Any], handler: Handler) -> None:
        self._metering = metering
        self._key = key
        self._call = call
        self._handler = handler
        self._allowance = metering.allowance(call)

    def answer(self) -> Answer:
        begin = perf_counter()
        answer = self._handler(self._call)
        self._count_time(begin)
        if not isinstance(answer, Wait):
            return self._finish(answer)
        wait = answer.then(self._finish)

        def attempt() -> Response | None:
            begin = perf_counter()
            response = wait.attempt()
            self._count_time(begin)
            return response

        return replace(wait, attempt=attempt)

    def _count_time(self, begin: float) -> None:
        limited = self._allowance.request
        if limited is not None:
            limited.rate.record((perf_counter() - begin) * _PERCENT, self._metering.now_ms)

    def _finish(self, response: T) -> T:
        """Set how long the client must wait. A request without an answer makes it wait, too."""
        delay_ms = max(self._delay_ms(), getattr(response, "throttle_time_ms", 0))
        if delay_ms:
            self._call.session.pause_ms = delay_ms
            if hasattr(response, "throttle_time_ms"):
                setattr(response, "throttle_time_ms", delay_ms)  # noqa: B010
        return response

    def _delay_ms(self) -> int:
        produce, request, now_ms = self._allowance.produce, self._allowance.request, self._metering.now_ms
        delay_ms = 0
        if produce is not None and self._key is ApiKey.PRODUCE:
            delay_ms = produce.delay_ms(self._call.size, now_ms)
        if request is not None:
            delay_ms = max(delay_ms, min(request.rate.delay_ms(request.quota, now_ms), _REQUEST_DELAY_MS_MAX))
        return delay_ms


class Quotas:
    """The quotas as a part of a node."""

    rows = ROWS

    def __init__(
        self, machine: Machine, authority: Callable[[], Authority], metering: Metering, arrivals: Arrivals
    ) -> None:
        """`authority` is known only when the node is open."""
        self._machine = machine
        self._authority = authority
        self._metering = metering
        self._arrivals = arrivals

    def open(self) -> None:
        """Follow the quotas in the metadata."""
        self._on_image(Image(), self._authority().image)
        self._authority().subscribe(self._on_image)

    def _on_image(self, old: Image, new: Image) -> None:
        if new.client_quotas is not old.client_quotas:
            self._metering.usage.set_quotas(new.client_quotas)
        if new.configs is not old.configs:
            config = self._machine.config.with_dynamic(new.configs)
            self._arrivals.rate_max = MAX_CONNECTION_CREATION_RATE.of(config)

    def add_handlers(self, registry: Registry, store: Store) -> None:  # noqa: ARG002
        """Serve the two APIs of quotas, and limit the handlers that change topics."""
        handlers = QuotaHandlers(self._authority())
        registry.add(ApiKey.DESCRIBE_CLIENT_QUOTAS, handlers.describe)
        registry.add(ApiKey.ALTER_CLIENT_QUOTAS, handlers.alter)
        registry.guard(self._guard_mutations)

    def _guard_mutations(self, key: ApiKey, handler: Handler) -> Handler:
        """Unlike `Metering`, this is reached only at the controller, which counts the changes of all brokers."""
        if key not in KINDS:
            return handler

        def answer(call: Call[Any]) -> Answer:
            tokens = self._metering.allowance(call).mutate if self._metering.is_set else None
            if tokens is None or call.session.node_id is not None:
                return handler(call)
            image, default = self._authority().image, self._machine.config.num_partitions
            mutations = Mutations(key, tokens, image, default_partitions=default, clock=monotonic_ms)
            return mutations.answer(call, handler)

        return answer

    def start(self) -> None:
        """Begin to count. All handlers have been added, and calls that are forwarded count, too."""
        self._machine.registry.guard(self._metering.guard)

    async def stop(self) -> None:
        """There is nothing to stop."""
