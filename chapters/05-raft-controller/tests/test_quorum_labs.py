"""Claims about the labs of chapter 05."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from labs import lab_acks, lab_failover, lab_unclean
from labs.lab_unclean import Seen
from labs_run import run_lab

from minibroker.bench.outages import Outages

MADE = [
    [Outages("leader killed", (2100, 1900)), Outages("leader killed, librdkafka", (2500, 2600))],
    [Outages("leader paused", (2200, 2000)), Outages("leader paused, librdkafka", (3100, 2900))],
    [Outages("leader stopped", (40, 60)), Outages("leader stopped, librdkafka", (70, 80))],
]


def rows_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Type the command; return the rows of its table."""
    document = run_lab(name, folder, monkeypatch)
    assert document["chapter"] == "05"
    rows: list[list[str]] = document["table"]["rows"]
    return rows


# The labs, on real nodes ----------------------------------------------------------------------------------------------


def test_only_acks_all_loses_nothing_when_the_leader_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("acks", tmp_path, monkeypatch)
    assert [row[0] for row in rows] == [promise.name for promise in lab_acks.PROMISES]
    lost = [int(row[-1]) for row in rows]
    assert lost[2:] == [0, 0]
    assert min(lost[:2]) > 0


def test_only_an_unclean_election_loses_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the controller holds no unclean election by itself."""
    waits, goes_on = rows_of("unclean", tmp_path, monkeypatch)
    assert (waits[0], waits[2:]) == ("false", ["70", "0"])
    assert (goes_on[0], goes_on[2:]) == ("true", ["70", "20"])
    assert float(waits[1]) > float(goes_on[1])


def test_every_fault_has_its_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("failover", tmp_path, monkeypatch)
    assert [row[:2] for row in rows] == [["leader killed", "1"], ["leader paused", "1"], ["leader stopped", "1"]]
    assert all(int(cell.replace(",", "")) > 0 for row in rows for cell in row[2:])


# Readings -------------------------------------------------------------------------------------------------------------


def test_the_acks_lab_reads_its_figures_in_plain_english() -> None:
    worths = [(96, 99), (95, 97), (0, 0), (0, 0)]
    cost = lab_acks.Cost(mb_per_s=12, p50_ms=1.5, p99_ms=4)
    found = [
        lab_acks.Kept(promise, cost, lab_acks.Worth(500, hung, lost))
        for promise, (hung, lost) in zip(lab_acks.PROMISES, worths, strict=True)
    ]
    costs, worth, min_isr = lab_acks.reading(found)
    assert "within 1.50 ms with acks=1 and 1.50 ms with acks=all" in costs
    assert "acknowledged 95 records in that time, and 97 acknowledged records are gone" in worth
    assert "With acks=0 99 are gone, and the producer does not know it" in worth
    assert "(0 and 0 lost)" in min_isr


def test_the_unclean_lab_reads_and_draws_when_something_could_be_read_again() -> None:
    waits = [Seen(0.1, 70), Seen(0.2, 0), Seen(0.3, 0), Seen(0.4, 0), Seen(9.0, 70), Seen(9.1, 70), Seen(9.2, 70)]
    goes_on = [Seen(0.1, 0), Seen(1.5, 50), Seen(9.1, 50)]
    assert (lab_unclean.without_leader_s(waits), lab_unclean.without_leader_s(goes_on)) == (9.0, 1.5)
    assert lab_unclean.without_leader_s(waits[:4]) == 0.0
    # A straight line needs its ends only.
    assert lab_unclean.corners(waits) == [waits[0], waits[1], waits[3], waits[4], waits[6]]
    found = [lab_unclean.Ended("false", 70, 0, 9.0, waits), lab_unclean.Ended("true", 70, 20, 1.5, goes_on)]
    kept, lost, _advice = lab_unclean.reading(found)
    assert "there was no leader for 9.00 s" in kept
    assert "Then all 70 acknowledged records were there: 0 lost" in kept
    assert "the follower led after 1.50 s. 20 of 70 records" in lost
    ElementTree.fromstring(lab_unclean.figure(found).svg())


def test_the_failover_lab_draws_the_prober_and_tells_of_the_stock_client() -> None:
    found = lab_failover.findings(MADE)
    silent, stopped, budget = found.reading
    assert "1,900 ms in the middle when it was killed and 2,000 ms when it was paused, 2,200 ms at most" in silent
    assert "librdkafka saw up to 3,100 ms" in silent
    assert "pause for 40 ms in the middle, 60 ms at most" in stopped
    assert budget.startswith("99.990% of a year leaves 3,154 s")
    assert [row[0] for row in found.table.rows][:2] == ["leader killed", "leader killed, librdkafka"]
    assert "librdkafka" not in found.figure.svg()
    # Without a stock client there is less to read, and no error.
    assert "librdkafka" not in " ".join(lab_failover.reading([fault[:1] for fault in MADE]))
