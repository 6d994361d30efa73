"""What is answered where nothing of a request could be done, or it is unknown whether it was. A pure module.

Kafka has such an answer for every API: the same code for each thing that was asked for. A client knows what to make of
it, and says so; a connection that ends it takes for a broker that died.
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
# The fields that say, in a request and in its response, which topic or resource is meant.
_NAMES = {"name", "topic_id", "resource_type", "resource_name"}


def refusal(request: Request, version: int, code: ErrorCode, message: str) -> Response:
    """The answer that refuses the whole of a request, for one reason."""
    why: Why = {"error_code": code, "error_message": message}
    if isinstance(request, ElectLeadersRequest):
        return _elect_leaders(request, version, why)
    assert request.schema.key is not None
    response = APIS[request.schema.key].response
    if "error_code" in _fields(response):
        # One code for all that is asked, and perhaps a list of what was done, which is empty.
        return response(**why, **_empty_lists(response))
    (results,) = (it for it in response.schema.fields if it.is_array)
    assert results.struct is not None
    return response(**{results.name: [_refused(it, results.struct, why) for it in _things(request)]})


def _things(request: Request) -> Sequence[Struct]:
    """What a request asks for: its first field in each API that answers for each thing by itself."""
    things: list[Struct] = list(getattr(request, request.schema.fields[0].name))
    if isinstance(request, DeleteTopicsRequest):
        # Up to version 5 topics are a list of names; then each is a name or an id.
        things += [DeleteTopicState(name=name, topic_id=NO_UUID) for name in request.topic_names]
    return things


def _refused(thing: Struct, result: type[Struct], why: Why) -> Struct:
    names = _NAMES & _fields(type(thing)) & _fields(result)
    return result(**{name: getattr(thing, name) for name in names}, **why, **_empty_lists(result))


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
    # Version 0 has no code for all, and no version has a message for all.
    code = why["error_code"] if version >= _ELECTION_CODE_FROM else ErrorCode.NONE
    return ElectLeadersResponse(error_code=code, replica_election_results=results)
