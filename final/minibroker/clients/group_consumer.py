"""The consumer as a member of a group: the coordinator chooses its partitions, and keeps the offsets that it commits.

A second thread runs the dialogue of the `Member`, so that heartbeats are sent while the application works. Everything
else happens in `poll`: it releases and takes partitions, calls the application's callbacks, and returns batches. So a
partition is never revoked while the application works on its records, unless the group has removed this member.

With auto-commit, the offsets after all records that `poll` has returned are committed in a later `poll`, before
partitions are released, and in `close`. So the application must be done with its records when it calls `poll` or
`close`.
"""

import contextlib
import enum
import logging
import selectors
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from minibroker.client.errors import ClientClosed, ClientError, RequestTimedOut, UnsupportedByBroker
from minibroker.client.reasons import unanswered
from minibroker.clients.blocking import Client, Closing, Link
from minibroker.clients.consumer import READ_UNCOMMITTED, Consumer, OffsetReset
from minibroker.clients.coordination import GroupCoordinator, Signature
from minibroker.clients.core import Ask, Dialogue, Pause
from minibroker.clients.errors import CommitRefused, InvalidSetting
from minibroker.clients.fetched import FetchedBatches
from minibroker.clients.membership import ClassicMember, ConsumerMember, Member, MemberConfig, Partitions
from minibroker.clients.waking import Waker
from minibroker.groups.tables.join_group import NO_GENERATION
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode

__all__ = ["GroupConsumer", "GroupProtocol", "OffsetReset"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[list[TopicPartition]], None]
_OWN_MEMBER_ID_FROM = 1  # the first version of ConsumerGroupHeartbeat in which the client makes the member id
_LEAVE_MS_MAX = 5_000  # how long `close` waits for the coordinator
_AUTO_COMMIT_MS_MAX = 1_000  # how long `poll` waits for a commit that will be tried again


