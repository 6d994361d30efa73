"""Claims about servers under test, the client that measures them, and the CPU time that is counted."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.exchange import Exchange, Latencies, start_echo
from cases import case

from minibroker.bench import Benchmark, Case, children, limits, network
from minibroker.bench.benchmark import Found, run
from minibroker.bench.context import Context, open_context
from minibroker.bench.launcher import Server, cpu_text_s
from minibroker.bench.measure import measure, percentile
from minibroker.bench.report import outcome_text
from minibroker.bench.units import KIB

FRAME = (5).to_bytes(4, "big") + b"hello"
BUSY = "import time, sys; print('ready: 127.0.0.1:1', flush=True)\nwhile time.process_time() < 60: pass"


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with open_context(directory=tmp_path, repeats=1) as opened:
        yield opened


def script(context: Context, code: str) -> Server:
    return children.start(context, lambda _listen: [sys.executable, "-c", code])


# A server under test --------------------------------------------------------------------------------------------------


def test_a_server_is_ready_when_it_says_so_and_ends_with_the_context(tmp_path: Path) -> None:
    with open_context(directory=tmp_path) as context:
        child = script(context, "import time; print('hm'); print('ready: 127.0.0.1:9092', flush=True); time.sleep(600)")
        assert (child.host, child.port) == ("127.0.0.1", 9092)
        assert child.is_alive()
    assert not child.is_alive()


def test_a_server_that_dies_before_it_is_ready_is_an_error_with_its_stderr(context: Context) -> None:
    with pytest.raises(ChildProcessError, match="no such disk"):
        script(context, "import sys; sys.exit('no such disk')")


def test_a_server_may_be_stopped_twice_and_killed_after(context: Context) -> None:
    child = script(context, "import time; print('ready: 127.0.0.1:1', flush=True); time.sleep(600)")
    child.stop()
    child.stop()
    child.kill()


def test_cpu_time_memory_and_files_of_a_server_are_measured(context: Context) -> None:
    child, idle = script(context, BUSY), script(context, BUSY.replace("< 60", "< 0") + "\ntime.sleep(600)")
    deadline = time.monotonic() + 60
    while child.cpu_s() < idle.cpu_s() + 0.05:
        assert time.monotonic() < deadline, "a busy process has used no CPU time"
    assert 1 < child.resident_mb() < 1000
    assert child.open_files() == 0 or child.open_files() >= 3  # the three that every process has


def test_a_server_stores_its_bytecode(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in children.environment(context)
    start_echo(context)
    # Only imported modules are stored; the bytecode of a script never is.
    assert list((context.directory / "compiled").rglob("asyncio/streams*.pyc"))


def test_a_cpu_time_of_ps_is_read() -> None:
    for text, seconds in [("0:00.05", 0.05), ("01:02:03", 3723), ("2-00:00:01", 172801), ("12:34", 754)]:
        with case(text, seconds):
            assert cpu_text_s(text) == pytest.approx(seconds)


def test_a_text_that_is_no_cpu_time_is_refused() -> None:
    with pytest.raises(ValueError, match="not a CPU time"):
        cpu_text_s("a while")


# The client -----------------------------------------------------------------------------------------------------------


def test_the_bare_server_sends_each_frame_back(context: Context) -> None:
    child = start_echo(context)
    exchange = Exchange(context, child.host, child.port)
    assert exchange.ask(FRAME) == FRAME
    latencies = Latencies()
    exchange.repeat(FRAME, len(FRAME), count=10, latencies=latencies)
    exchange.repeat(FRAME, len(FRAME), count=96, in_flight=32)
    exchange.each([FRAME] * 7, len(FRAME), in_flight=3)
    exchange.each([FRAME] * 2, len(FRAME), in_flight=3)
    assert exchange.ask(FRAME) == FRAME  # no response was left over, and none is missing
    assert latencies.percentile_us(99) >= latencies.percentile_us(50) > 0


def test_a_server_that_closes_the_connection_is_an_error(context: Context) -> None:
    child = start_echo(context)
    exchange = Exchange(context, child.host, child.port)
    child.kill()
    with pytest.raises(ConnectionError):
        exchange.repeat(FRAME, len(FRAME), count=1)


def test_a_percentile_is_one_of_the_values() -> None:
    for percent, expected in [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]:
        with case(percent, expected):
            assert percentile(range(1, 101), percent) == expected


def test_latencies_are_the_median_of_the_rounds_without_the_warm_up() -> None:
    latencies = Latencies()
    for round_us in (10_000, 3, 1, 2):
        latencies.begin_round().append(round_us * 1000)
    assert latencies.percentile_us(50) == 2


# CPU time -------------------------------------------------------------------------------------------------------------


def test_a_case_counts_the_cpu_time_that_it_names() -> None:
    readings = iter([10.0, 12.5] * 2)
    case = Case("a", lambda: None, operations_count=1, cpu_s=lambda: next(readings))
    assert measure([case], repeats=1)["a"].cpu_s.median == 2.5


def exchange(context: Context, file: int, bytes_count: int, block_bytes: int) -> Case:
    count = bytes_count // block_bytes
    return network.exchange(context, file, count, in_flight=2, block_bytes=block_bytes, name="exchange")


@pytest.mark.parametrize("make", [network.receive_append, network.read_send, exchange])
def test_the_other_end_of_a_connection_is_not_counted(
    context: Context, make: Callable[[Context, int, int, int], Case]
) -> None:
    # Tests that ran before in this process may have left threads.
    before = set(threading.enumerate())
    file = limits.scratch_file(context, "scratch", 64 * KIB)
    case = make(context, file, 64 * KIB, 16 * KIB)
    assert (case.bytes_count, case.operations_count) == (64 * KIB, 4)
    assert case.cpu_s is time.thread_time
    assert len(measure([case], repeats=2)[case.name].samples) == 2
    assert set(threading.enumerate()) <= before


# The table ------------------------------------------------------------------------------------------------------------


def test_a_benchmark_may_ask_for_more_columns(context: Context) -> None:
    case = Case("work", lambda: None, operations_count=1)

    def table(*columns: str) -> str:
        return outcome_text(run(Found("x", lambda _: Benchmark("X", [case], columns=columns)), context))

    usual, more = table(), table("cpu_us_per_op", "ms_per_op")
    assert "ms/op" not in usual
    assert "ms/op" in more
    assert "CPU µs/op" in more


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric 'parsecs'"):
        Benchmark("X", [Case("work", lambda: None, operations_count=1)], columns=["parsecs"])
