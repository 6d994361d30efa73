"""How a node asks the controller while elections come and go, and what it says while there is none to ask."""

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
from minibroker.raft.election import NOBODY
from minibroker.raft.roles import Role
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

_ASK_MS = 3000
_RETRY_S = 0.05
_TELL_MS = 2000
_SESSIONS_MAX = 3


class Patience:
    """How long a node tolerates another process with its node.id. It says so at once, and then that it ends."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._since_ms: int | None = None

    def spend(self, what: str) -> None:
        """It is still so; raises when it has lasted for too long."""
        if self._since_ms is None:
            self._since_ms = monotonic_ms()
            log.warning("%s: waiting for %d ms at most, in case that it is gone", what, self._ms)
        if monotonic_ms() - self._since_ms > self._ms:
            raise BrokerFailure(f"{what}: this one ends. Give it another node.id, or stop the other one first")

    def restore(self) -> None:
        """It is not so any more."""
        self._since_ms = None


class ControllerCalls:
    """Asks the leader of the quorum, whichever node that is by then."""

    def __init__(self, machine: Machine, quorum: Quorum, is_reachable: Callable[[int], bool]) -> None:
        self._machine = machine
        self._quorum = quorum
        self._raft = quorum.raft
        self._is_reachable = is_reachable

    async def ask(self, request: Any) -> Any:
        """Ask for as long as it takes: the leader may change, and there may be none for a while."""
        waiting = self._waiting_for_a_majority()
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
            # A node that was started again remembers the last leader, and may wait for that one in vain.
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    async def await_leader(self) -> None:
        """Return when a leader has answered, or this node is the leader. One that is only remembered does not count."""
        waiting = self._waiting_for_a_majority()
        while not self._raft.is_leader and self._quorum.heard[0] == NOBODY:
            self._raise_if_failed()
            next(waiting)
            await asyncio.sleep(_RETRY_S)

    def patience(self) -> Patience:
        """Enough for a session of another process to end, and for one more if the controller changes meanwhile."""
        return Patience(_SESSIONS_MAX * BROKER_SESSION_TIMEOUT_MS.of(self._machine.config))

    def _raise_if_failed(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure

    def _waiting_for_a_majority(self) -> Iterator[None]:
        """To be resumed again and again while there is no leader: logs that, after a moment, and every change."""
        told, told_ms = "", monotonic_ms()
        patience, node_id = self.patience(), self._raft.me.node_id
        while True:
            yield
            if self._quorum.is_doubled:
                patience.spend(f"node {node_id} leads the voters {list(self._raft.voters)}, and is not this one")
                continue
            patience.restore()
            if monotonic_ms() - told_ms >= _TELL_MS and told != (now := self._awaited()):
                log.warning("waiting %s", now)
                told, told_ms = now, monotonic_ms()

    def _awaited(self) -> str:
        raft = self._raft
        if raft.role is Role.FOLLOWER and not raft.is_voter:
            # An observer has no say in the election.
            lost = "" if self._is_reachable(raft.leader_id) else ", and nobody has said where it is"
            return f"for node {raft.leader_id}, which led when this node last heard of it{lost}"
        voters = list(raft.voters)
        # A voter that has nothing needs every vote: see `Raft`.
        needs_all = raft.log.log_end_offset == 0 and raft.me.node_id in voters
        what = (
            f"for all voters {voters}: a new cluster begins when each of them is up"
            if needs_all
            else f"until a majority of the voters {voters} is there"
        )
        missed, strangers = sorted(self._quorum.unreached & set(voters)), sorted(self._quorum.strangers)
        if missed:
            what += f"; no answer from {missed}"
        if strangers:
            what += (
                f"; {strangers} are of another cluster, which has begun without this node. If that is the one to join, "
                f"name only {strangers} in controller.quorum.voters, start this one with an empty directory, and then "
                "let it vote with `minibroker cluster add-voter`"
            )
        return what
