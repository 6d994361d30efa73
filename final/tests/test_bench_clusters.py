"""Claims about the clusters that labs and benchmarks start, and about the code that watches them."""

import contextlib
from pathlib import Path

import pytest

from minibroker.bench import failover
from minibroker.bench.launcher import HOST, reserve_port
from minibroker.bench.local import LocalNode
from minibroker.bench.watching import Watched, until
from minibroker.clients.blocking import Client
from minibroker.raft.tables.describe_quorum import QuorumPartitionResult


def test_a_node_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    with contextlib.ExitStack() as reserved:
        address = f"{HOST}:{reserve_port(reserved)}"
        node = LocalNode(1, tmp_path / "node1", address, ("broker.session.timeout.ms=soon",), None)
        node.begin()
        said = r"node 1 ended before it was ready; its stderr:\nminibroker serve: broker.session.timeout.ms=soon is not"
        with pytest.raises(ChildProcessError, match=said):
            node.await_ready()
        assert not node.is_alive()
        node.kill()


def test_a_timeout_names_the_condition_and_the_last_value() -> None:
    with pytest.raises(TimeoutError, match=r"not within 0 s: it rains; last seen: \[\]"):
        until(list, "it rains", seconds=0)


class Watching(Watched):
    """Nodes whose answers are given: the controller that each one names, and its epoch."""

    def __init__(self, answers: dict[int, tuple[int, int]]) -> None:
        self.answers = answers

    def living(self) -> list[int]:
        return list(self.answers)

    def asked_at(self, number: int) -> str:
        raise NotImplementedError

    def quorum(self, *, at: int) -> QuorumPartitionResult | None:
        leader_id, epoch = self.answers[at]
        return QuorumPartitionResult(
            partition_index=0, error_code=0, leader_id=leader_id, leader_epoch=epoch, high_watermark=0
        )


def test_of_two_nodes_that_call_themselves_controller_the_one_of_the_newer_epoch_is_it() -> None:
    # Node 3 was paused and goes on, and has not heard of the election yet.
    cluster = Watching({1: (2, 8), 2: (2, 8), 3: (3, 7)})
    assert cluster.controller() == 2
    assert cluster.controller(among=[2, 3]) == 2


def test_a_probe_that_is_late_on_a_healthy_cluster_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(failover, "is_acked", lambda *_: next(answers))
    failover.await_ack(Client("127.0.0.1:1"), "calm", 0)
    assert list(answers) == []
