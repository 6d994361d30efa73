"""The kinds of resources that have configurations: how to describe each, and how to check a change. A pure module.

Topics and brokers are such kinds. A later chapter adds its own to `RESOURCES`, with a table of keys.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minibroker.metadata.config_keys import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigResource, KeyTable
from minibroker.metadata.configs import NodeConfig, Texts, check_topic_configs
from minibroker.metadata.described import Described, describe_all_brokers, describe_broker, describe_topic
from minibroker.metadata.errors import InvalidConfig, Refused
from minibroker.metadata.image import Image
from minibroker.metadata.names import check_topic_name
from minibroker.wire.codes import ErrorCode


class ResourceKind(NamedTuple):
    """One kind of resource. `describe` and `check` get the image, a resource's name and this broker's configuration."""

    table: KeyTable
    names: Callable[[Image], Sequence[str]]
    """Lists the resources of this kind that can be described."""
    describe: Callable[[Image, str, NodeConfig], Sequence[Described]]
    """Describes all configurations of a resource, or raises `Refused`."""
    check: Callable[[Image, str, Texts, NodeConfig], None]
    """Raises `Refused` if a resource cannot have these configurations."""


def resource_kind(resource_type: int, otherwise: str) -> ResourceKind:
    """The kind with this number. If it is unknown, raise `Refused` with a message that begins with `otherwise`."""
    if resource_type not in RESOURCES:
        known = ", ".join(f"{number:d} a {kind.table.kind}" for number, kind in RESOURCES.items())
        message = f"{otherwise.format(resource_type)}: {known.replace(' a ', ' is a ', 1)}"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    return RESOURCES[resource_type]


# Topics ---------------------------------------------------------------------------------------------------------------


def _described_topic(image: Image, name: str, node: NodeConfig) -> Sequence[Described]:
    check_topic_name(name)
    _check_topic_exists(image, name)
    return describe_topic(image.topic_configs(name), node)


def _check_topic(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:
    if not name:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "the topic's name is empty: name one topic, because there are no defaults for all topics",
        )
    check_topic_name(name)
    check_topic_configs(configs, node)
    _check_topic_exists(image, name)


def _check_topic_exists(image: Image, name: str) -> None:
    if name not in image.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")


# Brokers --------------------------------------------------------------------------------------------------------------


def _described_broker(image: Image, name: str, node: NodeConfig) -> Sequence[Described]:  # noqa: ARG001
    """Describe this broker. An empty name means the values that are set for all brokers."""
    if not name:
        return describe_all_brokers(node)
    if name != str(node.node_id):
        message = (
            f"there is no broker {name[:64]!a} here: this is broker {node.node_id}, and an empty name means all brokers"
        )
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    return describe_broker(node)


def _check_broker(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:
    """Refuse configurations that a running broker cannot apply. An empty name means all brokers."""
    brokers = {str(it): it for it in sorted({node.node_id, *image.brokers})}
    if name and name not in brokers:
        message = f"there is no broker {name[:64]!a}: the brokers are {', '.join(brokers)}, and an empty name means all"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    try:
        for key in configs:
            if not BROKER_CONFIGS.find(key).is_dynamic:
                raise InvalidConfig(
                    f"{key} cannot be changed at runtime: set it in the configuration and restart the broker"
                )
        # Check the broker's values together, not one by one. They are also the defaults of topics, where two values can
        # conflict. For another broker, only the dynamic values are known here, so only they are checked.
        new = {**image.configs, (ConfigResource.BROKER, name): configs}
        for it in [name] if name else brokers:
            if it == str(node.node_id):
                _check_changes(node, node.checked_dynamic(new))
            else:
                NodeConfig({"node.id": it}).checked_dynamic(new)
    except InvalidConfig as error:
        # For a broker Kafka answers INVALID_REQUEST. INVALID_CONFIG is its answer for topics and groups.
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_changes(old: NodeConfig, new: NodeConfig) -> None:
    """Refuse changes that a running broker cannot make, such as a thread pool of more than double the size."""
    for name, value in old.values.items():
        BROKER_CONFIGS[name].check_change(value, new.values[name])


RESOURCES: dict[int, ResourceKind] = {
    ConfigResource.TOPIC: ResourceKind(
        TOPIC_CONFIGS, lambda image: sorted(image.topics), _described_topic, _check_topic
    ),
    ConfigResource.BROKER: ResourceKind(
        BROKER_CONFIGS, lambda image: [str(it) for it in image.live_brokers()], _described_broker, _check_broker
    ),
}
