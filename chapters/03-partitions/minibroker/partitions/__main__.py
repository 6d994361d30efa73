"""The chapter's program: a broker of one node. `python -m minibroker.partitions [DATA] [HOST:PORT]`."""

import asyncio
import logging
import sys

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.node import alone, serve


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    if len(arguments) > 2 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: python -m minibroker.partitions [DATA] [HOST:PORT]; `minibroker serve` has more options")
    data, address = [*arguments, *["data", "127.0.0.1:9092"][len(arguments) :]][:2]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = NodeConfig({"log.dirs": data, "listeners": f"PLAINTEXT://{address}"})
    try:
        asyncio.run(_run(config))
    except BrokerFailure as failure:
        sys.exit(str(failure))


async def _run(config: NodeConfig) -> None:
    node = alone(config)
    await serve(node, on_ready=lambda: print(f"ready: {node.address}", flush=True))


if __name__ == "__main__":
    main(sys.argv[1:])
