"""A node of the quorum at work: a task brings it the time and sends what it orders, another keeps a fetch under way.

Whatever happens to the state machine happens on the event loop, one thing after the other. After each, the controller
is told to catch up: it folds what is decided, and completes what was waited for.

When the disk fails, the others are told that this node leads no more, and the task that brings the time ends with a
`BrokerFailure`: the process must end with it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from minibroker.client.errors import BrokerUnavailable, ClientError
from minibroker.controller.deciding import Controller
from minibroker.controller.snapshot import records_of
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.errors import StorageError
from minibroker.metadata.image import Builder, Image
from minibroker.metadata.records import decode_record, encode_record
from minibroker.partitions.errors import BrokerFailure, Disconnect
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.store import METADATA
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.quorum.translating import (
    Place,
    begin_of,
    begin_response,
    end_of,
    end_response,
    fetch_of,
    fetch_request,
    fetch_response,
    fetched_of,
    heard_of,
    leader_place_of,
    name_place,
    places_of,
    request_of,
    snapshot_fetch_of,
    snapshot_fetched_of,
    snapshot_request,
    snapshot_response,
    vote_of,
    vote_response,
    voted_of,
)
from minibroker.raft.election import NOBODY
from minibroker.raft.messages import Fetched, FetchSnapshot, Send, SnapshotFetched, SnapshotId, Vote
from minibroker.raft.node import FETCH_BYTES_MAX, Raft
from minibroker.raft.roles import Role
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.tables.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionResult,
    QuorumTopicResult,
    ReplicaState,
)
from minibroker.raft.tables.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from minibroker.raft.tables.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from minibroker.raft.tables.vote import VoteRequest, VoteResponse
from minibroker.raft.voters import VoterKey
from minibroker.replicas.peers import Line, Peers
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse

log = logging.getLogger(__name__)

_FETCH_WAIT_MS = 300
_PATIENCE_MS = 1000
_SNAPSHOT_PIECE_BYTES = 1024**2
_TICK_S_MAX = 0.05
_STUCK_MS = 250
_RETRY_S = 0.05
_GOODBYE_S = 0.5


class Quorum:
    """Drives one `Raft` and the controller on it. `begin` starts a task that must not end."""

    def __init__(
        self,
        raft: Raft,
        controller: Controller,
        peers: Peers,
        waiting: Waiting[Response],
        *,
        cluster_id: str,
        begin: Callable[[Coroutine[Any, Any, None]], None],
        snapshots: SnapshotFiles,
        snapshot_bytes: int = 20 * 1024**2,
    ) -> None:
        self.raft = raft
        self.controller = controller
        self._peers = peers
        self._waiting = waiting
        self._cluster_id = cluster_id
        self._begin = begin
        self.snapshots = snapshots
        self.snapshot_bytes = snapshot_bytes
        self._told: dict[VoterKey, int] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self.strangers: set[int] = set()
        """Who said, when it was asked last, that it is of another cluster."""
        self._asked: dict[asyncio.Task[Any], tuple[int, Line]] = {}
        self._changed = asyncio.Event()
        self._seen = (0, 0)
        self._leader_id = raft.leader_id
        self._failure: str | None = None
        self.heard: tuple[int, int] = (NOBODY, 0)
        """The leader that has answered last, and when."""
        self.unreached: set[int] = set()
        """Who did not answer when it was told something last."""
        self.is_doubled = False
        """Whether others say that a node of our number leads: another one, or this one before its disk was lost."""
        self.places: dict[int, Place] = {}
        """Where leaders are, as others say: one that was added is in no configuration."""

    # After each event -------------------------------------------------------------------------------------------------

    def step(self, sends: list[Send] | None = None) -> None:
        """Something happened to the state machine: send what it orders, and let everybody catch up."""
        for send in sends or []:
            task = asyncio.create_task(self._send(send))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        try:
            self.controller.catch_up()
        except (StorageError, OSError) as error:
            # It could not write that it decides, or do what is decided. The tick comes soon, and ends it.
            self._failure = self._failure or str(error)
        now = (self.raft.log.log_end_offset, self.raft.high_watermark)
        if now != self._seen:
            # There is more to fetch, or more is decided.
            self._seen = now
            self._waiting.wake(METADATA)
        # Who changes the set of voters waits for other things, too.
        self._waiting.wake(self.raft)
        self._waiting.settle()
        self._changed.set()
        self._notice_the_leader()

    def _notice_the_leader(self) -> None:
        """Whoever waits for an answer of a leader that is none any more would wait in vain: it may be paused."""
        old, self._leader_id = self._leader_id, self.raft.leader_id
        if self._leader_id != old and old not in (NOBODY, self.raft.me.node_id):
            self._peers.hang_up(old, "control", "clients")
        for task, (node_id, line) in self._asked.items():
            if node_id != (self.raft.target() if line == "metadata" else self._leader_id):
                task.cancel()

    async def ask(self, node_id: int, request: Request, *, line: Line = "control", timeout_ms: int) -> Any:
        """Ask who leads, or who may know; raises a `ClientError` as soon as somebody else is to be asked.

        So nobody waits for a node that is paused or cut off while another one leads already.
        """
        task = asyncio.create_task(self._peers.send(node_id, request, line=line, timeout_ms=timeout_ms))
        self._asked[task] = (node_id, line)
        try:
            await asyncio.wait({task})
        finally:
            del self._asked[task]
            task.cancel()
        if task.cancelled():
            # What it may still answer would hold up the next question.
            self._peers.hang_up(node_id, line)
            raise BrokerUnavailable(f"node {node_id} was asked, and is not whom to ask any more")
        return task.result()

    async def resign(self) -> None:
        """Lead no more, and let the others know before this node is gone."""
        self.step(self.raft.resign(monotonic_ms()))
        if self._sending:
            await asyncio.wait(self._sending, timeout=_GOODBYE_S)

    def step_soon(self) -> None:
        """The same, for who is in the middle of an answer."""
        asyncio.get_running_loop().call_soon(self.step)

    async def changed(self) -> None:
        """Return after the next event."""
        self._changed.clear()
        await self._changed.wait()

    async def _send(self, send: Send) -> None:
        request = request_of(send.message, self._cluster_id, sender=self._place_of(self.raft.me.node_id))
        try:
            response = await self._peers.send(send.node_id, request, line="quorum", timeout_ms=_PATIENCE_MS)
        except ClientError:
            # It is said again, if it still matters.
            self.unreached.add(send.node_id)
            return
        self.unreached.discard(send.node_id)
        # A disk that fails here is noticed by the tick.
        with contextlib.suppress(StorageError):
            self._hear(send, response, monotonic_ms())

    def _hear(self, send: Send, response: Response, now_ms: int) -> None:
        self.places |= places_of(response)
        if isinstance(response, VoteResponse):
            voted = voted_of(response)
            assert isinstance(send.message, Vote)
            if voted is not None:
                self.step(self.raft.on_voted(send.node_id, send.message, voted, now_ms))
        elif isinstance(response, BeginQuorumEpochResponse | EndQuorumEpochResponse):
            heard = heard_of(response)
            if heard is not None:
                self.raft.on_heard(heard, now_ms)
                self.step()

    # Tasks ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        self._begin(self._unless_the_disk_fails(self._tick()))
        self._begin(self._unless_the_disk_fails(self._fetch()))

    async def _unless_the_disk_fails(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StorageError, OSError) as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> BrokerFailure:
        return BrokerFailure(
            f"node {self.raft.me.node_id} ends, because its metadata cannot be written: {why}. Other voters go on; free"
            " some room or replace the disk, then start it again"
        )

    async def _tick(self) -> None:
        due_ms = monotonic_ms()
        while True:
            now_ms = monotonic_ms()
            if now_ms - due_ms > _STUCK_MS:
                # Many logs were opened, or the process was paused. To stand now would only disturb.
                self.raft.on_stuck(now_ms - due_ms)
            self.step(self.raft.tick(now_ms))
            if self.raft.is_leader:
                self.raft.bind_voters(timestamp=wall_clock_ms())
                self.step()
            failure = self.raft.failure or self._failure
            if failure is not None:
                # The next one would change nothing; but whoever waits for us must hear that we lead no more.
                self.step(self.raft.tick(now_ms))
                raise self._broken(failure)
            self.maybe_snapshot()
            pause_s = min(max(self.raft.next_deadline_ms - now_ms, 1) / 1000, _TICK_S_MAX)
            # What was done here takes time, too, and others have to wait for that.
            due_ms = now_ms + round(pause_s * 1000)
            await asyncio.sleep(pause_s)

    async def _fetch(self) -> None:
        while True:
            if not await self._fetch_once():
                await asyncio.sleep(_RETRY_S)

    async def _fetch_once(self) -> bool:
        """Keep one fetch under way; return whether to ask again at once."""
        wanted = self.raft.snapshot_position(self.snapshots.received(self.raft.snapshot_wanted, self.raft.target()))
        if wanted is not None:
            return await self._fetch_snapshot(wanted)
        position, target = self.raft.position(), self.raft.target()
        if position is None or target == self.raft.me.node_id:
            return False
        request = fetch_request(position, self._cluster_id, wait_ms=_FETCH_WAIT_MS, bytes_max=FETCH_BYTES_MAX)
        try:
            response = await self.ask(target, request, line="metadata", timeout_ms=_FETCH_WAIT_MS + _PATIENCE_MS)
        except ClientError as error:
            log.debug("metadata: %s", error)
            self.raft.on_unanswered()
            return False
        self.places |= places_of(response)
        fetched = fetched_of(response)
        if fetched is None:
            self._note_stranger(target, response.error_code)
            self.raft.on_unanswered()
            return False
        self.strangers.discard(target)
        now_ms = monotonic_ms()
        if fetched.code is ErrorCode.NONE:
            self.heard = (target, now_ms)
        self.raft.on_fetched(position, fetched, now_ms)
        self.is_doubled = self._is_doubled(fetched)
        self.step()
        return fetched.code is ErrorCode.NONE

    def _is_doubled(self, fetched: Fetched) -> bool:
        raft = self.raft
        has_led = raft.role in (Role.LEADER, Role.RESIGNED)
        return not has_led and (fetched.epoch, fetched.leader_id) == (raft.epoch, raft.me.node_id)

    def _note_stranger(self, node_id: int, code: int) -> None:
        """One that is of another cluster may be in the wrong place. If most of the voters are, this node is."""
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.strangers.add(node_id)
        if len(self.strangers) >= self.raft.voters.majority:
            raise BrokerFailure(
                f"the data of node {self.raft.me.node_id} are of cluster {self._cluster_id}, and the nodes"
                f" {sorted(self.strangers)} of controller.quorum.voters are of another one: correct log.dirs or the"
                " voters"
            )

    async def _fetch_snapshot(self, wanted: FetchSnapshot) -> bool:
        """Fetch the next piece of a snapshot; with the last one, go on from it."""
        request = snapshot_request(wanted, self._cluster_id, bytes_max=_SNAPSHOT_PIECE_BYTES)
        source = self.raft.target()
        try:
            response = await self.ask(source, request, line="metadata", timeout_ms=_FETCH_WAIT_MS + _PATIENCE_MS)
        except ClientError as error:
            log.debug("snapshot: %s", error)
            return False
        self.places |= places_of(response)
        found = snapshot_fetched_of(response)
        if found is not None and found.code is ErrorCode.SNAPSHOT_NOT_FOUND:
            # There is a newer one. Whatever else is wrong, what is here stays good: who leads may lead again.
            self.snapshots.give_up()
        if found is None or not self.raft.on_snapshot_fetched(found, monotonic_ms()):
            return False
        if self.snapshots.receive(wanted.snapshot, source, found.position, found.data, size=found.size):
            assert self.snapshots.voters is not None
            self.raft.on_snapshot(wanted.snapshot, self.snapshots.voters)
            self.controller.reset(self.image_of_snapshot())
            log.warning("the metadata begin with a snapshot of everything before %d", wanted.snapshot.end_offset)
        self.step()
        return True

    def image_of_snapshot(self) -> Image:
        """What the newest snapshot says; nothing if there is none."""
        empty = Image(cluster_id=self._cluster_id)
        if self.snapshots.latest is None:
            return empty
        # All its records count as of its end.
        builder = Builder(empty)
        values = self.snapshots.values()
        first = self.snapshots.latest.end_offset - len(values)
        for number, value in enumerate(values):
            builder.fold(decode_record(value), first + number)
        return replace(builder.build(), offset=self.snapshots.latest.end_offset - 1)

    def maybe_snapshot(self) -> None:
        """Write a snapshot when the log has grown, and let the log forget what is in it."""
        raft, image = self.raft, self.controller.image
        end_offset = image.offset + 1
        latest = self.snapshots.latest
        if raft.log.size < self.snapshot_bytes or end_offset > raft.high_watermark:
            return
        if latest is not None and end_offset <= latest.end_offset:
            return
        snapshot = SnapshotId(end_offset, raft.epochs.epoch_of(image.offset))
        values = [encode_record(record) for record in records_of(image)]
        self.snapshots.write(snapshot, raft.voters_at(end_offset), values, timestamp=wall_clock_ms())
        raft.forget_before(snapshot)

    # Handlers ---------------------------------------------------------------------------------------------------------

    def add_handlers(self, registry: Registry) -> None:
        """Answer what nodes of the quorum ask."""
        registry.add(ApiKey.VOTE, _or_hang_up(self.on_vote))
        registry.add(ApiKey.BEGIN_QUORUM_EPOCH, _or_hang_up(self.on_begin))
        registry.add(ApiKey.END_QUORUM_EPOCH, _or_hang_up(self.on_end))
        registry.add(ApiKey.DESCRIBE_QUORUM, self.on_describe)
        registry.add(ApiKey.FETCH_SNAPSHOT, self.on_fetch_snapshot)
        registry.wrap(ApiKey.FETCH, self.on_fetch)

    def is_foreign(self, cluster_id: str | None) -> bool:
        """Whether a request is for another cluster."""
        return cluster_id not in (None, self._cluster_id)

    def on_vote(self, call: Call[VoteRequest]) -> Answer:
        """The handler of Vote."""
        vote = vote_of(call.request)
        if self.is_foreign(call.request.cluster_id) or vote is None:
            return VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID if vote else ErrorCode.INVALID_REQUEST)
        voted = self.raft.on_vote(vote, monotonic_ms())
        self.step()
        return self._with_place(vote_response(voted), voted.leader_id, call)

    def on_begin(self, call: Call[BeginQuorumEpochRequest]) -> Answer:
        """The handler of BeginQuorumEpoch."""
        begin = begin_of(call.request)
        if self.is_foreign(call.request.cluster_id) or begin is None:
            return BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        place = leader_place_of(call.request)
        if place is not None:
            self.places[begin.leader_id] = place
        heard = self.raft.on_begin(begin, monotonic_ms())
        self.step()
        return self._with_place(begin_response(heard), heard.leader_id, call)

    def on_end(self, call: Call[EndQuorumEpochRequest]) -> Answer:
        """The handler of EndQuorumEpoch."""
        end = end_of(call.request)
        if self.is_foreign(call.request.cluster_id) or end is None:
            return EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        heard = self.raft.on_end(end, monotonic_ms())
        self.step()
        return self._with_place(end_response(heard), heard.leader_id, call)

    def on_fetch(self, call: Call[FetchRequest], inner: Handler) -> Answer:
        """Answer those who fetch the metadata log; others are none of our business."""
        asked = fetch_of(call.request)
        if asked is None or not call.request.replica_state.replica_id >= 0:
            return inner(call)
        if self.is_foreign(call.request.cluster_id):
            # It must not take our log for its own.
            return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
        fetch, bytes_max = asked
        # It was heard now. That it is looked at again later says nothing of whether it is still there.
        now_ms = monotonic_ms()

        def attempt() -> Response | None:
            fetched = self.raft.on_fetch(fetch, now_ms, bytes_max=bytes_max)
            # It may have moved the watermark. Those who wait for that try later: this is somebody's attempt already.
            self.step_soon()
            return respond(fetched) if self._is_news(fetch.replica, fetched) else None

        def expire() -> Response:
            return respond(self.raft.on_fetch(fetch, now_ms, bytes_max=bytes_max))

        def respond(fetched: Fetched) -> Response:
            return self._with_place(fetch_response(fetched), fetched.leader_id, call)

        response = attempt()
        if response is not None:
            return response
        return Wait(keys=(METADATA,), timeout_ms=call.request.max_wait_ms, attempt=attempt, expire=expire)

    def on_fetch_snapshot(self, call: Call[FetchSnapshotRequest]) -> Answer:
        """The handler of FetchSnapshot."""
        wanted = snapshot_fetch_of(call.request)
        if self.is_foreign(call.request.cluster_id) or wanted is None:
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        code, raft = self.raft.on_fetch_snapshot(wanted, monotonic_ms()), self.raft
        piece = self.snapshots.piece(
            wanted.snapshot, wanted.position, min(call.request.max_bytes, _SNAPSHOT_PIECE_BYTES)
        )
        if code is ErrorCode.NONE and piece is None:
            code = ErrorCode.SNAPSHOT_NOT_FOUND
        size, data = piece if code is ErrorCode.NONE and piece is not None else (0, b"")
        found = SnapshotFetched(code, raft.epoch, raft.leader_id, size, wanted.position, data)
        return self._with_place(snapshot_response(wanted.snapshot, found), found.leader_id, call)

    def _with_place(self, response: Response, leader_id: int, call: Call[Any]) -> Response:
        """Say where the leader is, too: who asks may have an empty disk, and know no more than its configuration."""
        place = self._place_of(leader_id)
        if place is not None:
            name_place(response, leader_id, place, version=call.version)
        return response

    def _place_of(self, node_id: int) -> Place | None:
        # A broker says anew with each start where it is; a voter that is none was there when it became one.
        found = self.controller.image.brokers.get(node_id) or self.raft.voters.voters.get(node_id)
        return Place(found.host, found.port) if found is not None and found.host else self.places.get(node_id)

    def _is_news(self, replica: VoterKey, fetched: Fetched) -> bool:
        """Whether an answer is worth sending now: it has records, or an error, or more is decided than was told."""
        is_news = (
            fetched.code is not ErrorCode.NONE
            or len(fetched.records) > 0
            or fetched.diverging is not None
            or fetched.snapshot is not None
            or fetched.high_watermark > self._told.get(replica, -1)
        )
        if is_news:
            self._told[replica] = fetched.high_watermark
        return is_news

    def on_describe(self, call: Call[DescribeQuorumRequest]) -> Answer:  # noqa: ARG002
        """The handler of DescribeQuorum: who leads knows how far everybody is."""
        raft = self.raft
        result = QuorumPartitionResult(
            partition_index=0,
            error_code=ErrorCode.NONE if raft.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            leader_id=raft.leader_id,
            leader_epoch=raft.epoch,
            high_watermark=raft.high_watermark,
        )
        if raft.is_leader:
            voters, observers = raft.progress()
            result.current_voters = [ReplicaState(**_replica(it)) for it in voters]
            result.observers = [ReplicaState(**_replica(it)) for it in observers]
        topic = QuorumTopicResult(topic_name=METADATA.topic, partitions=[result])
        nodes = [
            QuorumNode(
                node_id=node_id,
                listeners=[QuorumListener(name="CONTROLLER", host=voter.host, port=voter.port)],
            )
            for node_id, voter in raft.voters.voters.items()
        ]
        return DescribeQuorumResponse(topics=[topic], nodes=nodes)


def _or_hang_up(handler: Handler) -> Handler:
    """What this node could not write down it does not answer: who asked must not count on it."""

    def answer(call: Call[Any]) -> Answer:
        try:
            return handler(call)
        except StorageError as error:
            raise Disconnect(str(error)) from error

    return answer


def _replica(it: tuple[VoterKey, int, int]) -> dict[str, Any]:
    key, end_offset, fetched_ms = it
    # Others know no clock but the one on the wall. Who leads has it all, now.
    last_fetch_ms = wall_clock_ms() - (monotonic_ms() - fetched_ms if fetched_ms >= 0 else 0)
    return {
        "replica_id": key.node_id,
        "replica_directory_id": key.directory_id,
        "log_end_offset": end_offset,
        "last_fetch_timestamp": last_fetch_ms,
        "last_caught_up_timestamp": last_fetch_ms,
    }
