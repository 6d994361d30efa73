"""The Spark process of `make demo`: runs the pipeline orders, reports progress in JSON lines, and audits at the end.

    python -m minibroker.pipelines.live SETTINGS

It runs until a line arrives on stdin. Then it waits until all orders are processed, and audits the deliveries. If stdin
ends without a line, the demo has ended, and the process ends without an audit.
"""

import json
import select
import sys
from pathlib import Path
from typing import Any

from minibroker.pipelines import audit, orders
from minibroker.pipelines.errors import PipelineError
from minibroker.pipelines.running import lag_between, reason, start_session

LOOK_S = 0.3


def tell(kind: str, **facts: Any) -> None:
    """Write one line for the demo."""
    print(json.dumps({"kind": kind, **facts}), flush=True)


def main() -> None:
    """Run the pipeline with the settings on the command line."""
    given = json.loads(sys.argv[1])
    spark = start_session("demo", "local[2]", given["conf"])
    try:
        _run(spark, orders.Orders(**given["orders"]), Path(given["history"]))
    except Exception as error:
        tell("failed", reason=str(error) if isinstance(error, PipelineError) else reason(error))
        raise SystemExit(1) from None
    finally:
        spark.stop()


def _run(spark: Any, settings: orders.Orders, history: Path) -> None:
    queries = orders.start(spark, settings)
    tell("ready", ids={name: str(query.id) for name, query in queries.items()})
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        _tell_progress(queries)
    if not sys.stdin.readline():
        return
    for query in queries.values():
        query.processAllAvailable()
    _tell_progress(queries)
    for query in queries.values():
        query.stop()
    tell("processed")
    found = audit.run(spark, audit.Audit(settings.bootstrap, history))
    tell("audit", total=found.total._asdict(), longest_pause_ms=found.longest_pause_ms)


def _tell_progress(queries: dict[str, Any]) -> None:
    for name, query in queries.items():
        error = query.exception()
        if error is not None:
            raise PipelineError(f"{name}: {reason(error)}")
    last = queries["revenue"].lastProgress
    if last is not None:
        source = last["sources"][0]
        tell("progress", batch=last["batchId"], behind=lag_between(source["endOffset"], source["latestOffset"]))


if __name__ == "__main__":
    main()
