"""Dialogues that only the full client has: about offsets, and with the controller. A pure module.

Each is a `Dialogue` over a `Core`, as in `minibroker.clients.core`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from minibroker.client.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientError,
    ConnectionLost,
    known_code,
)
from minibroker.clients.core import CONTROLLER, Ask, Core, Dialogue, Pause
from minibroker.clients.errors import BrokerErrors
from minibroker.clients.routing import Effect, Routes
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

NO_CONTROLLER_MS_MAX = 3_000  # an election takes about a second; without a majority it never ends


class FoundOffset(NamedTuple):
    """The offset that was found for a timestamp; -1 if no record is that new."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


def partition_count(core: Core, topic: str, *, allow_auto_topic_creation: bool = False) -> Dialogue[int]:
    """How many partitions a topic has."""
    yield from core.learn_routes([topic], allow_auto_topic_creation=allow_auto_topic_creation)
    return len(core.routes.topics[topic].partitions)


def ask_controller(
    core: Core,
    message: Request,
    codes_of: Callable[[Any], Iterable[int]],
    *,
    node_id: int | None = CONTROLLER,
    version_max: int | None = None,
    is_read: bool = False,
) -> Dialogue[Any]:
    """Send a request to the controller. If there is none, or it has just changed, try again for a few seconds.

    Kafka's brokers forward requests of newer versions to the controller, so `node_id` may be None, which means any
    node. A request that only reads is sent again even if its answer was lost.
    """
    attempts = core.attempts(min(NO_CONTROLLER_MS_MAX, core.config.timeout_ms))
    while True:
        try:
            response = yield Ask(message, node_id, version_max)
        except (BrokerUnavailable, ConnectionLost) as error:
            if not is_read:
                raise
            core.routes.controller_id = -1
            yield from core.pause_or_raise(attempts, error)
            continue
        # A node that is not the controller has changed nothing, so the request may be sent again.
        is_refused = ErrorCode.NOT_CONTROLLER in codes_of(response)
        delay_ms = core.delay_ms(attempts) if is_refused else None
        if delay_ms is None:
            return response
        core.routes.controller_id = -1
        yield Pause(delay_ms)


def list_offsets(
    core: Core, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: float | None = None
) -> Dialogue[dict[TopicPartition, FoundOffset]]:
    """Look up the offset of the first record at or after a time, or of EARLIEST, LATEST, MAX_TIMESTAMP."""
    attempts = core.attempts(timeout_ms)
    found: dict[TopicPartition, FoundOffset] = {}
    while left := {TopicPartition(*name): at for name, at in timestamps.items() if name not in found}:
        left_ms = attempts.left_ms(core.clock())
        yield from core.learn_routes({partition.topic for partition in left}, timeout_ms=left_ms)
        error: ClientError | None = None
        for node_id, group in (yield from by_leader(core, left, timeout_ms=left_ms)).items():
            try:
                response = yield Ask(_list_offsets_request(group, core.routes, isolation_level), node_id)
            except (BrokerUnavailable, ConnectionLost) as lost:
                core.routes.on_disconnect(node_id)
                error = lost
                continue
            error = _take_offsets(core, response, found) or error
        if error is not None:
            yield from core.pause_or_raise(attempts, error)
    return found


def by_leader(
    core: Core, partitions: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
) -> Dialogue[dict[int, dict[TopicPartition, int]]]:
    """Group partitions and their values by leader."""
    groups: dict[int, dict[TopicPartition, int]] = {}
    for partition, value in partitions.items():
        leader = yield from core.leader(*partition, timeout_ms=timeout_ms)
        groups.setdefault(leader, {})[partition] = value
    return groups


def _take_offsets(core: Core, response: Any, found: dict[TopicPartition, FoundOffset]) -> ClientError | None:
    error: ClientError | None = None
    for topic in response.topics:
        for it in topic.partitions:
            partition = TopicPartition(topic.name, it.partition_index)
            if not it.error_code:
                found[partition] = FoundOffset(it.offset, it.timestamp, it.leader_epoch)
                continue
            failure = BrokerError(it.error_code, about=str(partition))
            if core.routes.on_error(*partition, it.error_code) is Effect.FAIL:
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
    """Raise the errors of one request, if there are any. Each key says what its error is about."""
    errors = {
        name: BrokerError(code, message, about=name) for name, (code, message) in codes.items() if known_code(code)
    }
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise BrokerErrors(errors)
