"""The chapter's program, `python -m minibroker.quorum`: three processes are a cluster."""

import sys
from contextlib import ExitStack
from pathlib import Path

from brokers import eventually

from minibroker.bench.launcher import HOST, Server, reserve_port
from minibroker.clients import admin
from minibroker.clients.blocking import Client


def test_three_programs_elect_a_controller_and_serve_a_topic_with_three_replicas(tmp_path: Path) -> None:
    with ExitStack() as stack:
        addresses = {number: f"{HOST}:{reserve_port(stack)}" for number in (1, 2, 3)}
        voters = ",".join(f"{number}@{address}" for number, address in addresses.items())
        servers = [program(number, address, voters, tmp_path) for number, address in addresses.items()]
        for server in servers:
            stack.callback(server.kill)
            server.begin()
        for server in servers:
            server.await_ready()
        client = stack.enter_context(Client(",".join(addresses.values())))
        admin.create_topics(client, [admin.NewTopic("orders", partitions=2, replication_factor=3)])

        def has_three_replicas() -> bool:
            (topic,) = client.metadata(["orders"]).topics
            return [sorted(it.replica_nodes) for it in topic.partitions] == [[1, 2, 3]] * 2

        # Any node may answer, and it may hear of the topic a moment after the controller.
        eventually(has_three_replicas, "two partitions with three replicas each")
        for server in servers:
            server.stop()


def program(number: int, address: str, voters: str, folder: Path) -> Server:
    command = [sys.executable, "-m", "minibroker.quorum", str(number), str(folder / f"{number}")]
    return Server(lambda listen: [*command, listen, voters], folder, address=address, name=f"{number}")
