"""Any node accepts administrative requests, the controller decides, and all nodes follow, even those that were down."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import eventually, unique
from clients_raw import Connection
from clients_stock import READ_S_MAX, Message, admin, confluent_read, confluent_write
from clusters import Cluster
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from minibroker.clients.blocking import Client
from minibroker.replication.tables import alter_partition
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, Listener
from minibroker.replication.tables.describe_producers import DescribeProducersRequest, TopicRequest
from minibroker.replication.tables.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request

pytest_plugins = ["clusters_fixtures"]


def directories(cluster: Cluster, topic: str) -> set[tuple[int, str]]:
    """The directories of a topic on each node, half-deleted ones included."""

    def of(data: Path) -> Iterator[str]:
        return (path.name for path in data.iterdir() if path.name.startswith(f"{topic}-"))

    return {(number, name) for number, node in cluster.nodes.items() for name in of(node.data)}


def delete(cluster: Cluster, topic: str, *, through: int) -> None:
    client = admin(cluster.address_of(through))
    client.delete_topics([topic])[topic].result(READ_S_MAX)


def raise_min_isr(cluster: Cluster, topic: str, *, through: int) -> None:
    client = admin(cluster.address_of(through))
    entry = ConfigEntry("min.insync.replicas", "3", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(READ_S_MAX)


def test_topics_change_through_any_node_and_on_all_of_them(cluster: Cluster) -> None:
    topic = cluster.create(unique("any"), [[3, 2, 1]], through=2)
    confluent_write(cluster.bootstrap, topic, [Message(b"first")])
    client = admin(cluster.address_of(3))
    client.create_partitions([NewPartitions(topic, 2)])[topic].result(READ_S_MAX)
    expected = {(number, f"{topic}-{partition}") for number in (1, 2, 3) for partition in (0, 1)}
    eventually(lambda: directories(cluster, topic) == expected, "all have the new partition")
    assert confluent_write(cluster.bootstrap, topic, [Message(b"there")], partition=1, acks="all") == [0]
    # A changed setting reaches the leader and applies from then on.
    raise_min_isr(cluster, topic, through=2)
    cluster[2].kill()
    confluent_write(cluster.bootstrap, topic, [Message(b"second")], acks=1, log_level=0)
    cluster.await_isr(topic, 1, 3)
    described = [sys.executable, "-m", "minibroker.cli", "topics", "describe", topic]
    shown = subprocess.run([*described, "--bootstrap-server", cluster.address_of(3)], capture_output=True, check=True)
    assert b"under-replicated, not all replicas are in sync: 0" in shown.stdout
    with pytest.raises(KafkaException, match="NOT_ENOUGH_REPLICAS"):
        confluent_write(cluster.bootstrap, topic, [Message(b"third")], acks="all", retries=0, log_level=0)
    # A node that was down removes a deleted topic when it comes back; a new topic of that name is another one.
    delete(cluster, topic, through=3)
    eventually(lambda: {number for number, _name in directories(cluster, topic)} == {2}, "gone where nodes are up")
    cluster.create(topic, [[3, 2, 1]], through=3)
    confluent_write(cluster.bootstrap, topic, [Message(b"new")], acks="all")
    cluster[2].restart()
    cluster.await_isr(topic, 1, 2, 3)
    assert directories(cluster, topic) == {(number, f"{topic}-0") for number in (1, 2, 3)}
    assert [one.value for one in confluent_read(cluster.bootstrap, topic, 1)] == [b"new"]
    delete(cluster, topic, through=2)
    eventually(lambda: not directories(cluster, topic), "gone everywhere")


def test_a_topic_is_created_on_first_use_through_a_node_that_is_not_the_controller(cluster: Cluster) -> None:
    topic = unique("demand")
    assert confluent_write(cluster.address_of(3), topic, [Message(b"made on demand")], acks="all") == [0]
    state = cluster.state(topic, at=1)
    assert state is not None
    assert state.isr == {1, 2, 3}


def test_every_node_gives_producer_ids_and_none_twice(cluster: Cluster) -> None:
    ids: list[int] = []
    for _round in range(2):
        for node in cluster.nodes.values():
            with Connection(node) as connection:
                ids += [connection.new_producer_id()[0] for _ in range(5)]
        cluster[2].kill()
        cluster[2].restart()
    assert len(set(ids)) == len(ids) == 30


def ask(cluster: Cluster, number: int, request: Request, *, as_node: int | None = None) -> object:
    authenticator = None if as_node is None else cluster.as_node(as_node)
    with Client(cluster[number].address, authenticator=authenticator) as client:
        return client.send(request)


def test_the_leader_tells_of_epochs_and_every_replica_of_producers(cluster: Cluster) -> None:
    topic = cluster.create(unique("tells"), [[2, 3, 1]])
    confluent_write(cluster.bootstrap, topic, [Message(b"%d" % n) for n in range(3)], **{"enable.idempotence": True})
    cluster[2].kill()
    cluster[2].restart()
    confluent_write(cluster.bootstrap, topic, [Message(b"in the next epoch")], acks="all")
    where = OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0)
    epochs = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[where])])
    answer = ask(cluster, 2, epochs).topics[0].partitions[0]  # type: ignore[attr-defined]
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, 0, 3)
    other = ask(cluster, 3, epochs).topics[0].partitions[0]  # type: ignore[attr-defined]
    assert other.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    producers = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
    (known,) = ask(cluster, 2, producers).topics[0].partitions[0].active_producers  # type: ignore[attr-defined]
    assert (known.producer_epoch, known.last_sequence) == (0, 2)
    assert ask(cluster, 3, producers).topics[0].partitions[0].active_producers == [known]  # type: ignore[attr-defined]


def test_a_request_of_an_earlier_incarnation_is_refused(cluster: Cluster) -> None:
    topic = cluster.create(unique("stale"), [[2, 3, 1]])
    with Client(cluster[1].address) as client:
        found = client.metadata([topic]).topics[0]
    change = alter_partition.PartitionAlteration(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=0,
        new_isr_with_epochs=[alter_partition.BrokerState(broker_id=2, broker_epoch=-1)],
    )
    topics = [alter_partition.TopicAlteration(topic_id=found.topic_id, partitions=[change])]
    request = alter_partition.AlterPartitionRequest(broker_id=2, broker_epoch=1, topics=topics)
    # Requests of a node are refused when a client or another node sends them.
    for sender in (None, 3):
        found_code = ask(cluster, 1, request, as_node=sender).error_code  # type: ignore[attr-defined]
        assert found_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert ask(cluster, 1, request, as_node=2).error_code == ErrorCode.STALE_BROKER_EPOCH  # type: ignore[attr-defined]
    change.leader_epoch, request.broker_epoch = 7, -1
    (answer,) = ask(cluster, 1, request, as_node=2).topics[0].partitions  # type: ignore[attr-defined]
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    # A registration is refused by a node that is not the controller, and for another cluster id.
    listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)
    stranger = BrokerRegistrationRequest(
        broker_id=9, cluster_id="another", incarnation_id=b"9" * 16, listeners=[listener]
    )
    assert ask(cluster, 1, stranger, as_node=9).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID  # type: ignore[attr-defined]
    with Client(cluster[1].address) as client:
        stranger.cluster_id = client.metadata([]).cluster_id or ""
    stranger.broker_id = 1
    assert ask(cluster, 1, stranger, as_node=1).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION  # type: ignore[attr-defined]
    cluster.await_isr(topic, 1, 2, 3)
