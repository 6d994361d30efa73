"""Nodes on one event loop: errors inside a node, and changes while a request is under way."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from replicas_nodes import ReplicatedNode
from replication_nodes import TOPIC_ID, ReplicaNode

from minibroker.client.aio import AsyncClient
from minibroker.client.connection import Authenticator
from minibroker.client.errors import ConnectionLost
from minibroker.log.batch import BatchBuilder, batches
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import BrokerFailure
from minibroker.replicas import fetching
from minibroker.replicas.fetching import Fetchers, Incarnation, pause_ms_after
from minibroker.replicas.login import NodeCredentials, log_in
from minibroker.replicas.proposing import Outbox
from minibroker.replicas.secret import read_secret
from minibroker.replication.leader import IsrProposal
from minibroker.replication.replica import AlterIsr, Replica
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, Listener
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.tables.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SECONDS_MAX = 20


@asynccontextmanager
async def nodes(path: Path, count: int = 2) -> AsyncIterator[list[ReplicatedNode]]:
    """Started nodes; all are stopped at the end."""
    started: list[ReplicatedNode] = []
    try:
        for number in range(1, count + 1):
            settings = {"node.id": str(number), "log.dirs": str(path / str(number))}
            settings |= {"listeners": "PLAINTEXT://127.0.0.1:0", "replica.fetch.backoff.ms": "50"}
            if started:
                settings["controller.quorum.voters"] = f"1@{started[0].address}"
            node = ReplicatedNode(NodeConfig(settings))
            await node.start()
            started.append(node)
        yield started
    finally:
        for node in reversed(started):
            await node.stop()


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {SECONDS_MAX} s: {what}"
        await asyncio.sleep(0.01)


async def create(nodes: list[ReplicatedNode], *names: str, leader: int = 1) -> None:
    """Create topics with a replica on nodes 1 and 2, through the last node."""
    replicas = [leader, 3 - leader]
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)],
            configs=[],
        )
        for name in names
    ]
    async with AsyncClient(nodes[-1].address) as client:
        response = await client.send(CreateTopicsRequest(topics=topics, timeout_ms=10_000))
    assert [it.error_code for it in response.topics] == [ErrorCode.NONE] * len(names)
    # A node may still have a deleted topic of the same name, so the ids are compared.
    for created in response.topics:
        await until(partial(_all_know, nodes, created.name, created.topic_id), f"all have {created.name}")


def _all_know(nodes: list[ReplicatedNode], name: str, topic_id: bytes) -> bool:
    found = [node.authority.image.topics.get(name) for node in nodes]
    return all(it is not None and it.topic_id == topic_id for it in found)


async def delete(nodes: list[ReplicatedNode], name: str) -> None:
    async with AsyncClient(nodes[-1].address) as client:
        response = await client.send(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=bytes(16))], timeout_ms=10_000)
        )
    assert response.responses[0].error_code == ErrorCode.NONE


def replica(node: ReplicatedNode, name: TopicPartition) -> Replica:
    found = node.replica(name)
    assert found is not None
    return found


def append(node: ReplicatedNode, name: TopicPartition, value: bytes) -> None:
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=value)
    node.node.partitions.store.partition(*name).append(memoryview(builder.build()), acks=1, now_ms=0)
    node.waiting.wake(name)
    node.waiting.settle()


def values(node: ReplicatedNode, name: TopicPartition) -> list[bytes | None]:
    log = replica(node, name).log
    data = log.read(log.log_start_offset, bytes_max=1 << 20).read()
    return [record.value for batch in batches(data) for record in batch.records()]


def fails(*_arguments: object) -> None:
    raise ZeroDivisionError("a planted bug")


def test_a_bug_in_a_task_ends_the_node_and_its_leadership(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with nodes(tmp_path) as both:
            await create(both, "a")
            monkeypatch.setattr(replica(both[0], A), "tick", fails)
            with pytest.raises(BrokerFailure, match="node 1 ends because of a bug: ZeroDivisionError"):
                await asyncio.wait_for(both[0].watch(), SECONDS_MAX)
            assert replica(both[0], A).leading is None

    asyncio.run(run())
    assert "a planted bug" in caplog.text


def test_a_bug_about_one_partition_leaves_the_others_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with nodes(tmp_path) as both:
            await create(both, "a", "b")
            monkeypatch.setattr(replica(both[1], A), "on_fetched", fails)
            for name in (A, B):
                append(both[0], name, b"value")
            await until(lambda: replica(both[1], B).high_watermark == 1, "the other one is replicated")
            await until(lambda: "a-0 is no longer fetched" in caplog.text, "it is told")
            assert values(both[1], A) == []

    asyncio.run(run())
    assert "a planted bug" in caplog.text


def test_a_topic_with_the_name_of_a_deleted_one_is_another_topic(tmp_path: Path) -> None:
    """Fetches of the old topic are under way when the new one appears."""

    async def once(both: list[ReplicatedNode], number: int) -> None:
        leader, follower = both if number % 2 == 0 else both[::-1]
        await create(both, "a", leader=1 + number % 2)
        for _ in range(number):
            append(leader, A, b"%d" % number)
        if number % 3 == 0:
            await until(lambda: replica(follower, A).high_watermark == number, "replicated")
            assert values(follower, A) == [b"%d" % number] * number
        await delete(both, "a")

    async def run() -> None:
        async with nodes(tmp_path) as both:
            for number in range(8):
                await once(both, number)
            await until(lambda: not any(node.replicas() for node in both), "all are gone")
            assert [node.fetchers._leader_of for node in both] == [{}, {}]

    asyncio.run(run())


def test_a_follower_whose_disk_refuses_fetches_again_after_a_pause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def refuses(*_arguments: object) -> None:
        calls.append(None)
        raise OSError(28, "no room")

    async def run() -> None:
        async with nodes(tmp_path) as both:
            await create(both, "a")
            follower = replica(both[1], A)
            with monkeypatch.context() as patch:
                patch.setattr(follower.log, "append_as_follower", refuses)
                append(both[0], A, b"value")
                await until(lambda: len(calls) >= 2, "it asks again")
            await until(lambda: values(both[1], A) == [b"value"], "it goes on when there is room")

    asyncio.run(run())
    assert len([it for it in caplog.records if it.levelno == logging.ERROR]) == len(calls)


def test_the_pauses_of_a_follower_double_after_each_error() -> None:
    """Often the leader does not know yet that it leads: a pause of a second would be a second without writes."""
    pauses_ms = [pause_ms_after(it, backoff_ms=1000) for it in (1, 2, 3, 4, 5, 6, 100)]
    assert pauses_ms == [50, 100, 200, 400, 800, 1000, 1000]
    assert pause_ms_after(1, backoff_ms=20) == 20


def test_the_outbox_keeps_the_last_order_of_each_partition_that_is_still_there() -> None:
    outbox = Outbox()
    orders = [AlterIsr(name, IsrProposal(0, epoch, ())) for epoch in (0, 1) for name in (A, B)]
    for order in orders:
        outbox.append(order)
    outbox.forget(B)
    assert outbox.is_filled.is_set()
    assert outbox.take() == [orders[2]]
    assert not outbox.is_filled.is_set()
    assert outbox.take() == []


def late_registration(node: ReplicatedNode, *, port: int) -> BrokerRegistrationRequest:
    """A registration that another incarnation of node 2 sent, and that arrives late."""
    return BrokerRegistrationRequest(
        broker_id=2,
        cluster_id=node.authority.image.cluster_id,
        incarnation_id=b"an earlier life.",
        listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=port, security_protocol=0)],
    )


def as_node_2(path: Path) -> Authenticator:
    """A login as node 2, with the secret that the nodes share."""
    return partial(log_in, NodeCredentials(read_secret(str(path / "cluster.secret"))), 2)


def test_a_node_registers_again_after_a_late_registration_of_its_earlier_incarnation(tmp_path: Path) -> None:
    """Otherwise its broker epoch would stay stale for ever."""

    def epochs(both: list[ReplicatedNode]) -> set[int]:
        return {both[1].me.broker_epoch, *(it.authority.image.brokers[2].epoch for it in both)}

    def isr(node: ReplicatedNode) -> set[int]:
        return set(node.authority.image.topics["a"].partitions[0].isr)

    async def run() -> None:
        async with nodes(tmp_path) as both:
            await create(both, "a", leader=2)
            before = both[1].me.broker_epoch
            request = late_registration(both[1], port=int(both[1].address.rpartition(":")[2]))
            async with AsyncClient(both[0].address, authenticator=as_node_2(tmp_path)) as client:
                late = await client.send(request)
            assert late.broker_epoch > before
            await until(lambda: len(epochs(both)) == 1, "all know the node by one epoch")
            assert both[1].me.broker_epoch > late.broker_epoch
            # The late registration said that records may be lost, so the other node leads. This one follows it again.
            await until(lambda: replica(both[0], A).leading is not None, "the other one leads")
            append(both[0], A, b"value")
            await until(lambda: values(both[1], A) == [b"value"], "it follows")
            await until(lambda: isr(both[0]) == {1, 2}, "it is in sync again")
            # A registration with another address is of another process.
            async with AsyncClient(both[0].address, authenticator=as_node_2(tmp_path)) as client:
                await client.send(late_registration(both[1], port=1))
            with pytest.raises(BrokerFailure, match="has registered as node 2"):
                await asyncio.wait_for(both[1].watch(), SECONDS_MAX)

    asyncio.run(run())


@pytest.mark.parametrize(("turn_ms", "is_given"), [(-1, True), (10_000, False)])
def test_other_tasks_run_while_a_large_answer_is_appended(
    turn_ms: int, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand partitions on a slow disk take longer than a session, and a node without heartbeats is fenced."""
    node = ReplicaNode(2, TopicConfig({}))
    node.replica.on_partition(PartitionImage((1, 2), (1, 2), 1, 0, 0), {}, 0)
    turns, taken = 0, []

    class Leader:
        async def send(self, *_arguments: object, **_named: object) -> FetchResponse:
            partitions = [
                PartitionData(partition_index=it, error_code=0, high_watermark=0, records=None) for it in range(3)
            ]
            return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)])

    async def run() -> None:
        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        fetchers = Fetchers(
            Incarnation(2, 2),
            Leader(),  # type: ignore[arg-type]
            NodeConfig({}),
            topic_id_of=lambda _name: TOPIC_ID,
            settle=lambda: None,
            on_ended=lambda _task: None,
        )
        fetchers._groups[1] = {TopicPartition("orders", it): node.replica for it in range(3)}
        monkeypatch.setattr(fetchers, "_take", lambda *_: taken.append(turns))
        await fetchers._round(1)

    monkeypatch.setattr(fetching, "_TURN_MS_MAX", turn_ms)
    asyncio.run(run())
    assert len(taken) == 3
    assert len(set(taken)) == (3 if is_given else 1)


