"""The leader of each partition, the controller, and what an error code says about them. A pure module.

A client learns the routes from any node that answers: first from one of its bootstrap addresses, later from the nodes
that the metadata names. A stale route leads to an error code, and `EFFECTS` says what to do about each code. A broker
that is no longer the leader may name the new leader in its answer (KIP-951), which saves a metadata request.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minibroker.client.addresses import Address, parse_address
from minibroker.client.errors import BrokerError, InvalidAddress, known_code
from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.metadata.image import NO_LEADER
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from minibroker.wire.uuids import NO_UUID


class Effect(enum.Enum):
    """What to do about an error code."""

    NONE = "it is not an error"
    RETRY = "ask the same node again, later"
    REFRESH = "ask for the metadata, then ask the node that the metadata names"
    FAIL = "tell the caller"


EFFECTS: dict[ErrorCode, Effect] = {
    ErrorCode.NONE: Effect.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Effect.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: Effect.REFRESH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Effect.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: Effect.REFRESH,
    ErrorCode.NETWORK_EXCEPTION: Effect.REFRESH,
    ErrorCode.NOT_CONTROLLER: Effect.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: Effect.REFRESH,
    ErrorCode.LISTENER_NOT_FOUND: Effect.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: Effect.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Effect.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: Effect.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: Effect.REFRESH,
}
"""A code that is not listed is retried if Kafka calls it retriable, and fails otherwise."""


def effect_of(code: int) -> Effect:
    """What to do about an error code."""
    known = known_code(code)
    return EFFECTS.get(known) or (Effect.RETRY if known.is_retriable else Effect.FAIL)


def parse_addresses(text: str | Sequence[str]) -> list[Address]:
    """Read `HOST:PORT[,HOST:PORT…]`, or a sequence of such texts."""
    texts = text.split(",") if isinstance(text, str) else text
    addresses = [parse_address(one.strip()) for one in texts if one.strip()]
    if not addresses:
        raise InvalidAddress("no address is given: write HOST:PORT, such as 127.0.0.1:9092")
    return addresses


class Node(NamedTuple):
    """A broker that is named in the metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """The address at which the node listens."""
        return Address(self.host, self.port)


class PartitionRoute(NamedTuple):
    """The leader and the replicas of a partition."""

    leader_id: int
    leader_epoch: int
    replicas: Sequence[int] = ()
    isr: Sequence[int] = ()
    offline: Sequence[int] = ()
    error_code: int = 0


