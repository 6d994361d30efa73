"""The positions of a consumer, its fetch requests, and the processing of the answers. A pure module.

Each partition has a position, the offset that is fetched next. An answer moves the position. Only the headers of the
batches are read for this. A position that is unknown, or no longer in the log, is looked up first: it becomes the start
or the end of the log, as the caller chose. Each node gets one request at a time, and each partition is in at most one
request.
"""

import enum
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.client.errors import BrokerError, ClientError, known_code
from minibroker.clients.errors import CorruptRecords, InvalidSetting, LogTruncated, OffsetOutOfRange
from minibroker.clients.fetched import EMPTY, Aborted, FetchedBatches, span
from minibroker.clients.hints import hint_of, nodes_of
from minibroker.clients.retries import RetryPolicy
from minibroker.clients.routing import Effect, Node, Routes
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from minibroker.wire.uuids import NO_UUID

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Kafka's special timestamps, in place of an offset or a time: the log's end, its start, its newest record."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1

_TOPIC_IDS_FROM = 13  # the first version of Fetch that names topics by id
_EPOCHS_FROM = 12  # the first version of Fetch that detects a truncated log


class OffsetReset(enum.Enum):
    """What to do when a position is not in the log: Kafka's `auto.offset.reset`."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "none"

    @property
    def timestamp(self) -> int:
        """The timestamp to look up."""
        return EARLIEST if self is OffsetReset.EARLIEST else LATEST


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Kafka's settings for consumers, with its defaults."""

    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    isolation_level: int = READ_UNCOMMITTED
    offset_reset: OffsetReset = OffsetReset.LATEST
    check_crcs: bool = True
    client_rack: str = ""
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.partition_max_bytes < 1:
            raise InvalidSetting(
                f"max_bytes={self.max_bytes}, partition_max_bytes={self.partition_max_bytes}: both must be at least 1"
            )


class Position:
    """The state of one assigned partition."""

    __slots__ = (
        "attempts",
        "generation",
        "high_watermark",
        "is_in_flight",
        "is_paused",
        "last_epoch",
        "log_start_offset",
        "lookup",
        "not_before_ms",
        "offset",
        "topic_id",
    )

    def __init__(self, *, generation: int) -> None:
        self.offset: int | None = None
        self.lookup: int | None = None  # the timestamp to look up if the offset is unknown
        self.generation = generation
        self.topic_id = NO_UUID  # the id of the topic from which the offset was fetched
        self.last_epoch = -1
        self.is_in_flight = False
        self.is_paused = False
        self.attempts = 0
        self.not_before_ms = 0.0
        self.high_watermark = -1
        self.log_start_offset = -1


class Plan(NamedTuple):
    """The partitions to fetch by node, the positions to look up, and the topics without a known leader."""

    fetches: dict[int, list[TopicPartition]]
    lookups: dict[TopicPartition, int]
    topics_without_leader: set[str]


class FetchOrder(NamedTuple):
    """A fetch to send, and the state that is needed to interpret its answer."""

    node_id: int
    request: FetchRequest
    version_max: int
    generations: dict[TopicPartition, int]
    offsets: dict[TopicPartition, int]
    topic_names: dict[bytes, str]


