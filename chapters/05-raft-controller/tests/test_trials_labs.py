"""Claims about the labs of chapter 05, and about the clusters that they start."""

import contextlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.bench.lab import find_labs
from minibroker.bench.outages import Outages
from minibroker.cli.lab import lab
from minibroker.clients.blocking import Client
from minibroker.trials import acknowledging, failover, labs, unclean
from minibroker.trials.local import HOST, LocalNode, reserve_port
from minibroker.trials.unclean import Seen
from minibroker.trials.watching import until

MADE = [
    [Outages("leader killed", (2100, 1900)), Outages("leader killed, librdkafka", (2500, 2600))],
    [Outages("leader paused", (2200, 2000)), Outages("leader paused, librdkafka", (3100, 2900))],
    [Outages("leader stopped", (40, 60)), Outages("leader stopped, librdkafka", (70, 80))],
]


def plain(text: str) -> str:
    """Without the line breaks that depend on the width."""
    return " ".join(text.split())


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Type the command; return the rows of its table when all that it leaves is as it should be."""
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    assert find_labs()[name].chapter == "05"
    (folder / "scratch").mkdir()
    ended = CliRunner().invoke(lab, ["run", name, "--out", str(folder / "out"), "--dir", str(folder / "scratch")])
    assert ended.exit_code == 0, ended.output
    ElementTree.fromstring((folder / "out" / f"{name}.svg").read_text())
    text = (folder / "out" / f"{name}.json").read_text()
    document: dict[str, Any] = json.loads(text)
    assert document["quick"] is True
    assert all(paragraph in plain(ended.stdout) for paragraph in map(plain, document["reading"]))
    assert str(folder) not in text
    assert list((folder / "scratch").iterdir()) == []
    rows: list[list[str]] = document["table"]["rows"]
    return rows


# The labs, on real nodes ----------------------------------------------------------------------------------------------


def test_only_acks_all_loses_nothing_when_the_leader_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run("acks", tmp_path, monkeypatch)
    assert [row[0] for row in rows] == [promise.name for promise in acknowledging.PROMISES]
    lost = [int(row[-1]) for row in rows]
    assert lost[2:] == [0, 0]
    assert min(lost[:2]) > 0


def test_who_waits_for_the_last_in_sync_keeps_all_and_who_does_not_loses_what_it_alone_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the controller elects nobody uncleanly by itself."""
    waits, goes_on = run("unclean", tmp_path, monkeypatch)
    assert (waits[0], waits[2:]) == ("false", ["70", "0"])
    assert (goes_on[0], goes_on[2:]) == ("true", ["70", "20"])
    assert float(waits[1]) > float(goes_on[1])


def test_every_fault_has_its_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run("failover", tmp_path, monkeypatch)
    assert [row[:2] for row in rows] == [["leader killed", "1"], ["leader paused", "1"], ["leader stopped", "1"]]
    assert all(int(cell.replace(",", "")) > 0 for row in rows for cell in row[2:])


# What they say --------------------------------------------------------------------------------------------------------


def test_the_acks_lab_reads_its_figures_in_plain_english() -> None:
    worths = [(96, 99), (95, 97), (0, 0), (0, 0)]
    cost = acknowledging.Cost(mb_per_s=12, p50_ms=1.5, p99_ms=4)
    found = [
        acknowledging.Kept(promise, cost, acknowledging.Worth(500, hung, lost))
        for promise, (hung, lost) in zip(acknowledging.PROMISES, worths, strict=True)
    ]
    costs, worth, min_isr = acknowledging.reading(found)
    assert "within 1.50 ms with acks=1 and 1.50 ms with acks=all" in costs
    assert "to 95 records in that time, and 97 acknowledged records are gone" in worth
    assert "With acks=0 99 are gone, and nobody was told" in worth
    assert "(0 and 0 lost)" in min_isr


def test_the_unclean_lab_reads_and_draws_when_something_could_be_read_again() -> None:
    waits = [Seen(0.1, 70), Seen(0.2, 0), Seen(0.3, 0), Seen(0.4, 0), Seen(9.0, 70), Seen(9.1, 70), Seen(9.2, 70)]
    goes_on = [Seen(0.1, 0), Seen(1.5, 50), Seen(9.1, 50)]
    assert (unclean.without_leader_s(waits), unclean.without_leader_s(goes_on)) == (9.0, 1.5)
    assert unclean.without_leader_s(waits[:4]) == 0.0
    # A straight line needs its ends only.
    assert unclean.corners(waits) == [waits[0], waits[1], waits[3], waits[4], waits[6]]
    found = [unclean.Ended("false", 70, 0, 9.0, waits), unclean.Ended("true", 70, 20, 1.5, goes_on)]
    kept, lost, _advice = unclean.reading(found)
    assert "nobody led for 9.00 s" in kept
    assert "Then all 70 acknowledged records were there: 0 lost" in kept
    assert "the follower led after 1.50 s. 20 of 70 records" in lost
    ElementTree.fromstring(unclean.figure(found).svg())


def test_the_failover_lab_draws_the_prober_and_tells_of_the_stock_client() -> None:
    found = labs.findings(MADE)
    silent, stopped, budget = found.reading
    assert "1,900 ms in the middle when it was killed and 2,000 ms when it was paused, 2,200 ms at most" in silent
    assert "librdkafka saw up to 3,100 ms" in silent
    assert "pause for 40 ms in the middle, 60 ms at most" in stopped
    assert budget.startswith("99.990% of a year leaves 3,154 s")
    assert [row[0] for row in found.table.rows][:2] == ["leader killed", "leader killed, librdkafka"]
    assert "librdkafka" not in found.figure.svg()
    # Who has no stock client has less to read, and nothing is wrong.
    assert "librdkafka" not in " ".join(labs.reading([fault[:1] for fault in MADE]))


# Their clusters -------------------------------------------------------------------------------------------------------


def test_a_node_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    with contextlib.ExitStack() as reserved:
        address = f"{HOST}:{reserve_port(reserved)}"
        node = LocalNode(1, tmp_path / "node1", address, ("broker.session.timeout.ms=soon",), None)
        node.begin()
        said = r"node 1 ended before it was ready; it said:\nminibroker serve: broker.session.timeout.ms=soon is not"
        with pytest.raises(ChildProcessError, match=said):
            node.await_ready()
        assert not node.is_alive()
        node.kill()


def test_who_waits_in_vain_is_told_for_what_and_what_was_seen_last() -> None:
    with pytest.raises(TimeoutError, match=r"not within 0 s: it rains; last seen: \[\]"):
        until(list, "it rains", seconds=0)


# Probing --------------------------------------------------------------------------------------------------------------


def test_a_probe_that_is_late_while_nothing_happens_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(failover, "is_acked", lambda *_: next(answers))
    failover.await_ack(Client("127.0.0.1:1"), "calm", 0)
    assert list(answers) == []
