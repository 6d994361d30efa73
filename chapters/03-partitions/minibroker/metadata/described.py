"""The descriptions of configurations: their values, and all places where they are set. A pure module.

The synonyms of a configuration are all places where it is set, in order of precedence. As in Kafka, a key in hours
counts as a synonym of a key in milliseconds only if the key in hours is set.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from minibroker.metadata.config_keys import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey, ConfigSource, Value
from minibroker.metadata.configs import NodeConfig, Texts, TopicConfig


class SetValue(NamedTuple):
    """One place where a value is set, and the name of the key in that place."""

    name: str
    value: str | None
    source: ConfigSource


class Described(NamedTuple):
    """The description of a configuration. The value of a secret is None."""

    key: ConfigKey[Any]
    value: str | None
    source: ConfigSource
    synonyms: Sequence[SetValue]
    is_read_only: bool


def describe_topic(overrides: Texts, node: NodeConfig) -> list[Described]:
    """All configurations of a topic with these overrides."""
    config = TopicConfig(overrides, node)
    return [
        describe_key(key, key.of(config), ConfigSource.TOPIC_CONFIG if key.name in overrides else None, node)
        for key in TOPIC_CONFIGS.in_order()
        if not key.is_internal or key.of(config) is not None
    ]


def describe_key(key: ConfigKey[Any], value: Value, own: ConfigSource | None, node: NodeConfig) -> Described:
    """One configuration of a topic, or of another resource. `own` is the source of the resource's own value, if any."""
    text = _shown(key, value)
    synonyms = [] if own is None else [SetValue(key.name, text, own)]
    if key.synonym is not None:
        names = [synonym.name for synonym in key.synonyms]
        places = list(_places(names, node))
        is_set = any(place.source is not ConfigSource.DEFAULT_CONFIG for place in places)
        synonyms += places if is_set else _from(key.synonym, places)
    return Described(key, text, _first_source(synonyms), synonyms, is_read_only=False)


def describe_broker(node: NodeConfig) -> list[Described]:
    """All configurations of this broker."""
    families = _families()
    return [
        _broker_entry(key, families.get(key.name, [key.name]), node)
        for key in BROKER_CONFIGS.in_order()
        if not key.is_internal or any(key.name in texts for _source, texts in node.layers)
    ]


def _broker_entry(key: ConfigKey[Any], family: Sequence[str], node: NodeConfig) -> Described:
    synonyms = _from(key.name, _places(family, node))
    value = _shown(key, key.of(node))
    return Described(key, value, _first_source(synonyms), synonyms, is_read_only=not key.is_dynamic)


def describe_all_brokers(node: NodeConfig) -> list[Described]:
    """Only the configurations that are set at runtime for all brokers."""
    source, texts = next(layer for layer in node.layers if layer[0] is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    entries = []
    for name, text in texts.items():
        key = BROKER_CONFIGS[name]
        value = _shown(key, key.parse(text))
        entries.append(Described(key, value, source, [SetValue(name, value, source)], not key.is_dynamic))
    return entries


# Synonyms -------------------------------------------------------------------------------------------------------------


def _families() -> Mapping[str, Sequence[str]]:
    """Broker keys with the same meaning in different units, in order of precedence."""
    # log.flush.scheduler.interval.ms has a meaning of its own. It is a synonym only because it holds a default.
    return {
        synonym.name: [it.name for it in key.synonyms]
        for key in TOPIC_CONFIGS.values()
        for synonym in key.synonyms
        if len(key.synonyms) > 1 and synonym.name != "log.flush.scheduler.interval.ms"
    }


def _places(names: Sequence[str], node: NodeConfig) -> Iterable[SetValue]:
    """The places where these broker keys are set, in order of precedence."""
    for source, texts in node.layers:
        for name in names:
            if name in texts:
                yield SetValue(name, _unless_secret(BROKER_CONFIGS[name], texts[name]), source)
    for name in names:
        key = BROKER_CONFIGS[name]
        if key.default is not None:
            yield SetValue(name, _unless_secret(key, key.default), ConfigSource.DEFAULT_CONFIG)


def _from(name: str, places: Iterable[SetValue]) -> list[SetValue]:
    """The first place with this name, and all places after it."""
    found: list[SetValue] = []
    for place in places:
        if found or place.name == name:
            found.append(place)
    return found


def _first_source(synonyms: Sequence[SetValue]) -> ConfigSource:
    return synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG


# Values as text -------------------------------------------------------------------------------------------------------


def _unless_secret(key: ConfigKey[Any], text: str) -> str | None:
    return None if key.is_sensitive else text


def _shown(key: ConfigKey[Any], value: Value) -> str | None:
    return None if value is None or key.is_sensitive else text_of(value)


def text_of(value: Value) -> str:
    """A value as Java writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_text(value) if isinstance(value, float) else str(value)


def _double_text(value: float) -> str:
    # Java uses an exponent from 10^7 on and below 10^-3, without a plus sign, and always a digit after the point.
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = (str(digit) for digit in digits)
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{int(exponent) + len(rest)}"
