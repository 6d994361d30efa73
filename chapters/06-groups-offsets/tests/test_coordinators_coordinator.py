"""The coordinator of one partition: when it answers, what it appends, and what it does if the log refuses."""

import asyncio
import itertools

import pytest
from coordinators_bench import Bench, code_of, offset_of, run

from minibroker.log.batch import BatchBuilder, batches, encode_batch, stamp
from minibroker.wire.codes import ErrorCode


def test_an_answer_waits_until_the_high_watermark_has_passed_all_records_before_it() -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        bench.replica.watermark = 0
        committed, fetched = bench.commit(5), bench.fetch()
        await bench.until(lambda: bench.partition.log_end_offset == 1)
        bench.waiting.settle()
        # The fetch would tell of an offset that a new leader may not know.
        assert committed.response is None
        assert fetched.response is None
        bench.replica.watermark = 1
        bench.waiting.wake(bench.partition.name)
        bench.waiting.settle()
        assert code_of(committed) is ErrorCode.NONE
        assert offset_of(fetched) == 5

    run(test)


def test_commits_of_one_turn_of_the_event_loop_are_one_batch() -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        tickets = [bench.commit(number, f"g{number}") for number in range(50)]
        await bench.until(lambda: all(ticket.response for ticket in tickets))
        written = list(batches(bench.partition.log.read(0, bytes_max=2**20).read()))
        assert [batch.header.record_count for batch in written] == [50]
        assert [offset_of(bench.fetch(f"g{number}")) for number in (0, 49)] == [0, 49]

    run(test)


def test_a_batch_is_split_at_max_message_bytes() -> None:
    async def test() -> None:
        bench = Bench(configs={"max.message.bytes": "1000"})
        await bench.load()
        tickets = [bench.commit(number, f"g{number}") for number in range(50)]
        await bench.until(lambda: all(ticket.response for ticket in tickets))
        written = list(batches(bench.partition.log.read(0, bytes_max=2**20).read()))
        assert len(written) > 1
        assert max(batch.header.size for batch in written) <= 1000
        assert {code_of(ticket) for ticket in tickets} == {ErrorCode.NONE}

    run(test)


def test_a_record_that_fits_into_no_batch_is_refused_and_not_applied() -> None:
    async def test() -> None:
        bench = Bench(configs={"max.message.bytes": "200"})
        await bench.load()
        assert code_of(bench.commit(5, "g" * 200)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert offset_of(bench.fetch("g" * 200)) == -1
        assert bench.partition.log_end_offset == 0

    run(test)


def test_while_the_groups_are_loaded_no_offset_is_answered() -> None:
    """Trap 26: an answer without an offset would send the consumer back to the beginning of its partitions."""

    async def test() -> None:
        bench = Bench()
        await bench.load()
        committed = bench.commit(5)
        await bench.until(lambda: committed.response is not None)
        bench.coordinator.resign()
        coordinator = bench.start()
        # The requests wait, and are carried out in their order. Only a heartbeat is answered at once.
        early, committed, late = bench.fetch(), bench.commit(6), bench.fetch()
        while coordinator.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert early.response is committed.response is late.response is None
            assert code_of(bench.heartbeat()) is ErrorCode.NONE
            await asyncio.sleep(0)
        await bench.until(lambda: late.response is not None)
        assert (offset_of(early), code_of(committed), offset_of(late)) == (5, ErrorCode.NONE, 6)

    run(test)


def test_a_request_does_not_wait_for_ever_until_the_groups_are_loaded() -> None:
    async def test() -> None:
        bench = Bench(append_timeout_ms=1000)
        async with bench.turn:
            coordinator = bench.start()
            first = bench.fetch()
            bench.time_ms += 999
            second = bench.fetch()
            bench.time_ms += 1
            coordinator.on_time(bench.time_ms)
            assert code_of(first) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert second.response is None
            assert coordinator.deadline_ms() == bench.time_ms + 999
            coordinator.resign()
            assert code_of(second) is ErrorCode.NOT_COORDINATOR

    run(test)


def test_loading_ends_at_a_batch_that_compaction_has_emptied() -> None:
    """Trap 32: the loader must not ask for the same offset for ever."""

    async def test() -> None:
        bench = Bench()
        await bench.load()
        committed = bench.commit(5)
        await bench.until(lambda: committed.response is not None)
        empty = BatchBuilder()
        empty.append(timestamp=0, key=b"k", value=None)
        batch = empty.build()
        header = next(batches(batch)).header
        # What compaction leaves of a batch without a surviving record: the header, with its offsets.
        left = encode_batch(header._replace(record_count=0, base_offset=1, last_offset_delta=0), b"")
        stamp(left, base_offset=1, leader_epoch=3)
        bench.partition.log.append_as_follower(memoryview(left))
        bench.coordinator.resign()
        await bench.load()
        assert offset_of(bench.fetch()) == 5
        again = bench.commit(6)
        await bench.until(lambda: again.response is not None)
        assert code_of(again) is ErrorCode.NONE

    run(test)


def test_loading_a_large_partition_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        for number in range(5000):
            bench.commit(number, f"g{number % 100}", partition=number % 3)
        await bench.until(lambda: bench.partition.log_end_offset == 5000)
        bench.coordinator.resign()
        # A clock that advances by 5 ms at each look: a slice of loading is over after a few looks, on any machine.
        looks = itertools.count()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: next(looks) * 0.005)
        coordinator, turns = bench.start(), 0
        while coordinator.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3
        assert len(coordinator.shard.offsets) == 300

    run(test)


