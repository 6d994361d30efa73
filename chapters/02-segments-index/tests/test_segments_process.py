"""A partition's directory as a program: filled, searched, kept in bounds, and killed in the middle of a write."""

import subprocess
import sys
from pathlib import Path

import pytest
from log_cases import each_case
from log_programs import DEADLINE_S, acked_until_killed, append_one, refusal, running

from minibroker.segments.__main__ import SMALLEST, main

SEGMENTS = [sys.executable, "-m", "minibroker.segments"]
START_MS = 1_700_000_000_000
SMALL = ["--set", "segment.bytes=400", "--set", "index.interval.bytes=100"]


def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
    done = subprocess.run([*SEGMENTS, *arguments], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def complaint(*arguments: str, code: int) -> str:
    """The one line of a refusal."""
    output = run(*arguments, code=code)
    assert output.count("\n") == 1, output
    return output


@pytest.fixture
def orders(tmp_path: Path) -> str:
    return str(tmp_path / "data" / "orders-0")


@pytest.fixture
def filled(orders: str) -> str:
    """Twenty records of four keys, one a second, in batches of two and several segments."""
    lines = "".join(f"user-{n % 4}:order {n}\n" for n in range(20))
    options = ["--key-separator", ":", "--batch", "2", "--timestamp", str(START_MS), *SMALL]
    assert run("append", orders, *options, stdin=lines).splitlines()[-1] == "acked 18-19"
    return orders


def segment_names(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).glob("*.log"))


# The commands -------------------------------------------------------------------------------------------------------


def test_lines_become_records_and_come_back(filled: str) -> None:
    lines = run("tail", filled).splitlines()
    assert lines == [f"{n}\tuser-{n % 4}\torder {n}" for n in range(20)]
    assert run("append", filled, stdin="more\n") == "acked 20-20\n"
    assert run("tail", filled, "--offset", "19") == "19\tuser-3\torder 19\n20\t\tmore\n"


def test_records_are_found_by_time(filled: str) -> None:
    assert run("tail", filled, "--time", str(START_MS + 18_500)) == "19\tuser-3\torder 19\n"
    assert run("tail", filled, "--time", str(START_MS + 20_000)) == ""


def test_list_shows_every_segment_and_the_bounds(filled: str) -> None:
    *segments, last = run("list", filled).splitlines()
    assert [line.split()[0] for line in segments] == [name.removesuffix(".log") for name in segment_names(filled)]
    assert len(segments) > 2
    size = sum(path.stat().st_size for path in Path(filled).glob("*.log"))
    assert last == f"offsets 0 to 20, {size} bytes"


def test_retain_deletes_what_is_too_old_and_remembers_where_the_log_starts(filled: str) -> None:
    options = ["--set", "retention.ms=10000", "--now", str(START_MS + 20_000), *SMALL]
    output = run("retain", filled, *options)
    start = int(segment_names(filled)[0].removesuffix(".log"))
    assert 0 < start <= 10
    assert output.endswith(f"deleted; the log starts at offset {start}\n")
    assert run("tail", filled).splitlines()[0].startswith(f"{start}\t")
    assert f"offset 0 is not in [{start}, 20]" in complaint("tail", filled, "--offset", "0", code=1)


def test_compact_keeps_the_newest_record_of_each_key(filled: str) -> None:
    compacts = ["--set", "cleanup.policy=compact", *SMALL]
    output = run("compact", filled, *compacts, "--now", str(START_MS + 20_000))
    assert output.startswith("20 records, ")
    assert output.endswith("clean up to offset 20\n")
    assert run("tail", filled, *compacts).splitlines() == [f"{n}\tuser-{n % 4}\torder {n}" for n in range(16, 20)]


def test_compact_refuses_a_log_whose_policy_is_not_compact(filled: str) -> None:
    assert "add --set cleanup.policy=compact" in complaint("compact", filled, code=1)


def test_scrub_finds_a_flipped_bit_in_a_closed_segment(filled: str) -> None:
    assert run("scrub", filled, *SMALL).endswith(": 0 findings\n")
    damaged = Path(filled) / segment_names(filled)[1]
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1
    damaged.write_bytes(data)
    output = run("scrub", filled, *SMALL, code=1)
    assert f"{damaged}: position " in output
    assert output.endswith(": 1 finding\n")


def test_tail_never_prints_a_flipped_bit(filled: str) -> None:
    damaged = Path(filled) / segment_names(filled)[1]
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1
    damaged.write_bytes(data)
    *good, last = run("tail", filled, code=1).splitlines()
    assert good == [f"{n}\tuser-{n % 4}\torder {n}" for n in range(len(good))]
    assert last.startswith(f"minibroker.segments: the batch with base offset {len(good)} is damaged: crc ")
    assert len(good) < 20


