"""A node that follows the controller's metadata log: its own log is always a prefix of it."""

import asyncio
import random

import pytest

from minibroker.log.errors import CorruptBatch
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter, replay
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.metadata.image import Endpoint, Image
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.observer import Observer
from minibroker.replicas.peers import Peers
from minibroker.segments.segmented import SegmentedLog


def a_log(files: MemoryFiles | None = None) -> SegmentedLog:
    return SegmentedLog.open(files or MemoryFiles(), "metadata", METADATA_LOG_CONFIG)


def decided(count: int) -> SegmentedLog:
    """The metadata log of a controller with so many registered brokers."""
    log = a_log()
    voter = Voter(log, cluster_id="cluster", clock=lambda: 0)
    for number in range(1, count + 1):
        endpoint = Endpoint("PLAINTEXT", "host", 9092)
        voter.propose(RegisterBroker(broker_id=number, endpoints=[endpoint], incarnation_id=bytes([number]) * 16))
    return log


def content(log: SegmentedLog) -> bytearray:
    return bytearray(log.read(0, bytes_max=1 << 20).read())


def an_observer(log: SegmentedLog) -> Observer:
    peers = Peers(lambda _node_id, _line: None, node_id=2)
    return Observer(
        log, peers, me=Incarnation(2, -1), controller_id=1, cluster_id="cluster", on_done=lambda _done: None
    )


def test_whole_batches_count_even_if_a_later_one_is_damaged() -> None:
    """Otherwise the log would have records that the image never learns of."""
    theirs, ours = decided(3), a_log()
    observer = an_observer(ours)
    heard: list[int] = []
    observer.subscribe(lambda _old, new: heard.append(len(new.brokers)))
    damaged = content(theirs)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        observer._take(memoryview(damaged))
    assert heard == [2]
    assert observer.image == replay(ours, Image(cluster_id="cluster"))
    # The next fetch brings the rest.
    observer._take(memoryview(theirs.read(ours.log_end_offset, bytes_max=1 << 20).read()))
    assert heard == [2, 3]
    assert content(ours) == content(theirs)


def test_the_image_does_not_depend_on_where_answers_are_cut_off() -> None:
    theirs, ours = decided(20), a_log()
    observer, chance = an_observer(ours), random.Random(4)
    while ours.log_end_offset < theirs.log_end_offset:
        following = theirs.read(ours.log_end_offset, bytes_max=1 << 20).read()
        observer._take(memoryview(following[: chance.randrange(len(following) + 1)]))
    assert observer.image == replay(theirs, Image(cluster_id="cluster"))


def test_a_wait_for_metadata_ends_with_the_error_of_the_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        observer = an_observer(a_log())

        async def fails() -> None:
            raise ZeroDivisionError("a planted bug")

        monkeypatch.setattr(observer, "_fetch", fails)
        waiting, running = asyncio.create_task(observer.reach(1)), asyncio.create_task(observer.run())
        await asyncio.wait((waiting, running), timeout=10)
        assert isinstance(waiting.exception(), ZeroDivisionError)
        assert isinstance(running.exception(), ZeroDivisionError)

    asyncio.run(run())
