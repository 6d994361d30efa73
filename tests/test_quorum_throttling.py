"""A partition moves at the rate that an operator sets, on the sending and on the receiving side (KIP-73)."""

import os
import time

from brokers import eventually, unique
from clients_stock import READ_S_MAX, Message, admin, confluent_write
from clusters import QuorumCluster
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from minibroker.clients import admin as ours_admin
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition

pytest_plugins = ["clusters_fixtures"]

BYTES = 3_000_000
RATE = 150_000
FETCH_BYTES = 1024**2
"""What a leader may send in one answer before it counts: `replica.fetch.max.bytes`."""
WATCHED_S = 3
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
DIRECTORIES_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def alter(quorum: QuorumCluster, changes: dict[tuple[ResourceType, str], dict[str, str | None]]) -> None:
    """What Kafka's tool sends for `--throttle`, and to take the throttle away."""
    client, set_, delete = admin(quorum.bootstrap), AlterConfigOpType.SET, AlterConfigOpType.DELETE
    for (kind, name), values in changes.items():
        entries = [
            ConfigEntry(key, value, incremental_operation=delete if value is None else set_)
            for key, value in values.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        client.incremental_alter_configs([resource])[resource].result(READ_S_MAX)


def copied(quorum: QuorumCluster, topic: str) -> int:
    """The bytes that node 3 has of a topic."""
    folder = quorum[3].data / f"{topic}-0"
    return sum(it.stat().st_size for it in folder.glob("*.log")) if folder.exists() else 0


def test_a_move_is_as_slow_as_the_throttle_of_either_side_and_ends_when_that_is_gone(quorum: QuorumCluster) -> None:
    sides = {"leader": "0:1", "follower": "0:3"}
    topics = {side: quorum.create(unique(side), [[1, 2]]) for side in sides}
    every = [(ResourceType.BROKER, str(number)) for number in quorum.nodes]
    named = {side: (ResourceType.TOPIC, topics[side]) for side in sides}
    for topic in topics.values():
        values = [Message(os.urandom(10_000)) for _ in range(BYTES // 10_000)]
        confluent_write(quorum.bootstrap, topic, values, acks="all")
    alter(quorum, {it: dict.fromkeys(RATES, str(RATE)) for it in every})
    alter(quorum, {named[side]: {f"{side}.replication.throttled.replicas": sides[side]} for side in sides})
    with Client(quorum.bootstrap) as client:
        since = time.monotonic()
        ours_admin.reassign_partitions(client, {TopicPartition(topic, 0): [1, 3] for topic in topics.values()})
        while (elapsed := time.monotonic() - since) < WATCHED_S:
            for side, topic in topics.items():
                # The size is read first, so more time has passed than it took to copy that much.
                size = copied(quorum, topic)
                allowed = RATE * (time.monotonic() - since + 1) + FETCH_BYTES
                assert size <= allowed < BYTES, f"{side}: {size} bytes after {elapsed:.1f} s"
            time.sleep(0.05)
        for side, topic in topics.items():
            assert copied(quorum, topic) > 0, f"{side}: nothing moves"
        assert {name.topic for name in ours_admin.list_reassignments(client)} >= set(topics.values())
        # Kafka's tool removes the third rate as well.
        alter(quorum, {it: dict.fromkeys((*RATES, DIRECTORIES_RATE)) for it in every})
        alter(quorum, {named[side]: {f"{it}.replication.throttled.replicas": None for it in sides} for side in sides})
        eventually(lambda: not ours_admin.list_reassignments(client), "the moves are over", seconds=20)
    for topic in topics.values():
        quorum.await_isr(topic, 1, 3)
        assert copied(quorum, topic) >= BYTES
