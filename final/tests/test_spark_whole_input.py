"""A task whose input was cut must not commit what had arrived."""

import io
import socket

import pytest

from minibroker.spark.whole_input import InputCut, InputHidden, whole


def main(infile: io.BufferedReader) -> list[int]:
    """Read rows as a worker of PySpark does: its function `main` has the stream as `infile`."""
    return list(whole(iter([1, 2, 3])))


def test_rows_that_spark_has_ended_are_whole() -> None:
    ours, sparks = socket.socketpair()
    with ours, sparks, ours.makefile("rwb") as infile:
        sparks.sendall(b"\xff\xff\xff\xfc")
        assert main(infile) == [1, 2, 3]  # type: ignore[arg-type]
        assert infile.read(4) == b"\xff\xff\xff\xfc", "the bytes after the rows are left to PySpark"


def test_rows_that_end_with_the_stream_are_refused() -> None:
    ours, sparks = socket.socketpair()
    with ours, ours.makefile("rwb") as infile:
        sparks.close()
        with pytest.raises(InputCut, match="after 3 batches"):
            main(infile)  # type: ignore[arg-type]


def test_without_the_stream_of_a_worker_nothing_is_read() -> None:
    rows = iter([1, 2])
    with pytest.raises(InputHidden, match=r"^delivery: exactly-once does not work with this version of PySpark"):
        next(whole(rows))
    assert list(rows) == [1, 2]
