"""Run a node of a cluster: `python -m minibroker.broker NODE_ID DATA HOST:PORT VOTERS [NAME=VALUE…]`."""

import asyncio
import logging
import sys

from minibroker.broker.node import ClusterNode
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.node import serve


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    node_id, data, listen, voters, *pairs = arguments
    settings = dict(pair.partition("=")[::2] for pair in pairs) | {
        "node.id": node_id,
        "log.dirs": data,
        "listeners": f"PLAINTEXT://{listen}",
        "controller.quorum.voters": voters,
    }
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        on_ready = lambda addresses: print(f"ready: {','.join(addresses)}", flush=True)  # noqa: E731
        asyncio.run(serve(NodeConfig(settings), on_ready=on_ready, kind=ClusterNode))
    except BrokerFailure as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main(sys.argv[1:])
