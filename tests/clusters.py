"""A cluster of real broker processes for tests: each node can be killed, paused, cut off, and started again.

`Cluster` is chapter 04's: its first node is the controller. In a `QuorumCluster` the first nodes are voters, and any of
them may be killed.

With `is_proxied` there is a proxy in front of every node, and the node advertises the proxy's address: clients and the
other nodes come through it. The client id of a request names the node that sends it, so links can be cut one by one:

    cluster.cut(2, 3)     node 2 does not reach node 3 any more; the other direction is open
    cluster.cut_off(2)    node 2 reaches no node, and no node reaches it; requests vanish
    cluster.heal()
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from brokers import Broker, eventually
from clients_stock import READ_S_MAX, admin, bounds, confluent_read
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from proxy import Exchange, Proxy, Verdict

from minibroker.bench.launcher import HOST, reserve_port, serve_command
from minibroker.bench.local import Processes
from minibroker.bench.sending import StockSender
from minibroker.client.connection import Authenticator
from minibroker.clients.admin import describe_quorum, remove_voter
from minibroker.clients.blocking import Client
from minibroker.replicas.login import NodeCredentials, log_in
from minibroker.replicas.peers import client_id_of
from minibroker.replicas.secret import SECRET, read_secret

# Long enough for a busy machine, short enough to wait for.
LAG_MS_MAX = 1500
_CLIENT_ID_AT = 2 + 2 + 4  # after API key, API version and correlation id
_VOTERS = "controller.quorum.voters="


class Node(Broker):
    """One node of chapter 04. Its port is reserved while it is down."""

    def __init__(self, number: int, data: Path, settings: Sequence[str]) -> None:
        self._reserved = contextlib.ExitStack()
        super().__init__(data, settings, listen=f"{HOST}:{reserve_port(self._reserved)}")
        self.number = number

    def command(self, listen: str) -> list[str]:
        deciders = [it.removeprefix(_VOTERS) for it in self.settings if it.startswith(_VOTERS)]
        program = [sys.executable, "-m", "minibroker.replicas", "serve", str(self.number), str(self.data), listen]
        return [*program, *deciders, *(it for setting in self.settings for it in ("--set", setting))]

    def close(self) -> None:
        self.kill()
        self._reserved.close()


class QuorumNode(Node):
    """One node of the whole broker."""

    def command(self, listen: str) -> list[str]:
        return serve_command(f"node.id={self.number}", *self.settings, data=self.data, listen=listen)


class Cluster(Processes[Node]):
    """Several nodes, of which the first one is the controller."""

    kind: type[Node] = Node
    voters = 1

    def __init__(self, path: Path, *settings: str, size: int = 3, is_proxied: bool = False) -> None:
        self._path = path
        self._settings = settings
        self._is_proxied = is_proxied
        self.nodes: dict[int, Node] = {}
        self.proxies: dict[int, Proxy] = {}
        self.cuts: dict[tuple[int, int], Verdict] = {}
        self.on_produced: Callable[[Exchange], Verdict] = lambda _exchange: Verdict.PASS
        for number in range(1, size + 1):
            self._make(number)
        for number in self.nodes:
            self._configure(number)

    def _make(self, number: int) -> None:
        node = self.nodes[number] = self.kind(number, self._path / f"node{number}", self._settings)
        if self._is_proxied:
            self.proxies[number] = self._proxy(node)

    def _configure(self, number: int) -> None:
        voters = ",".join(f"{it}@{self.address_of(it)}" for it in range(1, self.voters + 1))
        node = self.nodes[number]
        node.settings = (f"{_VOTERS}{voters}", *node.settings)
        if self._is_proxied:
            node.settings += (f"advertised.listeners=PLAINTEXT://{self.address_of(number)}",)

    def add(self, number: int) -> Node:
        """Add a node that is no voter; it is not started yet."""
        self._make(number)
        self._configure(number)
        return self.nodes[number]

    def remove(self, number: int) -> None:
        """Kill a node and take it out of the cluster."""
        self.nodes.pop(number).close()
        if number in self.proxies:
            self.proxies.pop(number).close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all nodes that are alive; whatever happens, none is left running."""
        try:
            if error is None:
                self.stop()
        finally:
            self.close()

    def stop(self) -> None:
        """Stop all nodes together. One by one, the last voters would each wait for a quorum that is gone."""
        living = [node for node in self.nodes.values() if node.is_alive()]
        with ThreadPoolExecutor(max(len(living), 1)) as threads:
            list(threads.map(Node.stop, living))

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        for proxy in self.proxies.values():
            proxy.close()

    # Addresses

    def address_of(self, number: int) -> str:
        """The address at which clients and other nodes reach a node."""
        return self.proxies[number].address if self.proxies else self.nodes[number].address

    @property
    def secret(self) -> Path:
        """The file with the secret that the nodes share. The first node has made it beside the data directories."""
        return self._path / SECRET

    def as_node(self, number: int) -> Authenticator:
        """A login that proves to be a node, for a client that acts as one."""
        return partial(log_in, NodeCredentials(read_secret(str(self.secret))), number)

    # Links

    def _proxy(self, node: Node) -> Proxy:
        proxy = Proxy(node.address, is_recording=False)
        proxy.on_request = lambda exchange: self._judge(exchange, node.number)
        proxy.on_response = lambda exchange: self.on_produced(exchange) if exchange.api_key == 0 else Verdict.PASS
        return proxy

    def _judge(self, exchange: Exchange, to: int) -> Verdict:
        return self.cuts.get((sender(exchange.request), to), Verdict.PASS)

    def cut(self, sender: int, to: int, verdict: Verdict = Verdict.CUT) -> None:
        """From now on each request of node `sender` to node `to` ends the connection, or vanishes."""
        self.cuts[sender, to] = verdict

    def cut_off(self, number: int, verdict: Verdict = Verdict.DROP) -> None:
        """Cut all links between a node and the others. Clients reach every node."""
        for other in self.nodes.keys() - {number}:
            self.cut(number, other, verdict)
            self.cut(other, number, verdict)

    def heal(self) -> None:
        self.cuts.clear()

    def repair(self) -> None:
        """Heal all links and start every node that is not running."""
        self.heal()
        self.on_produced = lambda _exchange: Verdict.PASS
        super().repair()

    # Metadata

    def create(self, topic: str, replicas: Sequence[Sequence[int]], *, through: int = 1, **config: object) -> str:
        """Create a topic with this assignment; wait until every node that is alive knows it."""
        named = {name.replace("_", "."): str(value) for name, value in config.items()}
        new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=[list(it) for it in replicas])
        new.config = named
        client = admin(self.address_of(through))
        try:
            client.create_topics([new])[topic].result(READ_S_MAX)
        except KafkaException as error:
            # librdkafka gives a request up that it has sent to the address it was given, if it learns meanwhile which
            # node has this address. The request may have been served.
            if error.args[0].code() != KafkaError._DESTROY_BROKER:
                raise
            try:
                client.create_topics([new])[topic].result(READ_S_MAX)
            except KafkaException as second:
                if second.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        eventually(lambda: all(self.state(topic, at=it) for it in self.living()), f"all know {topic}")
        return topic


