"""The program behind `make chaos`: a short run, and the proof that it would notice lost records."""

import subprocess
import sys
from pathlib import Path

import chaos
import namespaces
import pytest
from brokers import IS_OURS
from clusters import Tally

# A seed whose first fault is a link that is cut.
CUTS_FIRST = 9
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


def test_a_few_faults_lose_no_record(tmp_path: Path) -> None:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    said: list[str] = []
    report = chaos.run(tmp_path, cycles=2, seed=3, say=said.append)
    assert report.is_well, report.text()
    assert len(said) == 2
    assert "2 cycles" in report.text()
    assert " 0 lost, 0 twice, 0 out of order" in report.text()


def test_links_that_the_kernel_cuts_are_found_by_timeouts_and_the_machine_is_not_touched() -> None:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    reason = namespaces.why_not()
    if reason is not None:
        pytest.skip(f"links cannot be cut in the kernel: {reason}")
    command = [sys.executable, chaos.__file__, "--links", "kernel", "--cycles", "1", "--seed", str(CUTS_FIRST)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1/1: cut o" in ended.stdout
    assert " 0 lost, 0 twice, 0 out of order" in ended.stdout
    # The cluster had network namespaces of its own and left nothing in the network of this process.
    found = subprocess.run(["ip", "rule"], capture_output=True, text=True, check=True)
    assert "10.77." not in found.stdout
