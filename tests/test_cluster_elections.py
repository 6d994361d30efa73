"""Elections by command: clean from the in-sync replicas, unclean only on request."""

import subprocess
import sys

import pytest
from brokers import eventually, unique
from clients_stock import Message as Sent
from clients_stock import admin, bounds, confluent_consumer, confluent_read, confluent_take, confluent_write
from clusters import Cluster, Sender
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition

pytest_plugins = ["clusters_fixtures"]


def elect(cluster: Cluster, topic: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the chapter's command against a node that is not the controller, which forwards it."""
    command = [sys.executable, "-m", "minibroker.replicas", "elect", topic, "0", cluster.address_of(3), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def elected(cluster: Cluster, topic: str, *options: str) -> bool:
    """Whether the election succeeds; a dead leader counts as alive until its session is over."""
    return elect(cluster, topic, *options).returncode == 0


def stock_election(cluster: Cluster, topic: str) -> KafkaError | None:
    """The error of an election by librdkafka; None if the leader has changed."""
    where = TopicPartition(topic, 0)
    client = admin(cluster.bootstrap)  # held until the answer is there
    found: dict[TopicPartition, KafkaError | None] = client.elect_leaders(ElectionType.PREFERRED, [where]).result(20)
    return found[where]


def test_clients_go_on_with_the_leader_that_was_elected(cluster: Cluster) -> None:
    topic = cluster.create(unique("elect"), [[2, 3, 1]], min_insync_replicas=2)
    consumer = confluent_consumer(cluster.bootstrap, **{"log_level": 0, "socket.timeout.ms": 5000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with Sender(cluster, topic) as sender:
        sender.await_acks()
        cluster[2].kill()
        eventually(lambda: elected(cluster, topic), "another leader", seconds=30)
        state = cluster.state(topic, at=1)
        assert state is not None
        assert (state.leader, state.leader_epoch) == (3, 1)
        sender.await_acks()
        # The old leader comes back as a follower. It leads again after an election of the preferred leader.
        cluster[2].restart()
        cluster.await_isr(topic, 1, 2, 3)
        assert stock_election(cluster, topic) is None
        eventually(lambda: (state := cluster.state(topic, at=3)) and state.leader == 2, "the preferred leader leads")
        sender.await_acks()
        sender.finish()
    sender.check()
    assert [one.value for one in confluent_take(consumer, sender.sent)] == [b"%d" % n for n in range(sender.sent)]
    consumer.close()
    failure = stock_election(cluster, topic)
    assert failure is not None
    assert failure.code() == KafkaError.ELECTION_NOT_NEEDED


def test_an_unclean_election_loses_records_and_a_consumer_learns_of_it(cluster: Cluster) -> None:
    """librdkafka asks where the epoch of its last record ends (KIP-320), and finds that the log was cut there."""
    topic = cluster.create(unique("unclean"), [[2, 3]], min_insync_replicas=1)
    settings = {"log_level": 0, "topic.metadata.refresh.interval.ms": 500, "socket.timeout.ms": 5000}
    confluent_write(cluster.bootstrap, topic, [Sent(b"kept %d" % n) for n in range(5)], acks="all")
    cluster[3].kill()
    confluent_write(cluster.bootstrap, topic, [Sent(b"lost %d" % n) for n in range(5)], acks="all")
    cluster.await_isr(topic, 2, at=[1, 2])
    consumer = confluent_consumer(cluster.bootstrap, **settings | {"auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(confluent_take(consumer, 10)) == 10
    # The only in-sync replica dies. No other replica may lead, unless records are given up.
    cluster[2].kill()
    cluster[3].restart()
    refusal = eventually(lambda: _refusal(cluster, topic, "ELIGIBLE_LEADERS_NOT_AVAILABLE"), "a refusal", seconds=30)
    assert "none of the in-sync replicas [2] is alive" in refusal
    assert "Traceback" not in refusal
    assert elected(cluster, topic, "--unclean")
    eventually(lambda: (state := cluster.state(topic, at=3)) and state.leader == 3, "node 3 leads")
    confluent_write(cluster.bootstrap, topic, [Sent(b"new %d" % n) for n in range(2)], acks="all", log_level=0)
    with pytest.raises(KafkaException) as truncated:
        confluent_take(consumer, 1)
    assert "Partition log truncation detected at offset 10 (leader epoch 0): broker end offset is 5" in str(
        truncated.value
    )
    consumer.close()
    # The replica that had more records truncates them and is in sync again.
    cluster[2].restart()
    cluster.await_isr(topic, 2, 3)
    assert stock_election(cluster, topic) is None
    eventually(lambda: (state := cluster.state(topic, at=2)) and state.leader == 2, "node 2 leads")
    values = [one.value for one in confluent_read(cluster.bootstrap, topic, 7)]
    assert values == [b"kept %d" % n for n in range(5)] + [b"new 0", b"new 1"]
    assert bounds(cluster.bootstrap, topic) == (0, 7)


def _refusal(cluster: Cluster, topic: str, code: str) -> str:
    done = elect(cluster, topic)
    return done.stderr if done.returncode == 1 and code in done.stderr else ""
