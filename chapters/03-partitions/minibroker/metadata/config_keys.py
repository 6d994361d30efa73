"""Configuration keys: their declaration, parsing and checks. A pure module.

A configuration is text in a file, in a request and in a metadata record. Its key says how the text is parsed, which
values are allowed, and what the default is. A package declares its keys when its module `keys` is imported, and
reads their values through these keys:

    LAG_TIME_MAX_MS = broker_key("replica.lag.time.max.ms", LONG, 30_000, at_least(1), "How long …")
    LAG_TIME_MAX_MS.of(config)

So a program knows only the keys of the chapters that it imports.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from minibroker.metadata.errors import InvalidConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ConfigType(enum.IntEnum):
    """The type of a configuration, with its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigResource(enum.IntEnum):
    """The type of a resource that has configurations, with its number on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Where a value is set, with its number in DescribeConfigs. A lower number takes precedence, except for groups."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


# Parsing, as in Kafka -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader(Generic[T_co]):
    """A type, and the function that parses its text. The function raises ValueError with the expected form."""

    type: ConfigType
    read: Callable[[str], T_co]


_WHOLE = re.compile(r"[+-]?[0-9]{1,25}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?")
_COMMA = re.compile(r"\s*,\s*")


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _whole(bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
            raise ValueError(f"a whole number of {bits} bits")
        return int(text)

    return read


def _read_double(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a number")
    return float(text)


def split_list(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list. An empty text is an empty list."""
    return tuple(_COMMA.split(text)) if text else ()


BOOLEAN = Reader(ConfigType.BOOLEAN, _read_boolean)
STRING = Reader(ConfigType.STRING, str)
PASSWORD = Reader(ConfigType.PASSWORD, str)
SHORT = Reader(ConfigType.SHORT, _whole(16))
INT = Reader(ConfigType.INT, _whole(32))
LONG = Reader(ConfigType.LONG, _whole(64))
DOUBLE = Reader(ConfigType.DOUBLE, _read_double)
LIST = Reader(ConfigType.LIST, split_list)


# Checks ---------------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """A condition on a value, and its text for messages."""

    passes: Callable[[Any], bool]
    rule: str


def at_least(least: int) -> Check:
    """A number not below a limit."""
    return Check(lambda value: value >= least, f"at least {least}")


def between(least: int, most: int) -> Check:
    """A number in a range, both ends included."""
    return Check(lambda value: least <= value <= most, f"between {least} and {most}")


def one_of(*allowed: str) -> Check:
    """One of these words."""
    return Check(lambda value: value in allowed, "one of " + ", ".join(allowed))


def list_of(*allowed: str) -> Check:
    """A list of these words only. It may be empty."""
    return Check(lambda value: set(value) <= set(allowed), "a list of " + ", ".join(allowed))


def is_read_by(parse: Callable[[str], object], rule: str) -> Check:
    """A text that a function can parse. If the function raises ValueError, the text is refused."""

    def passes(value: str) -> bool:
        try:
            parse(value)
        except ValueError:
            return False
        return True

    return Check(passes, rule)


# Keys -----------------------------------------------------------------------------------------------------------------

_SHOWN_MAX = 64


class Synonym(NamedTuple):
    """A broker key whose value, multiplied by `factor`, is the default of another resource's key."""

    name: str
    factor: int = 1


class Departure(NamedTuple):
    """Kafka's default, or None if Kafka has none, and why the default here differs."""

    kafka_default: str | None
    why: str


class Configured(Protocol):
    """An object with the typed value of each key."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The values, by the keys' names."""


