"""The answers that refuse a whole request, because nothing was done or the outcome is unknown. A pure module.

Kafka has such an answer for every API: the same code for each topic or resource of the request. A client shows the code
to its user; a closed connection would look like a dead broker.
"""

from collections.abc import Sequence
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
from minibroker.wire.schema import Request, Response, Struct
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.uuids import NO_UUID

Why = dict[str, Any]

_ELECTION_CODE_FROM = 1
# The fields that name a topic, a resource or a quota's entity, in a request and in its response.
_NAMES = {"name", "topic_id", "resource_type", "resource_name", "entity"}


def refusal(request: Request, version: int, code: ErrorCode, message: str) -> Response:
    """The answer that refuses a whole request for one reason."""
    why: Why = {"error_code": code, "error_message": message}
    if isinstance(request, ElectLeadersRequest):
        return _elect_leaders(request, version, why)
    assert request.schema.key is not None
    response = APIS[request.schema.key].response
    if "error_code" in _fields(response):
        # The response has one code for the whole request; its lists of results are empty.
        return response(**why, **_empty_lists(response))
    (results,) = (it for it in response.schema.fields if it.is_array)
    assert results.struct is not None
    return response(**{results.name: [_refused(it, results.struct, why) for it in _things(request)]})


def _things(request: Request) -> Sequence[Struct]:
    """The topics or resources of a request: its first field, if the API has a result for each of them."""
    things: list[Struct] = list(getattr(request, request.schema.fields[0].name))
    if isinstance(request, DeleteTopicsRequest):
        # Up to version 5 topics are a list of names; from version 6 on each topic is a name or an id.
        things += [DeleteTopicState(name=name, topic_id=NO_UUID) for name in request.topic_names]
    return things


def _refused(thing: Struct, result: type[Struct], why: Why) -> Struct:
    names = _NAMES & _fields(type(thing)) & _fields(result)
    return result(**_empty_lists(result) | {name: getattr(thing, name) for name in names} | why)


def _fields(table: type[Struct]) -> set[str]:
    return {it.name for it in table.schema.fields}


def _empty_lists(table: type[Struct]) -> Why:
    return {it.name: [] for it in table.schema.fields if it.is_array and it.default is REQUIRED}


def _resource(asked: Any) -> dict[str, Any]:
    return {"resource_type": asked.resource_type, "resource_name": asked.resource_name}


def _elect_leaders(request: ElectLeadersRequest, version: int, why: Why) -> Response:
    results = [
        ReplicaElectionResult(
            topic=topic.topic, partition_result=[PartitionResult(partition_id=it, **why) for it in topic.partitions]
        )
        for topic in request.topic_partitions or ()
    ]
    # The response to ElectLeaders has no error message for the whole request, and in version 0 no error code either.
    code = why["error_code"] if version >= _ELECTION_CODE_FROM else ErrorCode.NONE
    return ElectLeadersResponse(error_code=code, replica_election_results=results)
