"""What the active controller does as time passes: it fences silent brokers, and gives partitions their leaders back."""

import asyncio
import logging
from operator import is_

from minibroker.controller.balancing import LeaderBalance
from minibroker.controller.keys import (
    AUTO_LEADER_REBALANCE_ENABLE,
    BROKER_SESSION_TIMEOUT_MS,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
)
from minibroker.controller.lifecycle import FenceBroker, LeadUncleanly
from minibroker.controller.sessions import Sessions
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.authority import Proposal
from minibroker.metadata.configs import NodeConfig
from minibroker.quorum.authority import ClusterAuthority
from minibroker.quorum.running import Quorum
from minibroker.replication.authority import Elected

log = logging.getLogger(__name__)

_CHECK_S = 0.1


class Duties:
    """The duties of one node while it is the active controller."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.sessions = Sessions(BROKER_SESSION_TIMEOUT_MS.of(config))
        interval_ms = LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS.of(config) * 1000
        self._balance = LeaderBalance(interval_ms if AUTO_LEADER_REBALANCE_ENABLE.of(config) else None)

    def begin(self, authority: ClusterAuthority, quorum: Quorum) -> None:
        """This node has become the active controller: every broker gets a new session."""
        now_ms = monotonic_ms()
        before, before_ms = quorum.heard
        self.sessions.begin(authority.image.brokers, now_ms, before=before, before_ms=before_ms)
        self._balance.begin(now_ms)

    async def run(self, authority: ClusterAuthority, quorum: Quorum) -> None:
        """Look again and again, for as long as the node runs; do something only while it is active."""
        checked_ms = monotonic_ms()
        unclean = _UncleanElections(authority, self._config)
        while True:
            await asyncio.sleep(_CHECK_S)
            now_ms = monotonic_ms()
            if now_ms - checked_ms > self.sessions.session_ms / 2:
                # This node was stuck itself. What it did not hear meanwhile, others may have said.
                self.sessions.begin(authority.image.brokers, now_ms)
            checked_ms = now_ms
            if authority.is_active:
                self._fence_silent(authority, now_ms)
                self._rebalance(authority, now_ms)
                unclean.look()
                quorum.step()
            else:
                unclean.forget()

    def _fence_silent(self, authority: ClusterAuthority, now_ms: int) -> None:
        for broker_id in self.sessions.silent(authority.image.live_brokers(), now_ms):
            fenced = authority.propose(FenceBroker(broker_id))
            if not fenced.is_done or fenced.result:
                log.warning("node %d has been silent for %d ms: fenced", broker_id, self.sessions.session_ms)

    def _rebalance(self, authority: ClusterAuthority, now_ms: int) -> None:
        balance = self._balance.tick(authority.image, now_ms)
        if balance is not None:
            log.info("partitions go back to their preferred leaders")
            authority.propose(balance)


class _UncleanElections:
    """Elects a leader where a topic says that any leader is better than none, while this node is active."""

    def __init__(self, authority: ClusterAuthority, config: NodeConfig) -> None:
        self._authority = authority
        self._config = config
        self._seen: tuple[object, ...] = ()
        self._proposal: Proposal[list[Elected]] | None = None

    def look(self) -> None:
        """Elect, if anything has changed that could make a difference; say what came of the last time."""
        if self._proposal is not None and self._proposal.is_done:
            for it in self._proposal.result:
                log.warning("node %d leads %s, and was not in sync: records are lost", it.leader, it.name.directory)
            self._proposal = None
        # To look at every partition costs time, and only live brokers and configurations make a difference.
        image = self._authority.image
        now = (image.brokers, image.configs)
        if self._proposal is None and not all(map(is_, now, self._seen or (None, None))):
            self._seen = now
            self._proposal = self._authority.propose(LeadUncleanly(self._config))

    def forget(self) -> None:
        """Another node is active: this one has not seen what that one sees."""
        self._seen = ()
