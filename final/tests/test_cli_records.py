"""Claims about `minibroker produce` and `minibroker consume`, as processes with a real broker."""

import json
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from brokers import Broker, unique

pytest_plugins = ["clients_fixtures"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ALL = ("--from-beginning", "--exit-at-end")
kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


def failed(result: "subprocess.CompletedProcess[str]", code: int = 1) -> str:
    """The one line that a failure prints."""
    assert result.returncode == code, result
    [line] = result.stderr.splitlines()
    return line


@contextmanager
def started(broker: Broker, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "minibroker.cli", *arguments, "--bootstrap-server", broker.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: "subprocess.Popen[str]") -> None:
    """Press Ctrl-C: the program ends with 130, and prints nothing."""
    process.send_signal(signal.SIGINT)
    _stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.strip() == ""


@contextmanager
def typing(broker: Broker, topic: str) -> Iterator[tuple["subprocess.Popen[str]", Callable[[str], None]]]:
    """A producer, and a function that types a line into it and sees a consumer print that line."""
    with (
        started(broker, "produce", topic) as producer,
        started(broker, "consume", topic, "--from-beginning") as consumer,
    ):

        def type_line(word: str) -> None:
            assert producer.stdin is not None
            assert consumer.stdout is not None
            producer.stdin.write(f"{word}\n")
            producer.stdin.flush()
            assert consumer.stdout.readline() == f"{word}\n"

        yield producer, type_line


@pytest.fixture
def topic(at_broker: Run) -> str:
    """A topic of two partitions."""
    name = unique("records")
    at_broker("topics", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def filled(at_broker: Run) -> str:
    """A topic of one partition with ten records, their values the offsets."""
    name = unique("filled")
    at_broker("topics", "create", name)
    at_broker("produce", name, stdin="".join(f"{n}\n" for n in range(10)))
    return name


def values(result: "subprocess.CompletedProcess[str]") -> list[str]:
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


# Produce.


def test_lines_are_records_and_the_part_before_the_separator_is_the_key(at_broker: Run, topic: str) -> None:
    produced = at_broker("produce", topic, "--key-separator", "::", stdin="a::1\nb::2\nc::3::4\nplain\nd::\n\n")
    assert (produced.returncode, produced.stdout, produced.stderr) == (0, "", "")
    read = at_broker("consume", topic, *ALL, "-f", "%k|%K|%v|%V\\n")
    assert sorted(read.stdout.splitlines()) == sorted(
        ["a|1|1|1", "b|1|2|1", "c|1|3::4|4", "|-1|plain|5", "d|1||0", "|-1||0"]
    )


def test_the_last_line_needs_no_newline(at_broker: Run, topic: str) -> None:
    at_broker("produce", topic, stdin="one\ntwo")
    assert sorted(values(at_broker("consume", topic, *ALL))) == ["one", "two"]


def test_a_record_may_be_sent_to_a_partition(at_broker: Run, topic: str) -> None:
    at_broker("produce", topic, "--partition", "1", stdin="x\n")
    assert values(at_broker("consume", topic, *ALL, "-f", "%p\\n")) == ["1"]
    assert "no partition 7" in failed(at_broker("produce", topic, "--partition", "7", stdin="x\n"))


def test_records_arrive_with_every_codec_and_every_acks(at_broker: Run, topic: str) -> None:
    cases = [("0", "none"), ("1", "lz4"), *(("all", codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd"))]
    written = []
    for acks, codec in cases:
        lines = [f"{acks} {codec} {n}" for n in range(200)]
        options = ("--acks", acks, "--compression", codec)
        produced = at_broker("produce", topic, *options, stdin="\n".join(lines) + "\n")
        assert produced.returncode == 0, (acks, codec, produced.stderr)
        written += lines
    # With acks=0 the command may end before its records have arrived, so the reader waits for the full number.
    read = at_broker("consume", topic, "--from-beginning", "--max-messages", str(len(written)))
    assert Counter(it.rsplit(" ", 1)[0] for it in read.stdout.splitlines()) == dict.fromkeys(map(" ".join, cases), 200)
    assert sorted(read.stdout.splitlines()) == sorted(written)


def test_a_topic_that_does_not_exist_is_created_with_a_message(at_broker: Run) -> None:
    name = unique("made")
    produced = at_broker("produce", name, stdin="x\n")
    assert produced.returncode == 0
    assert produced.stderr == f"created topic {name}: 1 partition\n"


def test_produce_says_how_to_create_the_topic_if_the_broker_does_not(
    start: Callable[..., Broker], minibroker: Run
) -> None:
    at = ("--bootstrap-server", start("auto.create.topics.enable=false").address)
    minibroker("topics", "create", "orders", *at)
    line = failed(minibroker("produce", "ordres", *at, stdin="x\n"))
    assert "there is no topic 'ordres': did you mean orders?" in line
    assert "`minibroker topics create ordres`" in line


def test_an_invalid_topic_name_is_refused_with_kafkas_code(at_broker: Run) -> None:
    assert "INVALID_TOPIC_EXCEPTION (17)" in failed(at_broker("produce", "a/b", stdin="x\n"))


def test_a_record_that_the_broker_refuses_is_a_failure(at_broker: Run) -> None:
    name = unique("small")
    at_broker("topics", "create", name, "--config", "max.message.bytes=100")
    line = failed(at_broker("produce", name, stdin="short\n" + "x" * 1000 + "\n"))
    assert f"{name}-0 refused a record: MESSAGE_TOO_LARGE (10)" in line


def test_a_line_is_sent_before_the_next_one_is_typed(broker: Broker, topic: str) -> None:
    with typing(broker, topic) as (_producer, type_line):
        type_line("first")
        type_line("second")


def test_ctrl_c_while_producing_is_130_and_silent(broker: Broker, topic: str) -> None:
    with typing(broker, topic) as (producer, type_line):
        type_line("one")
        interrupt(producer)


# Where to start, and where to stop.


def test_reading_starts_at_the_beginning_or_at_an_offset_counted_from_either_end(at_broker: Run, filled: str) -> None:
    assert values(at_broker("consume", filled, *ALL)) == [str(n) for n in range(10)]
    for offset, first in (("0", 0), ("7", 7), ("10", 10), ("-3", 7), ("-99", 0)):
        read = at_broker("consume", filled, "--offset", offset, "--exit-at-end")
        assert values(read) == [str(n) for n in range(first, 10)], offset


def test_an_offset_outside_the_log_is_refused_with_its_bounds(at_broker: Run, filled: str) -> None:
    line = failed(at_broker("consume", filled, "--offset", "11"))
    assert f"offset 11 is not in {filled}-0, whose log starts at 0 and ends before 10: give an offset from 0 to" in line


def test_a_timestamp_is_milliseconds_or_a_date(at_broker: Run, filled: str) -> None:
    times = values(at_broker("consume", filled, *ALL, "-f", "%T\\n"))
    later = [n for n in range(10) if int(times[n]) >= int(times[5])]
    assert values(at_broker("consume", filled, "--timestamp", times[5], "--exit-at-end")) == [str(n) for n in later]
    assert values(at_broker("consume", filled, "--timestamp", "2020-01-01", "--exit-at-end"))[0] == "0"
    assert values(at_broker("consume", filled, "--timestamp", "2099-01-01T00:00:00Z", "--exit-at-end")) == []


def test_max_messages_bounds_the_number_of_records(at_broker: Run, filled: str) -> None:
    for count, expected in (("0", []), ("3", ["0", "1", "2"])):
        assert values(at_broker("consume", filled, "--from-beginning", "--max-messages", count)) == expected, count


def test_a_single_partition_can_be_read(at_broker: Run, topic: str) -> None:
    at_broker("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    both = [at_broker("consume", topic, *ALL, "--partition", n, "-f", "%p%v ").stdout.split() for n in ("0", "1")]
    assert sorted(both[0] + both[1], key=lambda it: it[1]) == sorted(
        values(at_broker("consume", topic, *ALL, "-f", "%p%v\\n")), key=lambda it: it[1]
    )
    assert all(it[0] == str(number) for number, some in enumerate(both) for it in some)
    assert "its partitions are 0 to 1" in failed(at_broker("consume", topic, "--partition", "2"))


def test_an_empty_topic_ends_at_once(at_broker: Run, topic: str) -> None:
    assert values(at_broker("consume", topic, *ALL)) == []


def test_without_a_start_only_new_records_are_read(broker: Broker, at_broker: Run, filled: str) -> None:
    with started(broker, "consume", filled) as consumer:
        assert consumer.stdout is not None
        # The consumer does not print when it begins to read, so records are written until it prints one.
        for number in range(200):
            at_broker("produce", filled, stdin=f"new {number}\n")
            if select.select([consumer.stdout], [], [], 0)[0]:
                break
        assert consumer.stdout.readline().startswith("new ")


def test_ctrl_c_while_consuming_is_130_and_silent(broker: Broker, filled: str) -> None:
    with started(broker, "consume", filled, "--from-beginning") as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "0\n"
        interrupt(consumer)


def test_consume_ends_without_a_message_when_its_reader_goes_away(broker: Broker, at_broker: Run, filled: str) -> None:
    with started(broker, "consume", filled, "--from-beginning") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == "0\n"
        consumer.stdout.close()
        # The consumer notices when it writes the next record.
        for _ in range(20):
            at_broker("produce", filled, stdin="more\n")
            if consumer.poll() is not None:
                break
        assert consumer.wait(timeout=60) == 1
        assert consumer.stderr.read() == ""


# Formats and failures.


def test_json_is_one_object_per_line(at_broker: Run, topic: str) -> None:
    at_broker("produce", topic, "--key-separator", ":", stdin="a:1\n")
    [line] = at_broker("consume", topic, *ALL, "-f", "json").stdout.splitlines()
    found = json.loads(line)
    assert found.pop("timestamp") > 0
    assert found == {"topic": topic, "partition": 0, "offset": 0, "key": "a", "value": "1", "headers": []}


@kcat
def test_a_format_writes_what_kcat_writes(broker: Broker, at_broker: Run) -> None:
    name = unique("kcat")
    at_broker("topics", "create", name)
    producing = ["kcat", "-b", broker.address, "-P", "-t", name, "-K", ":", "-Z", "-H", "a=1", "-H", "b="]
    subprocess.run(producing, input="k1:v1\nk2:\n:v3\n", text=True, timeout=60, check=True, capture_output=True)
    for format_ in (r"%t %p %o %k=%s (%K, %S) %T [%h]\n", r"%s\t%k\x2a\n", r"100%% %o\n"):
        theirs = subprocess.run(
            ["kcat", "-b", broker.address, "-C", "-t", name, "-e", "-q", "-f", format_],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert at_broker("consume", name, *ALL, "-f", format_).stdout == theirs.stdout, format_


@kcat
def test_kcat_reads_the_same_keys_from_the_same_partitions(broker: Broker, at_broker: Run) -> None:
    name = unique("kcat")
    at_broker("topics", "create", name, "--partitions", "7")
    at_broker("produce", name, "--key-separator", ":", stdin="".join(f"key-{n}:{n}\n" for n in range(50)))
    read = subprocess.run(
        ["kcat", "-b", broker.address, "-C", "-t", name, "-e", "-q", "-f", "%p %k %s\n"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    ours = at_broker("consume", name, *ALL, "-f", "%p %k %v\\n")
    assert sorted(read.stdout.splitlines()) == sorted(ours.stdout.splitlines())
    assert len(read.stdout.splitlines()) == 50


def test_a_wrong_option_of_consume_or_produce_is_one_line(minibroker_here: Run) -> None:
    cases = [
        ("consume", ("--from-beginning", "--offset", "1"), 2, "give only one of --from-beginning, --offset"),
        ("consume", ("-f", "%q"), 2, "%q is not a verb"),
        ("consume", ("--timestamp", "yesterday"), 2, "'yesterday' is neither"),
        ("consume", ("--offset", "one"), 2, "--offset"),
        ("produce", ("--key-separator", ""), 2, "--key-separator"),
    ]
    for command, arguments, code, complaint in cases:
        assert complaint in failed(minibroker_here(command, "any", *arguments), code), arguments


def test_consume_never_creates_a_topic(at_broker: Run) -> None:
    name = unique("absent")
    assert f"there is no topic '{name}'" in failed(at_broker("consume", name, *ALL))
    assert name not in at_broker("topics", "list").stdout