class GroupProtocol(enum.Enum):
    """Kafka's `group.protocol`."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


def newest_protocol(client: Client) -> GroupProtocol:
    """The new protocol if the brokers have it, or else the classic one."""
    try:
        version = client.any_link().version_of(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    except UnsupportedByBroker:
        return GroupProtocol.CLASSIC
    return GroupProtocol.CONSUMER if version >= _OWN_MEMBER_ID_FROM else GroupProtocol.CLASSIC


def _ignore(_partitions: list[TopicPartition]) -> None:
    """The default callback: do nothing when partitions are assigned, revoked or lost."""


class GroupConsumer(Closing):
    """Reads topics as a member of a group. It is for one thread, and has its own connections.

    `on_assigned` is called with new partitions. `on_revoked` is called before partitions are released, while their
    offsets can still be committed. `on_lost` is called if the group has removed this member. Then offsets can no longer
    be committed.
    """

    def __init__(
        self,
        client: Client,
        config: MemberConfig,
        *,
        protocol: GroupProtocol | None = None,
        offset_reset: OffsetReset = OffsetReset.LATEST,
        on_assigned: Listener = _ignore,
        on_revoked: Listener = _ignore,
        on_lost: Listener = _ignore,
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: int = READ_UNCOMMITTED,
        max_wait_ms: int = 500,
    ) -> None:
        if auto_commit_interval_ms < 0:
            raise InvalidSetting(f"auto_commit_interval_ms={auto_commit_interval_ms} is negative")
        self._listeners = on_assigned, on_revoked, on_lost
        self._client = client.sibling()
        self._coordinator = GroupCoordinator(self._client.core, config.group_id)
        self._consumer = Consumer(
            client, offset_reset=offset_reset, isolation_level=isolation_level, max_wait_ms=max_wait_ms
        )
        self._committed: dict[TopicPartition, int] = {}
        self._is_auto_commit = enable_auto_commit
        self._auto_commit_interval_ms = auto_commit_interval_ms
        self._auto_commit_at_ms = precise_ms() + auto_commit_interval_ms
        self.protocol = protocol or newest_protocol(self._client)
        self._membership = _Membership(client.sibling(), config, self.protocol, self._consumer.wake_up)
        self._membership.start()

    def close(self) -> None:
        """Leave the group, and close every connection. With auto-commit, commit first."""
        self._auto_commit(_LEAVE_MS_MAX)
        self._membership.close()
        self._consumer.close()
        self._client.close()

    @property
    def group_id(self) -> str:
        """The name of the group."""
        return self._coordinator.group_id

    @property
    def member_id(self) -> str:
        """The name of this member in the group; empty until it has one."""
        return self._membership.call(lambda it: it.member_id)

    @property
    def signature(self) -> Signature:
        """The member and its epoch, for offsets that a transactional producer commits."""
        return self._membership.call(lambda it: it.signature)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return sorted(self._consumer.assignment)

    # Reading ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 1000) -> list[FetchedBatches]:
        """Wait for batches, at most this long; the list is empty if none arrived.

        Call it again within `max_poll_interval_ms`, even if nothing arrives, or the member leaves the group.
        """
        deadline_ms = precise_ms() + timeout_ms
        self._membership.on_poll()
        if precise_ms() >= self._auto_commit_at_ms:
            self._auto_commit(_AUTO_COMMIT_MS_MAX)
        while True:
            self._follow()
            fetched = self._consumer.poll(max(0.0, deadline_ms - precise_ms()))
            if fetched or precise_ms() >= deadline_ms:
                return fetched

    def _follow(self) -> None:
        """Release and take partitions, as the coordinator has assigned them."""
        on_assigned, on_revoked, on_lost = self._listeners
        change = self._membership.call(_change_or_raise)
        if change is None:
            return
        if change.revoked:
            if not change.is_lost:
                self._auto_commit(_LEAVE_MS_MAX)
            (on_lost if change.is_lost else on_revoked)(sorted(change.revoked))
            self._assign(set(self._consumer.assignment) - change.revoked, {})
            self._membership.release(change.revoked)
        if change.added:
            starts = self._client.run(self._coordinator.committed(change.added))
            taken = self._membership.acquire(change.added)
            offsets = {it: offset for it, offset in starts.items() if it in taken}
            self._assign({*self._consumer.assignment, *taken}, offsets)
            self._committed |= offsets
            on_assigned(sorted(taken))

    def _assign(self, partitions: set[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(sorted(partitions), offsets)
        self._committed = {it: offset for it, offset in self._committed.items() if it in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at another offset, at EARLIEST or at LATEST."""
        self._consumer.seek(partition, offset)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record, looked up if necessary."""
        return self._consumer.position(partition)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._consumer.beginning_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition, the offset after the last record that this consumer may read."""
        return self._consumer.end_offsets(partitions)

    # Offsets ----------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the offsets to read next; by default, those after the batches that `poll` has returned."""
        self._commit(self._positions() if offsets is None else offsets)

    def _auto_commit(self, timeout_ms: float) -> None:
        """Commit the positions, if auto-commit is enabled. A failure is only logged: a later commit covers it."""
        if not self._is_auto_commit:
            return
        self._auto_commit_at_ms = precise_ms() + self._auto_commit_interval_ms
        try:
            self._commit(self._positions(), timeout_ms)
        except ClientError as error:
            log.warning("group %s: auto-commit failed: %s", self.group_id, error)

    def _commit(self, offsets: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> None:
        changed = {it: offset for it, offset in offsets.items() if self._committed.get(it) != offset}
        attempts = self._client.core.attempts(timeout_ms)
        while changed:
            signature = self._membership.call(lambda it: it.signature)
            if signature.epoch == NO_GENERATION:
                # A group without members accepts a commit without a generation, because such a commit comes from an
                # administrator. So this consumer, which is not a member now, must not send one.
                raise CommitRefused(ErrorCode.UNKNOWN_MEMBER_ID, self.group_id, sorted(changed))
            left_ms = attempts.left_ms(precise_ms())
            refused = self._client.run(self._coordinator.commit(changed, signature, timeout_ms=left_ms))
            self._committed |= {it: offset for it, offset in changed.items() if it not in refused}
            changed = {it: changed[it] for it in refused}
            if refused:
                code = next(iter(refused.values()))
                error = CommitRefused(code, self.group_id, sorted(refused))
                if not self._membership.may_commit_again(signature, code):
                    raise error
                self._client.run(self._client.core.pause_or_raise(attempts, error))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of partitions, also of those that other members read."""
        return self._client.run(self._coordinator.committed(partitions))

    def _positions(self) -> dict[TopicPartition, int]:
        known = {it: self._consumer.known_position(it) for it in self._consumer.assignment}
        return {it: offset for it, offset in known.items() if offset is not None}


def _change_or_raise(member: Member) -> Any:
    if member.error is not None:
        raise member.error
    return member.change()


class _Membership:
    """Runs the dialogue of a member in a thread. A thread holds the lock while it uses the member."""

    def __init__(
        self, client: Client, config: MemberConfig, protocol: GroupProtocol, on_change: Callable[[], None]
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._lock = threading.Lock()
        self._waker = Waker()
        self._is_interrupted = False
        if protocol is GroupProtocol.CLASSIC:
            self._member: Member = ClassicMember(client.core, config)
        else:
            self._member = ConsumerMember(client.core, config, member_id=str(uuid.uuid4()))
        self._thread = threading.Thread(target=self._run, name=f"member of {config.group_id}", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def close(self) -> None:
        """Leave the group, if its coordinator answers in time."""
        with self._lock:
            self._member.is_leaving = True
        self._waker.wake()
        self._thread.join(2 * _LEAVE_MS_MAX / 1000)
        self._client.close()

    # The application's thread -----------------------------------------------------------------------------------------

    def call(self, ask: Callable[[Member], T]) -> T:
        """Call a function with the member, under the lock."""
        with self._lock:
            return ask(self._member)

    def on_poll(self) -> None:
        """Note that the application has polled, and wake the dialogue if it waits for that."""
        if self.call(lambda it: it.on_poll()):
            self._waker.wake()

    def release(self, partitions: Partitions) -> None:
        """Note that the application has released partitions."""
        self.call(lambda it: it.release(partitions))
        self._waker.wake()

    def acquire(self, partitions: Partitions) -> Partitions:
        """Take partitions for the application; return those that are still assigned."""
        taken = self.call(lambda it: it.acquire(partitions))
        self._waker.wake()
        return taken

    def may_commit_again(self, signature: Signature, code: int) -> bool:
        """Whether a commit that was refused with this code may succeed later."""
        may = self.call(lambda it: it.may_commit_again(signature, code))
        self._waker.wake()
        return may

    # The member's thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.closing(self._waker), self._client:
            dialogue = self._member.live()
            order = self._advance(lambda: next(dialogue))
            while order is not None:
                try:
                    response = self._execute(order)
                except ClientError as error:
                    order = self._advance(_throw(dialogue, error))
                else:
                    order = self._advance(_send(dialogue, response))

    def _advance(self, step: Callable[[], Ask | Pause]) -> Ask | Pause | None:
        """Take one step of the dialogue; wake the application if it must do something."""
        with self._lock:
            before = self._member.target, self._member.error
            try:
                order: Ask | Pause | None = step()
            except StopIteration:
                order = None
            has_changed = before != (self._member.target, self._member.error)
        if has_changed:
            self._on_change()
        return order

    def _execute(self, order: Ask | Pause) -> Any:
        if isinstance(order, Pause):
            self._wait(None, precise_ms() + order.ms)
            return None
        link = self._client.any_link() if order.node_id is None else self._client.link(order.node_id)
        wait_ms = self._client.config.timeout_ms if order.timeout_ms is None else order.timeout_ms
        if self._member.is_leaving:
            self._is_interrupted, wait_ms = True, _LEAVE_MS_MAX
        deadline_ms = precise_ms() + wait_ms
        try:
            number = link.send(order.message, deadline_ms=deadline_ms, version_max=order.version_max)
            return self._answer(link, number, deadline_ms)
        except RequestTimedOut:
            raise RequestTimedOut(unanswered(link.address, order.message, wait_ms)) from None
        finally:
            if link.pending_count:
                self._client.drop(link.address)

    def _answer(self, link: Link, number: int, deadline_ms: float) -> Any:
        while precise_ms() < deadline_ms:
            if self._wait(link, deadline_ms):
                for answered, response in link.received():
                    if answered == number:
                        return response
            if self._member.is_leaving and not self._is_interrupted:
                # The answer to a join may take minutes, and a member that leaves does not need it.
                self._is_interrupted = True
                raise ClientClosed("the member leaves the group")
        raise RequestTimedOut("no answer")

    def _wait(self, link: Link | None, deadline_ms: float) -> bool:
        """Wait for an answer, for a call of `wake`, or for the deadline; return whether an answer has arrived."""
        with selectors.PollSelector() as selector:
            selector.register(self._waker, selectors.EVENT_READ)
            if link is not None:
                selector.register(link, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline_ms - precise_ms()) / 1000)
        self._waker.take()
        return any(key.fileobj is link for key, _events in ready)


def _throw(dialogue: Dialogue[None], error: ClientError) -> Callable[[], Ask | Pause]:
    return lambda: dialogue.throw(error)


def _send(dialogue: Dialogue[None], response: object) -> Callable[[], Ask | Pause]:
    return lambda: dialogue.send(response)
