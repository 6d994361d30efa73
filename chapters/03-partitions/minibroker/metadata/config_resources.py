"""The kinds of resources that have configurations: how each is described, and checked before a change. A pure module.

A topic and a broker are such. A later chapter adds its own kind to `RESOURCES`, with a table of keys.
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
    """One kind of resource. Both functions get the image, a resource's name and what holds for this broker."""

    table: KeyTable
    describe: Callable[[Image, str, NodeConfig], Sequence[Described]]
    """All configurations of a resource, or `Refused`."""
    check: Callable[[Image, str, Texts, NodeConfig], None]
    """Demand that a resource may have these configurations."""


def resource_kind(resource_type: int, otherwise: str) -> ResourceKind:
    """The kind of that number. If there is none, `otherwise` says what cannot be done."""
    if resource_type not in RESOURCES:
        known = ", ".join(f"{number:d} a {kind.table.kind}" for number, kind in RESOURCES.items())
        message = f"{otherwise.format(resource_type)}: {known.replace(' a ', ' is a ', 1)}"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    return RESOURCES[resource_type]


# Topics ---------------------------------------------------------------------------------------------------------------


def _described_topic(image: Image, name: str, node: NodeConfig) -> Sequence[Described]:
    check_topic_name(name)
    _demand_topic(image, name)
    return describe_topic(image.topic_configs(name), node)


def _check_topic(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic without a name: there are no defaults for all topics")
    check_topic_name(name)
    check_topic_configs(configs, node)
    _demand_topic(image, name)


def _demand_topic(image: Image, name: str) -> None:
    if name not in image.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")


# Brokers --------------------------------------------------------------------------------------------------------------


def _described_broker(image: Image, name: str, node: NodeConfig) -> Sequence[Described]:  # noqa: ARG001
    """This broker, or with no name what was set for all of them."""
    if not name:
        return describe_all_brokers(node)
    if name != str(node.node_id):
        message = f"there is no broker {name[:64]!a}: this is {node.node_id}, and nothing means all brokers"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    return describe_broker(node)


def _check_broker(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:
    """Demand that a broker can take these over while it runs. An empty name is all brokers."""
    brokers = {str(it): it for it in sorted({node.node_id, *image.brokers})}
    if name and name not in brokers:
        message = f"there is no broker {name[:64]!a}: there are {', '.join(brokers)}, and nothing means all brokers"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    try:
        for key in configs:
            if not BROKER_CONFIGS.find(key).is_dynamic:
                raise InvalidConfig(f"{key} cannot be changed while the broker runs: set it and start again")
        # The broker's values are the topics' defaults, so they are tried all together. What another one was started
        # with only that one knows.
        new = {**image.configs, (ConfigResource.BROKER, name): configs}
        for it in [name] if name else brokers:
            whose = node if it == str(node.node_id) else NodeConfig({"node.id": it})
            whose.checked_dynamic(new)
    except InvalidConfig as error:
        # Kafka has this code here, and INVALID_CONFIG only for topics.
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error


RESOURCES: dict[int, ResourceKind] = {
    ConfigResource.TOPIC: ResourceKind(TOPIC_CONFIGS, _described_topic, _check_topic),
    ConfigResource.BROKER: ResourceKind(BROKER_CONFIGS, _described_broker, _check_broker),
}
