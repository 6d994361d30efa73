"""Sessions of nodes in the worlds of this chapter: the controller fences a silent node, and the node suspects it.

Chapter 04's controller gets chapter 05's sessions and commands. A node sends heartbeats; a controller that has heard
none for a session fences the node and elects other leaders. A node that was cut off or paused cannot know that, but it
knows when its last heartbeat was answered. So a coordinator that may have been replaced lets requests wait.
"""

from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from replication_cluster import Authority
from replication_cluster import Member as ReplicaMember

from minibroker.controller.fencing import FenceBroker
from minibroker.controller.lifecycle import BrokerState, Heartbeat
from minibroker.controller.reassignment import alter_moving_partitions
from minibroker.controller.sessions import Sessions
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest
from minibroker.simulation.links import Reply
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request

if TYPE_CHECKING:
    from groups_world import World

HEARTBEAT_MS = 300
SESSION_CHECK_MS = 100
NEVER_MS = -(2**62)
FENCED = "node fenced after its session"
SUSPECTS = "node suspects that it is fenced"
SESSION_STATES = (FENCED, SUSPECTS)


class Beat(NamedTuple):
    """A heartbeat of a node."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int

    def __str__(self) -> str:
        return f"heartbeat, metadata up to {self.metadata_offset}"


class Beaten(NamedTuple):
    """The answer to a heartbeat."""

    state: BrokerState

    def __str__(self) -> str:
        return self.state.code.name if self.state.code else "fenced" if self.state.is_fenced else "live"


@lru_cache
def heartbeat_request(broker_id: int) -> Request:
    """A heartbeat as the access table sees it."""
    return BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=0, current_metadata_offset=0, want_fence=False, want_shut_down=False
    )


class SessionAuthority(Authority):
    """Chapter 04's controller, which fences silent nodes as chapter 05's controller does."""

    world: "World"
    # It raises the partition epoch when it refuses a fenced replica, because a copy of the proposal may be on its way.
    alter_partitions = staticmethod(alter_moving_partitions)

    def start(self) -> None:
        if not self.process.is_alive:
            super().start()
            self.sessions = Sessions(self.world.session_ms)
            self.sessions.begin(self.image.brokers, self.world.scheduler.now_ms)
            self.process.after(SESSION_CHECK_MS, self._keep_sessions)

    def register(self, node_id: int, *, previous_broker_epoch: int = -1) -> int:
        self.sessions.touch(node_id, self.world.scheduler.now_ms)
        return super().register(node_id, previous_broker_epoch=previous_broker_epoch)

    def on_beat(self, beat: Beat, reply: Reply) -> None:
        """Renew a session, and unfence a node that has read that it was fenced."""
        state = self.voter.propose(Heartbeat(*beat)).result
        if state.code is ErrorCode.NONE:
            self.sessions.touch(beat.broker_id, self.world.scheduler.now_ms)
        reply(Beaten(state))

    def _keep_sessions(self) -> None:
        self.process.after(SESSION_CHECK_MS, self._keep_sessions)
        for broker_id in self.sessions.silent(self.image.live_brokers(), self.world.scheduler.now_ms):
            self.voter.propose(FenceBroker(broker_id))
            self.world.states.reach(FENCED)

    def live(self) -> list[int]:
        """The nodes that are up, registered in their current life, and not fenced."""
        return [it for it in super().live() if not self.is_fenced(it)]

    def is_fenced(self, node_id: int) -> bool:
        """Whether a node is fenced, whether it knows it or not."""
        return self.image.brokers[node_id].is_fenced


class SessionMember(ReplicaMember):
    """Chapter 04's node, which sends heartbeats."""

    world: "World"
    _heard_ms = NEVER_MS

    def open(self) -> None:
        self._heard_ms = NEVER_MS
        super().open()
        self.later(HEARTBEAT_MS, self._keep_session)

    def on_epoch(self, broker_epoch: int) -> None:
        super().on_epoch(broker_epoch)
        self._beat()

    def _keep_session(self) -> None:
        self.later(HEARTBEAT_MS, self._keep_session)
        if self.is_registered:
            self._beat()

    def _beat(self) -> None:
        authority, beat = self.world.authority, Beat(self.node_id, self.broker_epoch, self._news_offset)
        heard = partial(self._on_beaten, self.world.scheduler.now_ms)
        self.world.network.ask(self.process, authority.process, beat, partial(authority.on_beat, beat), heard)

    def _on_beaten(self, sent_ms: int, answer: Beaten) -> None:
        # The controller counts from the arrival of the heartbeat, which is later. So the session ends here first.
        if answer.state.code is ErrorCode.NONE and not answer.state.is_fenced:
            self._heard_ms = max(self._heard_ms, sent_ms)

    def may_be_fenced(self) -> bool:
        """Whether this node may be fenced without knowing it."""
        is_silent = self.world.scheduler.now_ms - self._heard_ms > self.world.session_ms
        if is_silent:
            self.world.states.reach(SUSPECTS)
        return is_silent
