"""ApiVersions, Metadata and DescribeCluster, which describe the cluster to clients. A pure module.

The handlers read the image: the brokers, the topics, the leader of each partition. A client asks any node, then talks
to the leaders. A request for a topic that does not exist creates it, if the broker and the client both allow it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from minibroker.metadata.authority import Authority
from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.image import NO_LEADER, BrokerImage, Endpoint, Image, PartitionImage, TopicImage
from minibroker.metadata.names import check_topic_name, is_internal
from minibroker.metadata.records import SUPPORTED_FEATURES, LevelRange
from minibroker.partitions.errors import Refused
from minibroker.partitions.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.partitions.slices import Steps, sliced
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from minibroker.wire.tables.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from minibroker.wire.tables.metadata import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker.wire.uuids import NO_UUID, uuid_text

TOPIC_IDS_FROM_VERSION = 12
ZERO_LEVELS_FROM_VERSION = 4
LISTENER_NOT_FOUND_FROM_VERSION = 6
_TOPICS_PER_TURN = 500
_CREATED_MAX = 100
_BROKERS_ENDPOINT = 1
_CONTROLLERS_ENDPOINT = 2


def api_versions(
    registry: Registry, authority: Authority, features: Mapping[str, LevelRange] = SUPPORTED_FEATURES
) -> Callable[[Call[ApiVersionsRequest]], Answer]:
    """The handler of ApiVersions. It announces this node's supported features and the cluster's features."""

    def handler(call: Call[ApiVersionsRequest]) -> Answer:
        request = call.request
        names = (request.client_software_name, request.client_software_version)
        if call.version >= 3 and not all(_is_software_name(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        image = authority.image
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=registry.ranges(),
            supported_features=[
                SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
                for name, levels in features.items()
                # For older clients, leave out a feature whose lowest level is 0: they treat it as an error (KIP-1022).
                if levels.lowest > 0 or call.version >= ZERO_LEVELS_FROM_VERSION
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in image.features.items()
            ],
        )

    return handler


def _is_software_name(name: str) -> bool:
    inside = name.replace(".", "").replace("-", "")
    return inside.isascii() and inside.isalnum() and name[0].isalnum() and name[-1].isalnum()


OwnBroker = Callable[[str], MetadataResponseBroker]
"""A function from the name of a listener to this node, with the address at which clients of the listener reach it."""


class Reach(NamedTuple):
    """The brokers as a client of one listener sees them."""

    alive: frozenset[int]
    reachable: frozenset[int]
    """The live brokers that have the listener. A client could not connect to the others."""
    no_listener: ErrorCode = ErrorCode.LISTENER_NOT_FOUND
    """The error of a partition whose leader does not have the listener."""

    @classmethod
    def of(cls, image: Image, listener: str, no_listener: ErrorCode = ErrorCode.LISTENER_NOT_FOUND) -> Self:
        """The brokers as a client of this listener sees them."""
        alive = frozenset(image.live_brokers())
        reachable = frozenset(it for it in alive if image.brokers[it].endpoint(listener) is not None)
        return cls(alive, reachable, no_listener)


class Describe:
    """The handlers that read the image. `create` creates topics that a client asked for and that do not exist."""

    def __init__(
        self,
        authority: Authority,
        *,
        create: Callable[[Sequence[str]], Mapping[str, ErrorCode]],
        is_auto_creating: Callable[[], bool],
        own_broker: "OwnBroker | None" = None,
    ) -> None:
        """`own_broker` is set if this node forwards calls to the controller. Then clients take this node for it."""
        self._authority = authority
        self._create = create
        self._is_auto_creating = is_auto_creating
        self._own_broker = own_broker

    @property
    def _image(self) -> Image:
        return self._authority.image

    # Metadata ---------------------------------------------------------------------------------------------------------

    def metadata(self, call: Call[MetadataRequest]) -> Answer:
        """The handler of Metadata."""
        return sliced(self._metadata(call), steps_per_turn=_TOPICS_PER_TURN)

    def _metadata(self, call: Call[MetadataRequest]) -> Steps:
        topics: list[MetadataResponseTopic] = []
        for topic in self._topics(call):
            topics.append(topic)
            yield None
        listener, reach = call.session.listener, self._reach(call)
        if call.request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
        image = self._image
        alive = [
            MetadataResponseBroker(node_id=broker.node_id, host=at.host, port=at.port, rack=broker.rack)
            for broker, at in _with_listener(image, listener)
            if not broker.is_fenced
        ]
        # If all brokers are fenced, name this broker, because librdkafka never recovers from an answer without brokers.
        brokers = alive or ([self._own_broker(listener)] if self._own_broker is not None else [])
        controller_id = self._controller(listener, reach) if alive else brokers[0].node_id if brokers else NO_LEADER
        return MetadataResponse(
            brokers=brokers,
            cluster_id=image.cluster_id,
            controller_id=controller_id,
            topics=topics,
            cluster_authorized_operations=_cluster_operations(call.request.include_cluster_authorized_operations),
        )

    def _topics(self, call: Call[MetadataRequest]) -> Iterator[MetadataResponseTopic]:
        # In version 0 an empty list means all topics. From version 1 on null means all, and an empty list none.
        wanted = call.request.topics
        if wanted is None or (call.version == 0 and not wanted):
            reach = self._reach(call)
            # The image is never changed, only replaced. So the list stays complete if a topic is created meanwhile.
            return (_topic(topic, reach) for topic in self._image.topics.values())
        # A topic that is named twice is answered once.
        unique = list({(it.name, it.topic_id): it for it in wanted}.values())
        # Before version 4, a request cannot forbid the creation of topics, so they are created.
        refused: Mapping[str, ErrorCode] = {}
        if self._is_auto_creating() and (call.version < 4 or call.request.allow_auto_topic_creation):
            refused = self._create_missing(unique)
        reach = self._reach(call)
        return (self._wanted(it, call.version, refused, reach) for it in unique)

    def _reach(self, call: Call[MetadataRequest]) -> Reach:
        is_known = call.version >= LISTENER_NOT_FOUND_FROM_VERSION
        code = ErrorCode.LISTENER_NOT_FOUND if is_known else ErrorCode.LEADER_NOT_AVAILABLE
        return Reach.of(self._image, call.session.listener, code)

    def _create_missing(self, wanted: Iterable[MetadataRequestTopic]) -> Mapping[str, ErrorCode]:
        """Create topics that do not exist, in one command. Return the error code of each that was refused."""
        named = [it.name for it in wanted if it.topic_id == NO_UUID and it.name is not None]
        # An internal topic needs other settings than the defaults. The broker creates such a topic by itself.
        missing = [name for name in named if name not in self._image.topics and not is_internal(name)]
        # Create only some of them now. The client asks again for topics that do not exist yet.
        return self._create(missing[:_CREATED_MAX]) if missing else {}

    def _wanted(
        self, wanted: MetadataRequestTopic, version: int, refused: Mapping[str, ErrorCode], reach: Reach
    ) -> MetadataResponseTopic:
        try:
            return _topic(self._find(wanted, version), reach)
        except Refused as refusal:
            name = wanted.name if wanted.topic_id == NO_UUID else None
            return MetadataResponseTopic(
                error_code=refusal.code if name is None else refused.get(name, refusal.code),
                name=name if version >= TOPIC_IDS_FROM_VERSION else name or "",
                topic_id=wanted.topic_id,
                is_internal=name is not None and is_internal(name),
                partitions=[],
            )

    def _find(self, wanted: MetadataRequestTopic, version: int) -> TopicImage:
        has_id = wanted.topic_id != NO_UUID
        if (version < TOPIC_IDS_FROM_VERSION and has_id) or (wanted.name is None and not has_id):
            message = f"a topic must have a name, or from version {TOPIC_IDS_FROM_VERSION} on an id"
            raise Refused(ErrorCode.INVALID_REQUEST, message)
        if wanted.name is not None and not has_id:
            return find_topic(self._image, wanted.name)
        # A topic id takes precedence over the name (KIP-516): the Java client sends an empty name with an id.
        name = self._image.topic_names.get(wanted.topic_id)
        if name is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(wanted.topic_id)}")
        return self._image.topics[name]

    # DescribeCluster --------------------------------------------------------------------------------------------------

    def cluster(self, call: Call[DescribeClusterRequest]) -> Answer:
        """The handler of DescribeCluster."""
        image = self._image
        if call.request.endpoint_type != _BROKERS_ENDPOINT:
            is_known = call.request.endpoint_type == _CONTROLLERS_ENDPOINT
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this listener lists brokers only: ask for endpoint type 1",
                endpoint_type=_BROKERS_ENDPOINT,
                cluster_id=image.cluster_id,
                brokers=[],
            )
        listener = call.session.listener
        shown = [
            (broker, at)
            for broker, at in _with_listener(image, listener)
            if not broker.is_fenced or call.request.include_fenced_brokers
        ]
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            endpoint_type=_BROKERS_ENDPOINT,
            cluster_id=image.cluster_id,
            controller_id=self._controller(listener, Reach.of(image, listener)),
            brokers=[
                DescribeClusterBroker(
                    broker_id=it.node_id, host=at.host, port=at.port, rack=it.rack, is_fenced=it.is_fenced
                )
                for it, at in shown
            ],
            cluster_authorized_operations=_cluster_operations(call.request.include_cluster_authorized_operations),
        )

    def _controller(self, listener: str, reach: Reach) -> int:
        """The node to which clients send administrative calls.

        A node that forwards such calls names itself (KIP-590). librdkafka waits for the named node even if it is dead.
        This node is alive, because it sends this answer.
        """
        own_broker = None if self._own_broker is None else self._own_broker(listener).node_id
        # A node that does not name itself names the first live broker: every broker accepts administrative requests.
        return own_broker if own_broker in reach.reachable else min(reach.reachable, default=NO_LEADER)


def find_topic(image: Image, name: str) -> TopicImage:
    """The topic of this name. Refuses a name that is invalid or unknown."""
    topic = image.topics.get(name)
    if topic is not None:
        return topic
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")


def _cluster_operations(is_asked_for: bool) -> int:
    return CLUSTER_OPERATIONS if is_asked_for else NO_AUTHORIZED_OPERATIONS


def _with_listener(image: Image, listener: str) -> Iterator[tuple[BrokerImage, Endpoint]]:
    """The brokers that have a listener, and its address on each."""
    for _node_id, broker in sorted(image.brokers.items()):
        endpoint = broker.endpoint(listener)
        if endpoint is not None:
            yield broker, endpoint


def _offline_replicas(alive: frozenset[int], partition: PartitionImage) -> list[int]:
    """The replicas on brokers that are not alive."""
    return [node_id for node_id in partition.replicas if node_id not in alive]


def _reachable_leader(reach: Reach, partition: PartitionImage) -> tuple[int, ErrorCode]:
    """The leader in the answer to a client, and the error code of the partition."""
    if partition.leader in reach.reachable:
        return partition.leader, ErrorCode.NONE
    # A dead leader is not named, because a client would only try it, fail, and ask again.
    return NO_LEADER, reach.no_listener if partition.leader in reach.alive else ErrorCode.LEADER_NOT_AVAILABLE


def _topic(topic: TopicImage, reach: Reach) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(reach, index, it) for index, it in sorted(topic.partitions.items())],
    )


def _partition(reach: Reach, index: int, partition: PartitionImage) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, **partition_fields(reach, partition))


def partition_fields(reach: Reach, partition: PartitionImage) -> dict[str, Any]:
    """The fields of a partition that Metadata and DescribeTopicPartitions have in common."""
    leader, code = _reachable_leader(reach, partition)
    return {
        "error_code": code,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": list(partition.isr),
        "offline_replicas": _offline_replicas(reach.alive, partition),
    }
