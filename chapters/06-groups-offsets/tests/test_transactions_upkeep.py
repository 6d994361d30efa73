"""The background work of a node on logs with transactions: compaction, and the memory of producers."""

import asyncio
import concurrent.futures

import pytest
from partitions_broker import NOW_MS, batch
from transactions_broker import PRODUCER, TransactionBroker

from minibroker.log.batch import batches
from minibroker.partitions import upkeep
from minibroker.partitions.upkeep import Schedule, Upkeep

DAY_MS = 24 * 60 * 60 * 1000
SCHEDULE = Schedule(
    initial_delay_ms=0,
    retention_ms=DAY_MS,
    compaction_ms=DAY_MS,
    dedupe_buffer_bytes=1024**2,
    is_compacting=True,
    producer_expiration_ms=DAY_MS,
    scrub_ms=-1,
)


def test_the_cleaner_removes_aborted_records_and_keeps_the_marker_of_an_active_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = TransactionBroker(cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="1")

    def compact(now_ms: int) -> list[tuple[int, bool]]:
        """Clean, and return the offset of each batch that is left, and whether it is a marker."""

        async def main() -> None:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                await Upkeep(broker.store, broker.data, broker.files, SCHEDULE, thread).compact()

        monkeypatch.setattr(upkeep, "wall_clock_ms", lambda: now_ms)
        # Something new makes the log dirty again.
        broker.produce("orders", batch(b"new", key=b"another"))
        broker.partition.log.roll()
        broker.partition.log.flush()
        asyncio.run(main())
        found = batches(broker.partition.log.read(0, bytes_max=10_000).read())
        return [(it.header.base_offset, it.header.is_control) for it in found]

    broker.send(b"aborted")
    broker.mark(is_commit=False, epoch=1, transaction_version=2)
    assert compact(NOW_MS) == [(1, True), (2, False)]
    assert broker.read(is_committed=False)[0] == [b"new"]
    # Its delete horizon has passed, but it is all that is known of the producer.
    assert compact(NOW_MS + 10) == [(1, True), (3, False)]
    broker.partition.producers.expire(NOW_MS + DAY_MS)
    assert PRODUCER not in broker.partition.producers.producers
    assert compact(NOW_MS + 20) == [(4, False)]


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    """Otherwise its marker would not end the transaction in the state of the producers."""
    broker = TransactionBroker()
    broker.send()
    assert broker.partition.producers.expire(NOW_MS + 10 * DAY_MS) == 0
    broker.mark(is_commit=True)
    assert broker.partition.producers.expire(NOW_MS + 10 * DAY_MS) == 1
