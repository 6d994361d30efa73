"""Claims about the lab of chapter 01, `disk`."""

from pathlib import Path

import pytest
from labs import disk, lab_disk
from labs_run import plain, run_lab

from minibroker.bench.measure import Case, Result, Sample


def test_the_disk_lab_writes_its_figure_and_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_lab("disk", tmp_path, monkeypatch)
    assert document["chapter"] == "01"
    assert all(len(case["samples"]) == 1 for case in document["cases"])
    assert "a flush per MiB" in (tmp_path / "out" / "disk.svg").read_text()


def measured(name: str, mb_per_s: float, operations_count: int = 1) -> Result:
    case = Case(name, lambda: None, bytes_count=10**6, operations_count=operations_count)
    return Result(case, (Sample(1 / mb_per_s, 0.0),))


def test_the_disk_lab_reads_its_figures_in_plain_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "can_drop_cache", True)
    figures = [
        measured("Memory: memcpy, 64 KiB", 10_000),
        measured("Page cache: sequential write, 64 KiB", 5_000),
        measured("Page cache: sequential read, 64 KiB", 8_000),
        measured("Page cache: random read, 4 KiB", 2_000),
        measured("Device: sequential read, 64 KiB", 1_000),
        measured("Device: random read, 4 KiB", 20),
        measured("Append 16 KiB batches: one flush at the end", 500),
        measured("Append 16 KiB batches: a flush per MiB", 250),
        measured(
            "Append 16 KiB batches: a flush per batch, before its ack",
            5,
            operations_count=100,
        ),
    ]
    memory, order, flushes = lab_disk.reading({each.case.name: each for each in figures})
    assert "runs at 5,000 MB/s, 0.500 of a memcpy" in memory
    assert "50.0 times as fast as a random one of 4 KiB (1,000 against 20.0 MB/s)" in order
    assert "in the page cache the factor is 4.00" in order
    assert "a flush per 16 KiB costs 50.0 times a flush per MiB and 100 times one at the end" in flushes
    assert "take 2.00 ms" in flushes


def test_the_disk_lab_does_without_device_reads_where_the_cache_cannot_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "can_drop_cache", False)
    document = run_lab("disk", tmp_path, monkeypatch)
    names = [row[0] for row in document["table"]["rows"]]
    assert "Device: sequential write, 64 KiB" in names
    assert not any(name.startswith("Device: sequential read") for name in names)
    assert "on this disk a sequential write is" in plain(" ".join(document["reading"]))