class SilentLeader:
    """A leader that answers when the test says so, and the connection to it."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.hang_ups = 0
        self._answer: asyncio.Future[FetchResponse] | None = None

    async def send(self, _node_id: int, request: FetchRequest, **_named: object) -> FetchResponse:
        self.requests.append(sorted(it.partition for topic in request.topics for it in topic.partitions))
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    def answer(self) -> None:
        assert self._answer is not None
        self._answer.set_result(FetchResponse(responses=[]))

    def hang_up(self, _node_id: int, *_lines: str) -> None:
        self.hang_ups += 1
        assert self._answer is not None
        self._answer.set_exception(ConnectionLost("the connection was given up"))


def _follower_of_node_1(partition: int) -> Replica:
    replica = ReplicaNode(2, TopicConfig({})).replica
    replica.name = TopicPartition("orders", partition)
    replica.on_partition(PartitionImage((1, 2), (1, 2), 1, 0, 0), {}, 0)
    return replica


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_fetch_is_given_up_only_while_it_does_not_name_a_new_partition(
    is_answered: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that began after the partition was followed names it. To give that one up would pause replication."""
    leader = SilentLeader()

    async def run() -> None:
        fetchers = Fetchers(
            Incarnation(2, 2),
            leader,  # type: ignore[arg-type]
            NodeConfig({}),
            topic_id_of=lambda _name: TOPIC_ID,
            settle=lambda: None,
            on_ended=lambda _task: None,
        )
        fetchers.follow(_follower_of_node_1(0))
        await until(lambda: leader.requests == [[0]], "the first fetch")
        fetchers.follow(_follower_of_node_1(1))
        await until(lambda: leader.requests[1:] == [[0, 1]], "a fetch that names the second partition at once")
        # No time has passed, so the second fetch is too young to be given up at once.
        fetchers.follow(_follower_of_node_1(2))
        assert leader.hang_ups == 1
        if is_answered:
            leader.answer()
        await until(lambda: leader.requests[2:] == [[0, 1, 2]], "a fetch that names the third partition")
        await until(lambda: len(looked) == 2, "the timer that looks whether the fetch under way is outdated")
        assert leader.requests[3:] == []
        assert leader.hang_ups == (1 if is_answered else 2)
        await fetchers.stop()

    looked: list[int] = []
    give_up_if_outdated = Fetchers._give_up_if_outdated

    def look(fetchers: Fetchers, node_id: int) -> None:
        give_up_if_outdated(fetchers, node_id)
        looked.append(node_id)

    monkeypatch.setattr(Fetchers, "_give_up_if_outdated", look)
    monkeypatch.setattr(fetching, "_GIVE_UP_INTERVAL_MS", 50)
    monkeypatch.setattr(fetching, "monotonic_ms", lambda: 1000)
    asyncio.run(run())
    assert "cannot fetch from" not in caplog.text


def test_topics_created_during_writes_do_not_disturb_replication(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every new partition changes what a follower asks its leaders for."""

    async def run() -> None:
        async with nodes(tmp_path, count=3) as all_three:
            await create(all_three, "a")
            is_over = False

            async def write() -> int:
                count = 0
                while not is_over:
                    append(all_three[0], A, b"value")
                    count += 1
                    await asyncio.sleep(0.002)
                return count

            writer = asyncio.create_task(write())
            for number in range(10):
                await create(all_three, f"new-{number}", leader=1 + number % 2)
                await asyncio.sleep(0.03)
            is_over = True
            count = await writer
            await until(lambda: replica(all_three[1], A).high_watermark == count, "all is replicated")
            assert [it.getMessage() for it in caplog.records if "cannot fetch from" in it.getMessage()] == []

    asyncio.run(run())
