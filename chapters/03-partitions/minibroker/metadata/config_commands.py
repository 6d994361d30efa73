"""The command that changes the configurations of topics and brokers. A pure module.

The older request replaces the whole configuration of a resource. The newer request changes single keys. It sets or
deletes a value, or adds items to a list or removes items from it. Both become `AlterConfigs`. Either all changes to a
resource are made, or none. An error in one resource does not affect the others.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minibroker.metadata.config_keys import ConfigResource, ConfigType, KeyTable, split_list
from minibroker.metadata.config_resources import resource_kind
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, Records, duplicates
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import Image
from minibroker.metadata.names import quoted
from minibroker.metadata.records import ConfigRecord
from minibroker.wire.codes import ErrorCode


class ConfigOperation(enum.IntEnum):
    """An operation on a configuration, with its number on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class ConfigChange:
    """A change of one configuration. `operation` is the number in the request, and may be invalid."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


@dataclass(frozen=True)
class ResourceChange:
    """The changes to one resource. `resource_type` is the number in the request, and may be invalid."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]


@dataclass(frozen=True)
class AlteredResource:
    """The result for one resource."""

    resource_type: int
    resource_name: str
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True)
class AlterConfigs(Command[list[AlteredResource]]):
    """Change configurations. With `replaces`, the keys that the changes do not name are deleted."""

    resources: Sequence[ResourceChange]
    node: NodeConfig
    replaces: bool = False
    validate_only: bool = False

    def run(self, image: Image, records: Records) -> list[AlteredResource]:
        """Decide about each resource. A resource that occurs twice gets two refusals, as in Kafka."""
        twice = duplicates((it.resource_type, it.resource_name) for it in self.resources)
        results = []
        for resource in self.resources:
            kind, name = resource.resource_type, resource.resource_name
            try:
                if (kind, name) in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, "the resource is in the request more than once")
                self._alter(image, resource, records)
                results.append(AlteredResource(kind, name))
            except Refused as refused:
                results.append(AlteredResource(kind, name, refused.code, str(refused)))
        return results

    def refuse(self, code: ErrorCode, message: str) -> list[AlteredResource]:
        """The same error for every resource."""
        return [AlteredResource(it.resource_type, it.resource_name, code, message) for it in self.resources]

    def _alter(self, image: Image, resource: ResourceChange, records: Records) -> None:
        _check_request(resource)
        found = resource_kind(resource.resource_type, "configurations of a resource of type {} cannot be changed")
        kind = ConfigResource(resource.resource_type)
        old = image.configs.get((kind, resource.resource_name), {})
        new = {} if self.replaces else dict(old)
        for change in resource.changes:
            _apply(change, new, found.table)
        found.check(image, resource.resource_name, new, self.node)
        records.add(_difference(kind, resource.resource_name, old, new))


def _difference(kind: ConfigResource, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[ConfigRecord]:
    """The records that turn the old configuration into the new one."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    removed: dict[str, str | None] = {key: None for key in old if key not in new}
    return [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for key, value in (changed | removed).items()
    ]


# Checks ---------------------------------------------------------------------------------------------------------------


def _check_request(resource: ResourceChange) -> None:
    twice = duplicates(change.name for change in resource.changes)
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quoted(min(twice))} is in the request more than once")
    for change in resource.changes:
        if change.value is None and change.operation != ConfigOperation.DELETE:
            message = f"{quoted(change.name)} has no value: give it one, or remove it with DELETE"
            raise Refused(ErrorCode.INVALID_REQUEST, message)


# Operations -----------------------------------------------------------------------------------------------------------


def _apply(change: ConfigChange, configs: dict[str, str], table: KeyTable) -> None:
    """Change one configuration of a resource."""
    value = change.value or ""
    if change.operation == ConfigOperation.SET:
        configs[change.name] = value
    elif change.operation == ConfigOperation.DELETE:
        configs.pop(change.name, None)
    elif change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        items = _items(change, configs, table)
        given = split_list(value.strip())
        if change.operation == ConfigOperation.APPEND:
            items += [item for item in dict.fromkeys(given) if item not in items]
        else:
            items = [item for item in items if item not in given]
        configs[change.name] = ",".join(items)
    else:
        message = f"operation {change.operation} is unknown: 0 sets, 1 deletes, 2 appends, 3 subtracts"
        raise Refused(ErrorCode.INVALID_REQUEST, message)


def _items(change: ConfigChange, configs: Mapping[str, str], table: KeyTable) -> list[str]:
    """The current items of a list: the items that are set, or else the default."""
    key = table.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        message = f"{quoted(change.name)} is not a list: use SET instead of APPEND and SUBTRACT"
        raise Refused(ErrorCode.INVALID_CONFIG, message)
    return [item for item in split_list(configs.get(key.name, key.default or "")) if item]
