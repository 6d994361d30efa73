"""What a client learns of the cluster: ApiVersions, Metadata, FindCoordinator and their like. A pure module.

All of it is read out of the image: which nodes there are, which topics, who leads which partition. A client asks any
node, then talks to the leaders. Asking for a topic that does not exist may create it, if broker and client both agree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minibroker.metadata.authority import Authority
from minibroker.metadata.errors import InvalidTopicName
from minibroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from minibroker.metadata.names import check_topic_name, is_internal
from minibroker.partitions.errors import Refused
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from minibroker.wire.tables.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.wire.tables.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker.wire.uuids import NO_UUID

NOT_ASKED_FOR = -(2**31)
"""In place of a set of authorized operations: the client did not ask, or nobody is authorized here."""
NULL_NAMES_FROM_VERSION = 12
_BROKERS_ENDPOINT = 1
_CONTROLLERS_ENDPOINT = 2
_COORDINATED = (0, 1)  # groups, transactional ids


def api_versions(registry: Registry) -> Callable[[Call[ApiVersionsRequest]], Answer]:
    """The handler of ApiVersions."""

    def handler(call: Call[ApiVersionsRequest]) -> Answer:
        request = call.request
        names = (request.client_software_name, request.client_software_version)
        if call.version >= 3 and not all(_is_software_name(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=registry.ranges())

    return handler


def _is_software_name(name: str) -> bool:
    inside = name.replace(".", "").replace("-", "")
    return inside.isascii() and inside.isalnum() and name[0].isalnum() and name[-1].isalnum()


Myself = Callable[[], MetadataResponseBroker]
"""This node, as clients find it."""


class Describe:
    """The handlers that read the image. `create` makes topics that were asked for and do not exist."""

    def __init__(
        self,
        authority: Authority,
        *,
        create: Callable[[Sequence[str]], Mapping[str, ErrorCode]],
        is_auto_creating: Callable[[], bool],
        myself: "Myself | None" = None,
    ) -> None:
        """`myself` is this node if it forwards calls to the controller: then clients take it for the controller."""
        self._authority = authority
        self._create = create
        self._is_auto_creating = is_auto_creating
        self._myself = myself

    @property
    def _image(self) -> Image:
        return self._authority.image

    # Metadata ---------------------------------------------------------------------------------------------------------

    def metadata(self, call: Call[MetadataRequest]) -> Answer:
        """The handler of Metadata."""
        # In version 0 an empty list means all topics; since then null does, and an empty one means none.
        wanted = call.request.topics
        if wanted is None or (call.version == 0 and not wanted):
            topics = [self._topic(topic) for topic in self._image.topics.values()]
        else:
            # Who names a topic twice is answered once.
            unique = list({(it.name, it.topic_id): it for it in wanted}.values())
            # Before version 4 a client could not say whether it wants topics to be created, and did.
            refused: Mapping[str, ErrorCode] = {}
            if self._is_auto_creating() and (call.version < 4 or call.request.allow_auto_topic_creation):
                refused = self._create_missing(unique)
            topics = [self._wanted(it, call.version, refused) for it in unique]
        image = self._image
        alive = [
            MetadataResponseBroker(node_id=it.node_id, host=it.host, port=it.port, rack=it.rack) for it in _alive(image)
        ]
        # All may be fenced. Told that there are no brokers, librdkafka forgets those that it knows, for good.
        brokers = alive or ([self._myself()] if self._myself is not None else [])
        return MetadataResponse(
            brokers=brokers,
            cluster_id=image.cluster_id,
            controller_id=self._controller(image) if alive else brokers[0].node_id if brokers else NO_LEADER,
            topics=topics,
        )

    def _create_missing(self, wanted: Iterable[MetadataRequestTopic]) -> Mapping[str, ErrorCode]:
        """Create the topics that do not exist, all at once; return why some could not be."""
        names = [it.name for it in wanted if it.name is not None and it.name not in self._image.topics]
        return self._create(names) if names else {}

    def _wanted(
        self, wanted: MetadataRequestTopic, version: int, refused: Mapping[str, ErrorCode]
    ) -> MetadataResponseTopic:
        try:
            return self._topic(self._find(wanted, version))
        except Refused as refusal:
            return MetadataResponseTopic(
                error_code=refused.get(wanted.name or "", refusal.code),
                name=wanted.name if version >= NULL_NAMES_FROM_VERSION else wanted.name or "",
                topic_id=wanted.topic_id,
                is_internal=wanted.name is not None and is_internal(wanted.name),
                partitions=[],
            )

    def _find(self, wanted: MetadataRequestTopic, version: int) -> TopicImage:
        has_id = wanted.topic_id != NO_UUID
        if (version < NULL_NAMES_FROM_VERSION and has_id) or (wanted.name is None and not has_id):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"topics are found by id from version {NULL_NAMES_FROM_VERSION} on"
            )
        if wanted.name is not None:
            return find_topic(self._image, wanted.name)
        name = self._image.topic_names.get(wanted.topic_id)
        if name is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return self._image.topics[name]

    def _topic(self, topic: TopicImage) -> MetadataResponseTopic:
        alive = frozenset(self._image.live_brokers())
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=[_partition(alive, index, it) for index, it in sorted(topic.partitions.items())],
        )

    # DescribeCluster --------------------------------------------------------------------------------------------------

    def cluster(self, call: Call[DescribeClusterRequest]) -> Answer:
        """The handler of DescribeCluster."""
        image = self._image
        if call.request.endpoint_type != _BROKERS_ENDPOINT:
            is_known = call.request.endpoint_type == _CONTROLLERS_ENDPOINT
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this listener is for brokers: ask it with endpoint type 1",
                endpoint_type=_BROKERS_ENDPOINT,
                cluster_id=image.cluster_id,
                brokers=[],
            )
        shown = [
            broker
            for _node_id, broker in sorted(image.brokers.items())
            if not broker.is_fenced or call.request.include_fenced_brokers
        ]
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            endpoint_type=_BROKERS_ENDPOINT,
            cluster_id=image.cluster_id,
            controller_id=self._controller(image),
            brokers=[
                DescribeClusterBroker(
                    broker_id=it.node_id, host=it.host, port=it.port, rack=it.rack, is_fenced=it.is_fenced
                )
                for it in shown
            ],
        )

    def _controller(self, image: Image) -> int:
        """The node that clients send administrative calls to.

        A node that forwards such calls names itself (KIP-590): librdkafka waits for the one that is named even if it is
        dead, and a client that reads this answer can reach this node.
        """
        myself = None if self._myself is None else self._myself().node_id
        live = image.live_brokers()
        # Any broker takes administrative requests, so the first one alive will do.
        return myself if myself in live else next(iter(live), NO_LEADER)

    # FindCoordinator --------------------------------------------------------------------------------------------------

    def coordinator(self, call: Call[FindCoordinatorRequest]) -> Answer:
        """The handler of FindCoordinator: the one node there is, for whatever key.

        Groups and transactions are chapter 06's, and their APIs are not announced. This one is, because librdkafka
        concludes from it whether a broker understands lz4: without it, a producer that was told to use lz4 sends its
        records uncompressed, and says nothing.
        """
        request = call.request
        keys = [request.key] if call.version < 4 else request.coordinator_keys
        found = [self._coordinator(key, request.key_type) for key in keys]
        if call.version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        (only,) = found
        return FindCoordinatorResponse(
            error_code=only.error_code,
            error_message=only.error_message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )

    def _coordinator(self, key: str, key_type: int) -> Coordinator:
        broker = next(iter(_alive(self._image)), None)
        if key_type not in _COORDINATED or broker is None:
            code = ErrorCode.INVALID_REQUEST if broker is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE
            message = f"no coordinator for keys of type {key_type}: 0 are groups, 1 are transactional ids"
            return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
        return Coordinator(
            key=key,
            node_id=broker.node_id,
            host=broker.host,
            port=broker.port,
            error_code=ErrorCode.NONE,
            error_message=None,
        )


def find_topic(image: Image, name: str) -> TopicImage:
    """The topic of a name, or why there is none."""
    topic = image.topics.get(name)
    if topic is not None:
        return topic
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")


def _alive(image: Image) -> Iterable[BrokerImage]:
    return (broker for _node_id, broker in sorted(image.brokers.items()) if not broker.is_fenced)


def _offline_replicas(alive: frozenset[int], partition: PartitionImage) -> list[int]:
    """The replicas of a partition that cannot be reached."""
    return [node_id for node_id in partition.replicas if node_id not in alive]


def _reachable_leader(alive: frozenset[int], partition: PartitionImage) -> tuple[int, ErrorCode]:
    """The leader that clients are told, and the code beside it."""
    # One that cannot be reached is none: a client that was sent to it would only try, and fail, and ask again.
    if partition.leader in alive:
        return partition.leader, ErrorCode.NONE
    return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE


def _partition(alive: frozenset[int], index: int, partition: PartitionImage) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, **partition_fields(alive, partition))


def partition_fields(alive: frozenset[int], partition: PartitionImage) -> dict[str, Any]:
    """What clients are told of a partition, in whichever answer."""
    leader, code = _reachable_leader(alive, partition)
    return {
        "error_code": code,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": list(partition.isr),
        "offline_replicas": _offline_replicas(alive, partition),
    }
