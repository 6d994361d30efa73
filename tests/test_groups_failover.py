"""The coordinator of groups is killed, paused, cut off or stopped: no commit is lost, and the groups go on.

Each test has a group of every kind, with two members of librdkafka, and all groups have the coordinator that fails.
"""

from collections.abc import Callable, Iterator
from functools import partial

import groups_raw as raw
import pytest
from brokers import IS_OURS, eventually, unique
from cases import case
from clients_stock import READ_S_MAX, admin
from clusters import QuorumCluster, Sender
from confluent_kafka import ElectionType
from groups_crews import QUICK_GROUPS, WAIT_S_MAX, Background, Crew, coordinator_of, crews_of_each_kind
from groups_raw import GroupConnection

REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
SETTINGS = ("replica.lag.time.max.ms=1500", "default.replication.factor=3", "min.insync.replicas=2")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumCluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    folder = tmp_path_factory.mktemp("coordinators")
    with QuorumCluster(folder, *SETTINGS, *QUICK_GROUPS, is_proxied=True) as cluster:
        yield cluster


@pytest.fixture
def nodes(started: QuorumCluster) -> Iterator[QuorumCluster]:
    started.repair()
    yield started
    for number, node in started.nodes.items():
        assert not node.complaints(), f"node {number}: {node.complaints()}"


Fault = Callable[[QuorumCluster, int], None]
FAULTS: dict[str, Fault] = {
    "kill": lambda cluster, victim: cluster[victim].kill(),
    "pause": lambda cluster, victim: cluster[victim].pause(),
    "cut off": lambda cluster, victim: cluster.cut_off(victim),
    "stop": lambda cluster, victim: cluster[victim].stop(),
}


def group_of(cluster: QuorumCluster, coordinator: int) -> str:
    """A name for a group that this node coordinates. A node that was away gets its partitions back for it."""
    client = admin(cluster.bootstrap)

    def found() -> str | None:
        names = [unique("group") for _ in range(10)]
        mine = [it for it in names if coordinator_of(cluster.address_of(coordinator), it) == coordinator]
        if not mine:
            client.elect_leaders(ElectionType.PREFERRED).result(READ_S_MAX)
        return next(iter(mine), None)

    return eventually(found, f"node {coordinator} coordinates a group", seconds=WAIT_S_MAX) or ""


def is_shared(crew: Crew) -> bool:
    return crew.owned() == [1, 2]


def commit_more(crews: dict[str, Crew], count: int = 10) -> None:
    """Wait until every group has read on in every partition, and its commits are acknowledged."""
    goals = {kind: {it: offset + count for it, offset in crew.history.next.items()} for kind, crew in crews.items()}
    for kind, crew in crews.items():
        with case(kind):
            eventually(partial(crew.has_read, goals[kind]), "it commits", seconds=WAIT_S_MAX)


@pytest.mark.parametrize("fault", list(FAULTS))
def test_groups_go_on_without_their_coordinator_and_no_commit_is_lost(nodes: QuorumCluster, fault: str) -> None:
    topic = nodes.create(unique("failover"), REPLICAS, min_insync_replicas=2)
    wanted = {(topic, partition): 1 for partition in range(len(REPLICAS))}
    victim = eventually(lambda: coordinator_of(nodes.address_of(1), unique("any")), "there is a coordinator")
    with (
        crews_of_each_kind(
            nodes.bootstrap, [topic], lambda _kind: group_of(nodes, victim), is_orderly=fault == "stop"
        ) as crews,
        Sender(nodes, topic, partitions=len(REPLICAS), pause_s=0.01, timeout_ms=1000) as sender,
    ):
        for crew in crews.values():
            crew.hire(2)
        with Background(crews.values()):
            for kind, crew in crews.items():
                with case(kind):
                    eventually(partial(is_shared, crew), "two members share the partitions")
                    eventually(partial(crew.has_read, wanted), "it reads")
            moved = {kind: crew.history.takeovers for kind, crew in crews.items()}
            FAULTS[fault](nodes, victim)
            # Another node coordinates the groups while this one is away.
            commit_more(crews)
            nodes.repair()
            commit_more(crews)
            sender.finish()
            everything = {(topic, it): sender.sent for it in range(len(REPLICAS))}
            for kind, crew in crews.items():
                with case(kind):
                    eventually(partial(crew.has_read, everything), "it reads all", seconds=WAIT_S_MAX)
        for kind, crew in crews.items():
            with case(kind):
                crew.history.check_committed(crew.committed())
                print(fault, kind, crew.history.text())
                assert crew.history.is_well, crew.history.text()
                if fault == "stop":
                    # The next coordinator has the same members with the same partitions, and no error has surfaced.
                    assert crew.history.takeovers == moved[kind]
                    assert crew.history.redelivered == 0, crew.history.text()
                    assert not crew.history.errors, crew.history.text()


def commit_through(cluster: QuorumCluster, number: int, frame: bytes) -> bool:
    with GroupConnection(cluster[number], is_ready=False) as connection:
        return connection.commit(frame) == [raw.NONE]


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_coordinator_that_is_cut_off_tells_no_offset_that_is_out_of_date(
    nodes: QuorumCluster, is_controller: bool
) -> None:
    """Clients reach it, and it does not know that another node leads. A stale offset would be read from again."""
    topic = nodes.create(unique("stale"), REPLICAS[:1], min_insync_replicas=2)
    eventually(lambda: coordinator_of(nodes.address_of(1), "any"), "there is a coordinator")
    controller = nodes.controller()
    old = controller if is_controller else nodes.others(controller)[0]
    group = group_of(nodes, old)
    eventually(lambda: commit_through(nodes, old, raw.commit(group, topic, [(0, 1)])), "the first commit")
    with GroupConnection(nodes[old], is_ready=False) as connection:
        asked = raw.fetch_offsets(group, topic, [0])
        assert connection.fetch_offsets(asked) == (raw.NONE, {0: 1})
        nodes.cut_off(old)
        others = nodes.others(old)
        second = raw.commit(group, topic, [(0, 2)])
        eventually(
            lambda: any(commit_through(nodes, it, second) for it in others), "another node coordinates the group"
        )
        # From now on the first commit is out of date, and the old coordinator still hears from nobody.
        for _ in range(10):
            code, _found = connection.fetch_offsets(asked)
            assert code in raw.RETRIABLE
            assert coordinator_of(nodes[old].address, group) != old
        nodes.heal()
        eventually(lambda: coordinator_of(nodes[old].address, group), "the old one hears of the new coordinator")
