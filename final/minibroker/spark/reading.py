"""The work of a reading task: fetch the offsets of one split, and decode the broker's bytes into Arrow.

The next fetch is under way while the last one is decoded, so a worker holds at most two responses, however large the
split is. The worker process keeps its connections for later tasks.
"""

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError, ConnectionLost, RequestTimedOut
from minibroker.clients import admin
from minibroker.clients.blocking import Client, Link
from minibroker.clients.errors import LogTruncated, OffsetOutOfRange
from minibroker.clients.fetched import FetchedBatches
from minibroker.clients.fetching import EARLIEST, LATEST, FetchConfig, Fetcher, FetchOrder, OffsetReset
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.connecting import cached_client
from minibroker.spark.decoding import decode
from minibroker.spark.errors import DataLoss, ReadTimedOut
from minibroker.spark.options import ClientSettings, ReadOptions
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import uuid_text

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split(InputPartition):
    """The offsets of one partition that a task reads; `until` is exclusive. The topic has this id, if one is given."""

    topic: str
    partition: int
    start: int
    until: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offsets {self.start} to {self.until - 1}"


def read_split(options: ReadOptions, split: Split) -> "Iterator[RecordBatch]":
    """Read the records of a split, as Arrow record batches."""
    client = cached_client(options.client)
    for fetched in fetch_range(client, options, split):
        yield from decode(
            split.topic,
            split.partition,
            _committed(fetched),
            from_offset=fetched.fetch_offset,
            upto_offset=split.until,
            include_headers=options.includes_headers,
            check_crcs=False,  # the fetcher has checked the checksums
        )


def _committed(fetched: FetchedBatches) -> memoryview:
    """Return the bytes without the batches of aborted transactions, which are rare."""
    if not fetched.aborted:
        return fetched.records
    return memoryview(b"".join(batch.view for batch in fetched.batches()))


def fetch_range(client: Client, options: ReadOptions, split: Split) -> Iterator[FetchedBatches]:
    """Fetch a split; deleted records are an error or are skipped, as `failOnDataLoss` says."""
    pipe = _Pipe(client, options, split)
    try:
        while pipe.position < split.until:
            fetched = pipe.take()
            if fetched is not None:
                yield fetched
    finally:
        pipe.close()


