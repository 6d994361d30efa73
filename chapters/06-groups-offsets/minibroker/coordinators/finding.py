"""FindCoordinator: finds the coordinator of a group or of a transactional id, which is the leader of its partition.

The first request creates the topic with the partitions. Until these have leaders, the answer asks the client to retry.
"""

from collections.abc import Callable, Mapping

from minibroker.coordinators.state_topics import StateTopic
from minibroker.metadata.image import Image
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.without_groups import WithoutGroups
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

MANY_KEYS_FROM = 4
GROUP_KEY = 0
TRANSACTION_KEY = 1


class FindCoordinator:
    """The handler of FindCoordinator."""

    def __init__(
        self, topics: Mapping[int, StateTopic], image: Callable[[], Image], *, may_be_fenced: Callable[[], bool]
    ) -> None:
        """`topics` has the topic for each type of key."""
        self._topics = topics
        self._may_be_fenced = may_be_fenced
        # There are no coordinators for the other types of keys. They are answered as in chapter 03.
        self._others = WithoutGroups(image)

    def __call__(self, call: Call[FindCoordinatorRequest]) -> Answer:
        """Find the coordinator of each key."""
        if self._may_be_fenced():
            # The metadata of this node may be old. Without a disconnect, librdkafka would ask the same node again.
            raise Disconnect("this node does not reach the controller: ask another node for the coordinator")
        request, listener = call.request, call.session.listener
        topic = self._topics.get(request.key_type if call.version >= 1 else GROUP_KEY)
        if topic is None:
            return self._others.find_coordinator(call)
        if call.version >= MANY_KEYS_FROM:
            found_all = [_find(topic, key, listener) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found_all)
        found = _find(topic, request.key, listener)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )


def _find(topic: StateTopic, key: str, listener: str) -> Coordinator:
    name = topic.partition_of(key)
    if name is None:
        topic.create()
        return _none(key, f"{topic.name} is being created: ask again")
    broker = topic.leader_of(name)
    if broker is None:
        return _none(key, f"{name.directory} has no leader at the moment: ask again")
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return _none(key, f"the coordinator, node {broker.node_id}, has no listener {listener}")
    return Coordinator(
        key=key,
        node_id=broker.node_id,
        host=endpoint.host,
        port=endpoint.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _none(key: str, message: str) -> Coordinator:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
