"""How long writes stop when a node fails, and that no record is lost: `python tests/failover.py --rounds 20`.

The rounds are those of `minibroker bench failover`, with the default settings. Here all records of the stock client
are read back at the end: nothing lost, nothing twice, nothing out of order. Options: `--only NAME`
of a fault, `--out FILE` for the figures as JSON, `--set NAME=VALUE` for the nodes.
"""

import argparse
import json
import tempfile
from pathlib import Path

from clusters import Sender

from minibroker.bench.failover import CLIENT_TIMEOUT_MS, FAULTS, REPLICAS, SETTINGS, Cluster, Fault, Round, measure
from minibroker.bench.local import LocalCluster


class CheckedSender(Sender):
    """A sender whose records are read back at the end."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(cluster, topic, partitions=len(REPLICAS), timeout_ms=CLIENT_TIMEOUT_MS)

    def finish(self) -> None:
        super().finish()
        self.check()


def main() -> None:
    parser = argparse.ArgumentParser(description="How long writes stop when a node goes.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=[it.name for it in FAULTS])
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the nodes")
    options = parser.parse_args()
    faults = [it for it in FAULTS if options.only in (None, it.name)]
    with tempfile.TemporaryDirectory() as path, LocalCluster(Path(path), *SETTINGS, *options.set) as cluster:
        found = measure(cluster, faults, options.rounds, say=say, make_sender=CheckedSender)
    for fault, outages in zip(faults, found, strict=True):
        verdict = "within" if outages[0].at(99) <= fault.target_ms else "BEYOND"
        print("\n".join(it.text() for it in outages), f"  {verdict} {fault.target_ms} ms", flush=True)
    if options.out:
        options.out.write_text(json.dumps([it.document() for outages in found for it in outages], indent=1))


def say(fault: Fault, number: int, it: Round) -> None:
    print(f"{number}: {fault.name}: {it.text()}", flush=True)


if __name__ == "__main__":
    main()
