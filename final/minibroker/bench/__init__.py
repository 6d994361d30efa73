"""The harness of every benchmark and lab of the course: start, measure, compare with a physical limit, report, draw.

The harness imports the clients and the packages that they use, and starts brokers only as processes. It is imported by
the command line, by the scripts in the chapters' folders `bench` and `labs`, and by the tests, but not by the broker.

| module       | owns                                                                               |
|--------------|------------------------------------------------------------------------------------|
| `measure`    | cases run in turn, wall and CPU time of each repeat, the figures derived from them |
| `limits`     | the speed of the machine itself on a file: bare write, checksum, flush             |
| `network`    | the speed of the machine itself on a connection                                    |
| `bars`       | the bounds that a benchmark promises to keep, and the verdict                      |
| `benchmark`  | the declaration of a benchmark, and how its files are found                        |
| `lab`        | the declaration of a lab, and how labs are found in the repository                 |
| `scripts`    | how a benchmark file or a lab file is loaded                                       |
| `context`    | the folder under test, the number of repeats, quick mode, cleaning up              |
| `report`     | the plain-text tables and the JSON documents                                       |
| `plot`       | the figures, as SVG; `scales` holds their arithmetic                               |
| `progress`   | the line on stderr that shows the progress of a run                                |
| `units`      | KiB and MB, and numbers as people read them                                        |
| `launcher`   | a server process: start, wait until ready, measure, pause, stop, restart           |
| `children`   | servers that stop when the context of their benchmark or lab ends                  |
| `local`      | clusters of processes on this machine                                              |
| `kafka`      | Apache Kafka beside our broker, one node or three; `kafka_program` runs a node     |
| `jars`       | the jars that a POM names, fetched once by Maven                                   |
| `watching`   | the state of a cluster as each of its nodes reports it                             |
| `background` | work on a thread while an experiment runs                                          |
| `sending`    | a stock client that writes all the time                                            |
| `outages`    | the lengths of outages, and their distribution                                     |
| `failover`   | how long writes stop when a node fails                                             |
| `driving`    | one run of produce, consume or latency for `minibroker bench`                      |

A benchmark file only declares what is measured; `benchmark` has an example.
"""

from minibroker.bench import children, limits
from minibroker.bench.bars import Bar, Fact
from minibroker.bench.benchmark import Benchmark, Skipped
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
    "Skipped",
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
