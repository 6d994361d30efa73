"""Finds the coordinator of a group or of a transactional id, and reads and commits a group's offsets. A pure module.

A coordinator moves when its broker stops. `REACTIONS` says what each error code of a coordinator means for a client.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from minibroker.client.errors import (
    BrokerError,
    BrokerUnavailable,
    ConnectionLost,
    RequestTimedOut,
    known_code,
)
from minibroker.clients.core import Ask, Core, Dialogue
from minibroker.clients.retries import Attempts
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

# Every broker understands these versions: the last FindCoordinator with one key, the last OffsetFetch with one group,
# and the last OffsetCommit with names instead of ids.
_FIND_ONE, _FETCH_ONE, _COMMIT_BY_NAME = 3, 7, 9

GROUP, TRANSACTION = 0, 1
"""The types of keys that have a coordinator."""

_KINDS = {GROUP: "group", TRANSACTION: "transactional id"}

LOST_CONNECTION = (BrokerUnavailable, ConnectionLost, RequestTimedOut)


class Reaction(enum.Enum):
    """What to do about an error code of a coordinator."""

    NONE = "it is not an error"
    RETRY = "ask the same node again, later"
    SEARCH = "find the coordinator again"
    REJOIN = "join again"
    GIVE_UP = "release all partitions, which other members may own by now, and join as a new member"
    FAIL = "tell the application"


REACTIONS: dict[ErrorCode, Reaction] = {
    ErrorCode.NONE: Reaction.NONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.SEARCH,
    ErrorCode.NOT_COORDINATOR: Reaction.SEARCH,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: Reaction.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Reaction.GIVE_UP,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.GIVE_UP,
    ErrorCode.FENCED_MEMBER_EPOCH: Reaction.GIVE_UP,
}
"""A code that is not listed is retried if Kafka calls it retriable, and fails otherwise."""


def reaction_to(code: int) -> Reaction:
    """What to do about an error code of a coordinator."""
    known = known_code(code)
    return REACTIONS.get(known) or (Reaction.RETRY if known.is_retriable else Reaction.FAIL)


class Signature(NamedTuple):
    """The member that commits offsets. The default names no member, which works only in a group without members."""

    epoch: int = -1
    member_id: str = ""
    instance_id: str | None = None


NO_MEMBER = Signature()


class Position(NamedTuple):
    """A committed offset, and the text that was committed with it."""

    offset: int
    metadata: str = ""


class Coordinator:
    """The coordinator of one group or of one transactional id, and whether its node is known."""

    def __init__(self, core: Core, key: str, key_type: int) -> None:
        self.core = core
        self.key = key
        self.about = f"{_KINDS[key_type]} {key}"
        self.node_id: int | None = None
        self._key_type = key_type

    def find(self) -> Dialogue[int]:
        """The node id of the coordinator; raise a BrokerError if there is none at the moment."""
        if self.node_id is None:
            request = FindCoordinatorRequest(key=self.key, key_type=self._key_type)
            response = yield Ask(request, version_max=_FIND_ONE)
            self._check(response.error_code, response.error_message)
            if response.node_id not in self.core.routes.nodes:
                yield from self.core.metadata([])
            self.node_id = response.node_id
        assert self.node_id is not None
        return self.node_id

    def _check(self, code: int, message: str | None) -> None:
        if code:
            raise BrokerError(code, message, about=self.about)

    def ask(
        self, message: Request, *, version_max: int | None = None, timeout_ms: float | None = None
    ) -> Dialogue[Any]:
        """Send one request to the coordinator; if the connection is lost, forget its node."""
        node_id = yield from self.find()
        try:
            response = yield Ask(message, node_id, version_max, timeout_ms)
        except LOST_CONNECTION:
            self.node_id = None
            raise
        return response

    def ask_until_answered(
        self,
        message: Request,
        codes_of: Callable[[Any], Iterable[int]],
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
    ) -> Dialogue[Any]:
        """Send a request, and repeat it while the coordinator is moving or loading. All other codes are returned."""
        attempts = self.core.attempts(timeout_ms)
        while True:
            try:
                left_ms = attempts.left_ms(self.core.clock())
                response = yield from self.ask(message, version_max=version_max, timeout_ms=left_ms)
            except LOST_CONNECTION as lost:
                yield from self.core.pause_or_raise(attempts, lost)
                continue
            except BrokerError as refused:
                yield from self._pause_or_raise(attempts, refused)
                continue
            code = next((it for it in codes_of(response) if self._is_passing(it)), None)
            if code is None:
                return response
            yield from self._pause_or_raise(attempts, BrokerError(code, about=self.about))

    def _is_passing(self, code: int) -> bool:
        return reaction_to(code) in (Reaction.RETRY, Reaction.SEARCH)

    def _pause_or_raise(self, attempts: Attempts, refused: BrokerError) -> Dialogue[None]:
        if not self._is_passing(refused.code):
            raise refused
        if reaction_to(refused.code) is Reaction.SEARCH:
            self.node_id = None
        yield from self.core.pause_or_raise(attempts, refused)


class GroupCoordinator(Coordinator):
    """The coordinator of a group, which keeps the group's offsets."""

    def __init__(self, core: Core, group_id: str) -> None:
        super().__init__(core, group_id, GROUP)
        self.group_id = group_id

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_stable: bool = True
    ) -> Dialogue[dict[TopicPartition, int]]:
        """The committed offsets of some partitions, or of all; a partition without one is left out.

        If `is_stable`, wait until the transactions that will change them have ended.
        """
        positions = yield from self.positions(partitions, is_stable=is_stable)
        return {partition: it.offset for partition, it in positions.items()}

    def positions(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_stable: bool = True
    ) -> Dialogue[dict[TopicPartition, Position]]:
        """Like `committed`, with the texts that were committed with the offsets."""
        topics = None
        if partitions is not None:
            topics = [
                OffsetFetchRequestTopic(name=topic, partition_indexes=[it.partition for it in them])
                for topic, them in by_topic(partitions).items()
            ]
        request = OffsetFetchRequest(group_id=self.group_id, topics=topics, require_stable=is_stable)
        response = yield from self.ask_until_answered(request, _fetch_codes, version_max=_FETCH_ONE)
        self._check(response.error_code, None)
        found: dict[TopicPartition, Position] = {}
        for topic in response.topics:
            for it in topic.partitions:
                self._check(it.error_code, None)
                if it.committed_offset >= 0:
                    place = TopicPartition(topic.name, it.partition_index)
                    found[place] = Position(it.committed_offset, it.metadata or "")
        return found

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        signature: Signature = NO_MEMBER,
        *,
        timeout_ms: float | None = None,
    ) -> Dialogue[dict[TopicPartition, int]]:
        """Commit offsets; return the error codes of the refused ones."""
        request = _commit_request(self.group_id, offsets, signature)
        response = yield from self.ask_until_answered(
            request, _commit_codes, version_max=_COMMIT_BY_NAME, timeout_ms=timeout_ms
        )
        return {
            TopicPartition(topic.name, it.partition_index): it.error_code
            for topic in response.topics
            for it in topic.partitions
            if it.error_code
        }


def ask_while_loading(core: Core, message: Request, node_id: int, *, about: str) -> Dialogue[Any]:
    """Ask one broker about everything that it coordinates; wait while it loads its state."""
    attempts = core.attempts()
    while True:
        response = yield Ask(message, node_id)
        if not response.error_code:
            return response
        error = BrokerError(response.error_code, about=about)
        if reaction_to(error.code) not in (Reaction.RETRY, Reaction.SEARCH):
            raise error
        yield from core.pause_or_raise(attempts, error)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Partitions in order, grouped by topic."""
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def _commit_request(group_id: str, offsets: Mapping[TopicPartition, int], signature: Signature) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=signature.epoch,
        member_id=signature.member_id,
        group_instance_id=signature.instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=it.partition, committed_offset=offsets[it])
                    for it in them
                ],
            )
            for topic, them in by_topic(offsets).items()
        ],
    )


def _fetch_codes(response: Any) -> list[int]:
    return [response.error_code, *(it.error_code for topic in response.topics for it in topic.partitions)]


def _commit_codes(response: Any) -> list[int]:
    return [it.error_code for topic in response.topics for it in topic.partitions]
