"""Metadata (key 3): the brokers, the topics, and which broker leads which partition. A pure module.

In version 0 an empty list of topics means all; from version 1 on it means none, and null means all. Version 10 adds
topic ids to answers, version 12 to requests (KIP-516); version 13 adds an error for the whole answer (KIP-1102).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, uuid
from minibroker.wire.uuids import NO_UUID

NO_AUTHORIZED_OPERATIONS = -(2**31)  # the client did not ask


class MetadataRequestTopic(Struct):
    """One topic asked for, by id or by name."""

    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic; only from version 12 on")
    name: str | None = string(nullable="10+", about="the topic, or null if it is asked for by id")


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Who leads what?"""

    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic, nullable="1+", about="the topics asked for; null means all"
    )
    allow_auto_topic_creation: bool = boolean(
        versions="4+", default=True, about="whether a missing topic may be created, if the broker does that"
    )
    include_cluster_authorized_operations: bool = boolean(
        versions="8-10", default=False, about="moved to DescribeCluster"
    )
    include_topic_authorized_operations: bool = boolean(
        versions="8+", default=False, about="whether to say what the client may do with each topic"
    )


class MetadataResponseBroker(Struct):
    """One living broker."""

    node_id: int = int32(about="the broker")
    host: str = string(about="its host name or address")
    port: int = int32(about="its port")
    rack: str | None = string(
        versions="1+", nullable="1+", default=None, ignorable=True, about="its rack, if it has one"
    )


class MetadataResponsePartition(Struct):
    """One partition of a topic."""

    error_code: int = int16(about="0, or LEADER_NOT_AVAILABLE and the like")
    partition_index: int = int32(about="the partition")
    leader_id: int = int32(about="the broker to produce to and to fetch from, -1 if there is none")
    leader_epoch: int = int32(
        versions="7+", default=-1, ignorable=True, about="grows with each election, so that old news can be told apart"
    )
    replica_nodes: list[int] = array(int32, about="the brokers that hold it, the preferred leader first")
    isr_nodes: list[int] = array(int32, about="those of them that are in sync")
    offline_replicas: list[int] = array(
        int32, versions="5+", default=(), ignorable=True, about="those of them that are down"
    )


class MetadataResponseTopic(Struct):
    """One topic."""

    error_code: int = int16(about="0, or why there is nothing to say about the topic")
    name: str | None = string(nullable="12+", about="its name; null if an id was asked for that nobody knows")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="its id")
    is_internal: bool = boolean(
        versions="1+", default=False, ignorable=True, about="whether it is the brokers' own, such as __consumer_offsets"
    )
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, about="its partitions")
    topic_authorized_operations: int = int32(
        versions="8+", default=NO_AUTHORIZED_OPERATIONS, about="a bit for each thing the client may do with it"
    )


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """The cluster as the broker sees it."""

    throttle_time_ms: int = int32(
        versions="3+", default=0, ignorable=True, about="how long the client is not read because of a quota"
    )
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, about="the living brokers")
    cluster_id: str | None = string(
        versions="2+", nullable="2+", default=None, ignorable=True, about="the cluster's id"
    )
    controller_id: int = int32(versions="1+", default=-1, ignorable=True, about="the broker to send administration to")
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, about="the topics asked for")
    cluster_authorized_operations: int = int32(
        versions="8-10", default=NO_AUTHORIZED_OPERATIONS, about="moved to DescribeCluster"
    )
    error_code: int = int16(versions="13+", default=0, ignorable=True, about="0, or an error of the whole request")


declare(MetadataRequest, MetadataResponse)
