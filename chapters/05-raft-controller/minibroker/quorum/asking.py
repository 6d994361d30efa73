"""Sends requests to the controller, retries them during elections, and logs which nodes it waits for."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from minibroker.client.errors import ClientError
from minibroker.controller.keys import BROKER_SESSION_TIMEOUT_MS
from minibroker.log.clock import monotonic_ms
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.machine import Machine
from minibroker.quorum.running import Quorum
from minibroker.raft.election import NO_NODE
from minibroker.raft.roles import Role
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

_ASK_MS = 3000
_RETRY_S = 0.05
_TELL_MS = 2000
_SESSIONS_MAX = 3
_STEP_MS_MAX = 200


class NodeIdConflict:
    """Another process has this node's node.id. It may have stopped, so this node waits, and ends if the conflict lasts.

    Time in which this process was paused, or got no CPU, does not count: the other nodes may be as busy, and elect no
    leader meanwhile.
    """

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._lasted_ms = 0
        self._seen_ms: int | None = None

    def tolerate(self, what: str) -> None:
        """Note that the conflict still exists. Raises a `BrokerFailure` when it has lasted for too long."""
        now_ms = monotonic_ms()
        if self._seen_ms is None:
            log.warning("%s: this node waits for %d ms at most, in case the other process has stopped", what, self._ms)
        else:
            self._lasted_ms += min(now_ms - self._seen_ms, _STEP_MS_MAX)
        self._seen_ms = now_ms
        if self._lasted_ms > self._ms:
            raise BrokerFailure(f"{what}: this node ends. Give it another node.id, or stop the other process first")

    def clear(self) -> None:
        """Note that the conflict is over."""
        self._seen_ms, self._lasted_ms = None, 0


class ControllerCalls:
    """Sends requests to the current leader of the quorum."""

    def __init__(self, machine: Machine, quorum: Quorum, is_reachable: Callable[[int], bool]) -> None:
        self._machine = machine
        self._quorum = quorum
        self._raft = quorum.raft
        self._is_reachable = is_reachable

    async def ask(self, request: Any) -> Any:
        """Send a request, again and again, until the current leader answers it."""
        waiting = self._log_while_waiting()
        while True:
            self._raise_if_failed()
            leader_id = self._raft.leader_id
            if leader_id < 0:
                next(waiting)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                response = await self._quorum.ask(leader_id, request, timeout_ms=_ASK_MS)
                if response.error_code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
                    return response
            except ClientError as error:
                log.debug("node %d: %s", leader_id, error)
            # A restarted node reads the last leader from its disk, and that leader may never answer. So this wait is
            # logged, too.
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    async def await_leader(self) -> None:
        """Return when a leader has answered, or this node leads. A leader read from the disk must answer first."""
        waiting = self._log_while_waiting()
        while not self._raft.is_leader and self._quorum.heard[0] == NO_NODE:
            self._raise_if_failed()
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    def node_id_conflict(self) -> NodeIdConflict:
        """A conflict that is tolerated for three sessions. By then the session of a stopped process has expired."""
        return NodeIdConflict(_SESSIONS_MAX * BROKER_SESSION_TIMEOUT_MS.of(self._machine.config))

    def _raise_if_failed(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure

    def _log_while_waiting(self) -> Iterator[None]:
        """A generator, resumed at each retry while there is no leader. It logs which nodes this node waits for."""
        told, told_ms = "", monotonic_ms()
        conflict, node_id = self.node_id_conflict(), self._raft.me.node_id
        while True:
            yield
            if self._quorum.is_node_id_taken:
                conflict.tolerate(f"another process with node.id {node_id} leads the voters {list(self._raft.voters)}")
                continue
            conflict.clear()
            if monotonic_ms() - told_ms >= _TELL_MS and told != (now := self._what_is_awaited()):
                log.warning("waiting %s", now)
                told, told_ms = now, monotonic_ms()

    def _what_is_awaited(self) -> str:
        raft = self._raft
        if raft.role is Role.FOLLOWER and not raft.is_voter:
            # An observer does not take part in elections, so it waits for the leader that it knows.
            lost = "" if self._is_reachable(raft.leader_id) else ", and its address is not known"
            return f"for node {raft.leader_id}, which was the leader when this node last knew one{lost}"
        voters = list(raft.voters)
        # A voter with an empty log needs every vote: see `votes_needed`.
        needs_all = raft.log.log_end_offset == 0 and raft.me.node_id in voters
        what = (
            f"for all voters {voters}: a new cluster begins when each of them is up"
            if needs_all
            else f"until a majority of the voters {voters} is up"
        )
        missed, foreign_nodes = sorted(self._quorum.unreached & set(voters)), sorted(self._quorum.foreign_nodes)
        if missed:
            what += f"; no answer from {missed}"
        if foreign_nodes:
            what += (
                f"; nodes {foreign_nodes} are of another cluster, which has begun without this node. To join that"
                f" cluster, name only {foreign_nodes} in controller.quorum.voters, start this node with an empty data"
                " directory, and then make it a voter with `minibroker cluster add-voter`"
            )
        return what
