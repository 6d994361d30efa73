"""A request that is for another node is forwarded, or the client is told why not."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from brokers import eventually, replace_configs, unique
from clients_raw import set_quota
from clients_stock import READ_S_MAX, Message, admin, confluent_write
from clusters import QuorumCluster
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import NewTopic as PythonNewTopic
from kafka.errors import ThrottlingQuotaExceededError

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerError
from minibroker.clients import admin as ours
from minibroker.clients.blocking import Client
from minibroker.replicas.peers import client_id_of
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from minibroker.wire.tables.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

pytest_plugins = ["clusters_fixtures"]

EVERYBODY = (1, 2, 3)


def test_a_client_may_have_a_client_id_like_a_node(quorum: QuorumCluster) -> None:
    through = quorum.controller() % 3 + 1
    for name in ("node-red", f"node-{through}", client_id_of(through)):
        client = AdminClient({"bootstrap.servers": quorum.address_of(through), "client.id": name})
        topic = unique("called")
        client.create_topics([NewTopic(topic, 1, 1)])[topic].result(READ_S_MAX)
        client.delete_topics([topic])[topic].result(READ_S_MAX)


def test_the_quota_for_changes_of_topics_is_counted_at_the_controller(quorum: QuorumCluster) -> None:
    """KIP-599: eleven tokens are there, and each broker forwards what takes them."""
    through, other = (node for node in EVERYBODY if node != quorum.controller())
    set_quota(quorum[through], (("client-id", "mutating"),), controller_mutation_rate=1)

    def create(at: int) -> None:
        topic = PythonNewTopic(unique("mutated"), 12, 1)
        with closing(KafkaAdminClient(bootstrap_servers=quorum.address_of(at), client_id="mutating")) as client:
            client.create_topics([topic])

    create(through)
    with pytest.raises(ThrottlingQuotaExceededError):
        create(other)
    set_quota(quorum[other], (("client-id", "mutating"),), controller_mutation_rate=None)
    create(other)


# The configuration of one broker

SIZE = "message.max.bytes"
BIG = Message(b"x" * 5000)


def size_of(number: int, at: str) -> str:
    """The largest record batch that a broker allows, as any node describes it."""
    with Client(at) as client:
        asked = DescribeConfigsResource(resource_type=4, resource_name=str(number), configuration_keys=[SIZE])
        (result,) = client.send(DescribeConfigsRequest(resources=[asked])).results
    assert result.error_code == ErrorCode.NONE, result.error_message
    return str(result.configs[0].value)


def takes_big(quorum: QuorumCluster, topic: str, number: int) -> bool:
    try:
        confluent_write(quorum.bootstrap, topic, [BIG], partition=number - 1)
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        return False
    return True


def configure(at: str, number: int, size: str | None) -> None:
    """Change the configuration of a broker through a node that may be another one."""
    change = AlterableConfig(name=SIZE, config_operation=1 if size is None else 0, value=size)
    resource = AlterConfigsResource(resource_type=4, resource_name=str(number), configs=[change])
    with Client(at) as client:
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (answer,) = client.send(request).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def test_one_broker_is_configured_through_any_node_and_stays_so(quorum: QuorumCluster) -> None:
    topic = quorum.create(unique("sized"), [[number] for number in EVERYBODY])
    for number in EVERYBODY:
        other, third = (quorum[it].address for it in EVERYBODY if it != number)
        configure(other, number, "2000")
        eventually(lambda n=number, at=third: size_of(n, at) == "2000", "it holds")  # type: ignore[misc]
        eventually(lambda n=number: not takes_big(quorum, topic, n), "it takes effect")  # type: ignore[misc]
        assert all(takes_big(quorum, topic, it) for it in EVERYBODY if it != number)
        if number == quorum.controller():
            quorum[number].kill()
            quorum[number].restart()
            assert size_of(number, third) == "2000"
            assert not takes_big(quorum, topic, number)
        configure(third, number, None)
        eventually(lambda n=number: takes_big(quorum, topic, n), "it is taken back")  # type: ignore[misc]
    # Stock clients ask the broker itself.
    entry = ConfigEntry(SIZE, "3000", incremental_operation=AlterConfigOpType.SET)
    client = admin(quorum.bootstrap)
    for number in EVERYBODY:
        resource = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(READ_S_MAX)
        configure(quorum[number].address, number, None)


# While there is no controller


WISHES: dict[str, Callable[[Client], object]] = {
    "create": lambda it: ours.create_topics(it, [ours.NewTopic("never", 1, 1)]),
    "delete": lambda it: ours.delete_topics(it, ["never"]),
    "grow": lambda it: ours.create_partitions(it, {"never": 2}),
    "configure": lambda it: ours.alter_configs(it, ours.ResourceType.TOPIC, "never", {"retention.ms": "1"}),
    "replace": lambda it: replace_configs(it, "never", {"retention.ms": "1"}),
    "elect": lambda it: ours.elect_leaders(it, [TopicPartition("never", 0)]),
    "elect all": lambda it: ours.elect_leaders(it),
    "move": lambda it: ours.reassign_partitions(it, {TopicPartition("never", 0): [1]}),
    "list moves": ours.list_reassignments,
    "describe the quorum": ours.describe_quorum,
    "add a voter": lambda it: ours.add_voter(it, 9, bytes(15) + b"9", Address("127.0.0.1", 1)),
    "remove a voter": lambda it: ours.remove_voter(it, 1, bytes(15) + b"9"),
    "unregister": lambda it: ours.unregister_broker(it, 9),
}


def refused(address: str, wish: Callable[[Client], object]) -> BrokerError:
    with Client(address) as client, pytest.raises(BrokerError) as caught:
        wish(client)
    return caught.value


def command(address: str, *words: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "minibroker.cli", *words, "--bootstrap-server", address]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_controller_every_client_is_told_so(quorum: QuorumCluster) -> None:
    left = quorum.controller() % 3 + 1
    for number in EVERYBODY:
        if number != left:
            quorum[number].kill()
    address = quorum[left].address
    with ThreadPoolExecutor(len(WISHES) + 2) as threads:
        # A node waits for an election before it gives up, so all clients ask at once.
        said = {name: threads.submit(refused, address, wish) for name, wish in WISHES.items()}
        shown = threads.submit(command, address, "topics", "create", "never")
        client = admin(address)
        stock = client.create_topics([NewTopic("never", 1, 1)])["never"]
        errors = {name: it.result() for name, it in said.items()}
        with pytest.raises(KafkaException, match="there is no controller at the moment"):
            stock.result(READ_S_MAX)
    assert {name: it.code for name, it in errors.items()} == dict.fromkeys(WISHES, ErrorCode.NOT_CONTROLLER)
    told = errors.keys() - {"elect", "elect all"}
    assert not [name for name in told if "there is no controller at the moment" not in str(errors[name])]
    assert shown.result().returncode == 1
    assert "there is no controller at the moment, so the request failed" in shown.result().stderr
    assert "`minibroker cluster status` shows which nodes are down" in shown.result().stderr


def test_a_read_only_request_is_sent_again_when_the_controller_stops_answering(quorum: QuorumCluster) -> None:
    decides = quorum.controller()
    through = decides % 3 + 1
    with Client(quorum[through].address) as one, Client(quorum[through].address) as other:
        ours.list_reassignments(one)
        # It still accepts requests, but answers none.
        quorum[decides].pause()
        try:
            with ThreadPoolExecutor(2) as threads:
                moves = threads.submit(ours.list_reassignments, one)
                now = threads.submit(ours.describe_quorum, other)
                assert moves.result(READ_S_MAX) == {}
                assert now.result(READ_S_MAX).leader_id != decides
        finally:
            quorum[decides].resume()
