"""Python source that is written by a program: lines, their indentation, and the names they use. A pure module.

What both kinds of generated functions have in common stands here: fields of fixed size that follow each other are
read or written by one `struct` call. Such a row of fields is a *run*.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct as Packing
from types import FunctionType


class Source:
    """Lines of one function, and the objects that its free names stand for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self._depth = 0

    def line(self, text: str) -> None:
        """Write one line at the present depth."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write the head of a block; what is written until the end of `with` stands inside it."""
        self.line(head)
        self._depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def use(self, name: str, value: object) -> str:
        """Let a name stand for an object; return the name."""
        assert self.names.setdefault(name, value) == value, f"{name} would stand for two things"
        return name

    @property
    def text(self) -> str:
        """The whole source."""
        return "\n".join(self.lines) + "\n"

    def compiled(self, filename: str) -> Callable[..., object]:
        """Run the source; return the one function that it defines."""
        code = compile(self.text, filename, "exec")
        namespace = dict(self.names)
        exec(code, namespace)  # the source is made of our own tables; nothing from outside is in it
        (function,) = [namespace[name] for name in namespace.keys() - self.names.keys() - {"__builtins__"}]
        assert isinstance(function, FunctionType)
        return function


@cache
def packing(formats: str) -> Packing:
    """The `struct` for a run of formats, made once however many messages have such a run."""
    return Packing(">" + formats)


class Repeated(dict[int, Packing]):
    """Packings for arrays of one fixed type, by count. Only small ones are kept: strangers choose the counts."""

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
    """The packings for arrays of one type, shared by all messages."""
    return Repeated(formats)