# Wrong usage --------------------------------------------------------------------------------------------------------


@each_case(
    ("options", "expected"),
    [
        (["--batch", "0"], "argument --batch: '0' is not a whole number from 1 to 2147483647"),
        (["--batch", "-1"], "argument --batch: '-1' is not"),
        (["--timestamp", "99999999999999999999"], "argument --timestamp: '99999999999999999999' is not"),
        (["--key-separator", ""], "argument --key-separator: the separator must not be empty"),
        (["--set", "segment.size=5"], "there is no setting 'segment.size'; the settings are segment.bytes, "),
        (["--set", "segment.bytes"], "segment.bytes=: it must be a whole number of at least 1"),
        (["--set", "segment.bytes=0"], "segment.bytes=0: it must be a whole number of at least 1"),
        (["--set", "segment.ms=soon"], "segment.ms=soon: it must be a whole number of at least 1"),
        (["--set", "retention.ms=-2"], "retention.ms=-2: it must be a whole number of at least -1"),
        (["--set", "flush.messages=0"], "flush.messages=0: it must be a whole number of at least 1"),
        (["--set", "min.cleanable.dirty.ratio=nan"], "min.cleanable.dirty.ratio=nan: it must be a number from 0 to 1"),
        (["--set", "cleanup.policy=compress"], "cleanup.policy=compress: it must be delete, compact, or both"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_made(
    orders: str, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    output = refusal(main, capsys, "append", orders, *options, code=2)
    assert output.startswith(f"python -m minibroker.segments append: {expected}")
    assert not Path(orders).parent.exists()


def test_every_setting_that_is_a_whole_number_may_be_set_to_its_smallest_value(orders: str) -> None:
    settings = [word for name, value in SMALLEST.items() for word in ("--set", f"{name}={value}")]
    assert run("append", orders, *settings, "--batch", "1", stdin="a\nb\n") == "acked 0-0\nacked 1-1\n"
    assert run("tail", orders) == "0\t\ta\n1\t\tb\n"


@each_case("command", ["append", "tail", "list", "retain", "compact", "scrub"])
def test_a_directory_that_is_no_partition_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = refusal(main, capsys, command, str(tmp_path / "orders"), code=1)
    expected = "'orders' is not the directory of a partition: its name must be TOPIC-NUMBER"
    assert output == f"minibroker.segments: {expected}\n"
    assert list(tmp_path.iterdir()) == []


@each_case("command", ["tail", "list", "retain", "compact", "scrub"])
def test_only_append_makes_a_directory(command: str, orders: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"minibroker.segments: {orders}: there is no such directory; the command append creates it\n"
    assert refusal(main, capsys, command, orders, code=1) == expected
    assert not Path(orders).parent.exists()


def test_a_file_in_the_place_of_the_directory_is_named(orders: str) -> None:
    Path(orders).parent.mkdir()
    Path(orders).write_text("mine")
    assert complaint("append", orders, code=1) == f"minibroker.segments: {orders}: File exists\n"
    assert Path(orders).read_text() == "mine"


# Processes ----------------------------------------------------------------------------------------------------------


def test_a_data_directory_is_used_by_one_process_at_a_time(orders: str) -> None:
    with running([*SEGMENTS, "append", orders, "--batch", "1"]) as first:
        append_one(first)
        expected = f"{Path(orders).parent}: another process uses this data directory; stop it first\n"
        for command in ("append", "tail", "retain"):
            assert complaint(command, orders, code=1) == f"minibroker.segments: {expected}", command


def test_when_the_reader_of_a_pipe_ends_the_shutdown_is_silent_and_clean(filled: str) -> None:
    program = f"'{sys.executable}' -m minibroker.segments"
    append = f"seq 1 100000 | {program} append '{filled}' --batch 1 | head -n 1"
    for command in (append, f"{program} tail '{filled}' | head -n 1", f"{program} list '{filled}' | true"):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert done.stderr == ""
        assert (Path(filled).parent / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("acks_before_the_kill", [1, 40, 333])
def test_kill_9_of_a_writing_process_loses_nothing_that_was_acked(orders: str, acks_before_the_kill: int) -> None:
    acked = acked_until_killed([*SEGMENTS, "append", orders, "--batch", "1", *SMALL], acks_before_the_kill)
    assert not (Path(orders).parent / ".kafka_cleanshutdown").exists()
    left = run("tail", orders).splitlines()
    assert len(left) >= acked
    assert left == [f"{n}\t\tvalue-{n}" for n in range(len(left))]
