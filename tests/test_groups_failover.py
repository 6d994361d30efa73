"""The coordinator of groups is killed, paused, cut off or stopped: no commit is lost, and the groups go on.

Each test has a group of every kind, with two members of librdkafka, and all groups have the coordinator that fails.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import groups_raw as raw
import pytest
from brokers import IS_OURS, eventually, unique
from cases import case
from clients_stock import READ_S_MAX, admin
from clusters import LAG_MS_MAX, QuorumCluster, Sender
from confluent_kafka import ElectionType, KafkaException
from groups_crews import QUICK_GROUPS, WAIT_S_MAX, Background, Crew, committed, coordinator_of, crews_of_each_kind
from groups_raw import GroupConnection
from groups_readers import AioReader

from minibroker.bench.outages import longest_gap_ms
from minibroker.clients.blocking import Client
from minibroker.metadata.names import GROUP_METADATA_TOPIC

REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
# The session of a member is longer than that of a node, as it is by default. So no fault of a node costs a partition.
SESSION_MS = 30_000
SETTINGS = (
    f"replica.lag.time.max.ms={LAG_MS_MAX}",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    *QUICK_GROUPS,
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    # librdkafka waits for the answer to a heartbeat only until the next one is due.
    "group.consumer.heartbeat.interval.ms=500",
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumCluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    folder = tmp_path_factory.mktemp("coordinators")
    with QuorumCluster(folder, *SETTINGS, is_proxied=True) as cluster:
        eventually(lambda: coordinator_of(cluster.bootstrap, "any"), "there is a coordinator")
        yield cluster


@pytest.fixture
def nodes(started: QuorumCluster) -> Iterator[QuorumCluster]:
    started.repair()
    eventually(lambda: is_whole(started), "all replicas of all coordinators are in sync", seconds=WAIT_S_MAX)
    yield started
    for number, node in started.nodes.items():
        assert not node.complaints(), f"node {number}: {node.complaints()}"


def is_whole(cluster: QuorumCluster) -> bool:
    """Whether any node may be stopped without a pause."""
    with Client(cluster.bootstrap) as client:
        (found,) = client.metadata([GROUP_METADATA_TOPIC]).topics
    return all(len(it.isr_nodes) == len(cluster.nodes) for it in found.partitions)


Group = Crew | AioReader
G = TypeVar("G", bound=Crew | AioReader)
Fault = Callable[[QuorumCluster, int], None]
FAULTS: dict[str, Fault] = {
    "kill": lambda cluster, victim: cluster[victim].kill(),
    "pause": lambda cluster, victim: cluster[victim].pause(),
    "cut off": lambda cluster, victim: cluster.cut_off(victim),
    "stop": lambda cluster, victim: cluster[victim].stop(),
}


def victim_of(cluster: QuorumCluster, *, is_controller: bool) -> int:
    controller = cluster.controller()
    return controller if is_controller else cluster.others(controller)[0]


def group_of(cluster: QuorumCluster, coordinator: int) -> str:
    """A name for a group that this node coordinates. A node that was away gets its partitions back for it."""
    client = admin(cluster.bootstrap)

    def found() -> str | None:
        names = [unique("group") for _ in range(20)]
        mine = [it for it in names if coordinator_of(cluster.address_of(coordinator), it) == coordinator]
        if not mine:
            # On a busy machine another controller may be elected meanwhile. The next attempt asks again.
            with contextlib.suppress(KafkaException):
                client.elect_leaders(ElectionType.PREFERRED).result(READ_S_MAX)
        return next(iter(mine), None)

    return eventually(found, f"node {coordinator} coordinates a group", seconds=WAIT_S_MAX) or ""


def aio_reader(cluster: QuorumCluster, topic: str, group: str, request_ms: int) -> AioReader:
    settings = {"session_timeout_ms": SESSION_MS, "request_timeout_ms": request_ms, "metadata_max_age_ms": 500}
    return AioReader(cluster.bootstrap, topic, group, **settings)


def of_all(groups: Mapping[str, G], holds: Callable[[G], object], what: str) -> None:
    for kind, it in groups.items():
        with case(kind):
            try:
                eventually(partial(holds, it), what, seconds=WAIT_S_MAX)
            except TimeoutError as late:
                raise TimeoutError(f"{late}\n{it.text()}") from None


def commit_more(groups: Mapping[str, Group], count: int = 10) -> None:
    """Wait until every group has read on in every partition, and its commits are acknowledged."""
    goals = {
        id(it): {partition: offset + count for partition, offset in it.history.next.items()} for it in groups.values()
    }
    of_all(groups, lambda it: it.history.has_read(goals[id(it)]), "it commits")


@contextlib.contextmanager
def undisturbed(groups: Mapping[str, Group], what: str) -> Iterator[None]:
    """What happens here costs a pause and nothing else: no error reaches a client, and no partition moves."""
    before = {kind: (it.history.takeovers, it.history.redelivered) for kind, it in groups.items()}
    for it in groups.values():
        it.history.errors.clear()
    begun_s = time.monotonic()
    yield
    ended_s = time.monotonic()
    for kind, it in groups.items():
        with case(kind):
            pause_ms = longest_gap_ms(it.history.acked_s, begun_s=begun_s, ended_s=ended_s)
            print(f"{what}: {kind} paused for {pause_ms} ms")
            assert not it.history.errors, it.history.text()
            assert (it.history.takeovers, it.history.redelivered) == before[kind], it.history.text()


@pytest.mark.parametrize(
    ("fault", "is_controller"), [("kill", True), ("pause", False), ("cut off", True), ("stop", True)]
)
def test_groups_go_on_without_their_coordinator_and_no_commit_is_lost(
    nodes: QuorumCluster, fault: str, is_controller: bool
) -> None:
    topic = nodes.create(unique("failover"), REPLICAS, min_insync_replicas=2)
    partitions = [(topic, it) for it in range(len(REPLICAS))]
    victim = victim_of(nodes, is_controller=is_controller)
    # A paused node answers nothing, and the client notices it at this time. Every other node answers in the end.
    request_ms = 3000 if fault == "pause" else 30_000
    what = f"{fault} of the coordinator{' and controller' if is_controller else ''}"
    with (
        crews_of_each_kind(
            nodes.bootstrap,
            [topic],
            lambda _kind: group_of(nodes, victim),
            session_ms=SESSION_MS,
            request_ms=request_ms,
        ) as crews,
        contextlib.closing(aio_reader(nodes, topic, group_of(nodes, victim), request_ms)) as reader,
        Sender(nodes, topic, partitions=len(REPLICAS), pause_s=0.01, timeout_ms=1000) as sender,
    ):
        groups: dict[str, Group] = {**crews, "aiokafka": reader}
        for crew in crews.values():
            crew.hire(2)
        with Background(crews.values()):
            of_all(crews, lambda crew: crew.owned() == [1, 2], "two members share the partitions")
            of_all(groups, lambda it: it.history.has_read(dict.fromkeys(partitions, 1)), "it reads")
            # Every member has committed in the last generation.
            commit_more(groups)
            with undisturbed(groups, what):
                FAULTS[fault](nodes, victim)
                # Another node coordinates the groups while this one is away.
                commit_more(groups)
            for crew in crews.values():
                crew.hire()
            of_all(crews, lambda crew: crew.owned() == [1, 1, 1], "a third member joins")
            commit_more(groups)
            with undisturbed(groups, f"the end of: {what}"):
                nodes.repair()
                commit_more(groups)
            sender.finish()
            of_all(groups, lambda it: it.history.has_read(dict.fromkeys(partitions, sender.sent)), "it reads all")
        for kind, it in groups.items():
            with case(kind):
                it.history.check_committed(committed(nodes.bootstrap, it.group, partitions))
                assert it.history.is_well, it.history.text()


def commit_through(cluster: QuorumCluster, number: int, frame: bytes) -> bool:
    with GroupConnection(cluster[number], is_ready=False) as connection:
        return connection.commit(frame) == [raw.NONE]


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_coordinator_that_is_cut_off_tells_no_offset_that_is_out_of_date(
    nodes: QuorumCluster, is_controller: bool
) -> None:
    """Clients reach it, and it does not know that another node leads. A stale offset would be read from again."""
    topic = nodes.create(unique("stale"), REPLICAS[:1], min_insync_replicas=2)
    old = victim_of(nodes, is_controller=is_controller)
    group = group_of(nodes, old)
    eventually(lambda: commit_through(nodes, old, raw.commit(group, topic, [(0, 1)])), "the first commit")
    with (
        GroupConnection(nodes[old], is_ready=False) as connection,
        GroupConnection(nodes[old], is_ready=False) as committing,
    ):
        asked = raw.fetch_offsets(group, topic, [0])
        assert connection.fetch_offsets(asked) == (raw.NONE, {0: 1})
        nodes.cut_off(old)
        others = nodes.others(old)
        committing.send(raw.commit(group, topic, [(0, 3)]))
        second = raw.commit(group, topic, [(0, 2)])
        eventually(
            lambda: any(commit_through(nodes, it, second) for it in others), "another node coordinates the group"
        )
        # From now on the first commit is out of date, and the old coordinator still hears from nobody.
        connection.send(asked)
        assert connection.receive() is None
        # It refuses a commit that waits for replicas, so that the client need not wait until it gives up.
        assert committing.receive_committed() == [raw.NOT_COORDINATOR]
        # Its metadata may be out of date, too. Without a connection, the client asks another node.
        assert coordinator_of(nodes[old].address, group) == 0
        nodes.heal()
        eventually(lambda: coordinator_of(nodes[old].address, group) in others, "the old one names the new coordinator")
