"""Several listeners: clients and nodes come by different ones, and each is told the addresses of its own."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brokers import IS_OURS, Broker, eventually
from cases import case
from clients_raw import Connection, metadata
from clients_stock import Message, confluent_read, confluent_write
from confluent_kafka.admin import AdminClient

from minibroker.bench.launcher import HOST, reserve_port, serve_command
from minibroker.bench.local import Processes
from minibroker.client.errors import ClientError
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.partitions.places import LOGINS_MAX
from minibroker.replicas.login import NodeCredentials, log_in, name_of
from minibroker.replicas.secret import SECRET, read_secret
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic

EVERYBODY = (1, 2, 3)
PROTOCOLS = "CLIENTS:PLAINTEXT,INSIDE:SASL_PLAINTEXT,EXTRA:PLAINTEXT"
BEFORE_LOGIN_BYTES_MAX = 512 * 1024


class ListeningNode(Broker):
    """A node with a port for each of its listeners. Node 3 does not have the listener EXTRA."""

    def __init__(self, number: int, folder: Path, reserved: contextlib.ExitStack) -> None:
        names = ("CLIENTS", "INSIDE") if number == EVERYBODY[-1] else ("CLIENTS", "INSIDE", "EXTRA")
        self.ports = {name: reserve_port(reserved) for name in names}
        self.number = number
        super().__init__(folder / f"node{number}", listen=f"{HOST}:{self.ports['CLIENTS']}")

    def at(self, listener: str) -> str:
        return f"{HOST}:{self.ports[listener]}"

    def command(self, _listen: str) -> list[str]:
        return serve_command(*self.settings, data=self.data)


class ListeningCluster(Processes[ListeningNode]):
    """Three voters, whose requests to each other go by the listener INSIDE."""

    def __init__(self, folder: Path) -> None:
        self._reserved = contextlib.ExitStack()
        self.nodes = {it: ListeningNode(it, folder, self._reserved) for it in EVERYBODY}
        voters = ",".join(f"{it}@{node.at('INSIDE')}" for it, node in self.nodes.items())
        for node in self.nodes.values():
            node.settings = (
                f"node.id={node.number}",
                f"controller.quorum.voters={voters}",
                "listeners=" + ",".join(f"{name}://{node.at(name)}" for name in node.ports),
                f"listener.security.protocol.map={PROTOCOLS}",
                "inter.broker.listener.name=INSIDE",
                "controller.listener.names=INSIDE",
                "offsets.topic.replication.factor=3",
            )
        self._secret = folder / SECRET

    @property
    def credentials(self) -> NodeCredentials:
        return NodeCredentials(read_secret(str(self._secret)))

    def close(self) -> None:
        super().close()
        self._reserved.close()


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListeningCluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with ListeningCluster(tmp_path_factory.mktemp("listening")) as cluster:
        yield cluster


def client_at(cluster: ListeningCluster, number: int, listener: str) -> Client:
    """A client of a listener. It logs in as a node where that is demanded."""
    login = partial(log_in, cluster.credentials, number) if listener == "INSIDE" else None
    return Client(cluster[number].at(listener), authenticator=login)


def test_records_are_replicated_over_the_listener_between_brokers(listening: ListeningCluster) -> None:
    with Client(listening[1].at("CLIENTS")) as client:
        create_topics(client, [NewTopic("copied", configs={"min.insync.replicas": "3"}, assignments={0: [1, 2, 3]})])
    bootstrap = listening[2].at("CLIENTS")
    assert confluent_write(bootstrap, "copied", [Message(b"value")], acks="all") == [0]
    assert [it.value for it in confluent_read(bootstrap, "copied", 1)] == [b"value"]


def test_each_caller_is_told_the_addresses_of_its_listener(listening: ListeningCluster) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    for listener in ("CLIENTS", "INSIDE", "EXTRA"):
        expected = {(it, node.ports[listener]) for it, node in listening.nodes.items() if listener in node.ports}
        with case(listener), client_at(listening, 1, listener) as client:
            assert {(it.node_id, it.port) for it in client.metadata([]).brokers} == expected
            assert {(it.broker_id, it.port) for it in client.send(request).brokers} == expected


def test_a_leader_without_the_listener_is_an_error_of_its_partition(listening: ListeningCluster) -> None:
    with Client(listening[1].at("CLIENTS")) as client:
        create_topics(client, [NewTopic("far", assignments={0: [3], 1: [1]})])
    request = MetadataRequest(topics=[MetadataRequestTopic(name="far")], allow_auto_topic_creation=True)
    with Client(listening[1].at("EXTRA")) as client:
        # Clients before version 6 do not know the code.
        for version, code in ((12, ErrorCode.LISTENER_NOT_FOUND), (5, ErrorCode.LEADER_NOT_AVAILABLE)):
            with case(f"version {version}"):
                partitions = eventually(
                    lambda v=version: client.send(request, version_max=v).topics[0].partitions,  # type: ignore[misc]
                    "node 1 knows the topic",
                )
                found = {it.partition_index: (it.error_code, it.leader_id) for it in partitions}
                assert found == {0: (code, -1), 1: (ErrorCode.NONE, 1)}


def test_the_coordinator_has_the_address_of_the_callers_listener(listening: ListeningCluster) -> None:
    def found(listener: str, group: str) -> tuple[int, int]:
        with client_at(listening, 1, listener) as client:
            (it,) = client.send(FindCoordinatorRequest(coordinator_keys=[group])).coordinators
        return it.node_id, it.port

    for number in EVERYBODY:
        group = next(it for it in map(str, range(500)) if eventually(lambda g=it: found("CLIENTS", g), "")[0] == number)  # type: ignore[misc]
        ports = listening[number].ports
        assert found("CLIENTS", group) == (number, ports["CLIENTS"])
        assert found("INSIDE", group) == (number, ports["INSIDE"])
        assert found("EXTRA", group) == ((number, ports["EXTRA"]) if "EXTRA" in ports else (-1, -1))


def test_a_listener_that_demands_a_login_answers_nobody_before_it(listening: ListeningCluster) -> None:
    node = listening[1]

    class Inside:
        host, port = HOST, node.ports["INSIDE"]

    def connection() -> Connection:
        return Connection(Inside)  # type: ignore[arg-type]

    with connection() as one:
        one.send(metadata([]))
        assert one.is_hung_up()
    # A frame that a stranger announces gets no memory.
    for length, is_accepted in ((BEFORE_LOGIN_BYTES_MAX, True), (BEFORE_LOGIN_BYTES_MAX + 1, False)):
        with case(length), connection() as one:
            one.send_bytes(length.to_bytes(4, "big"))
            one.socket.settimeout(0.5 if is_accepted else 10)
            if is_accepted:
                with pytest.raises(TimeoutError):
                    one.receive()
            else:
                assert one.is_hung_up()
    with Client(node.at("INSIDE"), timeout_ms=2000) as client, pytest.raises(ClientError):
        client.metadata([])
    # Strangers that open many connections lose the oldest ones.
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connection()) for _ in range(LOGINS_MAX + 1)]
        assert strangers[0].is_hung_up()


def test_a_stock_client_logs_in_with_the_password_of_a_node(listening: ListeningCluster) -> None:
    def settings(password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": listening[2].at("INSIDE"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": name_of(7),
            "sasl.password": password,
        }

    right = AdminClient(settings(listening.credentials.password(name_of(7))))
    expected = {(number, node.ports["INSIDE"]) for number, node in listening.nodes.items()}

    def found() -> set[tuple[int, int]]:
        return {(it.id, it.port) for it in right.list_topics(timeout=20).brokers.values()}

    # On a busy machine a node may be fenced for a moment.
    eventually(lambda: found() == expected, f"the brokers are {expected}")
    errors: list[object] = []
    wrong = AdminClient(settings("guess") | {"error_cb": lambda error: errors.append(error.str()), "log_level": 0})
    eventually(
        lambda: wrong.poll(0.1) is not None and any("the credentials are wrong" in str(it) for it in errors), "58"
    )
