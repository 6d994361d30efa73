"""One member of a group, in the classic protocol or in the new one (KIP-848). A pure module.

Two parties share a member. Its dialogue, `live`, talks to the coordinator: it joins, sends heartbeats, and learns which
partitions are assigned to the member. The application takes and releases partitions until it owns exactly those. So a
member has two sets of partitions:

- `target`: the partitions that the coordinator has assigned. Only the dialogue changes it.
- `owned`: the partitions that the application reads. Only `release` and `acquire` change it.

While a partition is in `owned`, no other member reads it, unless the coordinator has removed this member
(`is_lost`). The dialogue does not join again before the application has released the revoked partitions. A `Pause` of
the dialogue may end early if something has changed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minibroker.client.errors import BrokerError, ClientClosed, ClientError
from minibroker.clients.coordination import (
    LOST_CONNECTION,
    GroupCoordinator,
    Reaction,
    Signature,
    by_topic,
    reaction_to,
)
from minibroker.clients.core import Core, Dialogue, Pause
from minibroker.clients.errors import InvalidSetting
from minibroker.groups.client_assignors import CLIENT_ASSIGNORS, Subscriber
from minibroker.groups.subscription import (
    CONSUMER_PROTOCOL,
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    InvalidSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.groups.tables.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import (
    NO_GENERATION,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker.groups.tables.leave_group import LeaveGroupRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()
COOPERATIVE = "cooperative-sticky"

_LEAVE_ONE = 2  # the last version of LeaveGroup with one member, which every broker understands
_GRACE_MS = 5_000  # how much longer an answer may take than the longest wait of a join


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Kafka's settings for members of groups, with its defaults."""

    group_id: str
    topics: Sequence[str] = ()
    pattern: str | None = None
    """In place of topics: read all whose whole names match this regular expression, also those that are created later.

    In the classic protocol the client matches, with Python's `re`. In the new one the coordinator does, with RE2."""
    instance_id: str | None = None
    assignors: Sequence[str] = ("range",)
    """Assignors for the classic protocol, the preferred first. The coordinator takes one that all members have."""
    server_assignor: str | None = None
    """The assignor for the new protocol; None leaves the choice to the coordinator."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """If the application does not poll for this long, the member leaves the group, and others read its partitions."""

    def __post_init__(self) -> None:
        unknown = [it for it in self.assignors if it not in CLIENT_ASSIGNORS]
        if unknown or not self.assignors:
            raise InvalidSetting(f"assignors={list(self.assignors)}: choose from {', '.join(CLIENT_ASSIGNORS)}")
        if not self.group_id or bool(self.topics) == bool(self.pattern):
            raise InvalidSetting("a member needs the name of a group, and either topics or a pattern")


class Change(NamedTuple):
    """The next step of the application: release the revoked partitions, and then take the added ones."""

    revoked: Partitions
    added: Partitions
    is_lost: bool
    """Whether other members may already read the revoked partitions, so that no offsets can be committed for them."""


class Member(ABC):
    """A member of a group: the part that both protocols share."""

    def __init__(self, core: Core, config: MemberConfig, *, member_id: str = "") -> None:
        self.config = config
        self.member_id = self._first_id = member_id
        self.epoch = NO_GENERATION
        self.target = NOTHING
        self.owned = NOTHING
        self.is_lost = False
        self.is_leaving = False
        self.error: ClientError | None = None
        self._core = core
        self._coordinator = GroupCoordinator(core, config.group_id)
        self._failures = 0
        self._heartbeat_at_ms = 0.0
        self._polled_ms = core.clock()

    # The application's side -------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The identity with which this member commits offsets."""
        return Signature(self.epoch, self.member_id, self.config.instance_id)

    def on_poll(self) -> bool:
        """Note that the application has polled; return whether the dialogue waits for that."""
        was_idle, self._polled_ms = self._is_idle(), self._core.clock()
        return was_idle

    def change(self) -> Change | None:
        """The next step of the application; None if it reads the assigned partitions."""
        if self.target == self.owned:
            return None
        return Change(self.owned - self.target, self.target - self.owned, self.is_lost)

    def release(self, partitions: Partitions) -> None:
        """Note that the application has released partitions."""
        self.owned -= partitions
        self.is_lost = self.is_lost and bool(self.owned)

    def acquire(self, partitions: Partitions) -> Partitions:
        """Take partitions for the application; return those that are still assigned."""
        taken = partitions & self.target
        self.owned |= taken
        return taken

    def may_commit_again(self, signature: Signature, code: int) -> bool:
        """Whether a commit that was refused with this code is accepted after the next answer of the coordinator."""
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            # Send a heartbeat at once, because its answer contains the new epoch.
            self._heartbeat_at_ms = 0.0
        is_member = self.epoch > NO_GENERATION and not self.is_lost and self.error is None
        is_early = code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH)
        return is_member and (is_early or signature != self.signature)

    # The dialogue -----------------------------------------------------------------------------------------------------

    def live(self) -> Dialogue[None]:
        """Keep up the membership until `is_leaving` is set, or until an error that the application must see."""
        try:
            while not self.is_leaving:
                yield from self._sit_out() if self._is_idle() else self._try_step()
        except ClientClosed:
            pass  # the member leaves, and was interrupted in a request
        except ClientError as error:
            self.error, self.target = error, NOTHING
        except InvalidSubscription as error:
            self.error, self.target = ClientError(f"group {self.config.group_id}: {error}"), NOTHING
        yield from self._try_to_leave()

    def _try_step(self) -> Dialogue[None]:
        try:
            yield from self._step()
        except LOST_CONNECTION:
            self._on_failure()
            yield from self._back_off()
        except BrokerError as refused:
            yield from self._react(refused)

    @abstractmethod
    def _step(self) -> Dialogue[None]:
        """Send the request that is due, or wait until one is due."""

    @abstractmethod
    def _leave(self) -> Dialogue[None]:
        """Tell the coordinator that the member leaves."""

    @abstractmethod
    def _on_failure(self) -> None:
        """React to a request that was lost, or that went to a node which is not the coordinator."""

    @abstractmethod
    def _rejoin(self) -> None:
        """Join again, because the group rebalances."""

    def _is_idle(self) -> bool:
        return self._core.clock() - self._polled_ms >= self.config.max_poll_interval_ms

    def _sit_out(self) -> Dialogue[None]:
        """Leave the group, and stay out of it until the application polls again."""
        if self.epoch > NO_GENERATION:
            yield from self._try_to_leave()
            self._lose()
        yield Pause(self.config.heartbeat_interval_ms)

    def _try_to_leave(self) -> Dialogue[None]:
        try:
            if self.member_id and not isinstance(self.error, BrokerError):
                yield from self._leave()
        except ClientError:
            pass  # the coordinator removes the member when its session ends

    def _ask(self, message: Any, *, timeout_ms: float | None = None, version_max: int | None = None) -> Dialogue[Any]:
        # The wait is short, so that a request can be repeated before the session ends.
        wait_ms = self.config.session_timeout_ms / 3 if timeout_ms is None else timeout_ms
        return (yield from self._coordinator.ask(message, version_max=version_max, timeout_ms=wait_ms))

    def _is_accepted(self, code: int, message: str | None = None) -> Dialogue[bool]:
        """Whether a request was accepted; if not, react to its error code."""
        if not code:
            self._failures = 0
            return True
        yield from self._react(BrokerError(code, message, about=f"group {self.config.group_id}"))
        return False

    def _react(self, refused: BrokerError) -> Dialogue[None]:
        reaction = reaction_to(refused.code)
        if reaction is Reaction.FAIL:
            raise refused
        if reaction is Reaction.REJOIN:
            self._rejoin()
            return
        if reaction is Reaction.GIVE_UP:
            self._lose()
            if refused.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = self._first_id
        if reaction is Reaction.SEARCH:
            self._coordinator.node_id = None
            self._on_failure()
        yield from self._back_off()

    def _lose(self) -> None:
        """Note that the coordinator has removed the member. All its partitions must be released."""
        self.epoch = NO_GENERATION
        self.target, self.is_lost = NOTHING, bool(self.owned)

    def _back_off(self) -> Dialogue[None]:
        self._failures += 1
        yield Pause(self._core.config.retry.delay_ms(self._failures, self._core.chance()))

    def _left_ms(self) -> float:
        return max(0.0, self._heartbeat_at_ms - self._core.clock())


