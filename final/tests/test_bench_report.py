"""Claims about bars, tables, documents and `python -m minibroker.bench`."""

import io
import json
import platform
import socket
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from cases import case

from minibroker.bench.__main__ import main
from minibroker.bench.bars import Bar, judge
from minibroker.bench.benchmark import Benchmark, Found, Outcome, bar_chart, figure_of, find_benchmarks, run
from minibroker.bench.context import open_context
from minibroker.bench.measure import Case, Result, Results, Sample
from minibroker.bench.plot import LIMIT, BarChart, Line, LineChart, Point
from minibroker.bench.progress import ProgressLine
from minibroker.bench.report import Table, outcome_document, outcome_text, results_table, write_outcome

MB = 10**6


@pytest.fixture(autouse=True)
def _full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBROKER_QUICK", raising=False)


def results() -> Results:
    limit = Case("bare write", lambda: None, bytes_count=100 * MB, operations_count=100)
    ours = Case("append", lambda: None, bytes_count=100 * MB, operations_count=100, limit="bare write")
    return {
        "bare write": Result(limit, tuple(Sample(wall_s, wall_s) for wall_s in (1.0, 2.0, 4.0))),
        "append": Result(ours, tuple(Sample(wall_s, wall_s) for wall_s in (1.25, 2.5, 5.0))),
    }


def outcome(*bars: Bar, quick: bool = False) -> Outcome:
    measured = results()
    benchmark = Benchmark("Append to one file", [result.case for result in measured.values()], bars)
    return Outcome("append", benchmark, measured, [judge(bar, measured) for bar in bars], quick)


