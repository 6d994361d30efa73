"""The program behind `make chaos`: a short run, and the proof that it would notice lost records and lost commits."""

import io
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import chaos
import namespaces
import pytest
from brokers import IS_OURS
from cases import case
from chaos_report import Counts, Outcome, Report, back_ms
from chaos_scenarios import SCENARIOS
from chaos_watch import Watch
from clients_stock import close_within
from clusters import Tally
from groups_crews import History

GOOD = [b"0", b"1", b"2"]
ACKED: dict[bytes, int | None] = {b"0": 0, b"1": None, b"2": 2}


@pytest.mark.parametrize(
    ("values", "acked", "wrong"),
    [
        (GOOD, ACKED, Tally(acked=3)),
        ([b"0", b"1"], ACKED, Tally(acked=3, lost=1)),
        ([b"0", b"1", b"1", b"2"], ACKED, Tally(acked=3, twice=1, elsewhere=1)),
        ([b"1", b"0", b"2"], ACKED, Tally(acked=3, out_of_order=1, elsewhere=1)),
        ([b"0", b"1", b"7", b"2"], ACKED, Tally(acked=3, out_of_order=1, elsewhere=1)),
    ],
)
def test_every_fault_of_a_log_is_counted(values: list[bytes], acked: dict[bytes, int | None], wrong: Tally) -> None:
    tally = Tally()
    tally.add(values, acked)
    assert tally == wrong
    assert tally.is_well == (values == GOOD)


PARTITION = ("topic", 0)
Told = list[tuple[str, str, int]]
READ: Told = [("assigned", "one", 0), ("read", "one", 0), ("read", "one", 1), ("committed", "one", 2)]


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (READ, History()),
        ([*READ, ("read", "one", 3)], History(skipped=1)),
        ([*READ, ("read", "one", 2), ("assigned", "two", 0), ("read", "two", 2)], History(redelivered=1)),
        ([*READ, ("assigned", "two", 0), ("read", "two", 1)], History(redelivered=1, gone_back=["read"])),
        ([*READ, ("committed", "one", 1)], History(gone_back=["committed"])),
        ([*READ, ("found", "", 1)], History(gone_back=["found"])),
        ([*READ, ("assigned", "two", 0), ("committed", "one", 3)], History(two_owners=["committed"])),
    ],
)
def test_every_fault_of_a_group_is_counted(told: Told, wrong: History) -> None:
    history = History()
    for what, member, offset in told:
        if what == "assigned":
            history.on_assigned(member, PARTITION, is_orderly=False)
        elif what == "read":
            history.on_read(member, PARTITION, offset, b"")
        elif what == "committed":
            history.on_committed(member, PARTITION, offset)
        else:
            history.check_committed({PARTITION: offset})
    assert (history.skipped, history.redelivered) == (wrong.skipped, wrong.redelivered)
    assert len(history.gone_back) == len(wrong.gone_back)
    assert len(history.two_owners) == len(wrong.two_owners)
    assert history.is_well == (not (wrong.skipped or wrong.gone_back or wrong.two_owners))


def test_a_partition_that_is_given_away_while_its_owner_has_it_is_counted() -> None:
    history = History()
    for member in ("one", "two"):
        history.on_assigned(member, PARTITION, is_orderly=True)
    assert len(history.two_owners) == 1


def test_a_run_is_well_only_if_nothing_went_wrong() -> None:
    assert Report(total=Counts(acked=9, redelivered=9)).is_well
    for name in ("lost", "twice", "out_of_order", "elsewhere", "skipped", "gone_back"):
        with case(name):
            wrong = Counts(**{name: 1})
            assert not Report(total=wrong).is_well
            assert not Report(outcomes={"kill": Outcome(counts=wrong)}).is_well
    assert not Report(humans=1).is_well
    assert not Report(complaints=["a traceback"]).is_well
    assert not Report(groups=[("range", History(two_owners=["one and two"]))]).is_well


