"""Which quota applies to a client, and which clients share it. A pure module.

A quota is set for an entity: a user, a client id, both, or an address. The name None stands for the default of its
type. The first entity of this order that has a value for a key wins, as in Kafka:

    user and client id · user and default client id · user
    default user and client id · default user and default client id · default user
    client id · default client id

The clients that an entity names share one count. So all client ids of a user together may use the quota of the user.
With a default, each user or client id has a count of its own.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from minibroker.metadata.image import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"

Quotas = Mapping[QuotaEntity, Mapping[str, float]]


def entity(**names: str | None) -> QuotaEntity:
    """The entity with these names: `entity(user="ada", client_id=None)`."""
    return tuple(sorted((type_.replace("_", "-"), name) for type_, name in names.items()))


class Applied(NamedTuple):
    """A quota that applies to a client, and the count that it is compared with."""

    value: float
    user: str | None
    client_id: str | None
    """The user and the client id whose requests share the count; None stands for any."""


def applied(quotas: Quotas, key: str, user: str, client_id: str) -> Applied | None:
    """The quota of a client, or None if it has none."""
    for found, by_user, by_client in _candidates(user, client_id):
        value = quotas.get(found, {}).get(key)
        if value is not None:
            return Applied(value, user if by_user else None, client_id if by_client else None)
    return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, bool, bool]]:
    for name in (user, None):
        yield entity(user=name, client_id=client_id), True, True
        yield entity(user=name, client_id=None), True, True
        yield entity(user=name), True, False
    for name in (client_id, None):
        yield entity(client_id=name), False, True


def applied_to_address(quotas: Quotas, key: str, address: str) -> float | None:
    """The quota of an address: its own, or the default."""
    for name in (address, None):
        value = quotas.get(entity(ip=name), {}).get(key)
        if value is not None:
            return value
    return None
