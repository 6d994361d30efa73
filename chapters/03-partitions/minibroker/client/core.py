"""What takes more than one request: learning the cluster, finding a leader, asking again. A pure module.

Each such conversation is a generator, a `Dialogue`: it yields what it wants done next, `Ask` or `Pause`, is sent the
response, and returns its result. The transports run the same dialogues, one by blocking, the other by awaiting:

    def leader(self, topic, partition):
        response = yield Ask(MetadataRequest(...))
        ...
        return node_id
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from minibroker.client.connection import RESPONSE_BYTES_MAX
from minibroker.client.errors import (
    BrokerError,
    BrokerErrors,
    BrokerUnavailable,
    ClientError,
    ConnectionLost,
    known_code,
)
from minibroker.client.retries import Attempts, RetryPolicy
from minibroker.client.routing import Address, Effect, Routes, effect_of
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
Clock = Callable[[], float]
Chance = Callable[[], float]

CONTROLLER: Final = -2
"""In place of a node's id: the node that the cluster's metadata names as its controller."""

UNKNOWN_TOPIC_MS = (
    3_000  # a topic that was just created is not known everywhere at once; one that is not there never is
)
UNDECIDED_MS = 3_000  # an election of who decides takes a second; where a majority is missing, nobody is elected
MAX_TIMESTAMP_FROM = 7  # the version of ListOffsets that finds the newest record


class Ask(NamedTuple):
    """Send a request, to any node unless one is named; the response is wanted."""

    message: Request
    node_id: int | None = None
    version_max: int | None = None


class Pause(NamedTuple):
    """Wait before going on."""

    ms: float


Dialogue: TypeAlias = Generator[Ask | Pause, Any, T]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Kafka's settings of any client."""

    client_id: str = "minibroker"
    timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    response_bytes_max: int = RESPONSE_BYTES_MAX
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class FoundOffset(NamedTuple):
    """What was found for a timestamp: offset -1 means that no record is that new."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class Core:
    """A client without its transport: what is known of the cluster, and the dialogues that extend it."""

    def __init__(self, bootstrap: Sequence[Address], config: ClientConfig, *, clock: Clock, chance: Chance) -> None:
        self.config = config
        self.clock = clock
        self.chance = chance
        self.routes = Routes(bootstrap)

    def attempts(self, timeout_ms: float | None = None) -> Attempts:
        """Attempts until a timeout, counted from now."""
        deadline_ms = self.clock() + (self.config.timeout_ms if timeout_ms is None else timeout_ms)
        return Attempts(self.config.retry, deadline_ms=deadline_ms)

    def pause_or_raise(self, attempts: Attempts, error: ClientError) -> Dialogue[None]:
        """Wait before the next attempt; when there is no time for one, the error is the caller's."""
        delay_ms = self._delay_ms(attempts)
        if delay_ms is None:
            raise error
        yield Pause(delay_ms)

    def _delay_ms(self, attempts: Attempts) -> int | None:
        return attempts.next_delay_ms(now_ms=self.clock(), chance=self.chance())

    # The cluster ----------------------------------------------------------------------------------------------------

    def metadata(
        self, topics: Iterable[str] | None = None, *, allow_auto_topic_creation: bool = False
    ) -> Dialogue[MetadataResponse]:
        """Ask any node about the cluster and about some topics, all if none are named; remember the answer."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_topic_creation)
        response: MetadataResponse = yield Ask(request)
        self.routes.update(response, now_ms=self.clock())
        return response

    def know(
        self, topics: Iterable[str], *, allow_auto_topic_creation: bool = False, timeout_ms: float | None = None
    ) -> Dialogue[None]:
        """Return once the routes of these topics are known; ask again while a topic is just being made."""
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
        """The node that leads a partition; waits for an election."""
        attempts = self.attempts(timeout_ms)
        while True:
            yield from self.know([topic], timeout_ms=attempts.left_ms(self.clock()))
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

    def partition_count(self, topic: str, *, allow_auto_topic_creation: bool = False) -> Dialogue[int]:
        """How many partitions a topic has."""
        yield from self.know([topic], allow_auto_topic_creation=allow_auto_topic_creation)
        return len(self.routes.topics[topic].partitions)

    def node(self, node_id: int) -> Dialogue[int]:
        """The id of a node that is known, asking for the cluster if it is not; CONTROLLER is resolved."""
        if self._resolve(node_id) not in self.routes.nodes:
            yield from self.metadata([])
        found = self._resolve(node_id)
        if found not in self.routes.nodes:
            names = ", ".join(str(known) for known in sorted(self.routes.nodes)) or "none"
            what = "a controller" if node_id == CONTROLLER else f"node {node_id}"
            raise BrokerUnavailable(f"{what} is not known in this cluster: its nodes are {names}")
        return found

    def _resolve(self, node_id: int) -> int:
        return self.routes.controller_id if node_id == CONTROLLER else node_id

    # Asking again ---------------------------------------------------------------------------------------------------

    def ask_controller(
        self,
        message: Request,
        codes_of: Callable[[Any], Iterable[int]],
        *,
        node_id: int | None = CONTROLLER,
        version_max: int | None = None,
        is_read: bool = False,
    ) -> Dialogue[Any]:
        """Ask the controller, and the new one if it has moved; for a moment also if there is none.

        Kafka's brokers pass on what is for the controller, so newer requests may go to any node. What only reads may
        be asked again also if no answer came.
        """
        attempts = self.attempts(min(UNDECIDED_MS, self.config.timeout_ms))
        while True:
            try:
                response = yield Ask(message, node_id, version_max)
            except (BrokerUnavailable, ConnectionLost) as error:
                if not is_read:
                    raise
                self.routes.controller_id = -1
                yield from self.pause_or_raise(attempts, error)
                continue
            # Who does not decide has done nothing, so the same may be asked of another.
            is_refused = ErrorCode.NOT_CONTROLLER in codes_of(response)
            delay_ms = self._delay_ms(attempts) if is_refused else None
            if delay_ms is None:
                return response
            self.routes.controller_id = -1
            yield Pause(delay_ms)

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: float | None = None
    ) -> Dialogue[dict[TopicPartition, FoundOffset]]:
        """Look up offsets by time: the first record at or after it, or EARLIEST, LATEST, MAX_TIMESTAMP."""
        attempts = self.attempts(timeout_ms)
        found: dict[TopicPartition, FoundOffset] = {}
        while left := {TopicPartition(*name): at for name, at in timestamps.items() if name not in found}:
            left_ms = attempts.left_ms(self.clock())
            yield from self.know({partition.topic for partition in left}, timeout_ms=left_ms)
            error: ClientError | None = None
            for node_id, group in (yield from self.by_leader(left, timeout_ms=left_ms)).items():
                try:
                    response = yield Ask(_list_offsets_request(group, self.routes, isolation_level), node_id)
                except (BrokerUnavailable, ConnectionLost) as lost:
                    self.routes.on_disconnect(node_id)
                    error = lost
                    continue
                error = self._take_offsets(response, found) or error
            if error is not None:
                yield from self.pause_or_raise(attempts, error)
        return found

    def by_leader(
        self, partitions: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> Dialogue[dict[int, dict[TopicPartition, int]]]:
        """Group partitions, each with a number, by the node that leads them."""
        groups: dict[int, dict[TopicPartition, int]] = {}
        for partition, value in partitions.items():
            leader = yield from self.leader(*partition, timeout_ms=timeout_ms)
            groups.setdefault(leader, {})[partition] = value
        return groups

    def _take_offsets(self, response: Any, found: dict[TopicPartition, FoundOffset]) -> ClientError | None:
        error: ClientError | None = None
        for topic in response.topics:
            for it in topic.partitions:
                partition = TopicPartition(topic.name, it.partition_index)
                if not it.error_code:
                    found[partition] = FoundOffset(it.offset, it.timestamp, it.leader_epoch)
                    continue
                failure = BrokerError(it.error_code, about=str(partition))
                if self.routes.on_error(*partition, it.error_code) is Effect.FAIL:
                    raise failure
                error = failure
        return error


def _list_offsets_request(
    timestamps: Mapping[TopicPartition, int], routes: Routes, isolation_level: int
) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in timestamps.items():
        route = routes.partition(*partition)
        topics.setdefault(partition.topic, []).append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=route.leader_epoch if route else -1,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def raise_errors(codes: Mapping[str, tuple[int, str | None]]) -> None:
    """Raise what a broker said of the things in one request, if it refused any; the keys say what they are."""
    errors = {
        name: BrokerError(code, message, about=name) for name, (code, message) in codes.items() if known_code(code)
    }
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise BrokerErrors(errors)