@dataclass(frozen=True)
class ConfigKey(Generic[T]):
    """One configuration key: how its text is parsed, which values are allowed, and what it means."""

    name: str
    reader: Reader[T]
    default: str | None
    check: Check | None
    about: str
    synonyms: tuple[Synonym, ...] = ()
    is_dynamic: bool = False
    """Whether the value can be changed while the broker runs."""
    is_internal: bool = False
    """Whether DescribeConfigs shows the key only if it is set."""
    is_thread_count: bool = False
    """Whether the value is the size of a thread pool. One change at runtime can at most halve or double it."""
    departure: Departure | None = None

    def of(self, config: Configured) -> T:
        """The key's value in a configuration."""
        value: T = config.values[self.name]
        return value

    @property
    def type(self) -> ConfigType:
        """The key's type, as in DescribeConfigs."""
        return self.reader.type

    @property
    def synonym(self) -> str | None:
        """The first synonym: the broker key that holds the default of this key."""
        return self.synonyms[0].name if self.synonyms else None

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret, which is never shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> T:
        """Parse and check a value."""
        try:
            value = self.reader.read(text.strip())
        except ValueError as error:
            raise self._refusal(text, str(error)) from None
        if self.check is not None and not self.check.passes(value):
            raise self._refusal(text, self.check.rule)
        return value

    def check_change(self, old: T, new: T) -> None:
        """Refuse a change that a running broker cannot make in one step."""
        if not self.is_thread_count or new == old:
            return
        assert isinstance(old, int)
        assert isinstance(new, int)
        # The message is Kafka's.
        failed = f"Dynamic thread count update validation failed for {self.name}={new}, value should"
        if new < 1:
            raise InvalidConfig(f"{failed} be at least 1")
        if new < old // 2:
            raise InvalidConfig(f"{failed} be at least half the current value {old}")
        if new > old * 2:
            raise InvalidConfig(f"{failed} not be greater than double the current value {old}")

    def _refusal(self, text: str, rule: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name}={self.shown(text)} is not allowed: it must be {rule}")

    def shown(self, text: str) -> str:
        """A value for use in a message: short, printable, and hidden if it is a secret."""
        if self.is_sensitive:
            return "[hidden]"
        text = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
        return text if text.isprintable() else ascii(text)


# Tables ---------------------------------------------------------------------------------------------------------------


class KeyTable(dict[str, ConfigKey[Any]]):
    """The declared keys of one kind of resource, by name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.defaults: dict[str, Value] = {}
        """The typed default values, for a resource with no configuration set."""
        self.refused: dict[str, str] = {}
        """Kafka's keys, or prefixes of keys, that this broker does not have, with the reason and what to do instead."""

    def declare(self, key: ConfigKey[T]) -> ConfigKey[T]:
        """Add a key."""
        assert key.name not in self, f"{key.name} is declared twice"
        self[key.name] = key
        self.defaults[key.name] = None if key.default is None else key.parse(key.default)  # type: ignore[assignment]
        return key

    def in_order(self) -> list[ConfigKey[Any]]:
        """All keys in the order of their names."""
        return [self[name] for name in sorted(self)]

    def find(self, name: str) -> ConfigKey[Any]:
        """The key of this name. If there is no such key, the error says why, or suggests the nearest name."""
        if name in self:
            return self[name]
        for it, why in self.refused.items():
            if name == it or (it.endswith(".") and name.startswith(it)):
                raise InvalidConfig(f"this broker does not support Kafka's key {name[:100]}: {why}")
        near = get_close_matches(name[:100], sorted(self), n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InvalidConfig(f"Unknown {self.kind} config name: {ascii(name[:100])[1:-1]}{hint}")

    def parse(self, name: str, text: str) -> Value:
        """Parse and check a value."""
        value: Value = self.find(name).parse(text)
        return value


TOPIC_CONFIGS = KeyTable("topic")
BROKER_CONFIGS = KeyTable("broker")


def broker_key(
    name: str,
    reader: Reader[T],
    default: int | str | None,
    check: Check | None,
    about: str,
    *,
    is_dynamic: bool = False,
    is_internal: bool = False,
    is_thread_count: bool = False,
    departure: Departure | None = None,
) -> ConfigKey[T]:
    """Declare a key of brokers. A dynamic key can be changed at runtime, for one broker or for all."""
    key = ConfigKey(name, reader, _text(default), check, about, (), is_dynamic, is_internal, is_thread_count, departure)
    return BROKER_CONFIGS.declare(key)


def topic_key(
    name: str,
    reader: Reader[T],
    default: int | str | None,
    check: Check | None,
    about: str,
    *synonyms: str | Synonym,
    is_internal: bool = False,
) -> ConfigKey[T]:
    """Declare a key of topics, and its first synonym, which is the broker key that holds its default.

    If the first synonym is not set, the next one is used, which may have another unit. Further synonyms are declared
    separately.
    """
    places = tuple(it if isinstance(it, Synonym) else Synonym(it) for it in synonyms)
    key = ConfigKey(name, reader, _text(default), check, about, places, is_internal=is_internal)
    declare_synonym(key, "topics")
    return TOPIC_CONFIGS.declare(key)


def declare_synonym(key: ConfigKey[Any], resources: str) -> None:
    """Declare the first synonym of a key, with the same type and check. A key's only synonym gets its default, too."""
    if key.synonym is not None:
        about = f"The default of {key.name} for {resources}. {key.about}"
        default = key.default if len(key.synonyms) == 1 else None
        own = replace(key, name=key.synonym, default=default, about=about, synonyms=(), is_dynamic=True)
        BROKER_CONFIGS.declare(own)


def _text(default: int | str | None) -> str | None:
    return None if default is None else str(default)
