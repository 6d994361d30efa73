"""The consumer: reads batches of assigned partitions as the brokers store them; iteration decodes the records.

It has no thread. `poll` returns the batches that have arrived, and sends the next fetches before it returns, so that
the brokers prepare batches while the caller works. The caller chooses the partitions and the offsets; in
`group_consumer` the coordinator of a group chooses them.
"""

import random
import selectors
from collections.abc import Iterable, Mapping

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError, ConnectionLost, RequestTimedOut
from minibroker.clients.blocking import Client, Closing, Link
from minibroker.clients.core import UNKNOWN_TOPIC_MS, Dialogue
from minibroker.clients.dialogues import FoundOffset, list_offsets
from minibroker.clients.fetched import FetchedBatches
from minibroker.clients.fetching import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchConfig,
    Fetcher,
    FetchOrder,
    OffsetReset,
)
from minibroker.clients.waking import Waker
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

__all__ = ["EARLIEST", "LATEST", "READ_COMMITTED", "READ_UNCOMMITTED", "Consumer", "OffsetReset", "TopicPartition"]

_GRACE_MS = 5_000  # how much longer an answer may take than the longest wait of a fetch


class Consumer(Closing):
    """Reads assigned partitions. It is for one thread, and has its own connections."""

    def __init__(
        self,
        client: Client,
        *,
        offset_reset: OffsetReset = OffsetReset.LATEST,
        isolation_level: int = READ_UNCOMMITTED,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        check_crcs: bool = True,
    ) -> None:
        self._client = client.sibling()
        # Fetches have their own connections: a call that waits for its answer drops the other answers that it receives.
        self._fetching = self._client.twin()
        self._config = FetchConfig(
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            isolation_level=isolation_level,
            offset_reset=offset_reset,
            check_crcs=check_crcs,
            retry=client.config.retry,
        )
        self._fetcher = Fetcher(self._config, random.random)
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._in_flight: dict[Link, tuple[FetchOrder, float]] = {}
        self._not_before_ms: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._failing_since_ms: float | None = None
        self._error: ClientError | None = None

    def close(self) -> None:
        """Close every connection."""
        self._in_flight.clear()
        self._selector.close()
        self._waker.close()
        self._fetching.close()
        self._client.close()

    # Assignment -------------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Read only these partitions, from an offset, EARLIEST or LATEST. By default, `offset_reset` decides."""
        self._fetcher.assign(partitions, offsets)

    def assign_topic(self, topic: str, offset: int | None = None) -> list[TopicPartition]:
        """Read all partitions that a topic has now."""
        partitions = [TopicPartition(topic, number) for number in range(self._client.partition_count(topic))]
        self.assign(partitions, None if offset is None else dict.fromkeys(partitions, offset))
        return partitions

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._fetcher.assignment

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at another offset, at EARLIEST or at LATEST."""
        self._fetcher.seek(TopicPartition(*partition), offset)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record, looked up if necessary."""
        name = TopicPartition(*partition)
        if self._fetcher.position(name) is None:
            self._look_up(self._fetcher.plan(precise_ms(), self._client.core.routes).lookups)
        return self._fetcher.position(name) or 0

    def known_position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record, or None while it is being looked up."""
        return self._fetcher.position(TopicPartition(*partition))

    def high_watermark(self, partition: TopicPartition) -> int:
        """The high watermark in the last answer; -1 before the first answer."""
        return self._fetcher.high_watermark(TopicPartition(*partition))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions until `resume`."""
        self._fetcher.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._fetcher.pause(partitions, is_paused=False)

    # Offsets --------------------------------------------------------------------------------------------------------

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition, the offset after the last record that this consumer may read."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset | None]:
        """The first record of each partition at or after a time in milliseconds; None if there is no such record."""
        found = self._client.run(self._list_offsets(timestamps))
        return {partition: it if it.offset >= 0 else None for partition, it in found.items()}

    def _offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        found = self._client.run(self._list_offsets(timestamps, timeout_ms))
        return {partition: it.offset for partition, it in found.items()}

    def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> Dialogue[dict[TopicPartition, FoundOffset]]:
        return list_offsets(
            self._client.core, timestamps, isolation_level=self._config.isolation_level, timeout_ms=timeout_ms
        )

    def _look_up(self, lookups: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> None:
        for partition, offset in self._offsets(lookups, timeout_ms).items():
            self._fetcher.on_offset(partition, offset)

    # Reading --------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 1000) -> list[FetchedBatches]:
        """Wait for batches, at most this long; the list is empty if none arrived."""
        deadline_ms = precise_ms() + timeout_ms
        while True:
            self._ask(deadline_ms)
            fetched = self._take(deadline_ms)
            if fetched:
                # The brokers prepare the next answers while the caller works.
                self._fetch_all()
                return fetched
            error = self._take_error()
            if error is not None:
                raise error
            if precise_ms() >= deadline_ms or self._waker.take():
                return []

    def wake_up(self) -> None:
        """End a `poll` early, the present one or the next. Another thread may call this."""
        self._waker.wake()

    def _ask(self, deadline_ms: float) -> None:
        """Look up missing leaders and offsets, and send a fetch to every node that has none in flight."""
        core = self._client.core
        plan = self._fetcher.plan(precise_ms(), core.routes)
        left_ms = max(0.0, deadline_ms - precise_ms())
        try:
            if plan.topics_without_leader:
                self._client.run(core.learn_routes(plan.topics_without_leader, timeout_ms=left_ms))
            if plan.lookups:
                self._look_up(plan.lookups, left_ms)
        except (BrokerUnavailable, ConnectionLost, RequestTimedOut, BrokerError) as error:
            self._on_failure(error)
            for partition in plan.lookups:
                self._fetcher.on_lookup_failed(partition, now_ms=precise_ms())
        self._fetch_all()

    def _fetch_all(self) -> None:
        routes = self._client.core.routes
        now = precise_ms()
        busy = {order.node_id for order, _deadline_ms in self._in_flight.values()}
        busy |= {node_id for node_id, until_ms in self._not_before_ms.items() if until_ms > now}
        plan = self._fetcher.plan(now, routes, busy)
        for topic in plan.topics_without_leader:
            routes.doubt(topic)
        for node_id, partitions in plan.fetches.items():
            self._fetch(node_id, partitions)

    def _on_failure(self, error: ClientError) -> None:
        """Tolerate an error for a while; after that, keep it for `poll` to raise."""
        self._failing_since_ms = self._failing_since_ms or precise_ms()
        if precise_ms() - self._failing_since_ms >= self._tolerated_ms(error):
            # The error is not raised here, so that batches from other nodes are returned first.
            self._failing_since_ms, self._error = None, error

    def _tolerated_ms(self, error: ClientError) -> float:
        if not isinstance(error, BrokerError):
            return self._client.config.timeout_ms
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return min(UNKNOWN_TOPIC_MS, self._client.config.timeout_ms)
        return self._client.config.timeout_ms if error.code.is_retriable else 0

    def _take_error(self) -> ClientError | None:
        error, self._error = self._error, None
        return error or self._fetcher.take_error()

    def _fetch(self, node_id: int, partitions: list[TopicPartition]) -> None:
        core = self._client.core
        deadline_ms = precise_ms() + core.config.timeout_ms + self._config.max_wait_ms + _GRACE_MS
        try:
            self._client.run(core.node(node_id))
            link = self._fetching.link(node_id)
        except (BrokerUnavailable, ConnectionLost, RequestTimedOut) as error:
            self._back_off(node_id, error)
            return
        order = self._fetcher.order(node_id, partitions, core.routes, version=link.version_of(ApiKey.FETCH))
        self._in_flight[link] = order, deadline_ms
        self._selector.register(link, selectors.EVENT_READ)
        try:
            link.send(order.request, deadline_ms=deadline_ms, version_max=order.version_max)
        except ClientError as error:
            self._lose(link, error)

    def _back_off(self, node_id: int, error: ClientError) -> None:
        """Send nothing to a node for a while after a failure."""
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        self._client.core.routes.on_disconnect(node_id)
        self._not_before_ms[node_id] = precise_ms() + self._config.retry.delay_ms(failures, random.random())
        self._on_failure(error)

    def _take(self, deadline_ms: float) -> list[FetchedBatches]:
        """Wait for answers, and process all that have arrived."""
        fetched: list[FetchedBatches] = []
        for key, _events in self._selector.select(self._wait_s(deadline_ms)):
            link = key.fileobj
            if not isinstance(link, Link):
                continue
            try:
                for _number, response in link.received():
                    order, _deadline_ms = self._in_flight.pop(link)
                    self._selector.unregister(link)
                    self._failures.pop(order.node_id, None)
                    self._failing_since_ms = None
                    routes = self._client.core.routes
                    fetched += self._fetcher.on_response(order, response, routes, now_ms=precise_ms())
            except ClientError as error:
                self._lose(link, error)
        for link, (_order, overdue_ms) in list(self._in_flight.items()):
            if precise_ms() >= overdue_ms:
                self._lose(link, RequestTimedOut(f"{link.address} did not answer a fetch in time"))
        return fetched

    def _wait_s(self, deadline_ms: float) -> float:
        now = precise_ms()
        times = [deadline_ms, *(overdue_ms for _order, overdue_ms in self._in_flight.values())]
        times += [until_ms for until_ms in self._not_before_ms.values() if until_ms > now]
        wakeup_ms = self._fetcher.wakeup_ms(now)
        times += [wakeup_ms] if wakeup_ms is not None else []
        if not self._in_flight:
            # No fetch is in flight, perhaps because a leader is not known, so try again soon.
            times.append(now + self._client.config.retry.backoff_ms)
        return max(0.0, min(times) - now) / 1000

    def _lose(self, link: Link, error: ClientError) -> None:
        order, _deadline_ms = self._in_flight.pop(link)
        self._selector.unregister(link)
        self._fetching.drop(link.address)
        self._client.core.routes.on_disconnect(order.node_id)
        self._fetcher.on_lost(order, now_ms=precise_ms())
        self._on_failure(error)
