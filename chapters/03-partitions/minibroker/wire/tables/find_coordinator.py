"""FindCoordinator (key 10): finds the coordinator of a group or of a transactional id. A pure module.

Version 1 adds transactional ids, version 4 many keys in one request (KIP-699).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Request, key=10, versions="0-4", flexible="3+"):
    """Ask for the coordinators of groups or transactional ids."""

    key: str = string(versions="0-3", default="", about="the group, or the transactional id")
    key_type: int = int8(versions="1+", default=0, about="the type of the keys: 0 groups, 1 transactional ids")
    coordinator_keys: list[str] = array(string, versions="4+", default=(), about="the groups, or the transactional ids")


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = string(versions="4+", about="the group, or the transactional id")
    node_id: int = int32(versions="4+", about="the coordinator's node id, or -1")
    host: str = string(versions="4+", about="the coordinator's host name or address")
    port: int = int32(versions="4+", about="the coordinator's port")
    error_code: int = int16(versions="4+", about="0, or why there is no coordinator")
    error_message: str | None = string(
        versions="4+", nullable="4+", default="", ignorable=True, about="the error message"
    )


class FindCoordinatorResponse(Response, key=10, versions="0-4", flexible="3+"):
    """The coordinators. Up to version 3 there is one, and its fields are in the response itself."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(versions="0-3", default=0, about="0, or why there is no coordinator")
    error_message: str | None = string(
        versions="1-3", nullable="1-3", default="", ignorable=True, about="the error message"
    )
    node_id: int = int32(versions="0-3", default=0, about="the coordinator's node id, or -1")
    host: str = string(versions="0-3", default="", about="the coordinator's host name or address")
    port: int = int32(versions="0-3", default=0, about="the coordinator's port")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+", default=(), about="one entry for each key")


declare(FindCoordinatorRequest, FindCoordinatorResponse)