class _Pipe:
    """Fetches one partition. At most one fetch is under way, and it is sent before the previous batches are used."""

    def __init__(self, client: Client, options: ReadOptions, split: Split) -> None:
        self._client = client
        self._options = options
        self._split = split
        self._name = TopicPartition(split.topic, split.partition)
        self._fetcher = Fetcher(_fetch_config(options.client), random.random)
        self._fetcher.assign([self._name], {self._name: split.start})
        self._in_flight: tuple[Link, FetchOrder, int] | None = None
        self._moved_ms = precise_ms()
        self.position = split.start

    def close(self) -> None:
        """Drop the connection if a response is pending, so that the next task does not receive it."""
        if self._in_flight is not None:
            self._client.drop(self._in_flight[0].address)
            self._in_flight = None

    def take(self) -> FetchedBatches | None:
        """Wait for the fetch under way, send the next one, and return the batches; None if none were fetched."""
        try:
            if self._in_flight is None:
                self._send()
            fetched = self._receive()
        except (BrokerUnavailable, ConnectionLost, RequestTimedOut) as error:
            self._on_lost_broker(error)
            return None
        except BrokerError as error:
            self._on_refusal(error)
            return None
        if fetched is None:
            self._check_progress()
            return None
        self._move(fetched.next_offset)
        if self.position < self._split.until:
            self._send_ahead()
        return fetched

    def _move(self, position: int) -> None:
        self.position, self._moved_ms = position, precise_ms()

    # Fetches ---------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        core = self._client.core
        self._client.run(core.leader(*self._name))
        found_id = uuid_text(core.routes.topics[self._split.topic].topic_id)
        if self._split.topic_id not in ("", found_id):
            self._lose(f"topic {self._split.topic} was deleted and created again under its name", self._split.until)
            return
        plan = self._fetcher.plan(precise_ms(), core.routes)
        for node_id in plan.fetches:
            link = self._link(node_id)
            order = self._fetcher.order(node_id, [self._name], core.routes, version=link.version_of(ApiKey.FETCH))
            try:
                number = link.send(order.request, deadline_ms=self._deadline_ms(), version_max=order.version_max)
            except ClientError:
                self._lose_link(link, order)
                raise
            self._in_flight = link, order, number

    def _link(self, node_id: int) -> Link:
        try:
            return self._client.link(node_id)
        except ClientError:
            # The leader may be dead, and another node may lead by now: ask for the metadata before the next attempt.
            self._client.core.routes.on_disconnect(node_id)
            raise

    def _send_ahead(self) -> None:
        """Send the next fetch. An error is only logged, because the last fetch has succeeded; `take` sends it again."""
        try:
            self._send()
        except ClientError as error:
            _log.info("%s: the next fetch has to be repeated (%s)", self._name, error)

    def _deadline_ms(self) -> float:
        return precise_ms() + self._options.client.timeout_ms + self._options.client.fetch_wait_ms_max

    def _receive(self) -> FetchedBatches | None:
        if self._in_flight is None:
            self._pause()
            return None
        link, order, number = self._in_flight
        self._in_flight = None
        deadline_ms = self._deadline_ms()
        try:
            while True:
                for answered, response in link.receive(deadline_ms):
                    if answered == number:
                        routes = self._client.core.routes
                        fetched = self._fetcher.on_response(order, response, routes, now_ms=precise_ms())
                        return fetched[0] if fetched else None
        except ClientError:
            self._lose_link(link, order)
            raise

    def _lose_link(self, link: Link, order: FetchOrder) -> None:
        self._client.drop(link.address)
        self._client.core.routes.on_disconnect(order.node_id)
        self._fetcher.on_lost(order, now_ms=precise_ms())

    # Errors ----------------------------------------------------------------------------------------------------------

    def _check_progress(self) -> None:
        error = self._fetcher.take_error()
        if isinstance(error, OffsetOutOfRange | LogTruncated):
            self._on_loss(error)
        elif isinstance(error, BrokerError):
            self._on_refusal(error)
        elif error is not None:
            raise error
        elif precise_ms() - self._moved_ms >= self._options.poll_timeout_ms:
            raise ReadTimedOut(
                f"{self._split}: no record from offset {self.position} on arrived within"
                f" {self._options.poll_timeout_ms} ms; the last known high watermark is"
                f" {self._fetcher.high_watermark(self._name)} (-1: no answer yet); see kafkaConsumer.pollTimeoutMs"
            )

    def _on_lost_broker(self, error: ClientError) -> None:
        """Wait for a broker that does not answer, for as long as the client's timeout."""
        if precise_ms() - self._moved_ms >= self._options.client.timeout_ms:
            raise error
        self._pause()

    def _pause(self) -> None:
        now = precise_ms()
        wakeup_ms = self._fetcher.wakeup_ms(now)
        wait_ms = self._options.client.backoff_ms if wakeup_ms is None else wakeup_ms - now
        time.sleep(max(0.0, wait_ms) / 1000)

    def _on_refusal(self, error: BrokerError) -> None:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
        self._lose(f"{self._name} is gone", self._split.until)

    def _on_loss(self, error: ClientError) -> None:
        """Continue at the log's start if it is after the position; else the log was truncated, and the split ends."""
        log = {at: admin.list_offsets(self._client, {self._name: at})[self._name].offset for at in (EARLIEST, LATEST)}
        has = f"its log starts at {log[EARLIEST]} and ends at {log[LATEST]}"
        is_ahead = self.position < log[EARLIEST]
        self._lose(f"{error}; {has}", min(log[EARLIEST], self._split.until) if is_ahead else self._split.until)

    def _lose(self, what: str, position: int) -> None:
        lost = f"{self._split}: records from offset {self.position} to {position - 1} are gone; {what}"
        if self._options.fails_on_data_loss:
            raise DataLoss(f"{lost}; to continue with the records that are left, set failOnDataLoss=false")
        _log.warning("%s; continuing without them, because failOnDataLoss=false", lost)
        self._move(position)
        if position < self._split.until:
            self._fetcher.seek(self._name, position)


def _fetch_config(settings: ClientSettings) -> FetchConfig:
    return FetchConfig(
        max_wait_ms=settings.fetch_wait_ms_max,
        min_bytes=1,
        max_bytes=settings.fetch_bytes_max,
        partition_max_bytes=settings.fetch_bytes_max,
        isolation_level=settings.isolation_level,
        offset_reset=OffsetReset.ERROR,
        check_crcs=settings.check_crcs,
        retry=settings.retry,
    )
