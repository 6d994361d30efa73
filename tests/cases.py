"""One test, many cases: `with case(codec, writer): …` names the case in the report of a failure."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the names of the case to whatever is raised inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(str(name) for name in names)}")
        raise
