"""Create a topic of one partition on nodes of your choice; the first one leads.

    python chapters/04-replication-isr/examples/place.py orders 2 3 1 min.insync.replicas=2

A cluster would choose the nodes itself, and differently each time. In a lesson they are chosen by hand, so that your
terminal shows what the lesson shows.
"""

import os
import sys

from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client

BOOTSTRAP = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")


def main(topic: str, *words: str) -> None:
    """Numbers are nodes, the rest are settings."""
    nodes = [int(word) for word in words if word.isdigit()]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    with Client(BOOTSTRAP) as client:
        create_topics(client, [NewTopic(topic, -1, -1, configs=settings, assignments={0: nodes})])
    print(f"created {topic}: 1 partition on nodes {', '.join(map(str, nodes))}; node {nodes[0]} leads")


if __name__ == "__main__":
    main(*sys.argv[1:])
