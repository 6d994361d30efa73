"""The command that sets and removes quotas, and its checks. A pure module.

    entity                      quotas
    user, client-id, or both    producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip                          connection_creation_rate

Either all changes for an entity are made, or none. An error in one entity does not affect the others.
"""

import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.metadata.decision import Command, Outcome, Records, duplicates
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import Image, QuotaEntity
from minibroker.metadata.names import quoted
from minibroker.metadata.records import ClientQuotaRecord, QuotaEntityData
from minibroker.transfer.matching import CLIENT_ID, IP, USER
from minibroker.wire.codes import ErrorCode

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
# These quotas are whole numbers. The others may have a fraction.
_WHOLE = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})
_EPSILON = 1e-6

Entity = tuple[tuple[str, str | None], ...]
"""An entity as a request names it. It may be invalid."""


class QuotaChange(NamedTuple):
    """A change of one quota. Without a value, the quota is removed."""

    key: str
    value: float | None


@dataclass(frozen=True)
class EntityChange:
    """The changes for one entity."""

    entity: Entity
    changes: Sequence[QuotaChange]


@dataclass(frozen=True)
class AlterClientQuotas(Command[list[Outcome[Entity]]]):
    """Change quotas."""

    entries: Sequence[EntityChange]
    validate_only: bool = False

    def run(self, image: Image, records: Records) -> list[Outcome[Entity]]:
        """Decide about each entity. An entity that occurs twice is refused twice."""
        twice = duplicates(tuple(sorted(it.entity, key=str)) for it in self.entries)
        results = []
        for entry in self.entries:
            try:
                if tuple(sorted(entry.entity, key=str)) in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, "the entity is in the request more than once")
                entity = checked_entity(entry.entity)
                _check_changes(entity, entry.changes)
                records.add(_records(entity, image.client_quotas.get(entity, {}), entry.changes))
                results.append(Outcome(entry.entity))
            except Refused as refused:
                results.append(Outcome(entry.entity, refused.code, str(refused)))
        return results

    def refuse(self, code: ErrorCode, message: str) -> list[Outcome[Entity]]:
        """The same error for every entity."""
        return [Outcome(it.entity, code, message) for it in self.entries]


def _records(entity: QuotaEntity, old: Mapping[str, float], changes: Sequence[QuotaChange]) -> list[ClientQuotaRecord]:
    """The records of the changes that change something."""
    names = [QuotaEntityData(entity_type=type_, entity_name=name) for type_, name in entity]
    return [
        ClientQuotaRecord(entity=names, key=key, value=value or 0.0, remove=value is None)
        for key, value in changes
        if value != old.get(key)
    ]


# Checks ---------------------------------------------------------------------------------------------------------------


def checked_entity(entity: Entity) -> QuotaEntity:
    """The entity as the image has it. Raises `Refused` if no quota can be set for it."""
    types = [type_ for type_, _name in entity]
    if not types:
        raise Refused(ErrorCode.INVALID_REQUEST, "the entity is empty: name a user, a client-id or an ip")
    if duplicates(types):
        raise Refused(ErrorCode.INVALID_REQUEST, "the entity names a type more than once")
    for type_, name in entity:
        if type_ not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{quoted(type_)} is no type: use user, client-id or ip")
        if name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"the name of the {type_} is empty: null stands for the default")
    if IP in types and len(types) > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "an ip cannot be combined with a user or a client-id")
    return tuple(sorted((type_, _address(name) if type_ == IP else name) for type_, name in entity))


def _address(name: str | None) -> str | None:
    try:
        return None if name is None else str(ipaddress.ip_address(name))
    except ValueError:
        message = f"{quoted(name or '')} is no address: host names are not resolved"
        raise Refused(ErrorCode.INVALID_REQUEST, message) from None


def _check_changes(entity: QuotaEntity, changes: Sequence[QuotaChange]) -> None:
    known = OF_ADDRESSES if entity[0][0] == IP else OF_CLIENTS
    twice = duplicates(it.key for it in changes)
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quoted(min(twice))} is in the request more than once")
    for key, value in changes:
        if key not in known:
            message = f"{quoted(key)} is no quota of this entity; its quotas are {', '.join(known)}"
            raise Refused(ErrorCode.INVALID_REQUEST, message)
        if value is not None:
            _check_value(key, value)


def _check_value(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{key}={value} is not allowed: the value must be greater than 0")
    if key in _WHOLE and abs(value - math.floor(value + _EPSILON)) > _EPSILON:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{key}={value} is not allowed: the value must be a whole number")
