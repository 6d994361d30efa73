"""The periodic work of the active controller: it fences silent brokers, and elects preferred leaders."""

import asyncio
import logging
from operator import is_

from minibroker.controller.balancing import LeaderBalance
from minibroker.controller.fencing import FenceBroker, LeadUncleanly, leaderless
from minibroker.controller.keys import (
    AUTO_LEADER_REBALANCE_ENABLE,
    BROKER_SESSION_TIMEOUT_MS,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
)
from minibroker.controller.sessions import Sessions
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.authority import Proposal
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.quorum.authority import ClusterAuthority
from minibroker.quorum.running import Quorum
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.recovering import Recovery
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Elected
from minibroker.replication.keys import UNCLEAN_LEADER_ELECTION_ENABLE
from minibroker.segments.checkpoint import TopicPartition

log = logging.getLogger(__name__)

_CHECK_MS = 100


class Duties:
    """The duties of one node while it is the active controller."""

    def __init__(self, config: NodeConfig, me: Incarnation) -> None:
        self._config = config
        self._me = me
        self.sessions = Sessions(BROKER_SESSION_TIMEOUT_MS.of(config))
        interval_ms = LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS.of(config) * 1000
        self._balance = LeaderBalance(interval_ms if AUTO_LEADER_REBALANCE_ENABLE.of(config) else None)

    def begin(self, authority: ClusterAuthority, quorum: Quorum) -> None:
        """This node has become the active controller: every broker gets a new session."""
        now_ms = monotonic_ms()
        previous, heard_ms = quorum.heard
        self.sessions.begin(authority.image.brokers, now_ms, previous=previous, previous_heard_ms=heard_ms)
        self._balance.begin(now_ms)

    async def run(self, authority: ClusterAuthority, quorum: Quorum, recovery: Recovery) -> None:
        """Do the periodic work for as long as the node runs, but only while it is the active controller."""
        checked_ms = monotonic_ms()
        unclean = _UncleanElections(authority, self._config, recovery)
        while True:
            await asyncio.sleep(self._pause_ms(authority.image, monotonic_ms()) / 1000)
            now_ms = monotonic_ms()
            if now_ms - checked_ms > self.sessions.session_ms / 2:
                # This process was paused, and heartbeats that arrived in that time may still be unread. So all sessions
                # begin again.
                self.sessions.begin(authority.image.brokers, now_ms)
            checked_ms = now_ms
            if authority.is_active:
                self.fence_silent(authority, now_ms)
                self._rebalance(authority, now_ms)
                unclean.look()
                quorum.step()
            else:
                unclean.forget()

    def _pause_ms(self, image: Image, now_ms: int) -> int:
        """The time until the next check. It is shorter if a session ends sooner: writes wait for the new leader."""
        end_ms = self.sessions.next_end_ms(image.live_brokers(), now_ms)
        return _CHECK_MS if end_ms is None else min(end_ms, _CHECK_MS)

    def fence_silent(self, authority: ClusterAuthority, now_ms: int) -> None:
        """Fence the brokers whose sessions have expired."""
        own = authority.image.brokers.get(self._me.node_id)
        if own is not None and own.epoch == self._me.broker_epoch:
            # The broker of this process is alive. If this process is busy, its own heartbeats are late, too.
            self.sessions.touch(own.node_id, now_ms)
        for broker_id in self.sessions.silent(authority.image.live_brokers(), now_ms):
            fenced = authority.propose(FenceBroker(broker_id))
            if not fenced.is_done or fenced.result:
                log.warning("node %d is fenced: no heartbeat for %d ms", broker_id, self.sessions.session_ms)

    def _rebalance(self, authority: ClusterAuthority, now_ms: int) -> None:
        balance = self._balance.tick(authority.image, now_ms)
        if balance is not None:
            log.info("electing the preferred leaders of partitions")
            authority.propose(balance)


class _UncleanElections:
    """Elects leaders that are not in sync, for leaderless partitions with `unclean.leader.election.enable`."""

    def __init__(self, authority: ClusterAuthority, config: NodeConfig, recovery: Recovery) -> None:
        self._authority = authority
        self._config = config
        self._recovery = recovery
        self._asking: asyncio.Task[LogEnds] | None = None
        self._seen: tuple[object, ...] = ()
        self._proposal: Proposal[list[Elected]] | None = None

    def look(self) -> None:
        """Log the result of the last election. Propose another one if a broker or a configuration has changed."""
        if self._proposal is not None and self._proposal.is_done:
            for it in self._proposal.result:
                end = "" if it.end is None else f" Of the live replicas it had the longest log, up to {it.end.offset}"
                log.warning(
                    "node %d leads %s after an unclean election: it was not in sync, so records may be lost.%s",
                    it.leader,
                    it.name.directory,
                    end,
                )
            self._proposal = None
        if self._asking is not None and self._asking.done():
            ends, self._asking = self._asking.result(), None
            self._proposal = self._authority.propose(LeadUncleanly(self._config, ends))
        # Looking at every partition costs time, and the result depends only on the brokers and configurations. So look
        # again only if one of them has changed.
        image = self._authority.image
        now = (image.brokers, image.configs)
        is_idle = self._proposal is None and self._asking is None
        if is_idle and not all(map(is_, now, self._seen or (None, None))):
            self._seen = now
            self._asking = asyncio.create_task(self._recovery.log_ends(self._allowed(image)))

    def _allowed(self, image: Image) -> list[TopicPartition]:
        """The leaderless partitions that may have an unclean election."""
        node = self._config.with_dynamic(image.configs)
        configs = {name: TopicConfig.of(image.configs, name, node) for name in {it.topic for it in leaderless(image)}}
        return [it for it in leaderless(image) if UNCLEAN_LEADER_ELECTION_ENABLE.of(configs[it.topic])]

    def forget(self) -> None:
        """Forget the last check, because this node is no longer the active controller."""
        self._seen = ()
        self._asking = None
