"""The path of a record is short: how many Python functions one Produce and one Fetch call below `dispatch`.

The count does not depend on the machine, so it has a limit. A call that is added to the path shows here.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from partitions_broker import NODE_ID, NOW_MS, MemoryBroker, batch, fetch_request, joined, produce_request

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.registry import Reply, Session
from minibroker.partitions.store import Store
from minibroker.replicas.disk import WatchedFiles
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import AlterIsr, Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request

PRODUCE_CALLS_MAX = 75
FETCH_CALLS_MAX = 80


class LeadersHouse(MemoryBroker):
    """Chapter 03's broker on a real disk, where this node leads every partition and is the only replica."""

    more_checkpoints = (HIGH_WATERMARKS,)

    def __init__(self) -> None:
        self.outbox: list[AlterIsr] = []
        self.replicas: dict[TopicPartition, Replica] = {}
        super().__init__(cast(MemoryFiles, BoundedFiles(WatchedFiles(lambda _what, _error: None), handles_max=100)))

    def make_store(self, **more: Any) -> Store:
        return super().make_store(open_partition=self.open_partition, on_changed=self.on_changed, **more)

    def open_partition(
        self, name: TopicPartition, _topic_id: bytes, _image: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        partition, self.replicas[name] = open_replica(
            self.data,
            self.files,
            name,
            config,
            node_id=NODE_ID,
            outbox=self.outbox,
            wake=self.waiting.wake,
        )
        return partition

    def on_changed(self, name: TopicPartition, _old: PartitionImage | None, new: PartitionImage | None) -> None:
        assert new is not None
        self.replicas[name].on_partition(new, {NODE_ID: 1}, 0)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeadersHouse:
    monkeypatch.chdir(tmp_path)
    broker = LeadersHouse()
    broker.create("orders", replicas=[NODE_ID])
    for sequence in range(20):
        produce(broker, sequence)
    return broker


def produce(broker: LeadersHouse, sequence: int) -> "Counter[str]":
    sent = batch(b"x" * 100, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return calls(broker, produce_request("orders", sent))


def calls(broker: LeadersHouse, request: Request, version: int = 12) -> "Counter[str]":
    """Count the Python functions that are called below `dispatch` for one request."""
    frame = memoryview(bytearray(joined(frame_request(request, version=version, correlation_id=7, client_id="it"))))
    counted: Counter[str] = Counter()

    def count(called: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            counted[called.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        outcome = broker.registry.dispatch(frame[4:], now_ms=NOW_MS, session=Session("it"))
    finally:
        sys.setprofile(None)
    assert isinstance(outcome, Reply)
    counted.subtract(["Registry.dispatch"])
    return +counted


def told(counted: "Counter[str]") -> str:
    return "\n".join([f"{counted.total()} calls:", *(f"{count:4} {name}" for name, count in counted.most_common())])


def test_a_produce_reaches_the_log_with_few_calls(broker: LeadersHouse) -> None:
    counted = produce(broker, 20)
    assert counted.total() <= PRODUCE_CALLS_MAX, told(counted)


def test_a_fetch_finds_its_slice_with_few_calls(broker: LeadersHouse) -> None:
    for version in (12, 17):
        request = fetch_request("orders", 10, min_bytes=1, max_wait_ms=500)
        if version >= 13:
            topic = request.topics[0]
            topic.topic, topic.topic_id = "", broker.authority.image.topics["orders"].topic_id
        calls(broker, request, version)
        counted = calls(broker, request, version)
        assert counted.total() <= FETCH_CALLS_MAX, f"version {version}: {told(counted)}"
