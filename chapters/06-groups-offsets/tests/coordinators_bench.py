"""A coordinator on a log in memory, for tests: a test moves the high watermark, the time, and lets the log refuse.

`Bench` stands for the node. `Bench.ask` sends a request to the coordinator and returns its ticket.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from test_groups_offsets import IMAGE

from minibroker.coordinators.coordinator import Coordinator
from minibroker.coordinators.internal_topics import rules_for
from minibroker.coordinators.refusing import refusal
from minibroker.coordinators.tickets import Ticket, answer_of
from minibroker.groups.keys import GroupSettings
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import Client, Step
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import LocalPartition, SoleReplica
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response, codes_in
from minibroker.wire.tables.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

NAME = TopicPartition(GROUP_METADATA_TOPIC, 7)
CLIENT = Client("client", "/127.0.0.1")
T = TypeVar("T")


class Replica(SoleReplica):
    """A replica with a follower that may be behind, and that may leave the in-sync set."""

    watermark: int | None = None
    """The high watermark, or None if it follows the end of the log."""
    is_leading = True
    is_in_sync = True

    @property
    def high_watermark(self) -> int:
        return super().high_watermark if self.watermark is None else self.watermark

    def check_leading(self) -> None:
        if not self.is_leading:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node leads")

    def check_in_sync(self) -> None:
        if not self.is_in_sync:
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas are in sync")


class Bench:
    """The surroundings of a coordinator."""

    def __init__(self, configs: Mapping[str, str] | None = None, **changes: Any) -> None:
        """`configs` are the topic's, `changes` the settings of groups that are not the defaults."""
        self.waiting: Waiting[Response] = Waiting()
        self.turn = asyncio.Lock()
        self.files = MemoryFiles()
        self.files.mkdir("p")
        self.time_ms = 1_000_000
        self.image = IMAGE
        self.values = replace(GroupSettings.of(NodeConfig()), **changes)
        self.ended: list[asyncio.Task[None]] = []
        self._made = 0
        log = SegmentedLog.open(self.files, "p")
        self.replica = Replica(NAME, log, leader_epoch=3, wake=self._wake)
        producers, config = ProducerStates(self.files, "p"), TopicConfig(configs)
        self.partition = LocalPartition(NAME, log, producers, config, self.replica, rules=rules_for(NAME))

    def _wake(self, key: Hashable) -> None:
        self.waiting.wake(key)

    def start(self) -> Coordinator[GroupShard]:
        """Begin to lead the partition."""
        self.coordinator = Coordinator(self.partition, self)
        return self.coordinator

    async def load(self) -> Coordinator[GroupShard]:
        """Begin to lead the partition, and wait until the groups are loaded."""
        self.start()
        await self.until(lambda: self.coordinator.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self.coordinator

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Let the event loop run until something has happened."""
        for _turn in range(10_000):
            if is_true():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")

    # What the coordinator uses ----------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.time_ms

    def wall_clock_ms(self) -> int:
        return self.time_ms

    def settings(self, _group_id: str = "") -> GroupSettings:
        return self.values

    def new_shard(self) -> GroupShard:
        return GroupShard(
            settings=self.settings, new_member_id=self._new_member_id, matcher=_no_regexes, image=self.image
        )

    def _new_member_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self._made}"

    def soon(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def on_deadline(self, deadline_ms: int | None) -> None:
        """A test calls `on_time` itself."""

    def on_ended(self, task: asyncio.Task[None]) -> None:
        self.ended.append(task)
        if not task.cancelled():
            task.result()

    # Requests ---------------------------------------------------------------------------------------------------------

    def ask(
        self,
        request: Request,
        version: int,
        act: Callable[[GroupShard, Ticket, int], Step],
        *,
        may_wait: bool = True,
    ) -> Ticket:
        """Send a request to the coordinator."""
        ticket = Ticket(lambda code: refusal(request, version, code))
        self.coordinator.handle(ticket, lambda shard, now_ms: act(shard, ticket, now_ms), may_wait=may_wait)
        # A client waits as it would in the server.
        answer = answer_of(ticket)
        if isinstance(answer, Wait):
            self.waiting.park(answer, lambda _response: None, now_ms=0)
        self.waiting.settle()
        return ticket

    def commit(self, offset: int, group_id: str = "g", *, partition: int = 0) -> Ticket:
        """Commit an offset without a member."""
        partitions = [OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
        topics = [OffsetCommitRequestTopic(name="orders", partitions=partitions)]
        request = OffsetCommitRequest(group_id=group_id, topics=topics)
        return self.ask(request, 9, lambda shard, ticket, now_ms: shard.on_commit(ticket, request, 9, now_ms))

    def fetch(self, group_id: str = "g", *, partition: int = 0) -> Ticket:
        """Ask for a committed offset."""
        topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[partition])]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        return self.ask(
            OffsetFetchRequest(groups=[group]),
            9,
            lambda shard, ticket, _now_ms: shard.on_fetch(ticket, group, 9, require_stable=False),
        )

    def join(self, group_id: str = "g", member_id: str = "") -> Ticket:
        """Join a classic group, in a version that has no second join."""
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return self.ask(request, 3, lambda shard, ticket, now_ms: shard.on_join(ticket, request, 3, CLIENT, now_ms))

    def heartbeat(self, group_id: str = "g", member_id: str = "m") -> Ticket:
        """Send a heartbeat of a classic member."""
        request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=member_id)
        return self.ask(
            request, 3, lambda shard, ticket, now_ms: shard.on_heartbeat(ticket, request, now_ms), may_wait=False
        )


def code_of(ticket: Ticket) -> ErrorCode | None:
    """The first error in an answer, or NONE; None if there is no answer."""
    if ticket.response is None:
        return None
    return next((ErrorCode(code) for code in codes_in(ticket.response) if code), ErrorCode.NONE)


def offset_of(ticket: Ticket) -> int | None:
    """The committed offset in an answer; None if there is none or an error."""
    response: Any = ticket.response
    if response is None or response.groups[0].error_code:
        return None
    found: int = response.groups[0].topics[0].partitions[0].committed_offset
    return found


def _no_regexes(_pattern: str) -> Callable[[str], bool]:
    raise AssertionError("no test here subscribes to a regular expression")


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run a test in an event loop."""

    async def all_of_it() -> T:
        return await work()

    return asyncio.run(all_of_it())
