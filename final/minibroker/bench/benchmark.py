"""How a benchmark is declared, how benchmark files are found, and how one benchmark is run.

A file `bench_append.py` has one function `benchmark`, or several `benchmark_…`. They only declare what is measured:

```python
def benchmark(context: Context) -> Benchmark:
    size = scaled(full=256 * MIB, quick=2 * MIB)
    log = open_log(context.directory / "a.log")
    context.on_close(log.close)
    bare = limits.write(limits.scratch_file(context, "bare", size), size, MIB, with_crc32c=True)
    ours = Case("append, 1 MiB", lambda: append_all(log, size), bytes_count=size, limit=bare.name)
    return Benchmark("Append to one file", [bare, ours], bars=[Bar(ours.name, "ratio", at_least=0.95)])
```

The name of a benchmark comes from the file and the function: `append` here, and `append-small` for a function
`benchmark_small`. So one benchmark can be chosen without building the others. Files run in the order of their names;
those with `IS_LONG = True` run last.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from minibroker.bench.bars import Bar, Fact, FoundFact, Verdict, judge
from minibroker.bench.context import QUICK_NOTE, Context, is_quick
from minibroker.bench.measure import METRICS, Case, Result, Results, shared_work
from minibroker.bench.plot import LIMIT, BarChart, BarRow, Figure, Mark
from minibroker.bench.scripts import import_script


class Skipped(Exception):
    """A benchmark cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Benchmark:
    """Cases to be measured together, the bars they must meet, and the figure."""

    title: str
    cases: Sequence[Case] = ()  # empty if there are only facts; then `figure` is required
    bars: Sequence[Bar] = ()
    metric: str = ""  # the metric of the figure; if empty, MB/s, or operations/s if a case counts no bytes
    log: bool = False  # a logarithmic axis, for cases that differ by orders of magnitude
    figure: Callable[[Results], Figure] | None = None  # draws a figure of its own instead of bars
    note: str = ""  # a sentence under the table
    facts: Sequence[Fact] = ()  # figures that are not timed
    columns: Sequence[str] = ()  # metrics that its table shows in addition to the usual ones
    repeats_max: int = 0  # for cases that take long: no more repeats than this; 0 is no limit

    def __post_init__(self) -> None:
        names = {case.name for case in self.cases}
        named = (
            [case.limit for case in self.cases] + [bar.case for bar in self.bars] + [bar.against for bar in self.bars]
        )
        unknown = sorted(name for name in named if name and name not in names)
        if unknown:
            raise ValueError(f"benchmark {self.title!r} names cases it does not have: {', '.join(unknown)}")
        for case in self.cases:
            if case.limit:
                # If the case and its limit count different work, the error is raised now, before minutes of measuring.
                shared_work(case, next(other for other in self.cases if other.name == case.limit))
        for metric in filter(None, (self.metric, *self.columns)):
            if metric not in METRICS:
                raise ValueError(f"no metric {metric!r}; there are {', '.join(METRICS)}")


@dataclass(frozen=True)
class Outcome:
    """A benchmark that has run."""

    name: str
    benchmark: Benchmark
    results: Results
    verdicts: Sequence[Verdict]
    quick: bool
    facts: Sequence[FoundFact] = ()

    @property
    def is_missed(self) -> bool:
        """Whether a bar was missed; a quick run enforces no bar."""
        are_met = [verdict.is_met for verdict in self.verdicts] + [fact.is_met for fact in self.facts]
        return not self.quick and not all(are_met)


@dataclass(frozen=True)
class Found:
    """A benchmark function in a file, not called yet."""

    name: str
    build: Callable[[Context], Benchmark]


def find_benchmarks(folder: Path) -> list[Found]:
    """Import the `bench_*.py` files of a folder and list their benchmarks by name, the long ones last."""
    modules = [import_script(path) for path in sorted(folder.glob("bench_*.py"))]
    modules.sort(key=lambda module: getattr(module, "IS_LONG", False))
    return [found for module in modules for found in _benchmarks_of(module)]


def run(found: Found, context: Context) -> Outcome:
    """Build a benchmark, measure it, judge it."""
    benchmark = found.build(context)
    results = context.measure(benchmark.cases, repeats_max=benchmark.repeats_max)
    verdicts = [judge(bar, results) for bar in benchmark.bars]
    facts = [FoundFact(fact, fact.find()) for fact in benchmark.facts]
    return Outcome(found.name, benchmark, results, verdicts, is_quick(), facts)


def figure_of(outcome: Outcome) -> Figure:
    """Draw the figure that a benchmark declares, or else bars."""
    if outcome.benchmark.figure:
        return outcome.benchmark.figure(outcome.results)
    return bar_chart(outcome)


def bar_chart(outcome: Outcome) -> BarChart:
    """Draw one bar for each case, limits in grey, and a dashed line at the limit if all cases share one."""
    benchmark = outcome.benchmark
    metric = benchmark.metric or default_metric(benchmark.cases)
    rows = bar_rows(outcome.results, metric)
    limits = {case.limit for case in benchmark.cases if case.limit}
    shared = [row for row in rows if {row.label} == limits]
    repeats = len(next(iter(outcome.results.values())).samples)
    axis = ", logarithmic" if benchmark.log else ""
    return BarChart(
        title=benchmark.title,
        value_label=f"{METRICS[metric].label}{axis}, median and quartiles of {repeats} repeats",
        rows=rows,
        log=benchmark.log,
        limit=Mark(shared[0].value, shared[0].label) if shared else None,
        note=QUICK_NOTE if outcome.quick else "",
    )


def default_metric(cases: Sequence[Case]) -> str:
    """Return the metric of a figure: megabytes per second if all cases count bytes, else operations."""
    return "mb_per_s" if all(case.bytes_count for case in cases) else "ops_per_s"


def bar_rows(results: Results, metric: str) -> list[BarRow]:
    """Turn results into rows of a bar chart; a case without that figure has no row."""
    limits = {result.case.limit for result in results.values()}
    rows = (_bar_row(result, metric, is_limit=name in limits) for name, result in results.items())
    return [row for row in rows if row]


def _bar_row(result: Result, metric: str, *, is_limit: bool) -> BarRow | None:
    spread = result.spread(metric)
    if spread is None:
        return None
    case = result.case
    series = case.series or (LIMIT if is_limit else "minibroker")
    return BarRow(case.name, *spread, series=series, group=case.group)


def _benchmarks_of(module: ModuleType) -> list[Found]:
    stem = module.__name__.removeprefix("bench_").replace("_", "-")
    functions = [
        (name, value)
        for name, value in vars(module).items()
        if (name == "benchmark" or name.startswith("benchmark_")) and inspect.isfunction(value)
    ]
    return [Found(stem + name.removeprefix("benchmark").replace("_", "-"), value) for name, value in functions]
