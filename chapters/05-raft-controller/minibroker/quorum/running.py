"""The driver of one node of the quorum. One task ticks the state machine and sends its messages. Another task fetches.

`Quorum` owns these tasks and the requests that wait for a response. `answering` handles the requests of other nodes,
and `snapshotting` handles snapshots.

All events of the state machine run on the event loop, one after the other. After each event the controller catches up:
it folds the committed records, and completes the proposals that waited for them.

When the disk fails, this node resigns, sends EndQuorumEpoch to the other voters, and the ticking task raises a
`BrokerFailure`. Then the process must end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.client.errors import BrokerUnavailable, ClientError
from minibroker.controller.deciding import Controller
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.errors import StorageError
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.store import METADATA
from minibroker.partitions.waiting import Waiting
from minibroker.quorum.snapshotting import SNAPSHOT_PIECE_BYTES, Snapshotting
from minibroker.quorum.translating import (
    Place,
    fetch_request,
    fetched_of,
    heard_of,
    places_of,
    request_of,
    snapshot_fetched_of,
    snapshot_request,
    voted_of,
)
from minibroker.raft.election import NO_NODE
from minibroker.raft.leading import FETCH_BYTES_MAX
from minibroker.raft.messages import FetchSnapshot, Send, Vote
from minibroker.raft.node import Raft
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.tables.begin_quorum_epoch import BeginQuorumEpochResponse
from minibroker.raft.tables.end_quorum_epoch import EndQuorumEpochResponse
from minibroker.raft.tables.vote import VoteResponse
from minibroker.replicas.peers import Line, Peers
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response

log = logging.getLogger(__name__)

_FETCH_WAIT_MS = 300
_TIMEOUT_MS = 1000
_TICK_S_MAX = 0.05
_STUCK_MS = 250
_RETRY_S = 0.05
_GOODBYE_S = 0.5
_COMPLAIN_MS = 10_000
_NO_EPOCH = -1


class Quorum:
    """Drives one `Raft` and its controller. `begin` starts a task that runs as long as the node does."""

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
        listener: str = "",
    ) -> None:
        """`listener` is the name of the listener on which controllers receive requests."""
        self.raft = raft
        self.controller = controller
        self._peers = peers
        self._waiting = waiting
        self._cluster_id = cluster_id
        self._listener = listener
        self._begin = begin
        self.snapshots = snapshots
        self.snapshotting = Snapshotting(
            raft, controller, snapshots, cluster_id=cluster_id, log_bytes_max=snapshot_bytes
        )
        self._sending: set[asyncio.Task[None]] = set()
        self.foreign_nodes: set[int] = set()
        """The nodes whose last response said that they belong to another cluster."""
        self._asked: dict[asyncio.Task[Any], tuple[int, Line]] = {}
        self._changed = asyncio.Event()
        self._seen = (0, 0)
        self._leader_id = raft.leader_id
        self._failure: str | None = None
        self._complain_ms = 0
        self.heard: tuple[int, int] = (NO_NODE, 0)
        """The leader that answered the last fetch, and the time of the answer in ms."""
        self.unreached: set[int] = set()
        """The nodes that did not answer the last message to them."""
        self._taken_epoch = _NO_EPOCH
        """If the last response to a fetch named this node's id as the leader's, the epoch of that response."""
        self.places: dict[int, Place] = {}
        """The addresses of leaders, from responses of other nodes. A leader may be missing from the configuration."""

    def is_foreign(self, cluster_id: str | None) -> bool:
        """Whether a request is for another cluster."""
        return cluster_id not in (None, self._cluster_id)

    def place_of(self, node_id: int) -> Place | None:
        """The address of a node, if it is known."""
        # A broker registers its address at each start. A voter that is not a broker has its address in the voter set.
        found = self.registered_place_of(node_id) or self.raft.voters.voters.get(node_id)
        return Place(found.host, found.port) if found is not None and found.host else self.places.get(node_id)

    def registered_place_of(self, node_id: int) -> Place | None:
        """The address at which a registered broker receives requests as a controller, or else its first address."""
        broker = self.controller.image.brokers.get(node_id)
        found = broker and (broker.endpoint(self._listener) or broker)
        return None if found is None else Place(found.host, found.port)

    # After each event -------------------------------------------------------------------------------------------------

    def step(self, sends: list[Send] | None = None) -> None:
        """Send messages after an event. Then let the controller catch up, and retry waiting requests."""
        for send in sends or []:
            task = asyncio.create_task(self._send(send))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        try:
            self.controller.catch_up()
        except (StorageError, OSError) as error:
            # The controller could not write its first record, or apply committed records. The next tick ends the node.
            self._failure = self._failure or str(error)
        now = (self.raft.log.log_end_offset, self.raft.high_watermark)
        if now != self._seen:
            # Wake waiting fetches: there are more records to fetch, or more records are committed.
            self._seen = now
            self._waiting.wake(METADATA)
        # Requests that change the voters are retried after every event.
        self._waiting.wake(self.raft)
        self._waiting.settle()
        self._changed.set()
        self._on_leader_change()

    def _on_leader_change(self) -> None:
        """Cancel requests to a deposed leader: it may be paused, and never answer."""
        old, self._leader_id = self._leader_id, self.raft.leader_id
        if self._leader_id != old and old not in (NO_NODE, self.raft.me.node_id):
            self._peers.hang_up(old, "control", "clients")
        for task, (node_id, line) in self._asked.items():
            if node_id != (self.raft.target() if line == "metadata" else self._leader_id):
                task.cancel()

    async def ask(self, node_id: int, request: Request, *, line: Line = "control", timeout_ms: int) -> Any:
        """Send a request to the leader, or to a node that may know the leader.

        If the leader changes before the response arrives, the request is cancelled, and a `ClientError` is raised. So
        no caller keeps waiting for a deposed leader that is paused or unreachable.
        """
        task = asyncio.create_task(self._peers.send(node_id, request, line=line, timeout_ms=timeout_ms))
        self._asked[task] = (node_id, line)
        try:
            await asyncio.wait({task})
        finally:
            del self._asked[task]
            task.cancel()
        if task.cancelled():
            # A late response would delay the next request on this connection.
            self._peers.hang_up(node_id, line)
            raise BrokerUnavailable(f"the request to node {node_id} was cancelled: that node is no longer the leader")
        return task.result()

    async def resign(self) -> None:
        """Resign as the leader, and tell the other voters before this node stops."""
        self.step(self.raft.resign(monotonic_ms()))
        if self._sending:
            await asyncio.wait(self._sending, timeout=_GOODBYE_S)

    def step_soon(self) -> None:
        """Call `step` after the current callback, for a caller that is still computing a response."""
        asyncio.get_running_loop().call_soon(self.step)

    async def changed(self) -> None:
        """Return after the next event."""
        self._changed.clear()
        await self._changed.wait()

    async def _send(self, send: Send) -> None:
        request = request_of(send.message, self._cluster_id, sender=self.place_of(self.raft.me.node_id))
        try:
            response = await self._peers.send(send.node_id, request, line="quorum", timeout_ms=_TIMEOUT_MS)
        except ClientError:
            # The state machine sends the message again, if it is still needed.
            self.unreached.add(send.node_id)
            return
        self.unreached.discard(send.node_id)
        # If the disk fails here, `raft.failure` is set, and the next tick ends the node.
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
        """Start the task that ticks and the task that fetches."""
        self._begin(self._end_on_disk_failure(self._tick()))
        self._begin(self._end_on_disk_failure(self._fetch()))

    async def _end_on_disk_failure(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StorageError, OSError) as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> BrokerFailure:
        return BrokerFailure(
            f"node {self.raft.me.node_id} ends, because its metadata cannot be written: {why}. The other"
            " voters continue. Free some disk space or replace the disk, then start the node again"
        )

    async def _tick(self) -> None:
        due_ms = monotonic_ms()
        while True:
            now_ms = monotonic_ms()
            if now_ms - due_ms > _STUCK_MS:
                # The tick is late because many logs were opened, or because the process was paused. That is no reason
                # to stand for election.
                self.raft.on_late_tick(now_ms - due_ms)
            self.step(self.raft.tick(now_ms))
            if self.raft.is_leader:
                self.raft.bind_voters(timestamp=wall_clock_ms())
                self.step()
            failure = self.raft.failure or self._failure
            if failure is not None:
                # The last tick tells the other voters that this node has resigned.
                self.step(self.raft.tick(now_ms))
                raise self._broken(failure)
            self.snapshotting.write_if_due()
            self._log_refused(now_ms)
            pause_s = min(max(self.raft.next_deadline_ms - now_ms, 1) / 1000, _TICK_S_MAX)
            # If the work of this round took long, the next tick counts as late.
            due_ms = now_ms + round(pause_s * 1000)
            await asyncio.sleep(pause_s)

    def _log_refused(self, now_ms: int) -> None:
        """Log an epoch that was refused, once per `_COMPLAIN_MS` at most, because the sender may repeat it quickly."""
        refused, self.raft.refused = self.raft.refused, None
        if refused is not None and now_ms >= self._complain_ms:
            self._complain_ms = now_ms + _COMPLAIN_MS
            log.warning("%s", refused)

    async def _fetch(self) -> None:
        while True:
            if not await self._fetch_once():
                await asyncio.sleep(_RETRY_S)

    async def _fetch_once(self) -> bool:
        """Fetch once. Return whether to fetch again without a pause."""
        wanted = self.snapshotting.position()
        if wanted is not None:
            return await self._fetch_snapshot(wanted)
        position, target = self.raft.position(), self.raft.target()
        if position is None or target == self.raft.me.node_id:
            return False
        request = fetch_request(position, self._cluster_id, wait_ms=_FETCH_WAIT_MS, bytes_max=FETCH_BYTES_MAX)
        try:
            response = await self.ask(target, request, line="metadata", timeout_ms=_FETCH_WAIT_MS + _TIMEOUT_MS)
        except ClientError as error:
            log.debug("metadata: %s", error)
            self.raft.on_unanswered()
            return False
        self.places |= places_of(response)
        fetched = fetched_of(response)
        if fetched is None:
            self._note_foreign_node(target, response.error_code)
            self.raft.on_unanswered()
            return False
        self.foreign_nodes.discard(target)
        now_ms = monotonic_ms()
        if fetched.code is ErrorCode.NONE:
            self.heard = (target, now_ms)
        self.raft.on_fetched(position, fetched, now_ms)
        self._taken_epoch = fetched.epoch if fetched.leader_id == self.raft.me.node_id else _NO_EPOCH
        self.step()
        # After an error, or a response of another epoch, the next fetch may get the same response. So pause before it.
        return fetched.code is ErrorCode.NONE and fetched.epoch == self.raft.epoch

    @property
    def is_node_id_taken(self) -> bool:
        """Whether another process with this node's id leads this epoch, by the last response.

        If this node itself was elected in this epoch, the response means this node: its sender has not noticed yet that
        this node was restarted or has resigned.
        """
        return self._taken_epoch == self.raft.epoch and not self.raft.has_led

    def _note_foreign_node(self, node_id: int, code: int) -> None:
        """Note a node of another cluster. If a majority of the voters is in another cluster, this node must end."""
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.foreign_nodes.add(node_id)
        if len(self.foreign_nodes) >= self.raft.voters.majority:
            raise BrokerFailure(
                f"the data directory of node {self.raft.me.node_id} is of cluster {self._cluster_id}, but the nodes"
                f" {sorted(self.foreign_nodes)} of controller.quorum.voters are of another cluster: correct log.dirs"
                " or the voters"
            )

    async def _fetch_snapshot(self, wanted: FetchSnapshot) -> bool:
        """Fetch the next piece of a snapshot. Return whether to fetch again without a pause."""
        request = snapshot_request(wanted, self._cluster_id, bytes_max=SNAPSHOT_PIECE_BYTES)
        source = self.raft.target()
        try:
            response = await self.ask(source, request, line="metadata", timeout_ms=_FETCH_WAIT_MS + _TIMEOUT_MS)
        except ClientError as error:
            log.debug("snapshot: %s", error)
            return False
        self.places |= places_of(response)
        found = snapshot_fetched_of(response)
        if found is None or not self.snapshotting.take(wanted, source, found, monotonic_ms()):
            return False
        self.step()
        return True
