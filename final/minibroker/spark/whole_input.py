"""Notices that the rows of a task ended too early.

When a step before the sink fails, Spark closes the socket on which the sink's worker reads. Arrow takes that for the
end of the rows. With at-least-once delivery this does no harm: the task has failed, and writes all rows again. But a
transaction would commit the part that arrived. After complete rows Spark always sends a few more bytes, so a look at
the next byte tells the two cases apart. PySpark itself looks at these bytes only after the sink has returned.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeVar

from minibroker.spark.errors import ConnectorError

T = TypeVar("T")


class InputCut(ConnectorError):
    """A step before the sink has failed, so a part of the rows is missing."""


class InputHidden(ConnectorError):
    """This version of PySpark does not let the sink see whether its rows are whole."""


def whole(rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows of a task; raise if Spark stopped before the last one."""
    source = _input(sys._getframe())
    count = 0
    for it in rows:
        count += 1
        yield it
    # `peek` waits for a byte and does not take it. It returns none only at the end of the stream.
    if not source.peek(1):
        raise InputCut(
            f"the rows ended after {count} batches, because a step before the sink has failed: see its error"
        )


def _input(frame: FrameType | None) -> Any:
    """The stream from which the worker reads. PySpark gives it to no data source, so it is taken from its function."""
    while frame is not None:
        if frame.f_code.co_name == "main" and hasattr(frame.f_locals.get("infile"), "peek"):
            return frame.f_locals["infile"]
        frame = frame.f_back
    raise InputHidden(
        "delivery: exactly-once does not work with this version of PySpark, because a task cannot see whether its rows"
        " are whole: use PySpark 4.2 or 4.3, or at-least-once"
    )
