"""What is answered where nothing of a request could be done, or it is unknown whether it was. A pure module.

Kafka has such an answer for every API: the same code for each thing that was asked for. A client knows what to make of
it, and says so; a connection that ends it takes for a broker that died.
"""

from collections.abc import Callable
from typing import Any

from minibroker.replication.tables.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.fields import REQUIRED
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables import alter_configs as replacing
from minibroker.wire.tables import incremental_alter_configs as incremental
from minibroker.wire.tables.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from minibroker.wire.tables.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from minibroker.wire.tables.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from minibroker.wire.tables.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from minibroker.wire.uuids import NO_UUID

Why = dict[str, Any]

_ELECTION_CODE_FROM = 1


def refusal(request: Request, version: int, code: ErrorCode, message: str) -> Response:
    """The answer that refuses the whole of a request, for one reason."""
    why: Why = {"error_code": code, "error_message": message}
    if isinstance(request, ElectLeadersRequest):
        return _elect_leaders(request, version, why)
    refuse = _REFUSALS.get(type(request))
    if refuse is not None:
        return refuse(request, why)
    # The others have one code for all that they ask, and perhaps a list of what was done, which is empty.
    assert request.schema.key is not None
    response = APIS[request.schema.key].response
    nothing: Why = {it.name: [] for it in response.schema.fields if it.is_array and it.default is REQUIRED}
    return response(**why, **nothing)


def _create_topics(request: CreateTopicsRequest, why: Why) -> Response:
    topics = [
        # Never null: the Java client takes null for a broker that hides them, and throws.
        CreatableTopicResult(name=it.name, configs=[], **why)
        for it in request.topics
    ]
    return CreateTopicsResponse(topics=topics)


def _delete_topics(request: DeleteTopicsRequest, why: Why) -> Response:
    # Up to version 5 topics are a list of names; then each is a name or an id.
    named: list[tuple[str | None, bytes]] = [(name, NO_UUID) for name in request.topic_names]
    named += [(it.name, bytes(it.topic_id)) for it in request.topics]
    return DeleteTopicsResponse(
        responses=[DeletableTopicResult(name=name, topic_id=topic_id, **why) for name, topic_id in named]
    )


def _create_partitions(request: CreatePartitionsRequest, why: Why) -> Response:
    return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name=it.name, **why) for it in request.topics])


def _replace_configs(request: replacing.AlterConfigsRequest, why: Why) -> Response:
    resources = [replacing.AlterConfigsResourceResponse(**_resource(it), **why) for it in request.resources]
    return replacing.AlterConfigsResponse(responses=resources)


def _alter_configs(request: incremental.IncrementalAlterConfigsRequest, why: Why) -> Response:
    resources = [incremental.AlterConfigsResourceResponse(**_resource(it), **why) for it in request.resources]
    return incremental.IncrementalAlterConfigsResponse(responses=resources)


def _describe_configs(request: DescribeConfigsRequest, why: Why) -> Response:
    results = [DescribeConfigsResult(configs=[], **_resource(it), **why) for it in request.resources]
    return DescribeConfigsResponse(results=results)


def _resource(asked: Any) -> dict[str, Any]:
    return {"resource_type": asked.resource_type, "resource_name": asked.resource_name}


def _elect_leaders(request: ElectLeadersRequest, version: int, why: Why) -> Response:
    results = [
        ReplicaElectionResult(
            topic=topic.topic, partition_result=[PartitionResult(partition_id=it, **why) for it in topic.partitions]
        )
        for topic in request.topic_partitions or ()
    ]
    # Version 0 has no code for all, and no version has a message for all.
    code = why["error_code"] if version >= _ELECTION_CODE_FROM else ErrorCode.NONE
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


_REFUSALS: dict[type[Request], Callable[[Any, Why], Response]] = {
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: _create_partitions,
    replacing.AlterConfigsRequest: _replace_configs,
    incremental.IncrementalAlterConfigsRequest: _alter_configs,
    DescribeConfigsRequest: _describe_configs,
}
