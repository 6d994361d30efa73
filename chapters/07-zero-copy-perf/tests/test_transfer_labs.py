"""Claims about the lab of chapter 07."""

from pathlib import Path

import pytest
from labs import lab_read
from labs_run import run_lab


def test_the_lab_reads_old_and_new_records_in_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_lab("read", tmp_path, monkeypatch)
    assert document["chapter"] == "07"
    expected = [lab_read.named(kind, way) for kind in (lab_read.TAIL, lab_read.COLD) for way in lab_read.WAYS]
    assert [row[0] for row in document["table"]["rows"]] == [lab_read.BARE, *expected]
    assert all(float(row[1].replace(",", "")) > 0 for row in document["table"]["rows"])