def test_with_too_few_replicas_in_sync_nothing_is_appended_or_applied() -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        bench.replica.is_in_sync = False
        assert code_of(bench.commit(5)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.replica.is_in_sync = True
        assert offset_of(bench.fetch()) == -1
        assert bench.partition.log_end_offset == 0

    run(test)


def test_a_batch_that_the_log_refuses_is_forgotten() -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        first = bench.commit(5)
        await bench.until(lambda: first.response is not None)
        refused, parked = bench.commit(6), bench.join("other")
        # Leadership is lost between the request and the append.
        bench.replica.is_leading = False
        await bench.until(lambda: refused.response is not None)
        assert code_of(refused) is ErrorCode.NOT_COORDINATOR
        assert code_of(parked) is ErrorCode.NOT_COORDINATOR
        bench.replica.is_leading = True
        await bench.until(lambda: bench.coordinator.code is ErrorCode.NONE)
        assert offset_of(bench.fetch()) == 5

    run(test)


def test_a_coordinator_that_resigns_sends_all_clients_to_the_next_one() -> None:
    async def test() -> None:
        bench = Bench()
        await bench.load()
        bench.replica.watermark = 0
        waiting, parked = bench.commit(5), bench.join("other")
        bench.coordinator.resign()
        bench.waiting.settle()
        assert code_of(waiting) is ErrorCode.NOT_COORDINATOR
        assert code_of(parked) is ErrorCode.NOT_COORDINATOR
        assert code_of(bench.fetch()) is ErrorCode.NOT_COORDINATOR
        assert len(bench.waiting) == 0

    run(test)


def test_an_answer_that_waits_too_long_for_the_replicas_is_a_retriable_error() -> None:
    async def test() -> None:
        bench = Bench()
        coordinator = await bench.load()
        bench.replica.watermark = 0
        committed = bench.commit(5)
        deadline_ms = coordinator.deadline_ms()
        assert deadline_ms == bench.time_ms + 5000
        bench.time_ms = deadline_ms
        coordinator.on_time(deadline_ms)
        assert code_of(committed) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(test)


def test_a_deleted_topic_loses_its_offsets_also_if_it_is_deleted_while_the_groups_are_loaded() -> None:
    async def test() -> None:
        bench = Bench()
        coordinator = await bench.load()
        tickets = [bench.commit(5), bench.commit(6, "h")]
        await bench.until(lambda: all(ticket.response for ticket in tickets))
        without = bench.image.__class__(topics={}, topic_names={})
        coordinator.resign()
        coordinator = bench.start()
        coordinator.on_image(bench.image, without)
        await bench.until(lambda: coordinator.code is ErrorCode.NONE)
        assert len(coordinator.shard.offsets) == 0
        await bench.until(lambda: bench.partition.log_end_offset == 4)

    run(test)
