"""The language of the configuration tables: types, checks, keys. A pure module.

A configuration travels as text: in a file, in a request, in a metadata record. Its key says how the text is read, which
values are allowed, and what holds if nobody says anything.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.metadata.errors import InvalidConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigType(enum.IntEnum):
    """The type of a configuration, with the number it has in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigResource(enum.IntEnum):
    """What a configuration can belong to, with its number on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Where a value comes from, with its number in DescribeConfigs. A lower one wins."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Check(NamedTuple):
    """What a value must be: a test, and its rule in words."""

    passes: Callable[[Value], bool]
    rule: str


class Synonym(NamedTuple):
    """A broker configuration that stands in for a topic's; its value times `factor` is the topic's value."""

    name: str
    factor: int = 1


@dataclass(frozen=True)
class ConfigKey:
    """One configuration: how its text is read, what it may be, and what it means."""

    name: str
    type: ConfigType
    default: str | None
    check: Check | None
    about: str
    synonyms: tuple[Synonym, ...] = ()
    acts: bool = True
    """Whether this broker does anything about it. If not, it is accepted, kept and shown."""
    is_dynamic: bool = False
    """Whether a broker's value can be changed while it runs."""
    is_internal: bool = False
    """Whether it is shown only where somebody has set it."""

    @property
    def synonym(self) -> str | None:
        """The broker configuration that stands in first."""
        return self.synonyms[0].name if self.synonyms else None

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """Read a value and check it."""
        value = self._read(text.strip())
        if self.check is not None and not self.check.passes(value):
            raise InvalidConfig(f"{self.name}={self.shown(text)} is not allowed: it must be {self.check.rule}")
        return value

    def _read(self, text: str) -> Value:
        try:
            return _READERS[self.type](text)
        except ValueError as error:
            raise InvalidConfig(f"{self.name}={self.shown(text)} is not allowed: it must be {error}") from None

    def shown(self, text: str) -> str:
        """A value as a message may hold it: short, printable, and not if it is a secret."""
        if self.is_sensitive:
            return "[hidden]"
        text = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
        return text if text.isprintable() else ascii(text)


_SHOWN_MAX = 64


# Reading, as Kafka reads ----------------------------------------------------------------------------------------------

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
    """The items of a list; an empty text is an empty list."""
    return tuple(_COMMA.split(text)) if text else ()


_READERS: dict[ConfigType, Callable[[str], Value]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.STRING: str,
    ConfigType.PASSWORD: str,
    ConfigType.SHORT: _whole(16),
    ConfigType.INT: _whole(32),
    ConfigType.LONG: _whole(64),
    ConfigType.DOUBLE: _read_double,
    ConfigType.LIST: split_list,
}


# Checks ---------------------------------------------------------------------------------------------------------------


def _is_number_in(value: Value, least: float, most: float | None) -> bool:
    return isinstance(value, int | float) and least <= value and (most is None or value <= most)


def at_least(least: int) -> Check:
    """A number that is not smaller."""
    return Check(lambda value: _is_number_in(value, least, None), f"at least {least}")


def between(least: int, most: int) -> Check:
    """A number in a range, both ends included."""
    return Check(lambda value: _is_number_in(value, least, most), f"between {least} and {most}")


def one_of(*allowed: str) -> Check:
    """One of these words."""
    return Check(lambda value: value in allowed, "one of " + ", ".join(allowed))


def _is_list_of(value: Value, passes: Callable[[str], bool]) -> bool:
    return isinstance(value, tuple) and all(passes(item) for item in value)


def list_of(*allowed: str) -> Check:
    """A list of nothing but these words; it may be empty."""
    return Check(lambda value: _is_list_of(value, allowed.__contains__), "a list of " + ", ".join(allowed))


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")

THROTTLED_REPLICAS = Check(
    lambda value: value == ("*",) or _is_list_of(value, lambda item: _REPLICA.fullmatch(item) is not None),
    "* or a list of partition:broker",
)
GZIP_LEVEL = Check(lambda value: value == -1 or _is_number_in(value, 1, 9), "between 1 and 9, or -1")
