"""Metadata (key 3): the brokers, the topics, and the leader of each partition. A pure module.

In version 0 an empty list of topics means all topics; from version 1 on it means none, and null means all. Version 10
adds topic ids to responses, version 12 to requests (KIP-516); version 13 adds an error for the whole response
(KIP-1102).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, uuid
from minibroker.wire.uuids import NO_UUID

NO_AUTHORIZED_OPERATIONS = -(2**31)  # not requested


class MetadataRequestTopic(Struct):
    """One topic, by id or by name."""

    topic_id: bytes = uuid(
        versions="10+", default=NO_UUID, ignorable=True, about="the topic's id; used from version 12 on"
    )
    name: str | None = string(nullable="10+", about="the topic's name, or null if the id is given")


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Ask for the brokers, the topics and their leaders."""

    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic, nullable="1+", about="the topics; null means all"
    )
    allow_auto_topic_creation: bool = boolean(
        versions="4+", default=True, about="whether a missing topic may be created, if the broker allows it"
    )
    include_cluster_authorized_operations: bool = boolean(
        versions="8-10", default=False, about="moved to DescribeCluster"
    )
    include_topic_authorized_operations: bool = boolean(
        versions="8+", default=False, about="whether to include the operations that the client may do on each topic"
    )


class MetadataResponseBroker(Struct):
    """One live broker."""

    node_id: int = int32(about="the broker")
    host: str = string(about="the node's host name or address")
    port: int = int32(about="the node's port")
    rack: str | None = string(
        versions="1+", nullable="1+", default=None, ignorable=True, about="the node's rack, if it has one"
    )


class MetadataResponsePartition(Struct):
    """One partition of a topic."""

    error_code: int = int16(about="0, or an error such as LEADER_NOT_AVAILABLE")
    partition_index: int = int32(about="the partition")
    leader_id: int = int32(about="the broker to produce to and to fetch from, -1 if there is none")
    leader_epoch: int = int32(
        versions="7+",
        default=-1,
        ignorable=True,
        about="the leader epoch, which grows with each election; a client detects old metadata by it",
    )
    replica_nodes: list[int] = array(int32, about="the brokers with a replica, the preferred leader first")
    isr_nodes: list[int] = array(int32, about="the in-sync replicas")
    offline_replicas: list[int] = array(
        int32, versions="5+", default=(), ignorable=True, about="the replicas on brokers that are down"
    )


class MetadataResponseTopic(Struct):
    """One topic."""

    error_code: int = int16(about="0, or why the topic cannot be described")
    name: str | None = string(nullable="12+", about="the topic's name; null if the id is unknown")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic's id")
    is_internal: bool = boolean(
        versions="1+",
        default=False,
        ignorable=True,
        about="whether the topic is internal, such as __consumer_offsets",
    )
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, about="the partitions of the topic")
    topic_authorized_operations: int = int32(
        versions="8+", default=NO_AUTHORIZED_OPERATIONS, about="one bit for each operation that the client may do"
    )


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """The cluster as the broker knows it."""

    throttle_time_ms: int = int32(
        versions="3+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, about="the live brokers")
    cluster_id: str | None = string(
        versions="2+", nullable="2+", default=None, ignorable=True, about="the cluster's id"
    )
    controller_id: int = int32(
        versions="1+", default=-1, ignorable=True, about="the broker to send administrative requests to"
    )
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, about="the topics of the request")
    cluster_authorized_operations: int = int32(
        versions="8-10", default=NO_AUTHORIZED_OPERATIONS, about="moved to DescribeCluster"
    )
    error_code: int = int16(versions="13+", default=0, ignorable=True, about="0, or an error of the whole request")


declare(MetadataRequest, MetadataResponse)
