"""Generated Python source: lines, their indentation, and the names that they use. A pure module.

Generated encoders and decoders share this code. Both handle consecutive fields of fixed size with one `struct` call.
Such a row of fields is a *run*.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct as Packing
from types import FunctionType


class Source:
    """The lines of one function, and the objects that its free names refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self._depth = 0

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add the head of a block. Lines that are added inside the `with` are its body."""
        self.line(head)
        self._depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def use(self, name: str, value: object) -> str:
        """Bind a name to an object, and return the name."""
        bound = self.names.setdefault(name, value)
        assert bound == value, f"{name} is bound to another object already"
        return name

    @property
    def text(self) -> str:
        """The whole source."""
        return "\n".join(self.lines) + "\n"

    def compiled(self, filename: str) -> Callable[..., object]:
        """Compile and run the source. Return the one function that it defines."""
        code = compile(self.text, filename, "exec")
        namespace = dict(self.names)
        exec(code, namespace)  # the source is generated from our own tables and holds no input
        (function,) = [namespace[name] for name in namespace.keys() - self.names.keys() - {"__builtins__"}]
        assert isinstance(function, FunctionType)
        return function


@cache
def packing(formats: str) -> Packing:
    """The `struct.Struct` of a run. Messages with the same run share it."""
    return Packing(">" + formats)


class Repeated(dict[int, Packing]):
    """The `struct.Struct` for arrays of one fixed type, by count.

    Large ones are not kept, because clients choose the counts.
    """

    KEPT_MAX = 64

    def __init__(self, formats: str) -> None:
        super().__init__()
        self._formats = formats

    def __missing__(self, count: int) -> Packing:
        made = Packing(f">{self._formats * count}")
        if count <= self.KEPT_MAX:
            self[count] = made
        return made


@cache
def repeated(formats: str) -> Repeated:
    """The cache for arrays of one type, shared by all messages."""
    return Repeated(formats)
