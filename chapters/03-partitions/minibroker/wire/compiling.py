"""Compiles a table into functions: a decoder and an encoder for each message and version. A pure module.

The tables could be interpreted: look up the type of each field, check whether the version has it, call a function that
decodes it. The inspector does this, and is five times slower. Here each message and version is compiled at its first
use. The generated Python source has only the steps that this version needs. This command prints the source:

    python -m minibroker.wire.compiling ProduceRequest 9
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minibroker.wire.decoders import counting_decoder_source, decoder_source
from minibroker.wire.encoders import encoder_source
from minibroker.wire.errors import UnsupportedVersion
from minibroker.wire.fields import REQUIRED
from minibroker.wire.source import Source

if TYPE_CHECKING:
    from minibroker.wire.schema import Struct


class Compiled(dict[int, Callable[..., Any]]):
    """The decoders, or the encoders, of one class by version. Each is compiled at its first use."""

    def __init__(self, cls: "type[Struct]", write: "Callable[[type[Struct], int], Source]") -> None:
        super().__init__()
        self._cls = cls
        self._write = write

    def __missing__(self, version: int) -> Callable[..., Any]:
        check_version(self._cls, version)
        function = self._write(self._cls, version).compiled(f"<{self._cls.__name__} v{version}>")
        self[version] = function
        return function


def decoders(cls: "type[Struct]") -> Compiled:
    """Functions `(buffer, position) -> (message, position after it)`."""
    return Compiled(cls, decoder_source)


def counting_decoders(cls: "type[Struct]") -> Compiled:
    """Functions `(buffer, position, elements_max) -> (message, position after it)`."""
    return Compiled(cls, counting_decoder_source)


def encoders(cls: "type[Struct]") -> Compiled:
    """Functions `(message, out) -> parts`, which append to the bytearray `out`."""
    return Compiled(cls, encoder_source)


def check_version(cls: "type[Struct]", version: int) -> None:
    """Raise UnsupportedVersion if the table lacks a version."""
    versions = cls.schema.versions
    if versions is None:
        raise UnsupportedVersion(f"{cls.__name__} is in no message, so it has no versions")
    if version not in versions:
        raise UnsupportedVersion(f"{cls.__name__} has versions {versions}, not {version}")


def constructor_source(cls: "type[Struct]") -> Source:
    """Generate `__init__`, with keyword arguments only and the defaults of the table."""
    source = Source()
    parameters = []
    for field in cls.schema.fields:
        name = source.use(f"default_{field.name}", field.default)
        parameters.append(field.name if field.default is REQUIRED else f"{field.name}={name}")
    star = "*, " if parameters else ""
    with source.block(f"def __init__(self, {star}{', '.join(parameters)}):"):
        for field in cls.schema.fields:
            if field.default == ():
                # Messages must not share a default list.
                source.line(f"self.{field.name} = [] if {field.name} is default_{field.name} else {field.name}")
            else:
                source.line(f"self.{field.name} = {field.name}")
    return source


def copier_source(cls: "type[Struct]") -> Source:
    """Generate `__copy__`."""
    source = Source()
    source.use("cls", cls)
    with source.block("def __copy__(self):"):
        source.line("it = cls.__new__(cls)")
        for field in cls.schema.fields:
            source.line(f"it.{field.name} = self.{field.name}")
        source.line("return it")
    return source


def constructor(cls: "type[Struct]") -> Callable[..., Any]:
    """Compile `__init__`."""
    return constructor_source(cls).compiled(f"<{cls.__name__}.__init__>")


def copier(cls: "type[Struct]") -> Callable[..., Any]:
    """Compile `__copy__`."""
    return copier_source(cls).compiled(f"<{cls.__name__}.__copy__>")


def source_text(cls: "type[Struct]", version: int) -> str:
    """The source of the decoder and of the encoder of a message in a version."""
    check_version(cls, version)
    return f"{decoder_source(cls, version).text}\n\n{encoder_source(cls, version).text}"


if __name__ == "__main__":
    import sys

    from minibroker.wire import tables
    from minibroker.wire.apis import declare_all, message_named
    from minibroker.wire.errors import WireError

    if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
        sys.exit("usage: python -m minibroker.wire.compiling MESSAGE VERSION, such as ProduceRequest 9")
    declare_all(tables)
    try:
        print(source_text(message_named(sys.argv[1]), int(sys.argv[2])), end="")
    except WireError as error:
        sys.exit(str(error))
