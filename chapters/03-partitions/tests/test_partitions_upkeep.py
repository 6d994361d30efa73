"""The upkeep of logs: each kind by itself, on a real loop and a real thread."""

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from partitions_broker import NOW_MS, MemoryBroker, batch

from minibroker.log.batch import batches
from minibroker.partitions import upkeep
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.upkeep import Schedule, Upkeep
from minibroker.segments.directory import CLEANER_OFFSETS

NEVER_MS = 10**9
SCHEDULE = Schedule(
    initial_delay_ms=0,
    retention_ms=NEVER_MS,
    compaction_ms=NEVER_MS,
    dedupe_buffer_bytes=1024**2,
    is_compacting=True,
    producer_expiration_ms=24 * 60 * 60 * 1000,
    scrub_ms=-1,
)


def run(broker: MemoryBroker, work: Callable[[Upkeep], Awaitable[object]], schedule: Schedule = SCHEDULE) -> None:
    async def main() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            keeper = Upkeep(broker.store, broker.data, broker.files, schedule, thread)
            try:
                await asyncio.wait_for(work(keeper), 30)
            finally:
                await keeper.stop()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now_ms = [NOW_MS]
    monkeypatch.setattr(upkeep, "wall_clock_ms", lambda: now_ms[0])
    return now_ms


def fill(broker: MemoryBroker, topic: str, count: int, *, keys: int = 3) -> None:
    for number in range(count):
        broker.produce(topic, batch(b"%d" % number * 50, key=b"%d" % (number % keys)))


def values(broker: MemoryBroker, topic: str) -> dict[bytes | None, bytes | None]:
    partition = broker.store.partition(topic, 0)
    found = {}
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        for it in batches(broker.fetch(topic, offset).records):
            found.update({record.key: record.value for record in it.records()})
            offset = it.header.next_offset
    return found


def test_retention_deletes_segments_above_the_size_limit(clock: list[int]) -> None:
    broker = MemoryBroker()
    broker.create("orders", internal_segment_bytes="1000", retention_bytes="2000")
    fill(broker, "orders", 100)
    run(broker, lambda keeper: keeper.retain())
    log = broker.store.partition("orders", 0).log
    assert 0 < log.log_start_offset < 100
    assert log.size < 4000


def test_retention_deletes_segments_above_the_age_limit(clock: list[int]) -> None:
    broker = MemoryBroker()
    broker.create("orders", internal_segment_bytes="1000", retention_ms="60000")
    fill(broker, "orders", 100)
    run(broker, lambda keeper: keeper.retain())
    assert broker.store.partition("orders", 0).log_start_offset == 0
    clock[0] += 60_001
    run(broker, lambda keeper: keeper.retain())
    assert broker.store.partition("orders", 0).log_start_offset > 90


def test_compaction_keeps_the_newest_record_of_each_key_and_stores_its_first_dirty_offset() -> None:
    broker = MemoryBroker()
    broker.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(broker, "table", 100)
    before, size = values(broker, "table"), broker.store.partition("table", 0).log.size
    run(broker, lambda keeper: keeper.compact())
    partition = broker.store.partition("table", 0)
    assert values(broker, "table") == before
    assert partition.log.size < size / 2
    assert broker.data.first_dirty_offset(partition.name) > 50
    assert CLEANER_OFFSETS in broker.files.list("data")


def test_a_topic_without_compaction_is_not_changed() -> None:
    broker = MemoryBroker()
    broker.create("orders", internal_segment_bytes="1000")
    fill(broker, "orders", 50)
    size = broker.store.partition("orders", 0).log.size
    run(broker, lambda keeper: keeper.compact())
    assert broker.store.partition("orders", 0).log.size == size


def test_a_topic_that_is_deleted_while_it_is_compacted_leaves_nothing_behind() -> None:
    broker = MemoryBroker()
    broker.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(broker, "table", 100)

    async def delete_in_between(keeper: Upkeep) -> None:
        compaction = asyncio.create_task(keeper.compact())
        # The thread first asks the loop for the segments. By then the topic is deleted.
        await asyncio.sleep(0)
        broker.delete("table")
        await compaction

    run(broker, delete_in_between)
    assert not any(name.startswith("table") for name in broker.files.list("data"))


def test_a_stop_while_a_log_is_compacted_reports_no_error(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    broker.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(broker, "table", 100)
    size = broker.store.partition("table", 0).log.size

    async def stop_in_between(keeper: Upkeep) -> None:
        compacting, stopped = asyncio.Event(), threading.Event()
        check = keeper._check_wanted

        def check_after_the_stop(partition: LocalPartition) -> None:
            if threading.current_thread() is threading.main_thread():
                compacting.set()
            else:
                assert stopped.wait(30)
            check(partition)

        keeper._check_wanted = check_after_the_stop  # type: ignore[method-assign]
        keeper.start()
        await compacting.wait()
        await keeper.stop()
        stopped.set()

    run(broker, stop_in_between, replace(SCHEDULE, compaction_ms=0))
    gc.collect()
    assert broker.store.partition("table", 0).log.size == size
    assert caplog.text == ""


def test_a_log_that_cannot_be_compacted_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    broker.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(broker, "table", 100)
    broker.files.open("data/table-0/00000000000000000000.log").pwrite(b"damaged", 100)

    async def twice(keeper: Upkeep) -> None:
        await keeper.compact()
        await keeper.compact()

    run(broker, twice)
    assert caplog.text.count("table-0 is not compacted until the next start") == 1
    assert "crc" in caplog.text


def test_flush_ms_flushes_the_records_that_are_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    broker.create("orders", flush_ms="1000")
    now_ms = [5000]
    monkeypatch.setattr(upkeep, "monotonic_ms", lambda: now_ms[0])

    async def work(keeper: Upkeep) -> None:
        await keeper.tick()
        broker.produce("orders", batch(b"a"))
        await keeper.tick()
        assert broker.store.partition("orders", 0).log.flushed_offset == 0
        now_ms[0] += 1000
        await keeper.tick()
        assert broker.store.partition("orders", 0).log.flushed_offset == 1

    run(broker, work)


def test_producers_that_have_not_written_for_long_are_forgotten(clock: list[int]) -> None:
    broker = MemoryBroker()
    broker.create("orders")
    broker.produce("orders", batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0))
    run(broker, lambda keeper: keeper.forget_producers())
    assert 5 in broker.store.partition("orders", 0).producers.producers
    clock[0] += 24 * 60 * 60 * 1000 + 1
    run(broker, lambda keeper: keeper.forget_producers())
    assert broker.store.partition("orders", 0).producers.producers == {}


def test_a_scrub_reports_damaged_records(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    broker.create("orders", internal_segment_bytes="1000", index_interval_bytes="100")
    fill(broker, "orders", 50)
    broker.files.open("data/orders-0/00000000000000000000.log").pwrite(b"damaged", 100)
    run(broker, lambda keeper: keeper.scrub())
    assert "orders-0/00000000000000000000.log" in caplog.text
    assert "restore the segment from a replica" in caplog.text


def test_a_loop_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    failed = asyncio.Event()
    tries = []

    async def fail(self: Upkeep) -> None:
        tries.append(1)
        if len(tries) == 3:
            failed.set()
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Upkeep, "retain", fail)

    async def work(keeper: Upkeep) -> None:
        keeper.start()
        await failed.wait()

    run(broker, work, replace(SCHEDULE, retention_ms=1, is_compacting=False))
    assert caplog.text.count("background work failed") >= 2
