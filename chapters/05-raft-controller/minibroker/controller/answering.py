"""The handlers of the controller: requests of brokers and operators. A pure module."""

from collections.abc import Callable, Collection

from minibroker.controller.lifecycle import BrokerState, Heartbeat, RegisterFenced, UnregisterBroker
from minibroker.controller.reassignment import (
    Move,
    Moved,
    ReassignPartitions,
    alter_moving_partitions,
    elect_moving_leaders,
)
from minibroker.controller.sessions import Sessions
from minibroker.controller.tables.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.controller.tables.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from minibroker.controller.tables.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from minibroker.metadata.authority import Authority
from minibroker.metadata.broker_commands import Registration
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call
from minibroker.replication.answering import Decisions, answer_registration, decided, described
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response


class ControllerDecisions:
    """The handlers that chapter 05 adds. `replication` has chapter 04's handlers, with the controller's rules."""

    def __init__(
        self,
        authority: Authority,
        node: NodeConfig,
        sessions: Sessions,
        *,
        live: Callable[[], Collection[int]],
        clock: Callable[[], int],
    ) -> None:
        self.replication = Decisions(
            authority, node, live=live, alter=alter_moving_partitions, elect=elect_moving_leaders
        )
        self._authority = authority
        self._sessions = sessions
        self._clock = clock

    def register(self, call: Call[BrokerRegistrationRequest]) -> Answer:
        """The handler of BrokerRegistration."""
        request = call.request
        is_heard = self._sessions.is_alive(request.broker_id, self._clock())
        command = RegisterFenced(**described(request), is_registered_one_alive=is_heard)

        def on_done(registration: Registration) -> None:
            # A registration starts a session: the broker sends no heartbeat while it opens its logs.
            if registration.code is ErrorCode.NONE:
                self._sessions.touch(request.broker_id, self._clock())

        return answer_registration(self._authority, request, command, on_done)

    def heartbeat(self, call: Call[BrokerHeartbeatRequest]) -> Answer:
        """The handler of BrokerHeartbeat."""
        request = call.request
        known = self._authority.image.brokers.get(request.broker_id)
        if known is not None and known.epoch == request.broker_epoch:
            self._sessions.touch(request.broker_id, self._clock())
        command = Heartbeat(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            wants_fence=request.want_fence,
            wants_shut_down=request.want_shut_down,
        )
        return decided(self._authority, command, _state)

    def unregister(self, call: Call[UnregisterBrokerRequest]) -> Answer:
        """The handler of UnregisterBroker."""
        return decided(
            self._authority,
            UnregisterBroker(call.request.broker_id),
            lambda it: UnregisterBrokerResponse(error_code=it.code, error_message=it.message),
        )

    def reassign(self, call: Call[AlterPartitionReassignmentsRequest]) -> Answer:
        """The handler of AlterPartitionReassignments."""
        moves = [
            Move(TopicPartition(topic.name, it.partition_index), it.replicas)
            for topic in call.request.topics
            for it in topic.partitions
        ]
        may_resize = call.request.allow_replication_factor_change
        return decided(
            self._authority,
            ReassignPartitions(moves, may_resize),
            lambda moved: _moved(moved, may_resize=may_resize),
            timeout_ms=call.request.timeout_ms,
        )

    def list_reassignments(self, call: Call[ListPartitionReassignmentsRequest]) -> Answer:
        """The handler of ListPartitionReassignments."""
        wanted = call.request.topics
        names = None if wanted is None else {(it.name, number) for it in wanted for number in it.partition_indexes}
        return ListPartitionReassignmentsResponse(topics=_ongoing(self._authority.image, names))


def _state(state: BrokerState) -> Response:
    return BrokerHeartbeatResponse(
        error_code=state.code,
        is_caught_up=not state.is_fenced,
        is_fenced=state.is_fenced,
        should_shut_down=state.may_shut_down,
    )


def _moved(moves: list[Moved], *, may_resize: bool) -> Response:
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for it in moves:
        topics.setdefault(it.name.topic, []).append(
            ReassignablePartitionResponse(
                partition_index=it.name.partition, error_code=it.code, error_message=it.message
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_resize,
        responses=[ReassignableTopicResponse(name=name, partitions=found) for name, found in topics.items()],
    )


def _ongoing(image: Image, names: set[tuple[str, int]] | None) -> list[OngoingTopicReassignment]:
    topics = []
    for topic in image.topics.values():
        moving = [
            OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(it.replicas),
                adding_replicas=list(it.adding_replicas),
                removing_replicas=list(it.removing_replicas),
            )
            for number, it in topic.partitions.items()
            if (it.adding_replicas or it.removing_replicas) and (names is None or (topic.name, number) in names)
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    return topics
