"""A node whose disk fails ends with one line, and the others go on: 0 lost, 0 twice, 0 out of order.

The failures are those of a real process: flushes that return EIO, and a file that cannot grow, which accepts a part of
a write first and then refuses, as a full disk does. The producer is librdkafka, idempotent, acks=all.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator

import pytest
from brokers import IS_OURS, eventually, unique
from clients_stock import admin
from clusters import LAG_MS_MAX, Sender
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from failing_nodes import FailingCluster, FailingNode

EVERYBODY = (1, 2, 3)
SETTINGS = (f"replica.lag.time.max.ms={LAG_MS_MAX}", "replica.fetch.backoff.ms=100", "default.replication.factor=3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingCluster]:
    if not IS_OURS or sys.platform != "linux":
        pytest.skip("needs nodes of its own, and Linux")
    with FailingCluster(tmp_path_factory.mktemp("disks"), *SETTINGS) as cluster:
        yield cluster


def others(number: int) -> list[int]:
    return [it for it in EVERYBODY if it != number]


def check_end(node: FailingNode, *words: str, is_whole: bool = False) -> None:
    """The node ended by itself and said why, in one line and without a traceback.

    If it is not whole, it may lack records that it has acknowledged, and must know that when it starts again.
    """
    assert node.await_end() == 1
    line = node.last_words()[-1]
    assert line.startswith(f"minibroker serve: node {node.number} ends, because its ")
    for word in words:
        assert word in line
    assert line.endswith("then start the node again")
    assert not node.complaints(), node.complaints()
    assert (node.data / "broker-epoch").exists() is is_whole


def come_back(cluster: FailingCluster, number: int, topic: str, sender: Sender) -> None:
    cluster.nodes[number].restart()
    cluster.await_isr(topic, *EVERYBODY)
    sender.await_acks()
    sender.finish()
    sender.check()


def test_a_controller_whose_metadata_cannot_be_flushed_ends_and_another_is_elected(cluster: FailingCluster) -> None:
    old = cluster.controller()
    topic = cluster.create(unique("flush"), [[old, *others(old)]], min_insync_replicas=2)
    with Sender(cluster, topic) as sender:
        sender.await_acks()
        node = cluster.nodes[old]
        node.mark.write_text("__cluster_metadata-0/")
        # The request may be refused, or carried out by the next controller; either way it is answered.
        with contextlib.suppress(KafkaException):
            client = admin(cluster.address_of(others(old)[0]))
            (future,) = client.create_topics([NewTopic(unique("asked"), 1, 1)]).values()
            future.result(20)
        check_end(node, "Input/output error")
        assert len(node.asked) == 1, "a flush that failed is never tried again"
        assert cluster.controller(among=others(old)) != old
        cluster.create(unique("decided"), [others(old)], through=others(old)[0])
        cluster.leader(topic, among=others(old))
        sender.await_acks()
        come_back(cluster, old, topic, sender)


def test_a_leader_whose_log_cannot_be_flushed_ends_and_another_leads(cluster: FailingCluster) -> None:
    old = others(cluster.controller())[0]
    topic = cluster.create(unique("log"), [[old, *others(old)]], min_insync_replicas=2, flush_messages=1)
    with Sender(cluster, topic) as sender:
        sender.await_acks()
        node = cluster.nodes[old]
        node.mark.write_text(f"{topic}-0/")
        check_end(node, "flush", f"{topic}-0/00000000000000000000.log", "Input/output error")
        assert len(node.asked) == 1
        cluster.leader(topic, among=others(old))
        sender.await_acks()
        come_back(cluster, old, topic, sender)


def test_a_leader_whose_data_directory_is_gone_ends_and_another_leads(cluster: FailingCluster) -> None:
    old = others(cluster.controller())[0]
    topic = cluster.create(unique("gone"), [[old, *others(old)]], min_insync_replicas=2)
    with Sender(cluster, topic) as sender:
        sender.await_acks()
        node = cluster.nodes[old]
        away = node.data.with_name("away")
        node.data.rename(away)
        check_end(node, f"data directory {node.data} cannot be found any more")
        cluster.leader(topic, among=others(old))
        sender.await_acks()
        # Nothing was made in its place.
        assert not node.data.exists()
        away.rename(node.data)
        come_back(cluster, old, topic, sender)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_node_whose_log_has_no_room_ends_and_the_others_go_on(cluster: FailingCluster, role: str) -> None:
    old = others(cluster.controller())[0]
    replicas = [old, *others(old)] if role == "leader" else [*others(old), old]
    topic = cluster.create(unique("room"), [replicas], min_insync_replicas=2)
    with Sender(cluster, topic, pause_s=0.0005) as sender:
        node = cluster.nodes[old]
        file = node.data / f"{topic}-0" / "00000000000000000000.log"
        # Grow the log until no other file of the node is as large.
        eventually(lambda: os.path.getsize(file) > 60_000, "the log has grown", seconds=40)
        # The first write that reaches the limit is accepted in part, the next one is refused.
        limit = os.path.getsize(file) + 4000
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (limit, limit))
        check_end(node, "write", f"{topic}-0/00000000000000000000.log", "File too large", is_whole=True)
        cluster.leader(topic, among=others(old))
        sender.await_acks()
        come_back(cluster, old, topic, sender)


def fill_and_end(cluster: FailingCluster) -> None:
    """Wait until full disks have ended two nodes. The last one may have nothing to write: it is killed."""
    eventually(lambda: len(cluster.living()) < len(EVERYBODY) - 1, "full disks end nodes", seconds=60)
    for node in cluster.nodes.values():
        if node.is_alive():
            node.kill()
        else:
            check_end(node, "No space left on device", is_whole=True)


def test_after_all_disks_were_full_nothing_is_lost_and_the_cluster_goes_on_by_itself(cluster: FailingCluster) -> None:
    """Each node ends in the middle of a write. All are started again before there is room, as `up` does."""
    topic = cluster.create(unique("full"), [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas=2)
    with Sender(cluster, topic, partitions=3, pause_s=0.0005) as sender:
        sender.await_acks()
        for node in cluster.nodes.values():
            node.full.touch()
        fill_and_end(cluster)
        for node in cluster.nodes.values():
            node.begin()
        fill_and_end(cluster)
        for node in cluster.nodes.values():
            node.full.unlink()
        cluster.start()
        for partition in range(3):
            cluster.await_isr(topic, *EVERYBODY, partition=partition)
        sender.await_acks()
        sender.finish()
    tally, _logs = sender.tally()
    assert tally.is_well, tally.text()
