"""The chapter's program: a node of a cluster with consumer groups.

python -m minibroker.coordinators 1 data/1 127.0.0.1:9092                                          alone, the only voter
python -m minibroker.coordinators 1 data/1 127.0.0.1:9092 1@127.0.0.1:9092,2@127.0.0.1:9093,…      one of several
"""

import argparse
import asyncio
import logging
import sys

from minibroker.coordinators.node import coordinator_node
from minibroker.log.errors import LogError
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import MetadataError
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.node import serve


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options = _parser().parse_args(arguments)
    settings = dict(pair.partition("=")[::2] for pair in options.set)
    settings |= {
        "node.id": str(options.node_id),
        "log.dirs": options.data,
        "listeners": f"PLAINTEXT://{options.listen}",
        "controller.quorum.voters": options.voters,
    }
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_run(NodeConfig(settings)))
    except (BrokerFailure, LogError, MetadataError, OSError) as error:
        sys.exit(str(error))


async def _run(config: NodeConfig) -> None:
    node = coordinator_node(config)
    await serve(node, on_ready=lambda: print(f"ready: {node.address}", flush=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minibroker.coordinators", description="One node of a cluster.")
    parser.add_argument("node_id", type=int, help="its node.id")
    parser.add_argument("data", help="its data directory")
    parser.add_argument("listen", metavar="HOST:PORT", help="where it listens")
    parser.add_argument("voters", metavar="ID@HOST:PORT,…", nargs="?", default="", help="all voters with this node")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting with Kafka's name")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
