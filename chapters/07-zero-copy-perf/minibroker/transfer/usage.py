"""What each client has used of its quotas. A pure module.

The quotas of a client are looked up once, and kept until a quota changes. A count that has been idle for so long that
it equals a new one is dropped, so clients that come with ever new names do not fill the memory.
"""

from typing import NamedTuple

from minibroker.transfer.matching import Quotas, applied, applied_to_address
from minibroker.transfer.quota_commands import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from minibroker.transfer.rates import Bucket, Rate, Windows

_COUNTS_MAX = 10_000


class Limited(NamedTuple):
    """A quota, and the rate that it limits."""

    quota: float
    rate: Rate

    def delay_ms(self, amount: float, now_ms: int) -> int:
        """Count an amount, and return how long the client must wait because of it."""
        self.rate.record(amount, now_ms)
        return self.rate.delay_ms(self.quota, now_ms)


class Tokens(NamedTuple):
    """A quota for work in bursts, and the bucket of its tokens."""

    quota: float
    bucket: Bucket

    def delay_ms(self, now_ms: int) -> int:
        """How long no work is accepted."""
        return self.bucket.delay_ms(self.quota, now_ms)

    def take(self, count: float, now_ms: int) -> None:
        """Take tokens for work that is accepted."""
        self.bucket.take(count, self.quota, now_ms)


class Allowance(NamedTuple):
    """The quotas of one client; None where it has none."""

    produce: Limited | None
    consume: Limited | None
    request: Limited | None
    mutate: Tokens | None


_Shared = tuple[str, str | None, str | None]  # the key of a quota, and the user and the client id that share the count


class Usage:
    """The quotas of a node, and what its clients have used of them."""

    def __init__(self, windows: Windows = Windows(), mutations: Windows = Windows()) -> None:  # noqa: B008
        self._windows = windows
        self._mutations = mutations
        self._quotas: Quotas = {}
        self._allowances: dict[tuple[str, str], Allowance] = {}
        self._rates: dict[_Shared, Rate] = {}
        self._buckets: dict[_Shared, tuple[float, Bucket]] = {}
        self.is_set = False
        """Whether any user or client id has a quota."""

    @property
    def full_s(self) -> float:
        """The seconds over which a rate is averaged."""
        return self._windows.full_s

    def set_quotas(self, quotas: Quotas) -> None:
        """The quotas have changed. What was used before still counts."""
        self._quotas = quotas
        self._allowances = {}
        self.is_set = any(key in OF_CLIENTS for values in quotas.values() for key in values)

    def of(self, user: str, client_id: str, now_ms: int) -> Allowance:
        """The quotas of a client."""
        found = self._allowances.get((user, client_id))
        if found is None:
            self._tidy(now_ms)
            found = self._allowances[user, client_id] = Allowance(
                self._limited(PRODUCER_BYTE_RATE, user, client_id),
                self._limited(CONSUMER_BYTE_RATE, user, client_id),
                self._limited(REQUEST_PERCENTAGE, user, client_id),
                self._tokens(user, client_id),
            )
        return found

    def connecting(self, address: str, now_ms: int) -> Limited | None:
        """The quota for new connections of an address."""
        quota = applied_to_address(self._quotas, CONNECTION_CREATION_RATE, address)
        if quota is None:
            return None
        self._tidy(now_ms)
        return Limited(quota, self._rate((CONNECTION_CREATION_RATE, address, None)))

    def _limited(self, key: str, user: str, client_id: str) -> Limited | None:
        found = applied(self._quotas, key, user, client_id)
        return None if found is None else Limited(found.value, self._rate((key, found.user, found.client_id)))

    def _rate(self, shared: _Shared) -> Rate:
        return self._rates.setdefault(shared, Rate(self._windows))

    def _tokens(self, user: str, client_id: str) -> Tokens | None:
        found = applied(self._quotas, CONTROLLER_MUTATION_RATE, user, client_id)
        if found is None:
            return None
        shared = (CONTROLLER_MUTATION_RATE, found.user, found.client_id)
        known = self._buckets.get(shared)
        bucket = Bucket(self._mutations) if known is None else known[1]
        self._buckets[shared] = (found.value, bucket)
        return Tokens(found.value, bucket)

    def _tidy(self, now_ms: int) -> None:
        """Drop the counts that equal new ones, if there are many."""
        if len(self._allowances) + len(self._rates) + len(self._buckets) < _COUNTS_MAX:
            return
        self._allowances = {}
        self._rates = {key: it for key, it in self._rates.items() if not it.is_empty(now_ms)}
        self._buckets = {key: it for key, it in self._buckets.items() if not it[1].is_full(it[0], now_ms)}
