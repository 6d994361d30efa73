"""The handlers of the controller, asked as brokers and operators ask them: with frames, in every version served."""

from typing import Any

from cases import case
from controller_nodes import Trio
from partitions_broker import answered
from test_replication_answering import dispatch, versions

from minibroker.controller.answering import ControllerDecisions
from minibroker.controller.sessions import Sessions
from minibroker.controller.tables.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest
from minibroker.controller.tables.list_partition_reassignments import (
    ListedTopic,
    ListPartitionReassignmentsRequest,
)
from minibroker.controller.tables.unregister_broker import UnregisterBrokerRequest
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.partitions.registry import Deferred, Registry, Reply
from minibroker.partitions.waiting import Waiting
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, Listener
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response


class ThreeNodes:
    """The handlers of each of three nodes, of which node 1 is the controller."""

    def __init__(self) -> None:
        self.trio = Trio()
        self.trio.elect(1)
        self.trio.pump()
        self.sessions = {it: Sessions(1000) for it in self.trio.nodes}
        self.registries = {it: self._registry(it) for it in self.trio.nodes}
        self.waiting: Waiting[Response] = Waiting()

    def _registry(self, node_id: int) -> Registry:
        controller = self.trio.controllers[node_id]
        decisions = ControllerDecisions(
            controller, NodeConfig(), self.sessions[node_id], live=controller.image.live_brokers, clock=lambda: 5
        )
        registry = Registry()
        registry.add(ApiKey.BROKER_REGISTRATION, decisions.register)
        registry.add(ApiKey.BROKER_HEARTBEAT, decisions.heartbeat)
        registry.add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, decisions.reassign)
        registry.add(ApiKey.LIST_PARTITION_REASSIGNMENTS, decisions.list_reassignments)
        registry.add(ApiKey.UNREGISTER_BROKER, decisions.unregister)
        return registry

    def ask(self, request: Request, version: int | None = None, *, of: int = 1) -> Any:
        """The response, once its records are committed."""
        outcome = dispatch(self.registries[of], request, version)
        if isinstance(outcome, Deferred):
            responses: list[Any] = []
            self.waiting.park(
                outcome.wait, lambda it: responses.append(answered(request, outcome.reply(it), version)), now_ms=0
            )
            assert not responses, "the response was sent before its records were committed"
            self.trio.pump()
            for proposal in self.trio.done:
                self.waiting.wake(proposal)
            self.waiting.settle()
            (response,) = responses
            return response
        assert isinstance(outcome, Reply)
        return answered(request, outcome, version)

    def register(self, broker_id: int) -> int:
        response = self.ask(registration(broker_id, broker_id))
        assert response.error_code == ErrorCode.NONE
        epoch: int = response.broker_epoch
        return epoch

    def topic(self, brokers: tuple[int, ...]) -> None:
        for broker_id in brokers:
            epoch = self.register(broker_id)
            self.ask(heartbeat(broker_id, epoch, offset=10**6))
        topic = NewTopic("orders", bytes([1] * 16), assignments=[(0, [1, 2])])
        self.trio.controllers[1].propose(CreateTopics([topic], NodeConfig()))
        self.trio.pump()


def registration(broker_id: int, incarnation: int) -> BrokerRegistrationRequest:
    listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0)
    return BrokerRegistrationRequest(
        broker_id=broker_id, cluster_id="", incarnation_id=bytes([incarnation] * 16), listeners=[listener]
    )


def heartbeat(broker_id: int, epoch: int, *, offset: int, leaves: bool = False) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        current_metadata_offset=offset,
        want_fence=False,
        want_shut_down=leaves,
    )


def test_a_heartbeat_unfences_a_broker_and_lets_it_stop() -> None:
    for version in versions(ApiKey.BROKER_HEARTBEAT):
        with case(f"version {version}"):
            nodes = ThreeNodes()
            epoch = nodes.register(1)
            assert nodes.trio.controllers[1].image.live_brokers() == []
            answer = nodes.ask(heartbeat(1, epoch, offset=epoch - 1), version)
            assert (answer.error_code, answer.is_fenced, answer.is_caught_up) == (ErrorCode.NONE, True, False)
            answer = nodes.ask(heartbeat(1, epoch, offset=epoch), version)
            assert (answer.error_code, answer.is_fenced, answer.is_caught_up) == (ErrorCode.NONE, False, True)
            assert nodes.trio.controllers[3].image.live_brokers() == [1]
            assert nodes.sessions[1].is_alive(1, 1005)
            assert not nodes.sessions[1].is_alive(1, 1006)
            answer = nodes.ask(heartbeat(1, epoch, offset=epoch, leaves=True), version)
            assert (answer.is_fenced, answer.should_shut_down) == (True, True)


