"""DeleteTopics (key 20): deletes topics and their records. A pure module.

Up to version 5 the request is a list of names. From version 6 on each topic is given by name or by id (KIP-516).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string, uuid
from minibroker.wire.uuids import NO_UUID


class DeleteTopicState(Struct):
    """One topic to delete, by name or by id."""

    name: str | None = string(
        versions="6+", nullable="6+", default=None, about="the topic's name, or null if the id is given"
    )
    topic_id: bytes = uuid(versions="6+", about="the topic's id, or zero if the name is given")


class DeleteTopicsRequest(Request, key=20, versions="1-6", flexible="4+"):
    """Delete topics."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+", default=(), about="the topics")
    topic_names: list[str] = array(
        string, versions="0-5", default=(), ignorable=True, about="the names of the topics, up to version 5"
    )
    timeout_ms: int = int32(about="how long the controller may take")


class DeletableTopicResult(Struct):
    """The result for one topic."""

    name: str | None = string(nullable="6+", about="the topic's name; null if the id is unknown")
    topic_id: bytes = uuid(versions="6+", default=NO_UUID, ignorable=True, about="the topic's id")
    error_code: int = int16(about="0, or why the topic was not deleted")
    error_message: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the error message, or null"
    )


class DeleteTopicsResponse(Response, key=20, versions="1-6", flexible="4+"):
    """The result for each topic."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, about="one entry for each topic")


declare(DeleteTopicsRequest, DeleteTopicsResponse)
