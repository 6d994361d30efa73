"""Followers at work: for each leader a task that asks it for everything that this node follows there, again and again.

One request names all partitions of a leader, so a node with a thousand partitions and three leaders has three requests
under way, not a thousand. The leader answers as soon as any of them has something new.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minibroker.client.errors import ClientError
from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.log.clock import monotonic_ms
from minibroker.log.errors import LogError
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.list_offsets import EARLIEST
from minibroker.partitions.partition import EpochEnd
from minibroker.replicas.peers import Peers
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.keys import (
    REPLICA_FETCH_BACKOFF_MS,
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_FETCH_MIN_BYTES,
    REPLICA_FETCH_RESPONSE_MAX_BYTES,
    REPLICA_FETCH_WAIT_MAX_MS,
)
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

log = logging.getLogger(__name__)

# Besides what the answer itself may wait for. A leader that is silent for longer is asked again on a new connection.
_PATIENCE_MS = 2000
# The first pause after an error: mostly the leader has not heard yet that it leads. The next ones double.
_SOON_MS = 50
_ANEW_MS = 250
_TURN_MS = 20
_NO_SESSION_EPOCH = -1


def pause_ms_after(failures: int, *, backoff_ms: int) -> int:
    """How long to wait after so many errors in a row: `backoff_ms` at most."""
    return min(_SOON_MS << min(failures - 1, 16), backoff_ms)


@dataclass
class Self:
    """Who asks: this node, in this life; -1 before it is registered."""

    node_id: int
    broker_epoch: int


Wanted = Mapping[tuple[bytes, int], tuple[Replica, Position]]
"""What is asked of one leader, by topic id and partition."""


class Fetchers:
    """The tasks. `topic_id_of` names topics by their id; `settle` lets those go on who wait for what was done.

    `on_ended` hears of a task that is over, for whatever reason.
    """

    def __init__(
        self,
        me: Self,
        peers: Peers,
        config: NodeConfig,
        *,
        topic_id_of: Callable[[TopicPartition], bytes | None],
        settle: Callable[[], None],
        on_ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._me = me
        self._peers = peers
        self._config = config
        self._backoff_ms = REPLICA_FETCH_BACKOFF_MS.of(config)
        self._topic_id_of = topic_id_of
        self._settle = settle
        self._on_ended = on_ended
        self._groups: dict[int, dict[TopicPartition, Replica]] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._later: dict[TopicPartition, int] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._news: dict[int, asyncio.Event] = {}
        self._asked_anew_ms: dict[int, int] = {}

    def follow(self, replica: Replica) -> None:
        """A replica has got another leader, or has none; it is fetched for from now on, or no more."""
        leader = replica.following.leader if replica.following is not None else -1
        self._later.pop(replica.name, None)
        self._failures.pop(replica.name, None)
        if leader in self._news:
            self._news[leader].set()
        if self._leader_of.get(replica.name) == leader and self._is_followed(replica):
            return
        self.forget(replica.name)
        if leader >= 0:
            self._leader_of[replica.name] = leader
            self._groups.setdefault(leader, {})[replica.name] = replica
            if leader in self._tasks:
                self._ask_anew(leader)
            else:
                self._news[leader] = asyncio.Event()
                task = self._tasks[leader] = asyncio.create_task(self._run(leader))
                task.add_done_callback(self._on_ended)

    def _ask_anew(self, leader: int) -> None:
        """A question that does not name a new partition may wait at the leader for a while, and writes wait for us.

        So it is given up, but not too often: a thousand partitions may come one after the other.
        """
        loop, now_ms = asyncio.get_running_loop(), monotonic_ms()
        if now_ms >= self._asked_anew_ms.get(leader, 0) + _ANEW_MS:
            self._asked_anew_ms[leader] = now_ms
            self._peers.hang_up(leader, "fetch")
        elif now_ms >= self._asked_anew_ms[leader]:
            # The next time is set; whoever comes before it is served by it, too.
            self._asked_anew_ms[leader] += _ANEW_MS
            delay_ms = self._asked_anew_ms[leader] - now_ms
            loop.call_later(delay_ms / 1000, lambda: self._peers.hang_up(leader, "fetch"))

    def forget(self, name: TopicPartition) -> None:
        """A partition is not followed any more."""
        self._later.pop(name, None)
        self._failures.pop(name, None)
        leader = self._leader_of.pop(name, None)
        if leader is not None:
            self._groups[leader].pop(name, None)

    async def stop(self) -> None:
        """Fetch no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # One leader -------------------------------------------------------------------------------------------------------

    async def _run(self, leader: int) -> None:
        failures = 0
        while self._groups.get(leader):
            self._news[leader].clear()
            try:
                pause_ms = await self._round(leader)
                failures = 0
            except ClientError as error:
                if self._news[leader].is_set():
                    continue
                # One word when it begins: it may last for as long as the leader is away.
                if not failures:
                    log.warning("node %d cannot be followed at the moment: %s", leader, error)
                failures += 1
                pause_ms = pause_ms_after(failures, backoff_ms=self._backoff_ms)
            if pause_ms:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news[leader].wait(), pause_ms / 1000)
        del self._tasks[leader], self._groups[leader], self._news[leader]

    async def _round(self, leader: int) -> int:
        """Ask once; return how long to wait before there is anything to ask for."""
        wanted = self._wanted(leader)
        lost = {key: it for key, it in wanted.items() if it[1].is_lost}
        if lost:
            await self._find_starts(leader, lost)
            return 0
        if not wanted:
            return self._until_later(leader)
        # What was put off is to be asked for in time.
        wait_ms = min(REPLICA_FETCH_WAIT_MAX_MS.of(self._config), max(self._until_later(leader), _SOON_MS))
        request = self._request(wanted, wait_ms=wait_ms)
        response = await self._peers.send(leader, request, line="fetch", timeout_ms=wait_ms + _PATIENCE_MS)
        since_ms = monotonic_ms()
        for topic in response.responses:
            for data in topic.partitions:
                key = (bytes(topic.topic_id), data.partition_index)
                if key in wanted:
                    self._take(data, *wanted[key])
                if monotonic_ms() - since_ms > _TURN_MS:
                    # A thousand partitions on a slow disk: others have to be served, and this node has to be heard.
                    await asyncio.sleep(0)
                    since_ms = monotonic_ms()
        self._settle()
        return 0

    def _until_later(self, leader: int) -> int:
        """How long it is until something that is followed there is not put off any more."""
        times = [at for name, at in self._later.items() if self._leader_of.get(name) == leader]
        left_ms = min(times, default=2**62) - monotonic_ms()
        return min(max(left_ms, 1), self._backoff_ms)

    def _wanted(self, leader: int) -> Wanted:
        """What is followed there, but for what an error has put off."""
        now_ms = monotonic_ms()
        found = {}
        for name, replica in self._groups[leader].items():
            position = replica.position()
            topic_id = self._topic_id_of(name)
            if self._later.get(name, 0) > now_ms:
                continue
            self._later.pop(name, None)
            if position is not None and topic_id is not None:
                found[topic_id, name.partition] = (replica, position)
        return found

    def _request(self, wanted: Wanted, *, wait_ms: int) -> FetchRequest:
        partition_bytes_max = REPLICA_FETCH_MAX_BYTES.of(self._config)
        topics: dict[bytes, list[FetchPartition]] = {}
        for (topic_id, partition), (_replica, position) in wanted.items():
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=partition_bytes_max,
                )
            )
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._me.node_id, replica_epoch=self._me.broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=REPLICA_FETCH_MIN_BYTES.of(self._config),
            max_bytes=REPLICA_FETCH_RESPONSE_MAX_BYTES.of(self._config),
            session_epoch=_NO_SESSION_EPOCH,
            topics=[FetchTopic(topic_id=topic_id, partitions=it) for topic_id, it in topics.items()],
        )

    def _take(self, data: PartitionData, replica: Replica, position: Position) -> None:
        """Give a replica its answer. One that cannot use it is asked for again later, and holds up nobody else."""
        if self._failures and data.error_code == ErrorCode.NONE:
            self._failures.pop(replica.name, None)
        if _is_nothing_new(data, replica) or position != replica.position():
            return
        try:
            is_going_on = replica.on_fetched(_fetched(data, position))
        except (LogError, OSError) as error:
            log.error("%s: %s", replica.name.directory, error)
            is_going_on = False
        except Exception:
            # It falls out of the in-sync set, where everybody sees it; the others are none the worse.
            log.exception("%s is not followed any more, because of a bug", replica.name.directory)
            if self._is_followed(replica):
                self.forget(replica.name)
            return
        if not is_going_on:
            self._put_off(replica)

    def _put_off(self, replica: Replica) -> None:
        if self._is_followed(replica):
            failures = self._failures[replica.name] = self._failures.get(replica.name, 0) + 1
            self._later[replica.name] = monotonic_ms() + pause_ms_after(failures, backoff_ms=self._backoff_ms)

    def _is_followed(self, replica: Replica) -> bool:
        """Whether it still is: an answer may be for one that is gone, while another one has its name."""
        return self._groups.get(self._leader_of.get(replica.name, -1), {}).get(replica.name) is replica

    async def _find_starts(self, leader: int, lost: Wanted) -> None:
        """Ask where logs start whose leader has deleted what would come next here."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for replica, position in lost.values():
            topics.setdefault(replica.name.topic, []).append(
                ListOffsetsPartition(
                    partition_index=replica.name.partition,
                    current_leader_epoch=position.leader_epoch,
                    timestamp=EARLIEST,
                )
            )
        request = ListOffsetsRequest(
            replica_id=self._me.node_id,
            topics=[ListOffsetsTopic(name=name, partitions=it) for name, it in topics.items()],
        )
        response = await self._peers.send(leader, request, line="fetch", timeout_ms=_PATIENCE_MS)
        found = {
            TopicPartition(topic.name, it.partition_index): it for topic in response.topics for it in topic.partitions
        }
        for replica, position in lost.values():
            it = found.get(replica.name)
            if it is None or it.error_code != ErrorCode.NONE or not self._begin(replica, position, it.offset):
                self._put_off(replica)

    def _begin(self, replica: Replica, position: Position, log_start_offset: int) -> bool:
        """Tell a replica where its leader's log starts; return whether that has helped it."""
        try:
            replica.on_start(position, log_start_offset)
        except (LogError, OSError) as error:
            log.error("%s: %s", replica.name.directory, error)
            return False
        is_moved = replica.log.log_end_offset != position.fetch_offset
        if is_moved:
            log.warning("%s begins anew at %d: its leader has nothing older", replica.name.directory, log_start_offset)
        return is_moved


def _is_nothing_new(data: PartitionData, replica: Replica) -> bool:
    """Whether an answer changes nothing: that of most partitions, most of the time."""
    return (
        not data.records
        and data.error_code == ErrorCode.NONE
        and data.diverging_epoch.epoch == NO_LEADER_EPOCH
        and data.high_watermark <= replica.high_watermark
        and data.log_start_offset <= replica.log.log_start_offset
    )


def _fetched(data: PartitionData, position: Position) -> Fetched:
    diverging = data.diverging_epoch
    records = data.records
    return Fetched(
        position,
        ErrorCode(data.error_code),
        records=records if isinstance(records, memoryview) else memoryview(b""),
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch != NO_LEADER_EPOCH else None,
    )
