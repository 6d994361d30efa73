"""The fetching of followers: one task for each leader, for all partitions in which this node follows that leader.

One request names all partitions of a leader, so a node with a thousand partitions and three leaders has three requests
under way, not a thousand. The leader answers as soon as any of the partitions has new records.
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
from minibroker.replicas.lasting import LastingFailure
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
from minibroker.replication.throttling import Quota
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

log = logging.getLogger(__name__)

# How long an answer may take, besides the time for which the leader may hold the fetch. After that a new connection is
# opened.
_ANSWER_MS_MAX = 2000
# The first pause after an error: often the leader does not know yet that it leads. Each further pause is twice as long.
_FIRST_PAUSE_MS = 50
_GIVE_UP_INTERVAL_MS = 250
_TURN_MS_MAX = 20
_NO_SESSION_EPOCH = -1


def pause_ms_after(failures: int, *, backoff_ms: int) -> int:
    """How long to pause after this number of errors in a row: at most `backoff_ms`."""
    return min(_FIRST_PAUSE_MS << min(failures - 1, 16), backoff_ms)


@dataclass
class Incarnation:
    """This node, and its broker epoch in this incarnation: -1 until it is registered."""

    node_id: int
    broker_epoch: int


Wanted = Mapping[tuple[bytes, int], tuple[Replica, Position]]
"""What to fetch from one leader, by topic id and partition."""


class Fetchers:
    """The fetch tasks. `topic_id_of` finds the id of a partition's topic.

    `settle` answers requests that waited for records. `on_ended` is called when a task has ended, for whatever reason.
    """

    def __init__(
        self,
        me: Incarnation,
        peers: Peers,
        config: NodeConfig,
        *,
        topic_id_of: Callable[[TopicPartition], bytes | None],
        settle: Callable[[], None],
        on_ended: Callable[[asyncio.Task[None]], None],
        quota: Quota | None = None,
    ) -> None:
        self._me = me
        self._peers = peers
        self._backoff_ms = REPLICA_FETCH_BACKOFF_MS.of(config)
        self._wait_ms_max = REPLICA_FETCH_WAIT_MAX_MS.of(config)
        self._partition_bytes_max = REPLICA_FETCH_MAX_BYTES.of(config)
        self._bytes_min = REPLICA_FETCH_MIN_BYTES.of(config)
        self._bytes_max = REPLICA_FETCH_RESPONSE_MAX_BYTES.of(config)
        self._topic_id_of = topic_id_of
        self._settle = settle
        self._on_ended = on_ended
        self._quota = quota or Quota()
        """The rate that all throttled replicas of this node share."""
        self._groups: dict[int, dict[TopicPartition, Replica]] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._put_off_until_ms: dict[TopicPartition, int] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._news: dict[int, asyncio.Event] = {}
        self._gave_up_ms: dict[int, int] = {}

    def follow(self, replica: Replica) -> None:
        """Begin to fetch for a replica whose leader has changed, or stop if it has no leader."""
        leader = replica.following.leader if replica.following is not None else -1
        self._put_off_until_ms.pop(replica.name, None)
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
                self._give_up_soon(leader)
            else:
                self._news[leader] = asyncio.Event()
                task = self._tasks[leader] = asyncio.create_task(self._run(leader))
                task.add_done_callback(self._on_ended)

    def _give_up_soon(self, leader: int) -> None:
        """Cancel the fetch under way, because it does not name a partition that was added.

        The leader may hold that fetch for a while, and writes to the new partition would wait as long. Fetches are not
        cancelled too often, because a thousand partitions may be added one after the other.
        """
        loop, now_ms = asyncio.get_running_loop(), monotonic_ms()
        if now_ms >= self._gave_up_ms.get(leader, 0) + _GIVE_UP_INTERVAL_MS:
            self._gave_up_ms[leader] = now_ms
            self._give_up_if_outdated(leader)
        elif now_ms >= self._gave_up_ms[leader]:
            # This timer also serves the partitions that are added before it fires.
            self._gave_up_ms[leader] += _GIVE_UP_INTERVAL_MS
            delay_ms = self._gave_up_ms[leader] - now_ms
            loop.call_later(delay_ms / 1000, self._give_up_if_outdated, leader)

    def _give_up_if_outdated(self, leader: int) -> None:
        """Cancel the fetch under way, unless it began after the last partition was added and names them all."""
        news = self._news.get(leader)
        if news is not None and news.is_set():
            self._peers.hang_up(leader, "fetch")

    def forget(self, name: TopicPartition) -> None:
        """Stop fetching for a partition."""
        self._put_off_until_ms.pop(name, None)
        self._failures.pop(name, None)
        leader = self._leader_of.pop(name, None)
        if leader is not None:
            self._groups[leader].pop(name, None)

    async def stop(self) -> None:
        """End all tasks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # One leader -------------------------------------------------------------------------------------------------------

    async def _run(self, leader: int) -> None:
        failures, trouble = 0, LastingFailure(log)
        while self._groups.get(leader):
            self._news[leader].clear()
            try:
                pause_ms = await self._round(leader)
                failures = 0
                trouble.end()
            except ClientError as error:
                if self._news[leader].is_set():
                    continue
                # A leader that stops has handed over its partitions, but this node may hear of that a little later.
                trouble.note("cannot fetch from node %d, trying again until it answers: %s", leader, error)
                failures += 1
                pause_ms = pause_ms_after(failures, backoff_ms=self._backoff_ms)
            if pause_ms:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news[leader].wait(), pause_ms / 1000)
        del self._tasks[leader], self._groups[leader], self._news[leader]

    async def _round(self, leader: int) -> int:
        """Fetch once; return how long to wait before the next fetch."""
        wanted = self._wanted(leader)
        lost = {key: it for key, it in wanted.items() if it[1].is_lost}
        if lost:
            await self._find_log_starts(leader, lost)
            return 0
        if not wanted:
            return self._until_due_ms(leader)
        # The leader must answer before the first postponed partition is due, so that the next fetch can name that
        # partition.
        wait_ms = min(self._wait_ms_max, max(self._until_due_ms(leader), _FIRST_PAUSE_MS))
        request = self._request(wanted, wait_ms=wait_ms)
        response = await self._peers.send(leader, request, line="fetch", timeout_ms=wait_ms + _ANSWER_MS_MAX)
        since_ms = monotonic_ms()
        for topic in response.responses:
            for data in topic.partitions:
                key = (bytes(topic.topic_id), data.partition_index)
                if key in wanted:
                    self._take(data, *wanted[key])
                if monotonic_ms() - since_ms > _TURN_MS_MAX:
                    # A thousand partitions on a slow disk take long. Requests and heartbeats must not wait until all
                    # are done, so let them run in between.
                    await asyncio.sleep(0)
                    since_ms = monotonic_ms()
        self._settle()
        return 0

    def _until_due_ms(self, leader: int) -> int:
        """The time until the first postponed partition of a leader is due."""
        if not self._put_off_until_ms:
            return self._backoff_ms
        times = [at for name, at in self._put_off_until_ms.items() if self._leader_of.get(name) == leader]
        left_ms = min(times, default=2**62) - monotonic_ms()
        return min(max(left_ms, 1), self._backoff_ms)

    def _wanted(self, leader: int) -> Wanted:
        """The partitions to fetch from a leader now. An error or a throttled rate postpones a partition."""
        now_ms = monotonic_ms()
        found = {}
        for name, replica in self._groups[leader].items():
            position = replica.position()
            topic_id = self._topic_id_of(name)
            if self._put_off_until_ms:
                if self._put_off_until_ms.get(name, 0) > now_ms:
                    continue
                self._put_off_until_ms.pop(name, None)
            if replica.is_throttled_follower and replica.fetch_bytes_max(now_ms) == 0:
                # The replica is throttled, and the rate is exceeded.
                self._put_off_until_ms[name] = now_ms + self._quota.wait_ms(now_ms)
                continue
            if position is not None and topic_id is not None:
                found[topic_id, name.partition] = (replica, position)
        return found

    def _request(self, wanted: Wanted, *, wait_ms: int) -> FetchRequest:
        now_ms, bytes_max = monotonic_ms(), self._partition_bytes_max
        topics: dict[bytes, list[FetchPartition]] = {}
        for (topic_id, partition), (replica, position) in wanted.items():
            throttled_bytes_max = replica.fetch_bytes_max(now_ms) if replica.is_throttled_follower else None
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=min(bytes_max, throttled_bytes_max or bytes_max),
                )
            )
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._me.node_id, replica_epoch=self._me.broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=self._bytes_min,
            max_bytes=self._bytes_max,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[FetchTopic(topic_id=topic_id, partitions=it) for topic_id, it in topics.items()],
        )

    def _take(self, data: PartitionData, replica: Replica, position: Position) -> None:
        """Pass the leader's answer to a replica. A replica that cannot use it is postponed; the others continue."""
        if self._failures and data.error_code == ErrorCode.NONE:
            self._failures.pop(replica.name, None)
        if replica.is_throttled_follower and isinstance(data.records, memoryview):
            replica.on_bytes_fetched(len(data.records), monotonic_ms())
        if _is_nothing_new(data, replica):
            if replica.following is not None:
                replica.following.is_caught_up = True
            return
        if position != replica.position():
            return
        try:
            is_used = replica.on_fetched(_fetched(data, position))
        except (LogError, OSError) as error:
            log.error("%s: %s", replica.name.directory, error)
            is_used = False
        except Exception:
            # This replica falls out of the in-sync set, which an operator notices. The other replicas continue.
            log.exception("%s is no longer fetched from its leader because of a bug", replica.name.directory)
            if self._is_followed(replica):
                self.forget(replica.name)
            return
        if not is_used:
            self._put_off(replica)

    def _put_off(self, replica: Replica) -> None:
        if self._is_followed(replica):
            failures = self._failures[replica.name] = self._failures.get(replica.name, 0) + 1
            self._put_off_until_ms[replica.name] = monotonic_ms() + pause_ms_after(
                failures, backoff_ms=self._backoff_ms
            )

    def _is_followed(self, replica: Replica) -> bool:
        """Whether this replica is still current: its topic may have been deleted and created again since the fetch."""
        return self._groups.get(self._leader_of.get(replica.name, -1), {}).get(replica.name) is replica

    async def _find_log_starts(self, leader: int, lost: Wanted) -> None:
        """Ask where the leader's logs start, for replicas whose next offset the leader does not have."""
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
        response = await self._peers.send(leader, request, line="fetch", timeout_ms=_ANSWER_MS_MAX)
        found = {
            TopicPartition(topic.name, it.partition_index): it for topic in response.topics for it in topic.partitions
        }
        for replica, position in lost.values():
            it = found.get(replica.name)
            if it is None or it.error_code != ErrorCode.NONE or not self._start_log_at(replica, position, it.offset):
                self._put_off(replica)

    def _start_log_at(self, replica: Replica, position: Position, log_start_offset: int) -> bool:
        """Tell a replica where its leader's log starts; return whether its log was reset to that offset."""
        try:
            replica.on_start(position, log_start_offset)
        except (LogError, OSError) as error:
            log.error("%s: %s", replica.name.directory, error)
            return False
        is_moved = replica.log.log_end_offset != position.fetch_offset
        if is_moved:
            # This is normal for a new replica, and for one that was away while its leader deleted old records.
            log.info(
                "%s is emptied and begins at %d, where its leader's log starts",
                replica.name.directory,
                log_start_offset,
            )
        return is_moved


def _is_nothing_new(data: PartitionData, replica: Replica) -> bool:
    """Whether an answer changes nothing. Most answers change nothing."""
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
        ErrorCode(data.error_code) if data.error_code else ErrorCode.NONE,
        records=records if isinstance(records, memoryview) else memoryview(b""),
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch != NO_LEADER_EPOCH else None,
    )
