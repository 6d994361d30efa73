"""Claims about the labs of chapter 06."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from labs import lab_delivery, lab_storm
from labs_run import run_lab


def test_only_three_ways_to_commit_lose_and_repeat_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_lab("delivery", tmp_path, monkeypatch)
    assert document["chapter"] == "06"
    rows = {name: (int(lost), int(duplicated)) for name, _orders, lost, duplicated in document["table"]["rows"]}
    assert rows == {
        "at most once": (1, 0),
        "at least once": (0, 1),
        "auto-commit, crash before the timer": (0, 6),
        "auto-commit, crash during long work": (1, 0),
        "idempotent consumer": (0, 0),
        "offsets in SQLite": (0, 0),
        "exactly once": (0, 0),
        "copy, then commit": (0, 5),
        "commit, then copy": (5, 0),
    }


def test_the_storm_is_the_same_for_all_four_kinds_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_lab("storm", tmp_path, monkeypatch)
    rows = document["table"]["rows"]
    assert [row[0] for row in rows] == list(lab_storm.KINDS)
    # Paused members do not read, whatever the group does.
    assert all(float(row[1]) > 0 for row in rows)


def test_the_storm_counts_the_partitions_that_were_read_between_two_times() -> None:
    weather = lab_storm.Weather(session_s=6, heartbeat_s=1, calm_s=1, every_s=5, pause_s=8, bucket_s=0.5)
    read = [[21, 0, 5], [21, 1, 5], [22, 0, 1], [30, 0, 9]]
    document = {lab_storm.EAGER: {"read": read, "assigned_s": [1.0, 11.0]}}
    crew = [document] * (lab_storm.PAUSED + 1)
    found = lab_storm.group_of(lab_storm.EAGER, crew, weather, begun_s=10.0, ended_s=12.0)
    assert [round(share) for _at_s, share in found.shares] == [17, 8, 0]
    assert (found.unread_s, found.silent_s, found.assignments) == (16.5, 0.5, 1)
    groups = [found] * len(lab_storm.KINDS)
    ElementTree.fromstring(lab_storm.figure(groups).svg())
    assert "no partition was read for 0.500 s" in lab_storm.reading(groups, weather)[1]


def test_the_lab_reads_the_lines_that_the_examples_print() -> None:
    printed = "noise\nat most once: 10 orders, lost 1, duplicated 0\n"
    assert lab_delivery.counted(printed) == [lab_delivery.Counted("at most once", 10, 1, 0)]


def test_the_lab_adds_up_the_crashes_of_one_program() -> None:
    lines = [
        "copy, killed here: 10 orders, lost 1, duplicated 0",
        "copy, killed there: 10 orders, lost 0, duplicated 2",
    ]
    assert lab_delivery.counted("\n".join(lines)) == [lab_delivery.Counted("copy", 20, 1, 2)]
