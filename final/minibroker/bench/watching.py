"""Asks the nodes of a running cluster for their state, and waits until they report a given state.

Labs, benchmarks and tests are outside the cluster. They ask each node separately, because the nodes disagree during a
fault. `local` starts the nodes.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    QuorumPartition,
    QuorumPartitionResult,
    QuorumTopic,
)
from minibroker.wire.codes import ErrorCode

ASK_MS_MAX = 2000
WAIT_S_MAX = 20.0
_LOOK_S, _ASK_S = 0.01, 0.03
"""Seconds between two attempts. `_ASK_S` is for attempts that send requests, which cost the nodes CPU time."""

T = TypeVar("T")


def until(attempt: Callable[[], T], what: str, *, seconds: float = WAIT_S_MAX, every_s: float = _LOOK_S) -> T:
    """Repeat an attempt until it returns a true value, and return that; raise TimeoutError at the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := attempt()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}; last seen: {value!r}")
        time.sleep(every_s)
    return value


class State(NamedTuple):
    """The state of a partition, as one node reports it."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]


class Watched(ABC):
    """Nodes that report their state."""

    @abstractmethod
    def living(self) -> list[int]:
        """The nodes whose processes run, paused or not."""

    @abstractmethod
    def asked_at(self, number: int) -> str:
        """The address at which a node is asked for its state."""

    def state(self, topic: str, partition: int = 0, *, at: int) -> State | None:
        """The state of a partition as one node reports it; None if it does not answer or knows no such partition."""
        with contextlib.suppress(ClientError), Client(self.asked_at(at), timeout_ms=ASK_MS_MAX) as client:
            (found,) = client.metadata([topic]).topics
            for it in found.partitions:
                if found.error_code == ErrorCode.NONE and it.partition_index == partition:
                    return State(it.leader_id, it.leader_epoch, frozenset(it.isr_nodes))
        return None

    def await_isr(
        self, topic: str, *members: int, partition: int = 0, at: Sequence[int] = (), seconds: float = WAIT_S_MAX
    ) -> None:
        """Wait until the nodes in `at` report these members as the in-sync replicas. By default `at` is all members."""

        def found() -> bool:
            states = [self.state(topic, partition, at=number) for number in at or members]
            return all(it is not None and it.isr == frozenset(members) for it in states)

        until(found, f"the ISR of {topic}-{partition} is {sorted(members)}", seconds=seconds, every_s=_ASK_S)

    def quorum(self, *, at: int) -> QuorumPartitionResult | None:
        """The state of the quorum, as one node reports it, perhaps after asking the controller; None if that fails."""
        topic = QuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])
        with contextlib.suppress(ClientError), Client(self.asked_at(at), timeout_ms=ASK_MS_MAX) as client:
            found: QuorumPartitionResult = client.send(DescribeQuorumRequest(topics=[topic])).topics[0].partitions[0]
            return found if found.error_code == ErrorCode.NONE else None
        return None

    def controller(self, *, among: Sequence[int] = ()) -> int:
        """The active controller, as soon as a node knows it; with `among`, it must be one of these nodes."""

        def found() -> int:
            states = [it for number in among or self.living() if (it := self.quorum(at=number)) is not None]
            # A controller that was paused reports itself as active until it learns of a newer epoch. So the newest
            # epoch counts.
            newest = max(states, key=lambda it: it.leader_epoch, default=None)
            return newest.leader_id if newest is not None and newest.leader_id in (among or self.living()) else 0

        return until(found, f"one of {among or self.living()} is the active controller", every_s=_ASK_S)

    def leader(self, topic: str, partition: int = 0, *, among: Sequence[int] = ()) -> int:
        """The leader of a partition, as soon as a node knows it; with `among`, it must be one of these nodes."""

        def found() -> int:
            states = [self.state(topic, partition, at=number) for number in among or self.living()]
            leaders = [it.leader for it in states if it is not None and it.leader > 0]
            return next((it for it in leaders if not among or it in among), 0)

        what = f"{topic}-{partition} is led by one of {among or self.living()}"
        return until(found, what, every_s=_ASK_S)
