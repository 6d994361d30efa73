"""What is done when nobody asks, each kind by itself, on a real loop and a real thread."""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from partitions_house import NOW_MS, House, batch

from minibroker.log.batch import batches
from minibroker.partitions import upkeep
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


def run(house: House, work: Callable[[Upkeep], Awaitable[object]], schedule: Schedule = SCHEDULE) -> None:
    async def main() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            keeper = Upkeep(house.store, house.data, house.files, schedule, thread)
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


def fill(house: House, topic: str, count: int, *, keys: int = 3) -> None:
    for number in range(count):
        house.produce(topic, batch(b"%d" % number * 50, key=b"%d" % (number % keys)))


def values(house: House, topic: str) -> dict[bytes | None, bytes | None]:
    partition = house.store.partition(topic, 0)
    found = {}
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        for it in batches(house.fetch(topic, offset).records):
            found.update({record.key: record.value for record in it.records()})
            offset = it.header.next_offset
    return found


def test_retention_deletes_what_is_too_much(clock: list[int]) -> None:
    house = House()
    house.create("orders", internal_segment_bytes="1000", retention_bytes="2000")
    fill(house, "orders", 100)
    run(house, lambda keeper: keeper.retain())
    log = house.store.partition("orders", 0).log
    assert 0 < log.log_start_offset < 100
    assert log.size < 4000


def test_retention_deletes_what_is_too_old(clock: list[int]) -> None:
    house = House()
    house.create("orders", internal_segment_bytes="1000", retention_ms="60000")
    fill(house, "orders", 100)
    run(house, lambda keeper: keeper.retain())
    assert house.store.partition("orders", 0).log_start_offset == 0
    clock[0] += 60_001
    run(house, lambda keeper: keeper.retain())
    assert house.store.partition("orders", 0).log_start_offset > 90


def test_compaction_keeps_the_newest_of_each_key_and_remembers_how_far_it_came() -> None:
    house = House()
    house.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(house, "table", 100)
    before, size = values(house, "table"), house.store.partition("table", 0).log.size
    run(house, lambda keeper: keeper.compact())
    partition = house.store.partition("table", 0)
    assert values(house, "table") == before
    assert partition.log.size < size / 2
    assert house.data.first_dirty_offset(partition.name) > 50
    assert CLEANER_OFFSETS in house.files.list("data")


def test_a_topic_that_is_not_compacted_is_left_alone() -> None:
    house = House()
    house.create("orders", internal_segment_bytes="1000")
    fill(house, "orders", 50)
    size = house.store.partition("orders", 0).log.size
    run(house, lambda keeper: keeper.compact())
    assert house.store.partition("orders", 0).log.size == size


def test_a_topic_that_is_deleted_while_it_is_compacted_leaves_nothing_behind() -> None:
    house = House()
    house.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(house, "table", 100)

    async def delete_in_between(keeper: Upkeep) -> None:
        compaction = asyncio.create_task(keeper.compact())
        # The thread asks the loop for the segments first: by then the topic is gone.
        await asyncio.sleep(0)
        house.delete("table")
        await compaction

    run(house, delete_in_between)
    assert not any(name.startswith("table") for name in house.files.list("data"))


def test_a_log_that_cannot_be_compacted_is_not_tried_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.create("table", internal_segment_bytes="1000", cleanup_policy="compact")
    fill(house, "table", 100)
    house.files.open("data/table-0/00000000000000000000.log").pwrite(b"damaged", 100)

    async def twice(keeper: Upkeep) -> None:
        await keeper.compact()
        await keeper.compact()

    run(house, twice)
    assert caplog.text.count("table-0 is not compacted any more") == 1
    assert "crc" in caplog.text


def test_flush_ms_flushes_what_was_written_before(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    house.create("orders", flush_ms="1000")
    now_ms = [5000]
    monkeypatch.setattr(upkeep, "monotonic_ms", lambda: now_ms[0])

    async def work(keeper: Upkeep) -> None:
        await keeper.tick()
        house.produce("orders", batch(b"a"))
        await keeper.tick()
        assert house.store.partition("orders", 0).log.flushed_offset == 0
        now_ms[0] += 1000
        await keeper.tick()
        assert house.store.partition("orders", 0).log.flushed_offset == 1

    run(house, work)


def test_producers_that_are_silent_for_long_are_forgotten(clock: list[int]) -> None:
    house = House()
    house.create("orders")
    house.produce("orders", batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0))
    run(house, lambda keeper: keeper.forget_producers())
    assert 5 in house.store.partition("orders", 0).producers.producers
    clock[0] += 24 * 60 * 60 * 1000 + 1
    run(house, lambda keeper: keeper.forget_producers())
    assert house.store.partition("orders", 0).producers.producers == {}


def test_a_scrub_speaks_of_damaged_records_and_mends_an_index(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.create("orders", internal_segment_bytes="1000", index_interval_bytes="100")
    fill(house, "orders", 50)
    house.files.open("data/orders-0/00000000000000000000.log").pwrite(b"damaged", 100)
    run(house, lambda keeper: keeper.scrub())
    assert "orders-0/00000000000000000000.log" in caplog.text
    assert "restore it from a replica" in caplog.text


def test_the_loops_go_on_when_one_of_them_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
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

    run(house, work, replace(SCHEDULE, retention_ms=1, is_compacting=False))
    assert caplog.text.count("upkeep failed") >= 2
