"""The harness of every benchmark and lab of the course: start, measure, compare with a physical limit, report, draw.

It imports the clients and what is below them, and starts brokers only as processes. The command line imports it, and so
do the scripts in the chapters' folders `bench` and `labs`, and the tests; no broker does.

| module       | owns                                                                               |
|--------------|------------------------------------------------------------------------------------|
| `measure`    | cases run in turn, wall and CPU time of each repeat, the figures derived from them |
| `limits`     | what the machine itself can do to a file: bare write, check-sum, flush             |
| `bars`       | what a benchmark promises, and whether the promise was kept                        |
| `benchmark`  | the declaration of a benchmark, and how its files are found                        |
| `lab`        | the declaration of a lab, and how labs are found in a clone                        |
| `scripts`    | how a file beside the packages is loaded                                           |
| `context`    | the folder under test, the number of repeats, quick mode, cleaning up              |
| `report`     | the plain-text tables and the JSON documents                                       |
| `plot`       | the figures, as SVG; `scales` holds their arithmetic                               |
| `progress`   | the one line that says how far a run has come                                      |
| `units`      | KiB and MB, and numbers as people read them                                        |
| `launcher`   | a process that serves: started, awaited, watched, paused, ended, started again     |
| `children`   | servers that end with a context                                                    |
| `local`      | clusters of processes on this machine                                              |
| `watching`   | what the nodes of a cluster say of it                                              |
| `background` | work that goes on beside an experiment                                             |
| `sending`    | a stock client that writes without a pause                                         |
| `outages`    | how long something did not answer, and how that is distributed                     |
| `failover`   | how long writes stop when a node goes                                              |

A benchmark file reads like a list of facts; see `benchmark` for one.
"""

from minibroker.bench import children, limits
from minibroker.bench.bars import Bar, Fact
from minibroker.bench.benchmark import Benchmark
from minibroker.bench.context import Context, is_quick, scaled
from minibroker.bench.lab import Findings, Lab
from minibroker.bench.measure import Case, Result, Results, Spread, measure
from minibroker.bench.plot import BarChart, BarRow, Figure, Line, LineChart, Point
from minibroker.bench.report import Table, peak_memory_mb
from minibroker.bench.units import GB, KIB, MB, MIB, bytes_text

__all__ = [
    "GB",
    "KIB",
    "MB",
    "MIB",
    "Bar",
    "BarChart",
    "BarRow",
    "Benchmark",
    "Case",
    "Context",
    "Fact",
    "Figure",
    "Findings",
    "Lab",
    "Line",
    "LineChart",
    "Point",
    "Result",
    "Results",
    "Spread",
    "Table",
    "bytes_text",
    "children",
    "is_quick",
    "limits",
    "measure",
    "peak_memory_mb",
    "scaled",
]
