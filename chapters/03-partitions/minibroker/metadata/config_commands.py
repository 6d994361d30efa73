"""The command that changes configurations, of topics and of brokers. A pure module.

The older request replaces everything that a resource has; the newer one changes what it names: set, take back, and for
lists append and subtract. Both become `AlterConfigs`. A resource is changed as a whole or not at all, and resources
fail each by itself.
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
    """What to do with a configuration, with its number on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class ConfigChange:
    """One configuration to be changed. The operation is a number as it came, perhaps one that nobody knows."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


@dataclass(frozen=True)
class ResourceChange:
    """The changes to one resource. Its type is a number as it came."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]


@dataclass(frozen=True)
class AlteredResource:
    """What came of a resource that was to be changed."""

    resource_type: int
    resource_name: str
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True)
class AlterConfigs(Command[list[AlteredResource]]):
    """Change configurations. With `replaces`, what a resource has and the changes do not name is taken back."""

    resources: Sequence[ResourceChange]
    node: NodeConfig
    replaces: bool = False
    validate_only: bool = False

    def run(self, image: Image, records: Records) -> list[AlteredResource]:
        """Decide about each resource; one that is there twice is refused twice, as Kafka does."""
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
        """The same for every resource."""
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
    """The records that lead from the old configuration to the new one: none for what stays."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    gone: dict[str, str | None] = {key: None for key in old if key not in new}
    return [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for key, value in (changed | gone).items()
    ]


# Checks ---------------------------------------------------------------------------------------------------------------


def _check_request(resource: ResourceChange) -> None:
    twice = duplicates(change.name for change in resource.changes)
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{quoted(min(twice))} is in the request more than once")
    for change in resource.changes:
        if change.value is None and change.operation != ConfigOperation.DELETE:
            message = f"{quoted(change.name)} has no value: give it one, or take it back with DELETE"
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
        message = f"operation {change.operation} is unknown: 0 sets, 1 takes back, 2 appends, 3 subtracts"
        raise Refused(ErrorCode.INVALID_REQUEST, message)


def _items(change: ConfigChange, configs: Mapping[str, str], table: KeyTable) -> list[str]:
    """What a list holds so far: what was set, else the default."""
    key = table.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        message = f"{quoted(change.name)} is no list: nothing can be appended or subtracted, use SET"
        raise Refused(ErrorCode.INVALID_CONFIG, message)
    return [item for item in split_list(configs.get(key.name, key.default or "")) if item]
