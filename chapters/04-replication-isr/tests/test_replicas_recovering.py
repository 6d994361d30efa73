"""GetReplicaLogInfo and the controller that asks with it: where the logs of live replicas end (KIP-966)."""

import asyncio
from types import SimpleNamespace
from typing import Any

from replication_nodes import NAME, TOPIC_ID
from replication_stage import Stage
from test_replication_answering import ask

from minibroker.client.errors import BrokerUnavailable
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.registry import Registry
from minibroker.replicas.recovering import Recovery
from minibroker.replication.authority import LogEnd
from minibroker.replication.log_info import PARTITIONS_MAX, GetReplicaLogInfo
from minibroker.replication.tables.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
    TopicPartitions,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode


def registry_of(stage: Stage, node_id: int) -> Registry:
    def topic_name(topic_id: bytes) -> str:
        if topic_id != TOPIC_ID:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "there is no such topic")
        return NAME.topic

    replica = stage.nodes[node_id].replica
    registry = Registry()
    handler = GetReplicaLogInfo(topic_name, lambda name: replica if name == NAME else None, lambda: 17)
    registry.add(ApiKey.GET_REPLICA_LOG_INFO, handler)
    return registry


def log_info(registry: Registry, topic_id: bytes, *partitions: int) -> GetReplicaLogInfoResponse:
    wanted = [TopicPartitions(topic_id=topic_id, partitions=list(partitions))]
    response: GetReplicaLogInfoResponse = ask(registry, GetReplicaLogInfoRequest(topic_partitions=wanted))
    return response


def facts(response: GetReplicaLogInfoResponse) -> list[tuple[int, int, int, int]]:
    return [
        (it.partition, it.last_written_leader_epoch, it.log_end_offset, it.error_code)
        for topic in response.topic_partition_log_info_list
        for it in topic.partition_log_info
    ]


def test_a_replica_says_where_its_log_ends_and_in_which_epoch_it_was_written() -> None:
    stage = Stage()
    stage.play("> nodes 1 2 3\n> produce a b c\n> fetch 2\n> fetch 2")
    leader, follower, behind = (log_info(registry_of(stage, it), TOPIC_ID, 0) for it in (1, 2, 3))
    assert leader.broker_epoch == 17
    assert facts(leader) == facts(follower) == [(0, 0, 3, 0)]
    assert facts(behind) == [(0, -1, 0, 0)]


def test_what_a_node_does_not_have_is_an_error_of_that_partition_alone() -> None:
    stage = Stage()
    stage.play("> nodes 1 2")
    registry = registry_of(stage, 1)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [it[3] for it in facts(log_info(registry, TOPIC_ID, 0, 4))] == [0, unknown]
    assert [it[3] for it in facts(log_info(registry, bytes(16), 0))] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_a_response_is_limited_and_says_so() -> None:
    stage = Stage()
    stage.play("> nodes 1 2")
    for count in (PARTITIONS_MAX, PARTITIONS_MAX + 1):
        response = log_info(registry_of(stage, 1), TOPIC_ID, *range(count))
        assert (len(facts(response)), response.truncated) == (PARTITIONS_MAX, count > PARTITIONS_MAX)


# Asking ---------------------------------------------------------------------------------------------------------------


class Peers(SimpleNamespace):
    """Nodes whose logs end at these offsets; others do not answer."""

    def __init__(self, **ends: int) -> None:
        super().__init__(ends=ends, asked=[])

    async def send(self, node_id: int, request: GetReplicaLogInfoRequest, *, timeout_ms: int) -> Any:
        assert timeout_ms > 0
        self.asked.append(node_id)
        if f"node{node_id}" not in self.ends:
            raise BrokerUnavailable(f"node {node_id} does not answer")
        return GetReplicaLogInfoResponse(
            broker_epoch=1,
            truncated=False,
            topic_partition_log_info_list=[
                TopicPartitionLogInfo(
                    topic_id=topic.topic_id,
                    partition_log_info=[
                        PartitionLogInfo(
                            partition=it,
                            last_written_leader_epoch=3,
                            current_leader_epoch=3,
                            log_end_offset=self.ends[f"node{node_id}"],
                            error_code=ErrorCode.NONE if it == 0 else ErrorCode.KAFKA_STORAGE_ERROR,
                        )
                        for it in topic.partitions
                    ],
                )
                for topic in request.topic_partitions or ()
            ],
        )


def image(*leaders: int) -> Image:
    partitions = {
        number: PartitionImage(replicas=(1, 2, 3), isr=(), leader=leader, leader_epoch=3, partition_epoch=5)
        for number, leader in enumerate(leaders)
    }
    topic = TopicImage(NAME.topic, TOPIC_ID, partitions)
    return Image(topics={NAME.topic: topic}, topic_names={TOPIC_ID: NAME.topic})


def test_the_controller_asks_the_live_replicas_of_partitions_that_have_no_live_leader() -> None:
    peers: Any = Peers(node1=10, node2=12)
    recovery = Recovery(peers, lambda: image(-1, 1, -1), lambda: [1, 2, 3])
    wanted = [TopicPartition(NAME.topic, it) for it in (0, 1, 2, 9)]
    # Node 3 does not answer, partition 1 has a leader, partition 2 has a broken log, and partition 9 does not exist.
    assert asyncio.run(recovery.log_ends(wanted)) == {NAME: {1: LogEnd(3, 10), 2: LogEnd(3, 12)}}
    assert peers.asked == [1, 2, 3]
    peers.asked.clear()
    assert asyncio.run(recovery.log_ends([TopicPartition(NAME.topic, 1)])) == {}
    assert peers.asked == []