BENCH_FILE = """
    from minibroker.bench import Bar, Benchmark, Case, Context, scaled

    def benchmark(context: Context) -> Benchmark:
        file = context.directory / "scratch"
        size = scaled(full=64, quick=8)
        limit = Case("bare", lambda: file.write_bytes(bytes(size)), bytes_count=size)
        ours = Case("ours", lambda: file.write_bytes(bytes(size)), bytes_count=size, limit="bare")
        return Benchmark("Write", [limit, ours], bars=[Bar("ours", "ratio", at_least=AT_LEAST)])

    def benchmark_two(context: Context) -> Benchmark:
        return Benchmark("Nothing", [Case("nothing", lambda: None, operations_count=1)])
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return write_bench(tmp_path, "0.0")


def write_bench(tmp_path: Path, at_least: str) -> Path:
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "bench_write.py").write_text(textwrap.dedent(BENCH_FILE).replace("AT_LEAST", at_least))
    (folder / "not_a_bench.py").write_text("raise AssertionError('imported')")
    (tmp_path / "scratch").mkdir()
    return folder


def run_main(bench: Path, *options: str) -> int:
    return main([str(bench), "--dir", str(bench.parent / "scratch"), "--repeats", "2", *options])


# Bars.


def test_the_median_decides_a_bar() -> None:
    for bar, verdict in [
        (Bar("append", "ratio", at_least=0.8), "met"),
        (Bar("append", "ratio", at_least=0.81), "MISSED"),
        (Bar("append", "us_beyond", at_most=5000), "met"),
        (Bar("append", "us_beyond", at_most=4999), "MISSED"),
        (Bar("append", "mb_per_s", at_least=40), "met"),
        (Bar("bare write", "ratio", at_least=1.25, against="append"), "met"),
    ]:
        with case(bar, verdict):
            assert judge(bar, results()).text == verdict


def test_a_bar_has_one_bound_and_a_known_metric() -> None:
    with pytest.raises(ValueError, match="one of"):
        Bar("a", "ratio")
    with pytest.raises(ValueError, match="one of"):
        Bar("a", "ratio", at_least=1, at_most=2)
    with pytest.raises(ValueError, match="mb_per_s"):
        Bar("a", "mbps", at_least=1)


def test_a_bar_on_a_figure_that_the_case_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="count its bytes or operations"):
        judge(Bar("bare write", "ratio", at_least=1), results())


def test_a_benchmark_names_only_its_own_cases() -> None:
    case = Case("a", lambda: None, operations_count=1)
    with pytest.raises(ValueError, match="does not have: b"):
        Benchmark("t", [case], bars=[Bar("b", "ops_per_s", at_least=1)])
    with pytest.raises(ValueError, match="does not have: c"):
        Benchmark("t", [case, Case("d", lambda: None, operations_count=1, limit="c")])


def test_a_benchmark_refuses_a_limit_that_counts_other_work() -> None:
    limit = Case("limit", lambda: None, bytes_count=1)
    with pytest.raises(ValueError, match="different work"):
        Benchmark("t", [limit, Case("a", lambda: None, operations_count=1, limit="limit")])


# Tables.


def test_numbers_are_set_to_the_right_words_to_the_left_and_empty_columns_left_out() -> None:
    table = Table(["case", "MB/s", "none", "of"], [["a", "1,000", "", "limit"], ["longer", "5", "", ""]])
    assert table.text() == "case     MB/s  of\na       1,000  limit\nlonger      5"


def test_the_table_holds_median_spread_and_ratio() -> None:
    lines = results_table(results()).text().splitlines()
    assert lines[0].split() == ["case", "MB/s", "ops/s", "±", "µs/op", "CPU", "s/GB", "speed", "ratio", "of"]
    # 100 MB in 1.25, 2.5 and 5 s: 80, 40 and 20 MB/s, quartiles 30 and 60.
    assert lines[2].split() == [
        "append",
        "40.0",
        "40.0",
        "38",
        "%",
        "25,000",
        "25.0",
        "0.800",
        "bare",
        "write",
    ]


def test_the_report_says_met_and_missed_with_the_numbers() -> None:
    text = outcome_text(outcome(Bar("append", "ratio", at_least=0.75), Bar("append", "us_beyond", at_most=10)))
    met, missed = (line for line in text.splitlines() if line.startswith("append: ") and "beside" in line)
    assert met.split()[-3:] == ["0.800", "0.800–0.800", "met"]
    assert missed.split()[-3:] == ["5,000", "3,750–7,500", "MISSED"]
    assert "≥ 0.75" in met
    assert "≤ 10" in missed


def test_the_report_says_that_a_ratio_is_not_that_of_the_medians() -> None:
    note = "A ratio is the median of the rounds' ratios: it can differ from the ratio of the two medians."
    assert note in outcome_text(outcome()).splitlines()
    alone = Outcome("a", Benchmark("t", [results()["bare write"].case]), {"a": results()["bare write"]}, [], False)
    assert note not in outcome_text(alone)


def test_a_quick_report_says_that_its_figures_mean_nothing() -> None:
    assert "quick run: sizes shrunk, figures not comparable" in outcome_text(outcome(quick=True))
    assert "quick run" not in outcome_text(outcome())


def test_a_missed_bar_counts_unless_the_run_is_quick() -> None:
    bar = Bar("append", "ratio", at_least=2)
    assert outcome(bar).is_missed
    assert not outcome(bar, quick=True).is_missed
    assert not outcome(Bar("append", "ratio", at_least=0.5)).is_missed


# Documents and figures.


def test_the_document_keeps_every_repeat_and_can_be_read_back(tmp_path: Path) -> None:
    write_outcome(tmp_path, outcome(Bar("append", "ratio", at_least=0.5)))
    document = json.loads((tmp_path / "append.json").read_text())
    assert document == outcome_document(outcome(Bar("append", "ratio", at_least=0.5))) | {
        "peak_memory_mb": document["peak_memory_mb"]
    }
    ours = document["cases"][1]
    assert [sample["wall_s"] for sample in ours["samples"]] == [1.25, 2.5, 5.0]
    assert ours["ratio"] == {"median": 0.8, "low": 0.8, "high": 0.8}
    assert document["bars"][0]["met"] is True


def test_no_host_name_and_no_path_enters_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = platform.uname()
    monkeypatch.setattr(platform, "uname", lambda: real._replace(node="secret-host"))
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host")
    for path in write_outcome(tmp_path, outcome(Bar("append", "ratio", at_least=0.5))):
        assert "secret-host" not in path.read_text()
        assert str(tmp_path) not in path.read_text()
    assert set(outcome_document(outcome())["environment"]) == {"python", "platform", "cores"}  # type: ignore[call-overload]


def test_limits_are_drawn_in_grey_and_a_shared_limit_as_a_line() -> None:
    chart = bar_chart(outcome())
    assert [(row.label, row.series, row.value) for row in chart.rows] == [
        ("bare write", LIMIT, 50.0),
        ("append", "minibroker", 40.0),
    ]
    assert chart.limit == (50.0, "bare write")


def test_a_benchmark_may_draw_its_own_figure() -> None:
    own = LineChart("t", "x", "y", [Line("a", [Point(1, 1)])])
    cases = [Case("a", lambda: None, operations_count=1)]
    benchmark = Benchmark("t", cases, figure=lambda measured: own)
    assert figure_of(Outcome("a", benchmark, {}, [], quick=False)) is own


def test_cases_without_bytes_are_drawn_as_operations(tmp_path: Path) -> None:
    found = Found("a", lambda _: Benchmark("t", [Case("a", lambda: None, operations_count=1)]))
    with open_context(directory=tmp_path, repeats=1) as context:
        figure = figure_of(run(found, context))
    assert isinstance(figure, BarChart)
    assert figure.value_label.startswith("ops/s")


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_for_each_round_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    line = ProgressLine("append", stream)
    for round_number in (0, 1):
        for name in ("a", "b"):
            line(round_number, 1, name)
    line.close()
    assert stream.getvalue() == "append: warming up\nappend: round 1 of 1\n"


def test_progress_rewrites_one_line_on_a_terminal_and_clears_it() -> None:
    stream = Terminal()
    line = ProgressLine("append", stream)
    line(0, 1, "a long name")
    line(1, 1, "b")
    line.close()
    assert "\n" not in stream.getvalue()
    *_, last_shown, wiped, end = stream.getvalue().split("\r")
    assert last_shown.rstrip() == "append: round 1 of 1: b"
    assert (wiped.strip(), end) == ("", "")


# The command.


def test_benchmarks_are_found_by_file_and_function(bench: Path) -> None:
    assert [found.name for found in find_benchmarks(bench)] == ["write", "write-two"]


def test_the_command_prints_tables_and_writes_a_document_and_a_figure_for_each(
    bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(bench, "--out", str(tmp_path / "made" / "out")) == 0
    printed = capsys.readouterr()
    assert "write: Write" in printed.out
    assert "round 2 of 2" in printed.err
    for name in ("write", "write-two"):
        document = json.loads((tmp_path / "made" / "out" / f"{name}.json").read_text())
        assert len(document["cases"][0]["samples"]) == 2
        ElementTree.parse(tmp_path / "made" / "out" / f"{name}.svg")


def test_temporary_files_are_gone_afterwards(bench: Path, tmp_path: Path) -> None:
    run_main(bench)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_only_the_named_benchmark_runs(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(bench, "--only", "write-two") == 0
    assert "write: Write" not in capsys.readouterr().out


def test_a_missed_bar_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(write_bench(tmp_path, "1e30")) == 1
    printed = capsys.readouterr()
    assert "MISSED" in printed.out
    assert "bars MISSED in: write" in printed.err


FAILING_FILE = """
    from minibroker.bench import Benchmark, Case

    def fail():
        raise FAILURE

    def benchmark(context):
        (context.directory / "left").write_text("behind")
        return Benchmark("Fails", [Case("fails", fail, operations_count=1)])