class ClassicMember(Member):
    """A member of the classic protocol: all members join, the leader assigns the partitions, and all members sync.

    The answer to a heartbeat announces the next rebalance. With the eager protocol the application releases all
    partitions before its member joins again. With the cooperative protocol (KIP-429) it keeps reading, releases only
    the partitions that the new assignment revokes, and then its member joins once more.
    """

    def __init__(self, core: Core, config: MemberConfig) -> None:
        super().__init__(core, config)
        self._is_joined = False
        self._is_cooperative = set(config.assignors) == {COOPERATIVE}
        self._has_revoked = False
        self._owned_generation = NO_GENERATION
        self._is_leader = False
        self._pattern = None if config.pattern is None else _compiled(config.pattern)
        self._topics = sorted(config.topics)
        self._counts: dict[str, int] = {}
        self._refreshed_ms = 0.0

    def _step(self) -> Dialogue[None]:
        if self._is_joined or self.is_lost or (self.owned and not self._is_cooperative):
            yield from self._wait_and_heartbeat()
        else:
            yield from self._join()

    def _wait_and_heartbeat(self) -> Dialogue[None]:
        if self._has_revoked and not self.owned - self.target:
            # The application has released partitions. The leader can assign them to other members after another join.
            self._has_revoked, self._is_joined = False, False
            return
        yield Pause(self._left_ms())
        if not self._left_ms():
            self._heartbeat_at_ms = self._core.clock() + self.config.heartbeat_interval_ms
            if self.epoch > NO_GENERATION:
                yield from self._heartbeat()

    def _heartbeat(self) -> Dialogue[None]:
        request = HeartbeatRequest(
            group_id=self.config.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
        )
        response = yield from self._ask(request)
        is_accepted = yield from self._is_accepted(response.error_code)
        age_ms = self._core.clock() - self._refreshed_ms
        if is_accepted and age_ms >= self._core.config.metadata_max_age_ms:
            yield from self._refresh()

    def _refresh(self) -> Dialogue[None]:
        """Find the topics and, as the leader, their partition counts again; join again if these have changed."""
        before = self._topics, self._counts
        yield from self._match()
        if self._is_leader:
            yield from self._count(self._counts)
        if before != (self._topics, self._counts):
            self._rejoin()

    def _match(self) -> Dialogue[None]:
        """Find the topics to read, if the subscription is a pattern."""
        self._refreshed_ms = self._core.clock()
        if self._pattern is not None:
            response = yield from self._core.metadata()
            names = [it.name for it in response.topics if it.name and not it.is_internal and not it.error_code]
            self._topics = sorted(filter(self._pattern.fullmatch, names))

    def _rejoin(self) -> None:
        self._is_joined = False
        if not self._is_cooperative:
            self.target = NOTHING

    def _lose(self) -> None:
        super()._lose()
        self._is_joined, self._has_revoked, self._owned_generation = False, False, NO_GENERATION

    def _on_failure(self) -> None:
        """Do nothing: each request of this protocol has all its fields, so none depends on an earlier one."""

    def _leave(self) -> Dialogue[None]:
        # A static member does not leave: it may restart and get its partitions back.
        if self.config.instance_id is None:
            request = LeaveGroupRequest(group_id=self.config.group_id, member_id=self.member_id)
            yield from self._ask(request, version_max=_LEAVE_ONE)

    # A rebalance ------------------------------------------------------------------------------------------------------

    def _join(self) -> Dialogue[None]:
        wait_ms = self.config.max_poll_interval_ms + _GRACE_MS
        yield from self._match()
        joined: JoinGroupResponse = yield from self._ask(self._join_request(), timeout_ms=wait_ms)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return
        if not (yield from self._is_accepted(joined.error_code)):
            return
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        self._is_leader = joined.leader == joined.member_id
        assignments = (yield from self._assignments(joined)) if self._is_leader else []
        request = SyncGroupRequest(
            group_id=self.config.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        synced = yield from self._ask(request, timeout_ms=wait_ms)
        if (yield from self._is_accepted(synced.error_code)):
            assigned = decode_assignment(bytes(synced.assignment)).assigned_partitions
            self.target = _partitions(assigned)
            self._has_revoked = bool(self.owned - self.target)
            self._is_joined, self._owned_generation = True, self.epoch
            self._heartbeat_at_ms = self._core.clock() + self.config.heartbeat_interval_ms

    def _join_request(self) -> JoinGroupRequest:
        owned = [
            OwnedTopicPartitions(topic=topic, partitions=[it.partition for it in them])
            for topic, them in by_topic(self.owned).items()
        ]
        subscription = ConsumerProtocolSubscription(
            topics=self._topics, owned_partitions=owned, generation_id=self._owned_generation
        )
        metadata = encode_subscription(subscription)
        return JoinGroupRequest(
            group_id=self.config.group_id,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.config.assignors],
        )

    def _assignments(self, joined: JoinGroupResponse) -> Dialogue[list[SyncGroupRequestAssignment]]:
        """The leader's work: assign the partitions to all members."""
        members = {it.member_id: _subscriber(it) for it in joined.members}
        yield from self._count({topic for member in members.values() for topic in member.topics})
        if joined.skip_assignment:
            return []
        assigned = CLIENT_ASSIGNORS[joined.protocol_name or ""](members, self._counts)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=_assignment_bytes(partitions))
            for member_id, partitions in assigned.items()
        ]

    def _count(self, topics: Iterable[str]) -> Dialogue[None]:
        """Find the number of partitions of each topic; 0 for a topic that does not exist."""
        wanted = sorted(topics)
        yield from self._core.metadata(wanted)
        known = self._core.routes.topics
        self._counts = {topic: len(known[topic].partitions) if topic in known else 0 for topic in wanted}


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidSetting(f"pattern={pattern!r} is not a regular expression: {error}") from error