class Fetcher:
    """The positions of one consumer."""

    def __init__(self, config: FetchConfig, chance: Callable[[], float] = lambda: 0.5) -> None:
        self._config = config
        self._chance = chance
        self._positions: dict[TopicPartition, Position] = {}
        self._generation = 0
        self._errors: list[ClientError] = []

    # Assignment -------------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Read only these partitions. One that was assigned before keeps its position, unless an offset is given."""
        kept, self._positions = self._positions, {}
        self._errors.clear()
        given = offsets or {}
        for partition in partitions:
            name = TopicPartition(*partition)
            if name in kept and name not in given:
                self._positions[name] = kept[name]
            else:
                self._positions[name] = self._new()
                self.seek(name, given.get(name))

    def _new(self) -> Position:
        self._generation += 1
        return Position(generation=self._generation)

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Continue at an offset, at EARLIEST or at LATEST. With None, `offset_reset` decides."""
        known = self._known(partition)
        position = self._new()
        position.is_paused, position.is_in_flight = known.is_paused, known.is_in_flight
        # A new position has a new generation. So the answer to a fetch in flight, which has the old generation, will
        # be dropped.
        if offset is None:
            if self._config.offset_reset is OffsetReset.ERROR:
                raise OffsetOutOfRange(
                    f"{partition}: no offset is given, and offset_reset is `none`; give an offset, or set offset_reset"
                    " to earliest or latest"
                )
            position.lookup = self._config.offset_reset.timestamp
        elif offset >= 0:
            position.offset = offset
        elif offset in (EARLIEST, LATEST):
            position.lookup = offset
        else:
            raise OffsetOutOfRange(
                f"{partition}: offset {offset} is negative; {EARLIEST} means earliest, {LATEST} latest"
            )
        self._positions[partition] = position

    def _known(self, partition: TopicPartition) -> Position:
        if partition not in self._positions:
            raise InvalidSetting(f"{partition} is not assigned to this consumer: call assign first")
        return self._positions[partition]

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._positions)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset that is fetched next, or None while it is being looked up."""
        return self._known(partition).offset

    def high_watermark(self, partition: TopicPartition) -> int:
        """The high watermark in the last answer; -1 before the first answer."""
        return self._known(partition).high_watermark

    def pause(self, partitions: Iterable[TopicPartition], *, is_paused: bool = True) -> None:
        """Fetch nothing more of some partitions until they are resumed."""
        for partition in partitions:
            self._known(partition).is_paused = is_paused

    # Requests ---------------------------------------------------------------------------------------------------------

    def plan(self, now_ms: float, routes: Routes, busy: Container[int] = ()) -> Plan:
        """Plan the next requests. Nodes in `busy` have not answered their last request, so they get no other."""
        plan = Plan({}, {}, set())
        for partition, position in self._positions.items():
            if position.is_paused or position.not_before_ms > now_ms:
                continue
            self._check_topic(partition, position, routes.topic_id(partition.topic))
            if position.offset is None and position.lookup is not None:
                plan.lookups[partition] = position.lookup
            elif position.offset is not None and not position.is_in_flight:
                leader = routes.leader(*partition)
                if leader is None:
                    plan.topics_without_leader.add(partition.topic)
                elif leader not in busy:
                    plan.fetches.setdefault(leader, []).append(partition)
        return plan

    def _check_topic(self, partition: TopicPartition, position: Position, topic_id: bytes) -> None:
        """Reset the position if the topic was deleted and created again, because its new log has other records."""
        if position.is_in_flight or position.topic_id in (topic_id, NO_UUID) or topic_id == NO_UUID:
            return
        offset, position.topic_id, position.last_epoch = position.offset, NO_UUID, -1
        if self._config.offset_reset is OffsetReset.ERROR:
            self._errors.append(
                LogTruncated(
                    f"{partition} was read up to offset {offset}; then its topic was deleted and created again: start"
                    " again from earliest or latest"
                )
            )
        else:
            position.offset, position.lookup = None, self._config.offset_reset.timestamp

    def wakeup_ms(self, now_ms: float) -> float | None:
        """The earliest time at which a partition that is backing off may be fetched again."""
        times = [it.not_before_ms for it in self._positions.values() if it.not_before_ms > now_ms]
        return min(times, default=None)

    def order(self, node_id: int, partitions: Iterable[TopicPartition], routes: Routes, *, version: int) -> FetchOrder:
        """Make the request for a node, in the given version of Fetch or an older one."""
        chosen = list(partitions)
        # From version 13 on topics have only ids, so a single topic without an id forces version 12.
        ids = {partition.topic: routes.topic_id(partition.topic) for partition in chosen}
        if NO_UUID in ids.values():
            version = min(version, _TOPIC_IDS_FROM - 1)
        topics: dict[str, list[FetchPartition]] = {}
        for partition in chosen:
            topics.setdefault(partition.topic, []).append(self._fetch_partition(partition, routes, version))
            self._positions[partition].is_in_flight = True
            self._positions[partition].topic_id = ids[partition.topic]
        config = self._config
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            isolation_level=config.isolation_level,
            topics=[FetchTopic(topic=name, topic_id=ids[name], partitions=them) for name, them in topics.items()],
            rack_id=config.client_rack,
        )
        positions = self._positions
        return FetchOrder(
            node_id,
            request,
            version,
            {partition: positions[partition].generation for partition in chosen},
            {partition: positions[partition].offset or 0 for partition in chosen},
            {topic_id: name for name, topic_id in ids.items()},
        )

    def _fetch_partition(self, partition: TopicPartition, routes: Routes, version: int) -> FetchPartition:
        position = self._positions[partition]
        route = routes.partition(*partition)
        assert position.offset is not None
        return FetchPartition(
            partition=partition.partition,
            current_leader_epoch=route.leader_epoch if route else -1,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_epoch if version >= _EPOCHS_FROM else -1,
            partition_max_bytes=self._config.partition_max_bytes,
        )

    # Answers ----------------------------------------------------------------------------------------------------------

    def on_offset(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of a partition that was looked up."""
        position = self._positions.get(partition)
        if position is not None and position.offset is None:
            position.offset, position.lookup, position.attempts = offset, None, 0

    def on_lookup_failed(self, partition: TopicPartition, *, now_ms: float) -> None:
        """Back off after a lookup that failed."""
        if partition in self._positions:
            self._back_off(self._positions[partition], now_ms)

    def on_lost(self, order: FetchOrder, *, now_ms: float) -> None:
        """Back off after a fetch that was not answered."""
        for partition, position in self._current(order):
            del partition
            self._back_off(position, now_ms)

    def _current(self, order: FetchOrder) -> list[tuple[TopicPartition, Position]]:
        """Mark the partitions of a fetch as not in flight; return the partitions for which the answer still counts."""
        current = []
        for partition, generation in order.generations.items():
            position = self._positions.get(partition)
            if position is not None:
                position.is_in_flight = False
                # The answer for a paused partition is dropped; it is fetched again after `resume`.
                if position.generation == generation and not position.is_paused:
                    current.append((partition, position))
        return current

    def on_response(
        self, order: FetchOrder, response: FetchResponse, routes: Routes, *, now_ms: float
    ) -> list[FetchedBatches]:
        """Process an answer: move the positions, and return the fetched batches."""
        current = dict(self._current(order))
        if response.error_code:
            self._on_request_error(current, response.error_code, now_ms)
            return []
        endpoints = nodes_of(response.node_endpoints)
        fetched = []
        for topic in response.responses:
            name = topic.topic or order.topic_names.get(bytes(topic.topic_id), "")
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                position = current.get(partition)
                if position is None:
                    continue
                if data.error_code:
                    self._on_error(partition, position, data, routes, endpoints, now_ms)
                elif batches := self._on_partition(partition, position, data, now_ms):
                    fetched.append(batches)
        return fetched

    def _on_request_error(self, current: Mapping[TopicPartition, Position], code: int, now_ms: float) -> None:
        for position in current.values():
            self._back_off(position, now_ms)
        if not known_code(code).is_retriable:
            self._errors.append(BrokerError(code, about="fetch"))

    def _on_partition(
        self, partition: TopicPartition, position: Position, data: PartitionData, now_ms: float
    ) -> FetchedBatches | None:
        position.attempts = 0
        position.high_watermark, position.log_start_offset = data.high_watermark, data.log_start_offset
        if data.diverging_epoch.epoch >= 0:
            self._on_truncation(partition, position, data)
            return None
        try:
            return self._take(partition, position, data)
        except CorruptRecords as error:
            self._back_off(position, now_ms)
            self._errors.append(CorruptRecords(f"{partition}: {error}"))
            return None

    def _take(self, partition: TopicPartition, position: Position, data: PartitionData) -> FetchedBatches | None:
        records = data.records if isinstance(data.records, memoryview) else EMPTY
        offset = position.offset
        assert offset is not None
        if not records:
            return None
        whole = span(records, offset=offset, check_crcs=self._config.check_crcs)
        if whole.byte_count == 0 or whole.next_offset <= offset:
            return None
        position.offset, position.last_epoch = whole.next_offset, whole.leader_epoch
        # A partition that got records goes to the end of the next request, so that partitions that did not fit come
        # first.
        self._positions[partition] = self._positions.pop(partition)
        aborted = data.aborted_transactions if self._config.isolation_level == READ_COMMITTED else None
        return FetchedBatches(
            partition.topic,
            partition.partition,
            records=records[: whole.byte_count],
            fetch_offset=offset,
            next_offset=whole.next_offset,
            high_watermark=data.high_watermark,
            last_stable_offset=data.last_stable_offset,
            log_start_offset=data.log_start_offset,
            aborted=[Aborted(it.producer_id, it.first_offset) for it in aborted or ()],
        )

    def _on_error(
        self,
        partition: TopicPartition,
        position: Position,
        data: PartitionData,
        routes: Routes,
        endpoints: Iterable[Node],
        now_ms: float,
    ) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(partition, position, data)
            return
        hint = hint_of(data.current_leader)
        effect = routes.on_error(*partition, data.error_code, hint=hint, endpoints=endpoints)
        if effect is Effect.FAIL:
            self._errors.append(BrokerError(data.error_code, about=f"fetching {partition}"))
        if effect is Effect.RETRY and hint is not None:
            return  # the hint names a new leader, which can be asked at once
        self._back_off(position, now_ms)

    def _on_out_of_range(self, partition: TopicPartition, position: Position, data: PartitionData) -> None:
        if self._config.offset_reset is not OffsetReset.ERROR:
            position.offset, position.lookup = None, self._config.offset_reset.timestamp
            position.last_epoch = -1
            return
        known = (
            f", which has offsets {data.log_start_offset} to {data.high_watermark - 1}"
            if data.high_watermark >= 0
            else ""
        )
        self._errors.append(
            OffsetOutOfRange(
                f"offset {position.offset} is not in {partition}{known}: seek to another offset, or set offset_reset to"
                " earliest or latest"
            )
        )

    def _on_truncation(self, partition: TopicPartition, position: Position, data: PartitionData) -> None:
        end, old = data.diverging_epoch.end_offset, position.offset
        position.last_epoch = -1
        assert old is not None
        position.offset = min(old, end)
        if self._config.offset_reset is OffsetReset.ERROR:
            self._errors.append(
                LogTruncated(
                    f"{partition} was read up to offset {old}, but an unclean election truncated its log to {end}:"
                    f" the records from offset {end} on that were read no longer exist"
                )
            )

    def _back_off(self, position: Position, now_ms: float) -> None:
        position.attempts += 1
        position.not_before_ms = now_ms + self._config.retry.delay_ms(position.attempts, self._chance())

    def take_error(self) -> ClientError | None:
        """The oldest error that the caller has not seen; None if there is none."""
        return self._errors.pop(0) if self._errors else None
