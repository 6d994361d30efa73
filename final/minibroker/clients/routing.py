"""Which node leads a partition, which is the controller, and what an error says about that. A pure module.

A client learns the cluster from any node that answers: first from one of its bootstrap addresses, later from the nodes
they named. What it learns ages, and an error code is how it finds out: `EFFECTS` says what each one means. A broker
that is no longer the leader may name the new one in its answer (KIP-951), which saves the question.
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

    NONE = "it is no error"
    RETRY = "ask the same node again, later"
    REFRESH = "ask for the metadata, then the node that it names"
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
"""What is not listed is retried if Kafka calls it retriable, and fails otherwise."""


def effect_of(code: int) -> Effect:
    """What to do about an error code."""
    known = known_code(code)
    return EFFECTS.get(known) or (Effect.RETRY if known.is_retriable else Effect.FAIL)


def parse_addresses(text: str | Sequence[str]) -> list[Address]:
    """Read `HOST:PORT[,HOST:PORT…]`, or a sequence of such."""
    texts = text.split(",") if isinstance(text, str) else text
    addresses = [parse_address(one.strip()) for one in texts if one.strip()]
    if not addresses:
        raise InvalidAddress("no address is given: write HOST:PORT, such as 127.0.0.1:9092")
    return addresses


class Node(NamedTuple):
    """A broker that metadata named."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self.host, self.port)


class PartitionRoute(NamedTuple):
    """Where a partition is."""

    leader_id: int
    leader_epoch: int
    replicas: Sequence[int] = ()
    isr: Sequence[int] = ()
    offline: Sequence[int] = ()
    error_code: int = 0


class TopicRoute(NamedTuple):
    """A topic's identity and partitions."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionRoute]


class LeaderHint(NamedTuple):
    """The leader that a broker named in place of itself."""

    leader_id: int
    leader_epoch: int


class Routes:
    """What is known of the cluster."""

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

    # What is known --------------------------------------------------------------------------------------------------

    def addresses(self) -> list[tuple[int | None, Address]]:
        """Everywhere a node may answer, those that metadata named first; each address once."""
        places: dict[Address, int | None] = {node.address: node.node_id for node in self.nodes.values()}
        for address in self.bootstrap:
            places.setdefault(address, None)
        return [(node_id, address) for address, node_id in places.items()]

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition, as far as is known."""
        route = self.partition(topic, partition)
        if route is None or route.leader_id not in self.nodes or topic in self._stale:
            return None
        return route.leader_id

    def partition(self, topic: str, partition: int) -> PartitionRoute | None:
        """What is known of a partition."""
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known else None

    def topic_id(self, topic: str) -> bytes:
        """A topic's id, or no id if the broker did not tell."""
        known = self.topics.get(topic)
        return known.topic_id if known else NO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic of an id."""
        return self._names.get(topic_id)

    def error_of(self, topic: str) -> BrokerError | None:
        """What the last metadata said is wrong with a topic."""
        code = self._errors.get(topic, 0)
        return BrokerError(code, about=f"topic {topic}{_what_to_do(topic, code)}") if code else None

    def is_known(self, topic: str, *, now_ms: float, age_ms_max: float) -> bool:
        """Whether a topic's routes were learnt, are believed, and are not too old."""
        if topic not in self.topics or topic in self._stale:
            return False
        return now_ms - self._learnt_ms[topic] < age_ms_max

    # What changes it ------------------------------------------------------------------------------------------------

    def update(self, response: MetadataResponse, *, now_ms: float) -> None:
        """Believe an answer about the cluster and some or all of its topics."""
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
        # A topic that was deleted and created anew has other leader epochs: only the same topic's are compared.
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
        """Learn from an error code of a partition, and say what to do about it."""
        effect = effect_of(code)
        if effect is not Effect.REFRESH:
            return effect
        if hint is not None and self._believe(topic, partition, hint, endpoints):
            return Effect.RETRY
        self._stale.add(topic)
        return effect

    def _believe(self, topic: str, partition: int, hint: LeaderHint, endpoints: Iterable[Node]) -> bool:
        # A hint counts only if it is news, and if it is known where the new leader listens.
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
        """Doubt every topic that a node leads: a connection to it was lost or could not be made."""
        for name, topic in self.topics.items():
            if any(route.leader_id == node_id for route in topic.partitions.values()):
                self._stale.add(name)

    def doubt(self, topic: str) -> None:
        """Have a topic's routes asked for before they are used again."""
        self._stale.add(topic)


def _newer(old: PartitionRoute | None, new: MetadataResponsePartition) -> PartitionRoute:
    """What metadata says of a partition, unless a newer leader is known: nodes do not learn at the same time."""
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


def _what_to_do(topic: str, code: int) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f" does not exist (create it with `minibroker topics create {topic}`)"
    return ""
