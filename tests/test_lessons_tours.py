"""A code tour of a lesson names functions that exist, in the order in which they are called.

A tour is a table with the columns `file`, `function` and `what happens`. It is compared with a trace of real calls.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

from cases import case
from lessons import ROOT

from minibroker.bench.launcher import HOST, Server, reserve_port
from minibroker.bench.watching import until
from minibroker.clients import admin, transaction_admin
from minibroker.clients.blocking import Client
from minibroker.clients.group_consumer import GroupConsumer, GroupProtocol
from minibroker.clients.membership import MemberConfig
from minibroker.clients.transactional import TransactionalProducer
from minibroker.coordinators.node import coordinator_node
from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import FileSlice
from minibroker.log.logfile import EVERY_APPEND, LogFile
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import alone
from minibroker.quorum.node import quorum_node
from minibroker.replicas.one_controller import replicated
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.transfer.node import fast_node
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

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
def recorded() -> Iterator[list[Call]]:
    """The functions of minibroker that are called inside, in order. A generator counts each time it is resumed."""
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
    """The functions of minibroker that `work` calls."""
    with recorded() as calls:
        work()
    return calls


def missing(tour: list[Call], calls: list[Call]) -> list[Call]:
    """The steps of a tour that are not called after the steps before them."""
    left: Iterator[Call] = iter(calls)
    return [step for step in tour if step not in left]


def a_batch(**options: int) -> bytearray:
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
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


def commit(address: str, begun: Callable[[], object], *_: object) -> None:
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


def rebalance_and_commit(address: str, begun: Callable[[], object], rebalanced: Callable[[], object]) -> None:
    """A second member joins a group, and commits an offset when each of them has a partition."""
    with Client(address) as client:
        admin.create_topics(client, [admin.NewTopic("orders", assignments={0: [1], 1: [1]})])
        config = MemberConfig("shop", ("orders",), heartbeat_interval_ms=100)
        members: list[GroupConsumer] = []

        def have_equal_shares() -> bool:
            for member in members:
                member.poll(0)
            return {len(member.assignment) for member in members} == {2 // len(members)}

        with ExitStack() as stack:
            for then in (begun, rebalanced):
                member = GroupConsumer(client, config, protocol=GroupProtocol.CLASSIC, enable_auto_commit=False)
                members.append(stack.enter_context(member))
                until(have_equal_shares, "each member has as many partitions as the others")
                then()
            member.commit({member.assignment[0]: 0})


async def calls_of_coordinators(directory: Path, work: Callable[..., object]) -> list[list[Call]]:
    """What a node of chapter 06 calls. `work` gets its address and two functions that each begin a new list of calls.

    The work has a thread of its own, so all calls are the node's.
    """
    settings = {"node.id": "1", "log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    settings |= {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    node = coordinator_node(NodeConfig(settings | {"group.initial.rebalance.delay.ms": "0"}))
    await node.start()
    loop, noted = asyncio.get_running_loop(), []
    with ExitStack() as stack:

        def begin() -> None:
            stack.close()
            noted.append(stack.enter_context(recorded()))

        try:
            await asyncio.to_thread(work, node.address, *[lambda: loop.call_soon_threadsafe(begin)] * 2)
        finally:
            await node.stop()
    return noted


def test_the_tours_of_chapter_06_are_what_happens(tmp_path: Path) -> None:
    rebalance_tour, offset_tour, end_tour = tours("06-groups-offsets/lessons/12-looking-back.md")
    of_rebalance, of_offset = asyncio.run(calls_of_coordinators(tmp_path / "groups", rebalance_and_commit))
    assert missing(rebalance_tour, of_rebalance) == []
    assert missing(offset_tour, of_offset) == []
    (of_end,) = asyncio.run(calls_of_coordinators(tmp_path / "transactions", commit))
    assert missing(end_tour, of_end) == []


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Callable[[Request, int], Awaitable[list[Call]]]]:
    """Connect to a node of this process. The function sends a request, and returns the calls up to its answer."""
    host, _colon, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def calls_for(request: Request, version: int) -> list[Call]:
        with recorded() as calls:
            for part in frame_request(request, version=version, correlation_id=1, client_id="tour"):
                assert not isinstance(part, FileSlice)
                writer.write(part)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        return calls

    try:
        yield calls_for
    finally:
        writer.close()


def a_produce(sequence: int = 0) -> ProduceRequest:
    """One numbered record for orders-0, with acks=all."""
    produced = PartitionProduceData(index=0, records=a_batch(producer_id=7, producer_epoch=0, base_sequence=sequence))
    topic_data = [TopicProduceData(name="orders", partition_data=[produced])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topic_data)


def test_the_tours_of_chapter_03_are_what_happens(tmp_path: Path) -> None:
    produce_tour, fetch_tour = tours("03-partitions/lessons/08-looking-back.md")

    async def produce_and_fetch() -> tuple[list[Call], list[Call]]:
        node = alone(NodeConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        await node.start()
        async with connected(node.address) as calls_for:
            await calls_for(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9)
            of_produce = await calls_for(a_produce(), 9)
            wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            topics = [FetchTopic(topic="orders", partitions=[wanted])]
            of_fetch = await calls_for(FetchRequest(max_wait_ms=1000, min_bytes=1, max_bytes=1000, topics=topics), 12)
        await node.stop()
        return of_produce, of_fetch

    of_produce, of_fetch = asyncio.run(produce_and_fetch())
    assert missing(produce_tour, of_produce) == []
    assert missing(fetch_tour, of_fetch) == []


def place_orders(address: str) -> None:
    """Create orders-0 on nodes 1 and 2; node 1 leads."""
    with Client(address) as client:
        admin.create_topics(client, [admin.NewTopic("orders", assignments={0: [1, 2]})])


def test_the_tours_of_chapter_04_are_what_happens(tmp_path: Path) -> None:
    """Two nodes in one process, so the calls of both are in one trace."""
    produce_tour, shrink_tour = tours("04-replication-isr/lessons/11-looking-back.md")

    async def produce_twice() -> tuple[list[Call], list[Call]]:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "replica.lag.time.max.ms": "1000"}
        first = replicated(NodeConfig(settings | {"node.id": "1", "log.dirs": str(tmp_path / "1")}))
        await first.start()
        voters = {"controller.quorum.voters": f"1@{first.address}"}
        second = replicated(NodeConfig(settings | voters | {"node.id": "2", "log.dirs": str(tmp_path / "2")}))
        await second.start()
        await asyncio.to_thread(place_orders, first.address)
        async with connected(first.address) as calls_for:
            # When the first record is acknowledged, the follower's next fetch waits at the leader.
            await calls_for(a_produce(0), 9)
            of_produce = await calls_for(a_produce(1), 9)
            await second.stop()
            of_shrinking = await calls_for(a_produce(2), 9)
        await first.stop()
        return of_produce, of_shrinking

    of_produce, of_shrinking = asyncio.run(produce_twice())
    assert missing(produce_tour, of_produce) == []
    assert missing(shrink_tour, of_shrinking) == []


async def calls_of_a_fetch_in_a_session(directory: Path) -> list[Call]:
    """What a node of chapter 07 calls when a client fetches a large record set, and begins a session with it."""
    settings = {"node.id": "1", "log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    node = fast_node(NodeConfig(settings))
    await node.start()
    host, _colon, port = node.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def answer_to(request: Request, version: int) -> None:
        for part in frame_request(request, version=version, correlation_id=1, client_id="tour"):
            assert not isinstance(part, FileSlice)
            writer.write(part)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    await answer_to(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9)
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=bytes(100_000))
    produced = PartitionProduceData(index=0, records=builder.build())
    topic_data = [TopicProduceData(name="orders", partition_data=[produced])]
    await answer_to(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topic_data), 9)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)
    topics = [FetchTopic(topic="orders", partitions=[wanted])]
    with recorded() as calls:
        await answer_to(FetchRequest(max_wait_ms=9, min_bytes=1, max_bytes=10**6, session_epoch=0, topics=topics), 12)
    writer.close()
    await node.stop()
    return calls


def test_the_tour_of_chapter_07_is_what_happens(tmp_path: Path) -> None:
    (tour,) = tours("07-zero-copy-perf/lessons/07-looking-back.md")
    assert missing(tour, asyncio.run(calls_of_a_fetch_in_a_session(tmp_path))) == []


async def calls_of_an_election_and_a_failover(folder: Path) -> tuple[list[Call], list[Call]]:
    """What two voters call when they start, and when a third node, which leads a partition, is killed."""
    with ExitStack() as stack:
        addresses = {number: f"{HOST}:{reserve_port(stack)}" for number in (1, 2)}
        voters = ",".join(f"{number}@{address}" for number, address in addresses.items())
        client = stack.enter_context(Client(",".join(addresses.values())))

        def is_led_by(node_id: int) -> bool:
            (topic,) = client.metadata(["orders"]).topics
            return [it.leader_id for it in topic.partitions] == [node_id]

        settings = {"controller.quorum.voters": voters, "broker.session.timeout.ms": "1000"}
        nodes = [
            quorum_node(NodeConfig({**settings, "node.id": str(number), "log.dirs": str(folder / str(number)),
                                    "listeners": f"PLAINTEXT://{address}"}))
            for number, address in addresses.items()
        ]  # fmt: skip
        with recorded() as of_election:
            await asyncio.gather(*(node.start() for node in nodes))
        third = Server(
            lambda listen: [sys.executable, "-m", "minibroker.quorum", "3", str(folder / "3"), listen, voters], folder
        )
        stack.callback(third.kill)
        third.begin()
        await asyncio.to_thread(third.await_ready)
        orders = admin.NewTopic("orders", assignments={0: [3, 1, 2]})
        await asyncio.to_thread(admin.create_topics, client, [orders])
        await asyncio.to_thread(until, lambda: is_led_by(3), "node 3 leads")
        with recorded() as of_failover:
            third.kill()
            await asyncio.to_thread(until, lambda: is_led_by(1), "node 1 leads")
        await asyncio.gather(*(node.stop() for node in nodes))
    return of_election, of_failover


def test_the_tours_of_chapter_05_are_what_happens(tmp_path: Path) -> None:
    """The client has a thread of its own and the third node a process, so all calls are those of the two voters."""
    election_tour, failover_tour = tours("05-raft-controller/lessons/10-looking-back.md")
    of_election, of_failover = asyncio.run(calls_of_an_election_and_a_failover(tmp_path))
    assert missing(election_tour, of_election) == []
    assert missing(failover_tour, of_failover) == []


def test_a_step_that_is_not_called_in_its_place_is_found() -> None:
    calls = [("log/a.py", "first"), ("log/a.py", "second")]
    assert missing(calls, calls) == []
    assert missing([*calls, ("log/a.py", "third")], calls) == [("log/a.py", "third")]
    assert missing(calls[::-1], calls) == [("log/a.py", "first")]
