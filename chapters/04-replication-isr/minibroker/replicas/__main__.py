"""The chapter's program: it runs a node of a cluster, and lets an operator elect leaders.

python -m minibroker.replicas serve 1 data/1 127.0.0.1:9092                      the controller
python -m minibroker.replicas serve 2 data/2 127.0.0.1:9093 1@127.0.0.1:9092     another node of its cluster
python -m minibroker.replicas elect TOPIC PARTITION [--unclean] [HOST:PORT]      elect a live leader for a partition
"""

import argparse
import asyncio
import logging
import sys

from minibroker.client.aio import AsyncClient
from minibroker.client.errors import BrokerError, ClientError
from minibroker.log.errors import LogError
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import MetadataError
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.node import serve
from minibroker.replicas.one_controller import replicated
from minibroker.replication.authority import Election
from minibroker.replication.tables.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions


def main(arguments: list[str]) -> None:
    """Run a node until SIGTERM or Ctrl-C, or elect a leader."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "serve":
            _serve(options)
        else:
            asyncio.run(_elect(options))
    except (BrokerFailure, ClientError, LogError, MetadataError, OSError) as error:
        sys.exit(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minibroker.replicas", description="Run a node, or elect a leader.")
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="run a node")
    serving.add_argument("node_id", type=int, help="its node.id")
    serving.add_argument("data", help="its data directory")
    serving.add_argument("listen", metavar="HOST:PORT", help="where it listens")
    serving.add_argument("controller", metavar="ID@HOST:PORT", nargs="?", help="the controller, if it is another node")
    serving.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="set a configuration key")
    electing = commands.add_parser("elect", help="elect a leader that is in sync and alive")
    electing.add_argument("topic")
    electing.add_argument("partition", type=int)
    electing.add_argument("bootstrap", metavar="HOST:PORT", nargs="?", default="127.0.0.1:9092")
    electing.add_argument("--unclean", action="store_true", help="elect any live replica: records may be lost")
    return parser


def _serve(options: argparse.Namespace) -> None:
    settings = dict(pair.partition("=")[::2] for pair in options.set)
    settings |= {
        "node.id": str(options.node_id),
        "log.dirs": options.data,
        "listeners": f"PLAINTEXT://{options.listen}",
        "controller.quorum.voters": options.controller or "",
    }
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(NodeConfig(settings)))


async def _run(config: NodeConfig) -> None:
    node = replicated(config)
    await serve(node, on_ready=lambda: print(f"ready: {node.address}", flush=True))


async def _elect(options: argparse.Namespace) -> None:
    partitions = [TopicPartitions(topic=options.topic, partitions=[options.partition])]
    kind = Election.UNCLEAN if options.unclean else Election.PREFERRED
    async with AsyncClient(options.bootstrap) as client:
        response: ElectLeadersResponse = await client.send(
            ElectLeadersRequest(election_type=kind, topic_partitions=partitions, timeout_ms=10_000)
        )
    results = [it for topic in response.replica_election_results for it in topic.partition_result]
    if not results:
        raise BrokerError(response.error_code)
    if results[0].error_code:
        raise BrokerError(results[0].error_code, results[0].error_message)
    print(f"{options.topic}-{options.partition} has a new leader")


if __name__ == "__main__":
    main(sys.argv[1:])
