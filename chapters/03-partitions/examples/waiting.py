"""Count how often waiting consumers are tried: with one event for all, and with the table of this chapter.

python chapters/03-partitions/examples/waiting.py
"""

import asyncio

from minibroker.partitions.waiting import Wait, Waiting

CONSUMERS = 1000
APPENDS = 100


def with_one_event() -> int:
    """Every append wakes every consumer, because all of them wait for the same event."""
    return asyncio.run(_with_one_event())


async def _with_one_event() -> int:
    appended = asyncio.Event()
    attempts = 0

    async def consume() -> None:
        nonlocal attempts
        while True:
            await appended.wait()
            attempts += 1

    consumers = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
    for _ in range(APPENDS):
        await asyncio.sleep(0)
        appended.set()
        appended = asyncio.Event()
    await asyncio.sleep(0)
    for consumer in consumers:
        consumer.cancel()
    return attempts


def with_the_table() -> int:
    """Every append wakes the key of its partition. Nothing is answered, so that all consumers keep waiting."""
    waiting: Waiting[bytes] = Waiting()
    tried: list[int] = []

    def park(partition: int) -> None:
        wait = Wait(keys=[partition], timeout_ms=500, attempt=lambda: tried.append(partition), expire=lambda: b"")
        waiting.park(wait, lambda _answer: None, now_ms=0)

    for partition in range(CONSUMERS):
        park(partition)
    for _ in range(APPENDS):
        waiting.wake(0)
        waiting.settle()
    return len(tried)


if __name__ == "__main__":
    print(f"{CONSUMERS} consumers of {CONSUMERS} partitions, {APPENDS} appends to one of them")
    for name, attempts in (("an event for all:", with_one_event()), ("the table:", with_the_table())):
        print(f"{name:<18} {attempts} attempts, {attempts - APPENDS} in vain")
