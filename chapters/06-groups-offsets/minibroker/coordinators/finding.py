"""FindCoordinator: finds the coordinator of a group, which is the leader of the group's partition.

The first request creates `__consumer_offsets`. Until its partitions have leaders, the answer asks the client to retry.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from minibroker.client.errors import ClientError
from minibroker.coordinators.internal_topics import CREATE_MS_MAX, offsets_topic, replication_factor_of
from minibroker.coordinators.placing import partition_of
from minibroker.groups.keys import GroupSettings
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.without_groups import WithoutGroups
from minibroker.replicas.lasting import LastingFailure
from minibroker.replicas.membership import Membership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker.wire.tables.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger(__name__)

MANY_KEYS_FROM = 4
_GROUP = 0
# Every request of a member needs the partition of its group. The hash takes as long as decoding the request, so its
# results are cached.
_partition_of = lru_cache(maxsize=4096)(partition_of)


class OffsetsTopic:
    """The topic `__consumer_offsets`, which is created when the first client needs it."""

    def __init__(self, config: NodeConfig, cluster: Membership, settings: Callable[[], GroupSettings]) -> None:
        self._config = config
        self._cluster = cluster
        self._settings = settings
        self._creating: asyncio.Task[None] | None = None
        self._trouble = LastingFailure(log)

    @property
    def _image(self) -> Image:
        return self._cluster.authority.image

    def partition_of(self, group_id: str) -> TopicPartition | None:
        """The partition with the state of a group; None if the topic does not exist."""
        topic = self._image.topics.get(GROUP_METADATA_TOPIC)
        if topic is None or not topic.partitions:
            return None
        return TopicPartition(GROUP_METADATA_TOPIC, _partition_of(group_id, len(topic.partitions)))

    def create(self) -> None:
        """Ask the controller to create the topic, unless such a request is under way."""
        if self._creating is None or self._creating.done():
            self._creating = asyncio.get_running_loop().create_task(self._create())

    async def _create(self) -> None:
        cluster = self._cluster
        factor = replication_factor_of(self._config, self._image)
        request = CreateTopicsRequest(topics=[offsets_topic(self._settings(), factor)], timeout_ms=CREATE_MS_MAX)
        try:
            # The answer may take seconds, and must not delay the heartbeats of this node.
            response: CreateTopicsResponse = await cluster.peers.send(
                cluster.controller_id, request, line="clients", timeout_ms=CREATE_MS_MAX
            )
        except ClientError as error:
            self._trouble.note("%s cannot be created; each request tries again: %s", GROUP_METADATA_TOPIC, error)
            return
        self._trouble.end()
        (topic,) = response.topics
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER):
            log.warning("%s could not be created: %s", GROUP_METADATA_TOPIC, topic.error_message)

    async def stop(self) -> None:
        """Cancel a creation that is under way."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.wait((self._creating,))


class FindCoordinator:
    """The handler of FindCoordinator."""

    def __init__(self, topic: OffsetsTopic, image: Callable[[], Image], *, may_be_fenced: Callable[[], bool]) -> None:
        self._topic = topic
        self._image = image
        self._may_be_fenced = may_be_fenced
        # This handler finds no transaction coordinators: other key types are answered as in chapter 03.
        self._others = WithoutGroups(image)

    def __call__(self, call: Call[FindCoordinatorRequest]) -> Answer:
        """Find the coordinator of each key."""
        if self._may_be_fenced():
            # The metadata of this node may be old. Without a disconnect, librdkafka would ask the same node again.
            raise Disconnect("this node does not reach the controller: ask another node for the coordinator")
        request, listener = call.request, call.session.listener
        if call.version >= 1 and request.key_type != _GROUP:
            return self._others.find_coordinator(call)
        if call.version >= MANY_KEYS_FROM:
            return FindCoordinatorResponse(coordinators=[self._find(key, listener) for key in request.coordinator_keys])
        found = self._find(request.key, listener)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    def _find(self, group_id: str, listener: str) -> Coordinator:
        name, image = self._topic.partition_of(group_id), self._image()
        if name is None:
            self._topic.create()
            return _none(group_id, f"{GROUP_METADATA_TOPIC} is being created: ask again")
        partition = image.partition(name)
        broker = None if partition is None else image.brokers.get(partition.leader)
        if broker is None or broker.is_fenced:
            return _none(group_id, f"{name.directory} has no leader at the moment: ask again")
        endpoint = broker.endpoint(listener)
        if endpoint is None:
            return _none(group_id, f"the coordinator, node {broker.node_id}, has no listener {listener}")
        return Coordinator(
            key=group_id,
            node_id=broker.node_id,
            host=endpoint.host,
            port=endpoint.port,
            error_code=ErrorCode.NONE,
            error_message=None,
        )


def _none(key: str, message: str) -> Coordinator:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
