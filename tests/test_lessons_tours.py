"""A code tour of a lesson names functions that exist, in the order in which they are called.

A tour is a table with the columns `file`, `function` and `what happens`. It is compared with a trace of real calls.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from cases import case
from lessons import ROOT

from minibroker.bench.watching import until
from minibroker.clients import transaction_admin
from minibroker.clients.blocking import Client
from minibroker.clients.transactional import TransactionalProducer
from minibroker.coordinators.node import coordinator_node
from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import EVERY_APPEND, LogFile
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import NodeConfig
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

Call = tuple[str, str]
ROW = re.compile(r"^\| `(?P<file>[\w/]+\.py)` \| `(?P<function>[\w.]+)` \|")
HEADING = "| file | function | what happens |"


def tours(lesson: str) -> list[list[Call]]:
    """The tours of a lesson: the file and the function of each row."""
    found: list[list[Call]] = []
    for line in (ROOT / "chapters" / lesson).read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if line == HEADING:
            found.append([])
        elif row is not None:
            found[-1].append((row["file"], row["function"]))
    return found


@contextmanager
def calls_of_this_thread() -> Iterator[list[Call]]:
    """The functions of minibroker that this thread calls, in order. A generator counts each time it is resumed."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        _, is_ours, file = frame.f_code.co_filename.rpartition("/minibroker/")
        if event == "call" and is_ours:
            calls.append((file, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of(work: Callable[[], object]) -> list[Call]:
    with calls_of_this_thread() as calls:
        work()
    return calls


def missing(tour: list[Call], calls: list[Call]) -> list[Call]:
    """The steps of a tour that are not called after the steps before them."""
    left: Iterator[Call] = iter(calls)
    return [step for step in tour if step not in left]


def a_batch() -> bytearray:
    builder = BatchBuilder()
    builder.append(timestamp=0, key=b"alice", value=b"book")
    return builder.build()


def test_the_tours_of_chapter_01_are_what_happens(tmp_path: Path) -> None:
    path = str(tmp_path / "orders.log")
    log = LogFile.open(OSFiles(), path, flush_policy=EVERY_APPEND)

    def reopen_and_read() -> None:
        again = LogFile.open(OSFiles(), path)
        for batch in batches(again.read(0, bytes_max=1000).read()):
            list(batch.records())
        again.close()

    for tour, work in zip(
        tours("01-log/lessons/05-looking-back.md"), (lambda: log.append(a_batch()), reopen_and_read), strict=True
    ):
        with case(work):
            assert missing(tour, calls_of(work)) == []
    log.close()


def test_the_tours_of_chapter_02_are_what_happens() -> None:
    files, config = MemoryFiles(), LogConfig(segment_bytes=400, index_interval_bytes=100)
    log = SegmentedLog.open(files, "data/orders-0", config)
    while log._active.size + len(a_batch()) <= config.segment_bytes:
        log.append(a_batch())

    def read() -> None:
        log.read(3, bytes_max=1000).read()

    def reopen() -> None:
        SegmentedLog.open(files, "data/orders-0", config, recovery_point=2)

    for tour, work in zip(
        tours("02-segments-index/lessons/06-looking-back.md"),
        (lambda: log.append(a_batch()), read, reopen),
        strict=True,
    ):
        with case(work):
            assert missing(tour, calls_of(work)) == []


def commit(address: str, begun: Callable[[], object]) -> None:
    """Commit a transaction of one record, and wait until it is complete. `begun` is called before the commit."""
    with Client(address) as client, TransactionalProducer(client, "copier") as producer:
        producer.init()
        producer.begin()
        producer.send("copies", b"order 1")
        producer.flush()
        begun()
        producer.commit()

        def is_complete() -> bool:
            found = transaction_admin.describe_if_there(client, "copier")
            return found is not None and found.state == "CompleteCommit"

        until(is_complete, "the transaction is complete")


async def calls_of_a_commit(directory: Path) -> list[Call]:
    """What a node of chapter 06 calls from the EndTxn on."""
    settings = {"node.id": "1", "log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    node = coordinator_node(NodeConfig(settings | {"transaction.state.log.num.partitions": "1"}))
    await node.start()
    loop, noted = asyncio.get_running_loop(), []
    with ExitStack() as stack:

        def begin() -> None:
            noted.append(stack.enter_context(calls_of_this_thread()))

        try:
            await asyncio.to_thread(commit, node.address, lambda: loop.call_soon_threadsafe(begin))
        finally:
            await node.stop()
    (calls,) = noted
    return calls


def test_the_tour_of_chapter_06_is_what_happens(tmp_path: Path) -> None:
    """The client has a thread of its own, so all calls are the node's."""
    (tour,) = tours("06-groups-offsets/lessons/12-looking-back.md")
    assert missing(tour, asyncio.run(calls_of_a_commit(tmp_path))) == []


def test_a_step_that_is_not_called_in_its_place_is_found() -> None:
    calls = [("log/a.py", "first"), ("log/a.py", "second")]
    assert missing(calls, calls) == []
    assert missing([*calls, ("log/a.py", "third")], calls) == [("log/a.py", "third")]
    assert missing(calls[::-1], calls) == [("log/a.py", "first")]