"""


def write_failing(folder: Path, name: str, failure: str) -> None:
    (folder / f"bench_{name}.py").write_text(textwrap.dedent(FAILING_FILE).replace("FAILURE", failure))


def test_a_failed_benchmark_does_not_stop_the_others_and_is_named_at_the_end(
    bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_failing(bench, "a", "TimeoutError('not within 20 s: an answer')")
    write_failing(bench, "b", "AssertionError")
    assert run_main(bench) == 1
    printed = capsys.readouterr()
    assert "write: Write" in printed.out
    assert printed.err.endswith(
        "2 of 4 benchmarks FAILED:\n"
        "  benchmark a failed, and has no figures: not within 20 s: an answer\n"
        "  benchmark b failed, and has no figures: AssertionError\n"
    )
    # Only a bug is shown with a traceback.
    assert printed.err.count("Traceback") == 1
    assert list((tmp_path / "scratch").iterdir()) == []


def test_long_benchmarks_run_last(bench: Path) -> None:
    (bench / "bench_all.py").write_text("IS_LONG = True\n\ndef benchmark(context): ...\n")
    assert [found.name for found in find_benchmarks(bench)] == ["write", "write-two", "all"]


def test_a_quick_run_shrinks_sizes_and_enforces_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    bench = write_bench(tmp_path, "1e30")
    assert main([str(bench), "--dir", str(tmp_path / "scratch"), "--out", str(tmp_path / "out")]) == 0
    assert "quick run: sizes shrunk, figures not comparable" in capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "write.json").read_text())
    assert document["quick"] is True
    assert document["cases"][0]["bytes_count"] == 8
    assert len(document["cases"][0]["samples"]) == 1
    assert "quick run" in (tmp_path / "out" / "write.svg").read_text()


def test_wrong_usage_ends_with_two(bench: Path) -> None:
    for options in [
        ["--only", "nothing"],
        ["--repeats", "0"],
        ["--repeats", "many"],
        ["--dir", "/does/not/exist"],
        ["--what"],
    ]:
        with case(options):
            with pytest.raises(SystemExit) as ended:
                main([str(bench), *options])
            assert ended.value.code == 2


def test_an_unknown_benchmark_is_answered_with_the_known_ones(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(bench), "--only", "nothing"])
    assert "no benchmark nothing; there are write, write-two" in capsys.readouterr().err


def test_a_folder_without_benchmarks_is_wrong_usage(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit) as ended:
            main([str(folder)])
        assert ended.value.code == 2


def test_an_interrupt_removes_temporary_files_and_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_bench(tmp_path, "0.0")
    (folder / "bench_a.py").write_text(
        textwrap.dedent(
            """
            from minibroker.bench import Benchmark, Case

            def interrupt():
                raise KeyboardInterrupt

            def benchmark(context):
                (context.directory / "left").write_text("behind")
                return Benchmark("t", [Case("a", interrupt, operations_count=1)])
            """
        )
    )
    assert run_main(folder) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list((tmp_path / "scratch").iterdir()) == []
