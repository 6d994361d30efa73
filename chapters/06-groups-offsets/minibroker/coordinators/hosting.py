"""The coordinators of one kind on a node: one for each partition of their topic that the node leads.

Replication calls `Coordinators` when this node begins to lead a partition, and when it stops leading. `Coordinators`
runs one timer for all coordinators, and passes every change of the metadata to them. `GroupCoordinators` and
`TransactionCoordinators` add the shards and the handlers.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from minibroker.coordinators.coordinator import Coordinator, Event
from minibroker.coordinators.sharding import LogSettings, StateShard
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.tickets import Ticket, tell
from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.metadata.image import Image
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.machine import Machine
from minibroker.partitions.store import Store
from minibroker.replicas.membership import Membership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

log = logging.getLogger(__name__)

S = TypeVar("S", bound=StateShard)
_SUSPENDED_S = 0.5


class Coordinators(ABC, Generic[S]):
    """All coordinators of one kind on a node."""

    topic: StateTopic
    _store: Store

    def __init__(self, machine: Machine, cluster: Membership, *, may_be_fenced: Callable[[], bool]) -> None:
        """`may_be_fenced` says whether this node may be fenced without knowing it, so that other nodes lead by now."""
        self._machine = machine
        self._may_be_fenced = may_be_fenced
        self._cluster = cluster
        self.waiting = machine.waiting
        self.turn = asyncio.Lock()
        self._coordinators: dict[TopicPartition, Coordinator[S]] = {}
        # The system clock is read only once, so that setting it does not end time limits.
        self._start_ms = wall_clock_ms() - monotonic_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._suspended: list[Ticket] = []
        """The requests that came while this node might have been fenced."""

    @abstractmethod
    def settings(self) -> LogSettings:
        """The configuration of the broker."""

    @abstractmethod
    def new_shard(self) -> S:
        """An empty shard with the current metadata."""

    def coordinators(self) -> list[Coordinator[S]]:
        """The coordinators that run now."""
        return list(self._coordinators.values())

    # A part of the node -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Subscribe to changes of the metadata."""
        self._cluster.authority.subscribe(self._on_image)

    def start(self) -> None:
        """Watch the session of the node. Coordinators start as soon as the node leads their partitions."""
        self._machine.begin(self._watch_session())

    async def stop(self) -> None:
        """Stop all coordinators and the timer."""
        await self.topic.stop()
        for name in list(self._coordinators):
            self.on_resigned(name)
        if self._timer is not None:
            self._timer.cancel()

    # Leadership -------------------------------------------------------------------------------------------------------

    def on_leader(self, partition: TopicPartition, epoch: int) -> None:
        """This node leads a partition. If the node also led it in the previous epoch, the coordinator is kept."""
        del epoch
        if partition.topic == self.topic.name and partition not in self._coordinators:
            self._coordinators[partition] = self._new_coordinator(partition)

    def _new_coordinator(self, partition: TopicPartition) -> Coordinator[S]:
        return Coordinator(self._store.partition(*partition), self)

    def on_resigned(self, partition: TopicPartition) -> None:
        """This node has stopped leading a partition."""
        coordinator = self._coordinators.pop(partition, None)
        if coordinator is not None:
            coordinator.resign()
            asyncio.get_running_loop().call_soon(self.waiting.settle)

    # Requests ---------------------------------------------------------------------------------------------------------

    def pass_on(self, key: str, ticket: Ticket, event: Event[S], *, may_wait: bool = True) -> None:
        """Pass a request to the coordinator of its group or transactional id, if it is here."""
        name = self.topic.partition_of(key)
        self.pass_to(name, ticket, event, may_wait=may_wait)

    def pass_to(self, name: TopicPartition | None, ticket: Ticket, event: Event[S], *, may_wait: bool = True) -> None:
        """Pass a request to the coordinator of a partition, if it is here."""
        coordinator = None if name is None else self._coordinators.get(name)
        if coordinator is not None and not self._may_be_fenced():
            coordinator.handle(ticket, event, may_wait=may_wait)
        elif coordinator is not None and may_wait:
            # This coordinator may have been deposed without knowing it, and its state may be out of date. So the
            # request waits.
            self._suspended.append(ticket)
        else:
            ticket.complete(ErrorCode.NOT_COORDINATOR)

    async def _watch_session(self) -> None:
        """While other nodes may be the coordinators, refuse all waiting requests from time to time.

        A node that is cut off replicates nothing, and the other members of a group do not reach it. Without a refusal,
        a commit would wait here for seconds, and a join for minutes. Requests are not refused at once, because for a
        moment the other nodes still name this node as the coordinator. Clients would come back immediately, and
        librdkafka gives up a commit after six attempts.
        """
        while True:
            await asyncio.sleep(_SUSPENDED_S)
            suspended, self._suspended = self._suspended, []
            for ticket in suspended:
                tell(self.waiting, ticket, ErrorCode.NOT_COORDINATOR)
            if self._may_be_fenced():
                for coordinator in self._coordinators.values():
                    coordinator.refuse_waiting(ErrorCode.NOT_COORDINATOR)
            self.waiting.settle()

    # The metadata -----------------------------------------------------------------------------------------------------

    @property
    def _image(self) -> Image:
        return self._cluster.authority.image

    def _on_image(self, old: Image, new: Image) -> None:
        if new.topics is not old.topics or new.configs is not old.configs:
            for coordinator in self._coordinators.values():
                coordinator.on_image(old, new)

    # The surroundings of a coordinator --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The time of day when this node started, plus the time since then."""
        return self._start_ms + monotonic_ms()

    def wall_clock_ms(self) -> int:
        """The time of day."""
        return wall_clock_ms()

    def soon(self, work: Callable[[], None]) -> None:
        """Call a function in the next pass of the event loop."""
        asyncio.get_running_loop().call_soon(self._run, work)

    def _run(self, work: Callable[[], None]) -> None:
        """Run a function outside of a request. After an error the state is unknown, so the node ends."""
        try:
            work()
        except Exception as error:
            log.exception("a coordinator has failed because of a bug")
            self._machine.fail(BrokerFailure(f"node {self._machine.config.node_id} ends because of a bug: {error!r}"))

    def on_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a task of a coordinator has ended. If it failed, the node ends."""
        self._machine.on_ended(task)

    # The timer --------------------------------------------------------------------------------------------------------

    def on_deadline(self, deadline_ms: int | None) -> None:
        """Set the timer to `deadline_ms`, unless it is set to an earlier time."""
        if deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self.now_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._run, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_ms = None
        now_ms = self.now_ms()
        coordinators = list(self._coordinators.values())
        for coordinator in coordinators:
            deadline_ms = coordinator.deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                coordinator.on_time(now_ms)
        deadlines = [coordinator.deadline_ms() for coordinator in coordinators]
        self.on_deadline(min((it for it in deadlines if it is not None), default=None))
        self.waiting.settle()