def test_a_heartbeat_with_another_epoch_is_refused_and_keeps_no_session() -> None:
    nodes = ThreeNodes()
    epoch = nodes.register(1)
    assert nodes.ask(heartbeat(1, epoch + 1, offset=0)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert nodes.ask(heartbeat(2, 0, offset=0)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    # The registered broker was heard then, and not since.
    assert nodes.sessions[1].silent([1, 2], 1005) == [2]
    assert nodes.sessions[1].silent([1, 2], 1006) == [1, 2]


def test_a_broker_with_another_directory_waits_until_the_old_session_is_over() -> None:
    nodes = ThreeNodes()

    def register(incarnation: int, directory: int) -> ErrorCode:
        request = registration(1, incarnation)
        request.log_dirs = [bytes([directory] * 16)]
        return ErrorCode(nodes.ask(request).error_code)

    assert register(1, 1) is ErrorCode.NONE
    assert register(2, 2) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert register(3, 1) is ErrorCode.NONE
    # The broker is still fenced, and has been silent for too long.
    nodes.sessions[1].begin((), 0)
    assert register(2, 2) is ErrorCode.NONE
    assert nodes.sessions[1].silent([1], 5) == []


def test_a_node_that_is_not_the_controller_refuses() -> None:
    nodes = ThreeNodes()
    epoch = nodes.register(1)
    assert nodes.ask(heartbeat(1, epoch, offset=epoch), of=2).error_code == ErrorCode.NOT_CONTROLLER


def test_a_stopped_broker_is_removed() -> None:
    for version in versions(ApiKey.UNREGISTER_BROKER):
        with case(f"version {version}"):
            nodes = ThreeNodes()
            epoch = nodes.register(4)
            nodes.ask(heartbeat(4, epoch, offset=10**6))
            request = UnregisterBrokerRequest(broker_id=4)
            refused = nodes.ask(request, version)
            assert (refused.error_code, "is live" in refused.error_message) == (ErrorCode.INVALID_REQUEST, True)
            nodes.ask(heartbeat(4, epoch, offset=10**6, leaves=True))
            answer = nodes.ask(request, version)
            assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
            assert 4 not in nodes.trio.controllers[3].image.brokers
            assert nodes.ask(request, version).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
            assert nodes.ask(request, version, of=2).error_code == ErrorCode.NOT_CONTROLLER


def reassignment(replicas: list[int] | None, index: int = 0) -> AlterPartitionReassignmentsRequest:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    return AlterPartitionReassignmentsRequest(
        timeout_ms=1000, topics=[ReassignableTopic(name="orders", partitions=[partition])]
    )


def test_a_partition_is_moved_listed_and_the_move_is_cancelled() -> None:
    for version in versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
        with case(f"version {version}"):
            nodes = ThreeNodes()
            nodes.topic((1, 2, 3))
            (topic,) = nodes.ask(reassignment([2, 3]), version).responses
            assert (topic.name, [it.error_code for it in topic.partitions]) == ("orders", [ErrorCode.NONE])
            for wanted in (None, [ListedTopic(name="orders", partition_indexes=[0])]):
                (listed,) = nodes.ask(ListPartitionReassignmentsRequest(topics=wanted)).topics
                (it,) = listed.partitions
                assert (it.replicas, it.adding_replicas, it.removing_replicas) == ([2, 3, 1], [3], [1])
            other = [ListedTopic(name="orders", partition_indexes=[5])]
            assert nodes.ask(ListPartitionReassignmentsRequest(topics=other)).topics == []
            nodes.ask(reassignment(None), version)
            assert nodes.ask(ListPartitionReassignmentsRequest(topics=None)).topics == []
            (refused,) = nodes.ask(reassignment(None), version).responses
            (it,) = refused.partitions
            assert it.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            assert "orders-0" in it.error_message


def test_a_move_that_must_not_change_the_number_of_replicas_does_not() -> None:
    """KIP-860."""
    nodes = ThreeNodes()
    nodes.topic((1, 2, 3))

    def moved(replicas: list[int] | None) -> tuple[int, str]:
        request = reassignment(replicas)
        request.allow_replication_factor_change = False
        answer = nodes.ask(request)
        assert answer.allow_replication_factor_change is False
        (it,) = answer.responses[0].partitions
        return it.error_code, it.error_message or ""

    for replicas in ([1], [1, 2, 3]):
        code, message = moved(replicas)
        assert code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert f"has 2 replicas, the move names {len(replicas)}" in message
    assert nodes.ask(ListPartitionReassignmentsRequest(topics=None)).topics == []
    assert moved([2, 3]) == (ErrorCode.NONE, "")
    # While a move is under way its target counts; and cancelling it is not a move.
    assert moved([1, 2, 3])[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert moved([3, 1]) == (ErrorCode.NONE, "")
    assert moved(None) == (ErrorCode.NONE, "")


def test_where_nothing_moves_nothing_is_listed() -> None:
    for version in versions(ApiKey.LIST_PARTITION_REASSIGNMENTS):
        with case(f"version {version}"):
            nodes = ThreeNodes()
            nodes.topic((1, 2, 3))
            answer = nodes.ask(ListPartitionReassignmentsRequest(topics=None), version)
            assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])
