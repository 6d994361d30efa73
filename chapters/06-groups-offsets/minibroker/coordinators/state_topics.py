"""An internal topic that coordinators use. It is created when the first client needs it."""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from minibroker.client.errors import ClientError
from minibroker.coordinators.internal_topics import CREATE_MS_MAX
from minibroker.coordinators.placing import partition_of
from minibroker.metadata.image import BrokerImage, Image
from minibroker.replicas.lasting import LastingFailure
from minibroker.replicas.membership import Membership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

log = logging.getLogger(__name__)

# Every request needs the partition of its group or of its transactional id. The hash takes as long as decoding the
# request, so its results are cached.
_partition_of = lru_cache(maxsize=4096)(partition_of)


class StateTopic:
    """The topic with the state of all coordinators of one kind."""

    def __init__(self, name: str, cluster: Membership, creation: Callable[[], CreatableTopic]) -> None:
        """`creation` makes the request that creates the topic."""
        self.name = name
        self._cluster = cluster
        self._creation = creation
        self._creating: asyncio.Task[None] | None = None
        self._trouble = LastingFailure(log)

    @property
    def _image(self) -> Image:
        return self._cluster.authority.image

    def partition_of(self, key: str) -> TopicPartition | None:
        """The partition with the state of a group or of a transactional id; None if the topic does not exist."""
        topic = self._image.topics.get(self.name)
        if topic is None or not topic.partitions:
            return None
        return TopicPartition(self.name, _partition_of(key, len(topic.partitions)))

    def leader_of(self, name: TopicPartition) -> BrokerImage | None:
        """The broker that leads a partition, or None if there is no leader at the moment."""
        partition = self._image.partition(name)
        broker = None if partition is None else self._image.brokers.get(partition.leader)
        return None if broker is None or broker.is_fenced else broker

    def create(self) -> None:
        """Ask the controller to create the topic, unless such a request is under way."""
        if self._creating is None or self._creating.done():
            self._creating = asyncio.get_running_loop().create_task(self._create())

    async def _create(self) -> None:
        cluster = self._cluster
        request = CreateTopicsRequest(topics=[self._creation()], timeout_ms=CREATE_MS_MAX)
        try:
            # The answer may take seconds, and must not delay the heartbeats of this node.
            response: CreateTopicsResponse = await cluster.peers.send(
                cluster.controller_id, request, line="clients", timeout_ms=CREATE_MS_MAX
            )
        except ClientError as error:
            self._trouble.note("%s cannot be created; each request tries again: %s", self.name, error)
            return
        self._trouble.end()
        (topic,) = response.topics
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER):
            log.warning("%s could not be created: %s", self.name, topic.error_message)

    async def stop(self) -> None:
        """Cancel a creation that is under way."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.wait((self._creating,))