class QuorumCluster(Cluster):
    """Several nodes, of which the first ones are voters; any may be killed."""

    kind = QuorumNode
    voters = 3

    def remove(self, number: int) -> None:
        """Kill a node and take it out of the cluster, and out of the voters: a dead voter still counts for a majority.

        A test that fails may leave the node a voter, and tests that share the cluster would fail after it.
        """
        try:
            with Client(self.bootstrap) as client:
                for voter in describe_quorum(client).voters:
                    if voter.node_id == number:
                        remove_voter(client, number, voter.directory_id)
        finally:
            super().remove(number)


def sender(request: bytes) -> int:
    """The node that sends a request; 0 for a client."""
    length = int.from_bytes(request[_CLIENT_ID_AT : _CLIENT_ID_AT + 2], "big", signed=True)
    name = request[_CLIENT_ID_AT + 2 : _CLIENT_ID_AT + 2 + max(length, 0)].decode(errors="replace")
    number = name.removeprefix(client_id_of(0)[:-1])
    return int(number) if number != name else 0


@dataclass
class Tally:
    """How many acknowledged records were lost, repeated, out of order or at another offset."""

    acked: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    elsewhere: int = 0
    """At another offset than the acknowledgement said."""

    @property
    def is_well(self) -> bool:
        return not (self.lost or self.twice or self.out_of_order or self.elsewhere)

    def text(self) -> str:
        bad = f"{self.lost} lost, {self.twice} twice, {self.out_of_order} out of order, {self.elsewhere} elsewhere"
        return f"{self.acked:,} acknowledged, {bad}"

    def add(self, values: Sequence[bytes], acked: Mapping[bytes, int | None]) -> None:
        """Compare the values in a log with the acknowledged ones; the values are rising numbers."""
        numbers = [int(value) for value in values]
        places = {value: offset for offset, value in enumerate(values)}
        self.acked += len(acked)
        self.lost += len(acked.keys() - places.keys())
        self.twice += len(values) - len(places)
        self.out_of_order += sum(after < before for before, after in pairwise(numbers))
        # librdkafka counts a batch without an answer as written when a later one is, and has no offset for it.
        self.elsewhere += sum(it is not None and places.get(value, it) != it for value, it in acked.items())


class Sender(StockSender):
    """A stock producer whose records are read back at the end."""

    def __init__(
        self,
        cluster: Processes[Any],
        topic: str,
        *,
        partitions: int = 1,
        pause_s: float = 0.002,
        timeout_ms: int = 4000,
    ) -> None:
        super().__init__(cluster.bootstrap, topic, partitions=partitions, pause_s=pause_s, timeout_ms=timeout_ms)
        self.cluster = cluster

    def tally(self) -> tuple[Tally, list[list[bytes]]]:
        """Read everything back and compare it with the acknowledgements."""
        tally, logs = Tally(), []
        for partition in range(self.partitions):
            end = bounds(self.cluster.bootstrap, self.topic, partition)[1]
            found = confluent_read(self.cluster.bootstrap, self.topic, end, partition=partition)
            assert [one.offset for one in found] == list(range(end)), f"{len(found)} of {end} records could be read"
            logs.append([one.value or b"" for one in found])
            tally.add(logs[-1], {value: at for (number, value), at in self.acked.items() if number == partition})
        return tally, logs

    def check(self) -> int:
        """Read everything back: nothing is lost, repeated or out of order, and every offset is as acknowledged."""
        tally, logs = self.tally()
        assert tally.is_well, tally.text()
        assert all(values == [b"%d" % number for number in range(self.sent)] for values in logs)
        return self.sent * self.partitions
