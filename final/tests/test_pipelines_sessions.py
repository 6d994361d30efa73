"""The pipeline sessions joins a customer's orders; `tests/java/check_masters.py` runs it on Spark."""

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from minibroker.pipelines.sessions import Session, merged


def test_sessions_are_joined_up_to_the_gap_in_any_order() -> None:
    orders = [Session(at, at, 1, 1.0) for at in (50, 0, 30, 10)]
    assert merged(orders, 20) == [Session(0, 50, 4, 4.0)]
    assert merged(orders, 10) == [Session(0, 10, 2, 2.0), Session(30, 30, 1, 1.0), Session(50, 50, 1, 1.0)]