def test_the_time_to_come_back_counts_from_the_moment_when_the_cluster_was_able_to() -> None:
    acked_s = [1.0, 1.5, 2.0, 9.0, 9.5]
    for moments_s, expected_ms in (
        ([1.2], 7000),  # a node is lost at 1.2, and a majority is left all the time
        ([1.2, 6.0], 3000),  # all nodes are lost, and started again at 6.0
        ([1.2, 6.0, 8.5], 500),  # they are killed once more while they start
        ([1.2, 9.2], 7000),  # the pause was over before
    ):
        with case(f"{moments_s}"):
            assert back_ms(acked_s, moments_s=moments_s, ended_s=10.0) == expected_ms


def test_every_scenario_is_played_once_before_one_is_played_again() -> None:
    names = list(SCENARIOS)
    played = chaos.plan(names, cycles=len(names) + 3, seed=1)
    assert sorted(played[: len(names)]) == sorted(names)
    assert len(played) == len(names) + 3


def test_a_phase_that_does_not_end_says_what_every_thread_does() -> None:
    said: list[str] = []
    expired: queue.Queue[str] = queue.Queue()
    watch = Watch(said.append, expired.put)
    watch.begin("the first phase", 60)
    watch.begin("the second phase", 0.01)
    reason = expired.get(timeout=30)
    assert reason == said[0] == "the second phase: not over after 0.01 s"
    assert "stack of the thread MainThread:" in said
    assert any("expired.get(timeout=30)" in it for it in said)


def test_a_client_that_does_not_close_is_left_behind() -> None:
    """A deadlock inside librdkafka stopped a whole run."""

    class Stuck:
        def __init__(self) -> None:
            self.may_end = threading.Event()

        def close(self) -> None:
            self.may_end.wait()

    stuck = Stuck()
    assert not close_within(stuck, 0.01)  # type: ignore[arg-type]
    stuck.may_end.set()
    assert close_within(stuck)  # type: ignore[arg-type]
    report = Report(notes=["it did not close"])
    assert report.is_well
    assert "it did not close" in report.text()


def test_a_program_whose_phase_does_not_end_ends_with_an_error() -> None:
    program = "from chaos_watch import Watch; w = Watch(print, print, is_last=True); w.begin('all', 0.1); import time"
    command = [sys.executable, "-c", f"{program}; time.sleep(600)"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(chaos.__file__).parent
    )
    assert ended.returncode == 1, ended.stderr
    assert "all: not over after 0.1 s" in ended.stdout


def test_a_few_faults_lose_no_record_and_no_commit(tmp_path: Path) -> None:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    said: list[str] = []
    history = io.StringIO()
    report = chaos.run(tmp_path, ["two-killed", "stranger"], seed=3, say=said.append, history=history)
    assert report.is_well, report.text()
    assert len(said) == 2
    for name in ("two-killed: 1 cycle, ", "stranger: 1 cycle, ", "chaos: 2 cycles: "):
        assert name in report.text()
    assert " 0 lost, 0 twice, 0 out of order" in report.text()
    assert "groups: 0 skipped" in report.text()
    assert " 0 offsets gone back; a human was needed: 0" in report.text()
    # The history has a line for each acknowledged record, and the value is the number of the record.
    lines = [json.loads(it) for it in history.getvalue().splitlines()]
    assert len({(it["partition"], it["sequence"]) for it in lines}) == len(lines) == report.total.acked
    assert all(it["offset"] in (it["sequence"], None) for it in lines)
    assert all(it["sent_ms"] <= it["acked_ms"] and it["error"] is None for it in lines)


def test_links_that_the_kernel_cuts_are_found_by_timeouts_and_the_machine_is_not_touched() -> None:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    reason = namespaces.why_not()
    if reason is not None:
        pytest.skip(f"links cannot be cut in the kernel: {reason}")
    command = [sys.executable, chaos.__file__, "--links", "kernel", "--cycles", "1", "--scenario", "cut-off"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1/1: cut-off" in ended.stdout
    assert " 0 lost, 0 twice, 0 out of order" in ended.stdout
    # The cluster had network namespaces of its own and left nothing in the network of this process.
    found = subprocess.run(["ip", "rule"], capture_output=True, text=True, check=True)
    assert "10.77." not in found.stdout
