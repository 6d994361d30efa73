"""The page of all configurations, made from the declared keys.

    python -m minibroker.broker.configuration_page > docs/reference/configuration.md

writes it again; a test compares the page in the repository with the keys.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minibroker.broker.catalogue import INERT_BROKER_KEYS, INERT_TOPIC_KEYS, NEEDS_A_RESTART
from minibroker.broker.keys import declare_every_key
from minibroker.metadata.config_keys import BROKER_CONFIGS, INT_MAX, LONG_MAX, TOPIC_CONFIGS, ConfigKey

_HEAD = """# Configuration

A broker is configured with Kafka's names. They are given on the command line (`minibroker serve --set name=value`) or
in a file (`--config FILE`, lines of `name=value`). A name that does not exist is refused, with the one that is probably
meant; one that Kafka has and this broker has not, with what to do instead; and one that stands in the file twice, with
both lines. One node alone needs none of them. Whoever sets `controller.quorum.voters` must set `node.id`, too. A
listener is `PLAINTEXT`: one with a name that promises TLS or SASL is refused, because there are none yet. What holds
for a topic is, in this order:

1. what the topic sets itself, when it is created or altered;
2. what was set for this broker while it runs, under the broker's name of the same thing;
3. what was set for all brokers while they run;
4. what the broker was started with;
5. the default.

This page is made from the keys that the packages declare, by `python -m minibroker.broker.configuration_page`; a test
compares it with them. The defaults and the limits are those of Apache Kafka 4.3."""

_DEPARTURES = """## Defaults that differ from Kafka's

| configuration | Kafka | here | why |
|---|---|---|---|"""

_TOPIC = """## Topics

Set with `minibroker topics create --config` and `minibroker topics alter --config`, or by any of Kafka's own tools. The
last column is the broker's name for what holds where a topic sets nothing. Not in the table, because it is shown only
where it is set: `internal.segment.bytes`, Kafka's way to a segment smaller than `segment.bytes` allows, for tests.

| configuration | type | default | allowed | what it does | broker's name |
|---|---|---|---|---|---|"""

_BROKER = """## Brokers

Beside the broker's names in the table above, which can be changed while it runs unless this table says no. No command
changes a broker yet, but any administration client does: with confluent-kafka, `AdminClient.incremental_alter_configs`
on `ConfigResource(ResourceType.BROKER, "1", …)`, where 1 is the node's id.

| configuration | type | default | allowed | what it does | can be changed while it runs |
|---|---|---|---|---|---|"""

_INERT = """## Accepted, but without effect

Tools copy whole sets of configurations from one cluster to another, so every configuration of a topic is accepted, kept
and shown. This broker does nothing about these:"""

_RESTART = """## Changed by a restart, where Kafka needs none

Kafka can change these while a broker runs; here a change is refused, because it would have no effect:"""


_INERT_NAMES = frozenset(key.name for key in (*INERT_TOPIC_KEYS, *INERT_BROKER_KEYS))


def page() -> str:
    """The whole page."""
    declare_every_key()
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    synonyms = {key.synonym for key in TOPIC_CONFIGS.values()}
    own = [key for key in BROKER_CONFIGS.in_order() if key.name not in synonyms]
    yield from (_HEAD, "", _DEPARTURES)
    yield from (_departure(key) for key in own if key.departure is not None)
    yield from ("", _TOPIC)
    for key in _shown(TOPIC_CONFIGS.in_order()):
        yield f"{_row(key)} {', '.join(f'`{it.name}`' for it in key.synonyms) or '–'} |"
    yield from ("", _BROKER)
    for key in _shown(own):
        yield f"{_row(key)} {'yes' if key.is_dynamic else 'no'} |"
    yield from ("", _INERT, "", "- of topics: " + _names(INERT_TOPIC_KEYS))
    yield "- of brokers: " + _names(INERT_BROKER_KEYS)
    yield from ("", _RESTART + " " + ", ".join(f"`{name}`" for name in sorted(NEEDS_A_RESTART)) + ".")


def _departure(key: ConfigKey[Any]) -> str:
    assert key.departure is not None
    kafka, why = key.departure
    return f"| `{key.name}` | {'none' if kafka is None else _value(kafka)} | {_value(key.default or '')} | {why} |"


def _shown(keys: Iterable[ConfigKey[Any]]) -> Iterator[ConfigKey[Any]]:
    return (key for key in keys if not key.is_internal)


def _names(keys: Iterable[ConfigKey[Any]]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(key.name for key in keys))


def _row(key: ConfigKey[Any]) -> str:
    allowed = "–" if key.check is None else _escaped(key.check.rule)
    about = ("*(no effect)* " if key.name in _INERT_NAMES else "") + _escaped(key.about)
    default = "–" if key.default is None else _value(key.default)
    return f"| `{key.name}` | {key.type.name.lower()} | {default} | {allowed} | {about} |"


def _value(text: str) -> str:
    names = {str(LONG_MAX): "2⁶³ − 1", str(INT_MAX): "2³¹ − 1", "": "empty"}
    return names.get(text, f"`{text}`")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    sys.stdout.write(page())
