"""The page of all configurations, made from the declared keys.

    python -m minibroker.broker.configuration_page > docs/reference/configuration.md

This command writes the page again. A test compares the page in the repository with the keys.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minibroker.broker.catalogue import INERT_BROKER_KEYS, INERT_TOPIC_KEYS, NEEDS_A_RESTART
from minibroker.broker.keys import declare_every_key
from minibroker.groups.keys import GROUP_CONFIGS
from minibroker.metadata.config_keys import BROKER_CONFIGS, INT_MAX, LONG_MAX, TOPIC_CONFIGS, ConfigKey

_HEAD = """# Configuration

A broker is configured with Kafka's names. They are given on the command line (`minibroker serve --set name=value`) or
in a file (`--config FILE`, lines of `name=value`). An unknown name is refused, and the message names the one that is
probably meant. A configuration of Kafka that this broker does not support is refused, and the message says what to do
instead. A name that is in the file twice is refused with both lines. A single node needs no configuration. A node with
`controller.quorum.voters` needs `node.id`, too. A listener is `PLAINTEXT` or `SASL_PLAINTEXT`: one with TLS is refused,
because this broker has none yet. The value for a topic is the first of these:

1. the topic's own value, set when it was created or altered;
2. the value set for this broker while it runs, under the name in the column *broker's name*;
3. the value set for all brokers while they run;
4. the value that the broker was started with;
5. the default.

This page is made from the keys that the packages declare, by `python -m minibroker.broker.configuration_page`; a test
compares it with them. The defaults and the limits are those of Apache Kafka 4.3."""

_DEPARTURES = """## Defaults that differ from Kafka's

| configuration | Kafka | here | why |
|---|---|---|---|"""

_COMMANDS = """Commands set values, too, and `--set` overrides them. `minibroker up -n N` sets every replication factor
to N, 3 at most, and `min.insync.replicas` to 2 if N is 3 or more. `minibroker serve` without a file and without
`controller.quorum.voters` runs a single node, so it sets `offsets.topic.replication.factor` to 1."""

_TOPIC = """## Topics

Set with `minibroker topics create --config` and `minibroker topics alter --config`, or by any of Kafka's own tools. The
last column is the broker's configuration whose value applies to topics that do not set their own. The table leaves out
`internal.segment.bytes`, which is shown only where it is set: Kafka's tests use it for segments smaller than
`segment.bytes` allows.

| configuration | type | default | allowed | what it does | broker's name |
|---|---|---|---|---|---|"""

_BROKER = """## Brokers

The broker's names in the table above are configurations of a broker, too. They can be changed while it runs, unless
this table says no. No `minibroker` command changes a broker's configuration yet, but any administration client does:
with confluent-kafka, `AdminClient.incremental_alter_configs` on `ConfigResource(ResourceType.BROKER, "1", …)`, where 1
is the node's id.

| configuration | type | default | allowed | what it does | can be changed while it runs |
|---|---|---|---|---|---|"""

_GROUP = """## Groups

Set for one group, a resource of type 32, by any administration client that knows it, such as Kafka's `kafka-configs.sh
--entity-type groups`. The limits are the broker's `group.consumer.min.*` and `group.consumer.max.*`. The last column is
the broker's configuration whose value applies to groups that do not set their own.

| configuration | type | default | allowed | what it does | broker's name |
|---|---|---|---|---|---|"""

_INERT = """## Accepted, but without effect

Tools copy whole sets of configurations from one cluster to another, so every configuration of a topic is accepted, kept
and shown. These have no effect on this broker:"""

_RESTART = """## Changed by a restart, where Kafka needs none

Kafka can change these while a broker runs. This broker refuses the change, because it would have no effect:"""


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
    yield from ("", _COMMANDS, "", _TOPIC)
    yield from (_row_with_synonyms(key) for key in _shown(TOPIC_CONFIGS.in_order()))
    yield from ("", _BROKER)
    for key in _shown(own):
        yield f"{_row(key)} {'yes' if key.is_dynamic else 'no'} |"
    yield from ("", _GROUP)
    yield from (_row_with_synonyms(key) for key in GROUP_CONFIGS.in_order())
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


def _row_with_synonyms(key: ConfigKey[Any]) -> str:
    return f"{_row(key)} {', '.join(f'`{it.name}`' for it in key.synonyms) or '–'} |"


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
