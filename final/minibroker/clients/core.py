"""Work that takes more than one request: learning the cluster, finding a leader, trying again. A pure module.

Such work is a generator, a `Dialogue`. It yields its next step, `Ask` or `Pause`, is sent the response, and returns its
result at the end. The blocking transport runs it; a test runs it with its own answers:

    def leader(self, topic, partition):
        response = yield Ask(MetadataRequest(...))
        ...
        return node_id
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from minibroker.client.addresses import Address
from minibroker.client.connection import RESPONSE_BYTES_MAX, Authenticator
from minibroker.client.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientError,
    ConnectionLost,
)
from minibroker.clients.retries import Attempts, RetryPolicy
from minibroker.clients.routing import Effect, Routes, effect_of
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
Clock = Callable[[], float]
Chance = Callable[[], float]

CONTROLLER: Final = -2
"""In place of a node id: the node that the metadata names as the controller."""

UNKNOWN_TOPIC_MS = 3_000
"""How long a request for an unknown topic is repeated: a node learns of a new topic a moment after its creation."""


class Ask(NamedTuple):
    """Send a request, to any node unless one is named, and wait for the response."""

    message: Request
    node_id: int | None = None
    version_max: int | None = None
    timeout_ms: float | None = None


class Pause(NamedTuple):
    """Wait before the next step."""

    ms: float


Dialogue: TypeAlias = Generator[Ask | Pause, Any, T]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Kafka's settings for all clients."""

    client_id: str = "minibroker"
    timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    response_bytes_max: int = RESPONSE_BYTES_MAX
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    authenticator: Authenticator | None = None


class Core:
    """A client without its transport: the routes, and the dialogues that update them."""

    def __init__(self, bootstrap: Sequence[Address], config: ClientConfig, *, clock: Clock, chance: Chance) -> None:
        self.config = config
        self.clock = clock
        self.chance = chance
        self.routes = Routes(bootstrap)

    def attempts(self, timeout_ms: float | None = None) -> Attempts:
        """A counter of attempts. Its deadline is the timeout, counted from now."""
        deadline_ms = self.clock() + (self.config.timeout_ms if timeout_ms is None else timeout_ms)
        return Attempts(self.config.retry, deadline_ms=deadline_ms)

    def pause_or_raise(self, attempts: Attempts, error: ClientError) -> Dialogue[None]:
        """Wait before the next attempt; raise the error if there is no time for one."""
        delay_ms = self.delay_ms(attempts)
        if delay_ms is None:
            raise error
        yield Pause(delay_ms)

    def delay_ms(self, attempts: Attempts) -> int | None:
        """The wait before the next attempt; None if there is no time for one."""
        return attempts.next_delay_ms(now_ms=self.clock(), chance=self.chance())

    # The cluster ----------------------------------------------------------------------------------------------------

    def metadata(
        self, topics: Iterable[str] | None = None, *, allow_auto_topic_creation: bool = False
    ) -> Dialogue[MetadataResponse]:
        """Ask any node for the metadata of some topics, or of all if none are named, and update the routes."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_topic_creation)
        response: MetadataResponse = yield Ask(request)
        self.routes.update(response, now_ms=self.clock())
        return response

    def learn_routes(
        self, topics: Iterable[str], *, allow_auto_topic_creation: bool = False, timeout_ms: float | None = None
    ) -> Dialogue[None]:
        """Return when the routes of these topics are known; ask again while a topic is being created."""
        attempts = self.attempts(timeout_ms)
        patience = self.attempts(min(UNKNOWN_TOPIC_MS, attempts.left_ms(self.clock())))
        wanted = list(topics)
        while missing := [topic for topic in wanted if not self._is_known(topic)]:
            try:
                yield from self.metadata(missing, allow_auto_topic_creation=allow_auto_topic_creation)
            except (BrokerUnavailable, ConnectionLost) as error:
                yield from self.pause_or_raise(attempts, error)
                continue
            refusal = next((it for topic in missing if (it := self.routes.error_of(topic))), None)
            if refusal is not None:
                if effect_of(refusal.code) is Effect.FAIL:
                    raise refusal
                is_unknown = refusal.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                yield from self.pause_or_raise(patience if is_unknown else attempts, refusal)

    def _is_known(self, topic: str) -> bool:
        age_ms_max = self.config.metadata_max_age_ms
        return self.routes.is_known(topic, now_ms=self.clock(), age_ms_max=age_ms_max)

    def leader(self, topic: str, partition: int, *, timeout_ms: float | None = None) -> Dialogue[int]:
        """The leader of a partition. If there is none, wait for an election."""
        attempts = self.attempts(timeout_ms)
        while True:
            yield from self.learn_routes([topic], timeout_ms=attempts.left_ms(self.clock()))
            known = self.routes.topics[topic].partitions
            if partition not in known:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"there is no partition {partition}: the topic has {len(known)}, from 0 to {len(known) - 1}",
                    about=f"topic {topic}",
                )
            leader = self.routes.leader(topic, partition)
            if leader is not None:
                return leader
            self.routes.doubt(topic)
            yield from self.pause_or_raise(
                attempts, BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=f"{topic}-{partition}")
            )

    def node(self, node_id: int) -> Dialogue[int]:
        """Resolve CONTROLLER to a node id; ask for the metadata if the node is not known."""
        if self._resolve(node_id) not in self.routes.nodes:
            yield from self.metadata([])
        found = self._resolve(node_id)
        if found not in self.routes.nodes:
            names = ", ".join(str(known) for known in sorted(self.routes.nodes)) or "none"
            what = "controller at the moment" if node_id == CONTROLLER else f"node {node_id}"
            raise BrokerUnavailable(f"this cluster has no {what}: its nodes are {names}")
        return found

    def _resolve(self, node_id: int) -> int:
        return self.routes.controller_id if node_id == CONTROLLER else node_id
