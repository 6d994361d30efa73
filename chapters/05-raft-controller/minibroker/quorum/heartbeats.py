"""The heartbeats of a broker, which renew its session, unfence it, and ask for a controlled shutdown."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from minibroker.client.errors import known_code
from minibroker.controller.keys import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.log.clock import monotonic_ms
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.errors import Disconnect
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.lasting import LastingFailure

log = logging.getLogger(__name__)

_RETRY_S = 0.05
_LEAVE_MS_MAX = 10_000
_ALONE_MS_MAX = 1000

Ask = Callable[[BrokerHeartbeatRequest], Awaitable[BrokerHeartbeatResponse]]
"""Sends a heartbeat to the controller, and waits for the answer, even if there is no controller yet."""


class Heartbeats:
    """One broker's side of its session with the controller."""

    def __init__(
        self,
        config: NodeConfig,
        me: Incarnation,
        ask: Ask,
        image: Callable[[], Image],
        is_active: Callable[[], bool],
    ) -> None:
        """`is_active` says whether this node is the controller now."""
        self._config = config
        self._me = me
        self._ask = ask
        self._image = image
        self._is_active = is_active
        self._heard_ms = 0
        """When this node sent the last heartbeat to another node whose answer said that this broker is not fenced."""
        self._is_fenced = True
        """Whether this broker was fenced when the controller last answered."""
        self._trouble = LastingFailure(log)
        self.unfenced = asyncio.Event()
        """Set once the controller lets this broker serve clients."""
        self._leaving = asyncio.Event()
        self._may_leave = asyncio.Event()

    async def run(self) -> None:
        """Send heartbeats for as long as the node runs."""
        interval_s = BROKER_HEARTBEAT_INTERVAL_MS.of(self._config) / 1000
        while True:
            await self._beat()
            if self._leaving.is_set() or self._is_fenced:
                # The controller waits until this broker may stop, or this broker waits until it is unfenced: be quick.
                await asyncio.sleep(_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), interval_s)

    async def _beat(self) -> None:
        sent_ms, was_active = monotonic_ms(), self._is_active()
        request = BrokerHeartbeatRequest(
            broker_id=self._me.node_id,
            broker_epoch=self._me.broker_epoch,
            current_metadata_offset=self._image().offset,
            want_fence=False,
            want_shut_down=self._leaving.is_set(),
            offline_log_dirs=[],
        )
        response = await self._ask(request)
        if response.error_code:
            # A controller that was just elected may not know the registration yet.
            code = known_code(response.error_code)
            self._trouble.note("the controller refuses the heartbeats of node %d: %s", self._me.node_id, code.name)
        elif not (response.is_fenced or was_active or self._is_active()):
            # A deposed controller may accept its own heartbeats for a while. So only those to another node count.
            self._heard_ms = sent_ms
        if not response.error_code:
            self._trouble.end()
            self._is_fenced = response.is_fenced
        if response.should_shut_down:
            self._may_leave.set()
        elif not response.error_code and not response.is_fenced:
            self.unfenced.set()

    def check_heard(self) -> None:
        """Disconnect a client if another node may lead by now, and this node does not know it yet.

        A client whose write has timed out retries it on the same node, for minutes, and a consumer whose offset is out
        of range may begin again at the log's start. After a disconnect they ask another node for the leader.
        """
        if self.may_be_fenced():
            silent_ms = monotonic_ms() - self._heard_ms
            raise Disconnect(f"the controller has not heard from this node for {silent_ms} ms: another node may lead")

    def may_be_fenced(self) -> bool:
        """Whether this broker may be fenced without knowing it, so that other brokers lead its partitions.

        The controller counts a session from the arrival of a heartbeat. This node counts from its sending, which is
        earlier, so the session ends here first. An active controller needs no heartbeat: it resigns before another
        controller can fence it.
        """
        is_silent = monotonic_ms() - self._heard_ms > BROKER_SESSION_TIMEOUT_MS.of(self._config)
        return is_silent and not self._is_active()

    def request_shutdown(self) -> None:
        """Ask the controller, with the next heartbeat, to move the leaderships of this broker."""
        self._leaving.set()

    async def may_stop(self, is_led: Callable[[], bool]) -> bool:
        """Wait until other brokers lead the partitions of this one.

        Return False after 10 s, or after 1 s without a leader of the quorum.
        """
        begun_ms = led_ms = monotonic_ms()
        while not self._may_leave.is_set():
            now_ms = monotonic_ms()
            if is_led():
                led_ms = now_ms
            if now_ms - begun_ms > _LEAVE_MS_MAX or now_ms - led_ms > _ALONE_MS_MAX:
                return False
            await asyncio.sleep(_RETRY_S)
        return True
