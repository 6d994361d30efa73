"""The background work of a broker: retention, compaction, flushing by time, scrubbing, expiring producers.

Each kind of work has its own loop, on a schedule with Kafka's names. Quick work runs on the event loop, a few
partitions at a time. Work that reads much (compaction, scrubbing) runs on a background thread, but changes to a log run
on the loop (see `clean` in chapter 02).
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.store import Store
from minibroker.segments.compaction import clean, is_worth_it
from minibroker.segments.directory import DataDirectory
from minibroker.segments.scrub import Finding, Pace, Progress, rebuild_index, scrub

log = logging.getLogger(__name__)

T = TypeVar("T")

_PARTITIONS_AT_ONCE = 50
_TICK_MS = 500
_PRODUCER_CHECK_MS = 10 * 60 * 1000
_SCRUB_BYTES_PER_S = 8 * 1024**2


@dataclass(frozen=True)
class Schedule:
    """The intervals and settings of the background work. The comment of each names its configuration key."""

    initial_delay_ms: int  # log.initial.task.delay.ms
    retention_ms: int  # log.retention.check.interval.ms
    compaction_ms: int  # log.cleaner.backoff.ms
    dedupe_buffer_bytes: int  # log.cleaner.dedupe.buffer.size
    is_compacting: bool  # log.cleaner.enable
    producer_expiration_ms: int  # producer.id.expiration.ms
    scrub_ms: int  # minibroker.scrub.interval.ms; -1 means never


class _Stopped(Exception):
    """The log that is being compacted was deleted, or the broker stops."""


class Upkeep:
    """The loops of the background work. Some of the work runs on a thread, which the machine owns."""

    def __init__(
        self,
        store: Store,
        data: DataDirectory,
        files: Files,
        schedule: Schedule,
        thread: concurrent.futures.ThreadPoolExecutor,
    ) -> None:
        self._store = store
        self._data = data
        self._files = files
        self.schedule = schedule
        self._thread = thread
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._not_compactable: dict[LocalPartition, str] = {}

    def start(self) -> None:
        """Start all loops."""
        schedule = self.schedule
        loops: list[tuple[Callable[[], Awaitable[None]], Callable[[], int]]] = [
            (self.retain, lambda: self.schedule.retention_ms),
            (self.tick, lambda: _TICK_MS),
            (self.forget_producers, lambda: _PRODUCER_CHECK_MS),
        ]
        if schedule.is_compacting:
            loops.append((self.compact, lambda: self.schedule.compaction_ms))
        if schedule.scrub_ms >= 0:
            loops.append((self.scrub, lambda: self.schedule.scrub_ms))
        self._tasks = [asyncio.create_task(self._repeat(work, interval_ms)) for work, interval_ms in loops]

    async def stop(self) -> None:
        """End all loops. The work on the thread stops at its next check, and the owner of the thread waits for it."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_ms: Callable[[], int]) -> None:
        await asyncio.sleep(min(self.schedule.initial_delay_ms, interval_ms()) / 1000)
        while True:
            try:
                await work()
            except Exception:
                # An error in one log must not end the upkeep of all others.
                log.exception("background work failed; the next attempt is in %d ms", interval_ms())
            await asyncio.sleep(interval_ms() / 1000)

    async def _each(self, work: Callable[[LocalPartition], object]) -> None:
        """Do the work for every partition, and yield to requests now and then."""
        for count, partition in enumerate(self._store):
            if not partition.is_deleted:
                try:
                    work(partition)
                except (LogError, OSError) as error:
                    log.error("%s: %s", partition.name.directory, error)
            if count % _PARTITIONS_AT_ONCE == _PARTITIONS_AT_ONCE - 1:
                await asyncio.sleep(0)

    # Quick work -------------------------------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Delete segments that exceed the limits of age and size."""
        now_ms = wall_clock_ms()
        await self._each(lambda partition: self._retain(partition, now_ms))

    def _retain(self, partition: LocalPartition, now_ms: int) -> None:
        start = partition.log_start_offset
        count = partition.log.retain(now_ms, upto_offset=partition.high_watermark)
        if count:
            what = (partition.name.directory, count, start, partition.log_start_offset)
            log.info("%s: retention deleted %d segments; the log start offset moved from %d to %d", *what)
            self._store.wake(partition.name)

    async def tick(self) -> None:
        """Flush the logs whose `flush.ms` has passed."""
        now_ms = monotonic_ms()
        await self._each(lambda partition: _tick(partition, now_ms))

    async def forget_producers(self) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms`."""
        now_ms = wall_clock_ms()
        await self._each(lambda partition: self._forget_producers(partition, now_ms))

    def _forget_producers(self, partition: LocalPartition, now_ms: int) -> None:
        partition.producers.expiration_ms = self.schedule.producer_expiration_ms
        partition.producers.expire(now_ms)

    # Work on the thread -----------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Compact every log that is dirty enough."""
        for partition in self._store:
            if partition not in self._not_compactable and not partition.is_deleted and self._is_worth_it(partition):
                await self._compact(partition)

    def _is_worth_it(self, partition: LocalPartition) -> bool:
        return is_worth_it(
            partition.log,
            first_dirty_offset=self._data.first_dirty_offset(partition.name),
            now_ms=wall_clock_ms(),
            upto_offset=partition.last_stable_offset,
        )

    async def _compact(self, partition: LocalPartition) -> None:
        loop = asyncio.get_running_loop()
        # The loop may change these values, so read them before the thread starts.
        first_dirty_offset = self._data.first_dirty_offset(partition.name)
        upto_offset = partition.last_stable_offset
        keep_producers, keep_markers = partition.producers.last_offsets(), partition.producers.last_markers()
        aborted = partition.all_aborted()

        def work() -> int:
            return clean(
                partition.log,
                first_dirty_offset=first_dirty_offset,
                now_ms=wall_clock_ms(),
                upto_offset=upto_offset,
                aborted=aborted,
                keep_producers=keep_producers,
                keep_markers=keep_markers,
                map_bytes_max=self.schedule.dedupe_buffer_bytes,
                on_owner=lambda step: _on_loop(loop, lambda: self._owner_step(partition, step)),
                pace=lambda _bytes_read: self._check_wanted(partition),
            ).first_dirty_offset

        try:
            cleaned_upto = await self._on_thread(work)
        except _Stopped:
            return
        except (LogError, OSError) as error:
            # The next attempt would fail the same way, so the log is tried again only after a restart.
            self._not_compactable[partition] = str(error)
            log.error("%s is not compacted until the next start: %s", partition.name.directory, error)
            return
        if not partition.is_deleted:
            self._data.set_first_dirty_offset(partition.name, cleaned_upto)

    def _check_wanted(self, partition: LocalPartition) -> None:
        if self._is_stopping or partition.is_deleted:
            raise _Stopped

    def _owner_step(self, partition: LocalPartition, step: Callable[[], None]) -> None:
        self._check_wanted(partition)
        step()

    async def scrub(self) -> None:
        """Read all closed segments once, slowly, and report damage."""
        pace = Pace(_SCRUB_BYTES_PER_S)
        for partition in self._store:
            steps = scrub(self._files, partition.log)
            while (step := await self._on_thread(lambda: self._next(partition, steps))) is not None:  # noqa: B023
                if isinstance(step, Finding):
                    self._report(partition, step)
                else:
                    await asyncio.sleep(pace.wait_ms(step.bytes_read, monotonic_ms()) / 1000)

    def _next(self, partition: LocalPartition, steps: Iterator[Progress | Finding]) -> Progress | Finding | None:
        return None if partition.is_deleted or self._is_stopping else next(steps, None)

    def _report(self, partition: LocalPartition, finding: Finding) -> None:
        is_mended = rebuild_index(partition.log, finding)
        log.error("%s%s", finding, "; the index is rebuilt" if is_mended else ": restore the segment from a replica")

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Run work on the background thread. If the caller is cancelled, the thread still finishes the work."""
        result = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # Then no caller is left to take an error from the result, and asyncio would log it as one that was lost.
        result.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(result)


def _tick(partition: LocalPartition, now_ms: int) -> None:
    if partition.log.config.flush_ms is not None:
        partition.log.tick(now_ms)


def _on_loop(loop: asyncio.AbstractEventLoop, step: Callable[[], None]) -> None:
    """Run a step on the event loop, from the thread, and wait for it."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            step()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    loop.call_soon_threadsafe(run)
    done.result()
