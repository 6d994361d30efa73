"""The chapter's program: a node of a cluster with consumer groups.

python -m minibroker.coordinators 1 data/1 127.0.0.1:9092                                          alone, the only voter
python -m minibroker.coordinators 1 data/1 127.0.0.1:9092 1@127.0.0.1:9092,2@127.0.0.1:9093,…      one of several
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.coordinators.node import coordinator_node
from minibroker.log.errors import LogError
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import MetadataError
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.node import Node, serve


def main(
    arguments: list[str],
    *,
    assemble: Callable[[NodeConfig], Node] = coordinator_node,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    name: str = "minibroker.coordinators",
) -> None:
    """Serve until SIGTERM or Ctrl-C. Chapter 07 passes another `assemble`, and a `run` with another event loop."""
    options = _parser(name).parse_args(arguments)
    settings = dict(pair.partition("=")[::2] for pair in options.set)
    settings |= {
        "node.id": str(options.node_id),
        "log.dirs": options.data,
        "listeners": f"PLAINTEXT://{options.listen}",
        "controller.quorum.voters": options.voters,
    }
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        run(_run(assemble, NodeConfig(settings)))
    except (BrokerFailure, LogError, MetadataError, OSError) as error:
        sys.exit(str(error))


async def _run(assemble: Callable[[NodeConfig], Node], config: NodeConfig) -> None:
    node = assemble(config)
    await serve(node, on_ready=lambda: print(f"ready: {node.address}", flush=True))


def _parser(name: str) -> argparse.ArgumentParser:
    about = "Run one node of a cluster with consumer groups."
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    parser.add_argument("node_id", type=int, help="the node.id of this node")
    parser.add_argument("data", help="the data directory of this node")
    parser.add_argument("listen", metavar="HOST:PORT", help="the address on which this node listens")
    voters = "all voters, this node included; if left out, this node is the only voter"
    parser.add_argument("voters", metavar="ID@HOST:PORT,…", nargs="?", default="", help=voters)
    setting = "a configuration key with Kafka's name, and its value"
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=setting)
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