def _subscriber(member: JoinGroupResponseMember) -> Subscriber:
    subscription = decode_subscription(bytes(member.metadata))
    owned = tuple(sorted(_partitions(subscription.owned_partitions)))
    return Subscriber(frozenset(subscription.topics), owned, subscription.generation_id, member.group_instance_id)


def _partitions(topics: Iterable[OwnedTopicPartitions | AssignedTopicPartitions]) -> Partitions:
    return frozenset(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


def _assignment_bytes(partitions: Iterable[TopicPartition]) -> bytes:
    topics = [
        AssignedTopicPartitions(topic=topic, partitions=[it.partition for it in them])
        for topic, them in by_topic(partitions).items()
    ]
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics))


class ConsumerMember(Member):
    """A member of the new protocol: its heartbeats join, report the owned partitions, and return the assignment.

    The coordinator assigns a partition to one member at a time: it waits until a heartbeat reports that the old owner
    has released the partition.
    """

    def __init__(self, core: Core, config: MemberConfig, *, member_id: str) -> None:
        super().__init__(core, config, member_id=member_id)
        self._assigned: Mapping[bytes, Sequence[int]] = {}
        self._reported: Partitions | None = None  # as last reported; None if the coordinator waits for a report
        self._is_full = True
        self._interval_ms = config.heartbeat_interval_ms

    def _step(self) -> Dialogue[None]:
        # Other members may wait for the released partitions, so a report is sent before the next heartbeat is due.
        is_report_due = self.owned == self.target and self.owned != self._reported
        if self.is_lost or (self._left_ms() and not is_report_due):
            yield Pause(self._left_ms() or self._interval_ms)
            return
        sent, is_full = self.owned, self._is_full
        response: ConsumerGroupHeartbeatResponse = yield from self._ask(self._request())
        if (yield from self._is_accepted(response.error_code, response.error_message)):
            self._reported, self._is_full = sent, self._is_full and not is_full
            yield from self._take(response)

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        is_joining = self.epoch == NO_GENERATION
        is_full = self._is_full or is_joining
        config = self.config
        return ConsumerGroupHeartbeatRequest(
            group_id=config.group_id,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if is_joining else self.epoch,
            instance_id=config.instance_id,
            rebalance_timeout_ms=config.max_poll_interval_ms if is_full else -1,
            subscribed_topic_names=sorted(config.topics) if is_full and config.pattern is None else None,
            subscribed_topic_regex=config.pattern if is_full else None,
            server_assignor=config.server_assignor if is_full else None,
            topic_partitions=self._report() if is_full or self.owned != self._reported else None,
        )

    def _report(self) -> list[HeartbeatTopicPartitions]:
        routes = self._core.routes
        return [
            HeartbeatTopicPartitions(topic_id=routes.topic_id(topic), partitions=[it.partition for it in them])
            for topic, them in by_topic(self.owned).items()
        ]

    def _take(self, response: ConsumerGroupHeartbeatResponse) -> Dialogue[None]:
        self.epoch, self._interval_ms = response.member_epoch, response.heartbeat_interval_ms
        self._heartbeat_at_ms = self._core.clock() + self._interval_ms
        if response.assignment is not None:
            self._assigned = {bytes(it.topic_id): it.partitions for it in response.assignment.topic_partitions}
        # While the routes lack an assigned topic, each heartbeat is followed by a metadata request.
        if any(self._core.routes.topic_name(topic_id) is None for topic_id in self._assigned):
            yield from self._core.metadata(self.config.topics or None)
        before, self.target = self.target, self._named()
        if response.assignment is not None and self.target != before:
            self._reported = None

    def _named(self) -> Partitions:
        names = {topic_id: self._core.routes.topic_name(topic_id) for topic_id in self._assigned}
        return frozenset(
            TopicPartition(name, number)
            for topic_id, name in names.items()
            if name is not None
            for number in self._assigned[topic_id]
        )

    def _on_failure(self) -> None:
        # The coordinator may not have seen the last heartbeat, so the next one has all fields again.
        self._is_full, self._heartbeat_at_ms = True, 0.0

    def _rejoin(self) -> None:
        self._is_full, self._heartbeat_at_ms = True, 0.0

    def _lose(self) -> None:
        super()._lose()
        self._assigned, self._reported, self._is_full, self._heartbeat_at_ms = {}, None, True, 0.0

    def _leave(self) -> Dialogue[None]:
        epoch = LEAVE_EPOCH if self.config.instance_id is None else STATIC_LEAVE_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.config.instance_id,
        )
        if self.epoch > NO_GENERATION:
            yield from self._ask(request)