class TopicRoute(NamedTuple):
    """The id and the partitions of a topic."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionRoute]


class LeaderHint(NamedTuple):
    """The new leader, as named by a broker that is no longer the leader."""

    leader_id: int
    leader_epoch: int


class Routes:
    """The nodes, the controller and the partitions of a cluster, as far as a client knows them."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        self.bootstrap = list(bootstrap)
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self.topics: dict[str, TopicRoute] = {}
        self._errors: dict[str, int] = {}
        self._stale: set[str] = set()
        self._learnt_ms: dict[str, float] = {}
        self._names: dict[bytes, str] = {}

    # Queries --------------------------------------------------------------------------------------------------------

    def addresses(self) -> list[tuple[int | None, Address]]:
        """Every address at which a node may answer, once each; addresses from metadata come first."""
        places: dict[Address, int | None] = {node.address: node.node_id for node in self.nodes.values()}
        for address in self.bootstrap:
            places.setdefault(address, None)
        return [(node_id, address) for address, node_id in places.items()]

    def leader(self, topic: str, partition: int) -> int | None:
        """The leader of a partition; None if it is unknown or stale."""
        route = self.partition(topic, partition)
        if route is None or route.leader_id not in self.nodes or topic in self._stale:
            return None
        return route.leader_id

    def partition(self, topic: str, partition: int) -> PartitionRoute | None:
        """The route of a partition, if it is known."""
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known else None

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic, or NO_UUID if the broker sent none."""
        known = self.topics.get(topic)
        return known.topic_id if known else NO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id)

    def error_of(self, topic: str) -> BrokerError | None:
        """The error of a topic in the last metadata, if it had one."""
        code = self._errors.get(topic, 0)
        return BrokerError(code, about=f"topic {topic}{_advice(topic, code)}") if code else None

    def is_known(self, topic: str, *, now_ms: float, age_ms_max: float) -> bool:
        """Whether the routes of a topic are known, not stale, and younger than `age_ms_max`."""
        if topic not in self.topics or topic in self._stale:
            return False
        return now_ms - self._learnt_ms[topic] < age_ms_max

    # Changes --------------------------------------------------------------------------------------------------------

    def update(self, response: MetadataResponse, *, now_ms: float) -> None:
        """Update the routes from the answer to a metadata request for some topics or for all."""
        self.nodes = {it.node_id: Node(it.node_id, it.host, it.port, it.rack) for it in response.brokers}
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller_id = response.controller_id
        for topic in response.topics:
            if topic.name is not None:
                self._update_topic(topic, topic.name, now_ms)

    def _update_topic(self, topic: MetadataResponseTopic, name: str, now_ms: float) -> None:
        self._errors[name] = topic.error_code
        if topic.error_code:
            self._forget(name)
            return
        known = self.topics.get(name)
        # A topic that was deleted and created again starts with new leader epochs, so they are compared only if the
        # id is the same.
        old = known.partitions if known and known.topic_id == topic.topic_id else {}
        partitions = {it.partition_index: _newer(old.get(it.partition_index), it) for it in topic.partitions}
        self.topics[name] = TopicRoute(name, bytes(topic.topic_id), topic.is_internal, partitions)
        if topic.topic_id != NO_UUID:
            self._names[bytes(topic.topic_id)] = name
        self._learnt_ms[name] = now_ms
        self._stale.discard(name)

    def _forget(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known:
            self._names.pop(known.topic_id, None)
        self._stale.discard(name)

    def on_error(
        self,
        topic: str,
        partition: int,
        code: int,
        *,
        hint: LeaderHint | None = None,
        endpoints: Iterable[Node] = (),
    ) -> Effect:
        """Update the routes after an error code of a partition, and return what to do about it."""
        effect = effect_of(code)
        if effect is not Effect.REFRESH:
            return effect
        if hint is not None and self._apply_hint(topic, partition, hint, endpoints):
            return Effect.RETRY
        self._stale.add(topic)
        return effect

    def _apply_hint(self, topic: str, partition: int, hint: LeaderHint, endpoints: Iterable[Node]) -> bool:
        # A hint is used only if its epoch is newer and the address of the new leader is known.
        route = self.partition(topic, partition)
        if route is None or hint.leader_id < 0 or hint.leader_epoch <= route.leader_epoch:
            return False
        self.nodes.update({node.node_id: node for node in endpoints if node.node_id == hint.leader_id})
        if hint.leader_id not in self.nodes:
            return False
        moved = route._replace(leader_id=hint.leader_id, leader_epoch=hint.leader_epoch, error_code=0)
        self.topics[topic].partitions[partition] = moved
        return True

    def on_disconnect(self, node_id: int) -> None:
        """Mark every topic that a node leads as stale: its connection was lost or could not be opened."""
        for name, topic in self.topics.items():
            if any(route.leader_id == node_id for route in topic.partitions.values()):
                self._stale.add(name)

    def doubt(self, topic: str) -> None:
        """Mark the routes of a topic as stale, so that they are requested again before their next use."""
        self._stale.add(topic)


def _newer(old: PartitionRoute | None, new: MetadataResponsePartition) -> PartitionRoute:
    """The new route, unless the old one has a newer leader epoch: nodes learn of a leader at different times."""
    if old is not None and NO_LEADER_EPOCH < new.leader_epoch < old.leader_epoch:
        return old
    return PartitionRoute(
        new.leader_id,
        new.leader_epoch,
        tuple(new.replica_nodes),
        tuple(new.isr_nodes),
        tuple(new.offline_replicas),
        new.error_code,
    )


def _advice(topic: str, code: int) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f" does not exist (create it with `minibroker topics create {topic}`)"
    return ""
