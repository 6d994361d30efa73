"""ElectLeaders (key 43): elects the preferred leader of partitions, or any live replica. A pure module.

Version 1 adds unclean elections (KIP-460): a live replica outside the ISR becomes leader, and the records that it lacks
are lost.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, string

PREFERRED = 0
UNCLEAN = 1


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string(about="the topic")
    partitions: list[int] = array(int32, about="the topic's partitions")


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible="2+"):
    """Elect leaders for these partitions."""

    election_type: int = int8(
        versions="1+", default=PREFERRED, about="0: the preferred leader; 1: any live replica if none in sync is alive"
    )
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", about="the partitions; null means all"
    )
    timeout_ms: int = int32(default=60_000, about="how long the broker may wait for the elections")


class PartitionResult(Struct):
    """The result for one partition."""

    partition_id: int = int32(about="the partition")
    error_code: int = int16(about="0, or why there was no election")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


class ReplicaElectionResult(Struct):
    """The results for one topic's partitions."""

    topic: str = string(about="the topic")
    partition_result: list[PartitionResult] = array(PartitionResult, about="the topic's partitions")


class ElectLeadersResponse(Response, key=43, versions="0-2", flexible="2+"):
    """The results of the elections."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(versions="1+", default=0, about="0, or why the whole request was refused")
    replica_election_results: list[ReplicaElectionResult] = array(
        ReplicaElectionResult, about="one entry for each topic"
    )


declare(ElectLeadersRequest, ElectLeadersResponse)
